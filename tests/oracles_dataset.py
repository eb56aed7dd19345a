"""Datasets written in a slow, obvious way from lists of ids, and XXH64 as in its specification."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ramlet import Tokenizer, _native

END = "<|endoftext|>"
WORD = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64(data: bytes, seed: int = 0) -> int:
    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & WORD

    def mix(lane: int, word: int) -> int:
        return rotate((lane + word * P2) & WORD, 31) * P1 & WORD

    at = 0
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & WORD, (seed + P2) & WORD, seed & WORD, (seed - P1) & WORD]
        while at + 32 <= len(data):
            lanes = [mix(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at))]
            at += 32
        value = sum(rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & WORD
        for lane in lanes:
            value = ((value ^ mix(0, lane)) * P1 + P4) & WORD
    else:
        value = (seed + P5) & WORD
    value = (value + len(data)) & WORD
    while at + 8 <= len(data):
        value = (rotate(value ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & WORD
        at += 8
    if at + 4 <= len(data):
        value = (rotate(value ^ struct.unpack_from("<I", data, at)[0] * P1 & WORD, 23) * P2 + P3) & WORD
        at += 4
    for byte in data[at:]:
        value = rotate(value ^ byte * P5 & WORD, 11) * P1 & WORD
    value = (value ^ value >> 33) * P2 & WORD
    value = (value ^ value >> 29) * P3 & WORD
    return value ^ value >> 32


def slow_xxh64_file(path: str, start: int = 0) -> tuple[int, int]:
    data = Path(path).read_bytes()[start:]
    return xxh64(data), len(data)


@pytest.fixture(autouse=True)
def checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the slow checksum if the native module was built without one."""
    if not hasattr(_native, "xxh64_file"):
        monkeypatch.setattr(_native, "xxh64_file", slow_xxh64_file, raising=False)


def byte_tokenizer(*, large: bool = False) -> Tokenizer:
    """256 bytes and an end-of-text token with id 256, or 70,001 with `large`."""
    vocabulary = {byte: bytes([byte]) for byte in range(256)}
    if large:
        vocabulary.update({number: b"#%d" % number for number in range(256, 70_001)})
    return Tokenizer.from_merges(vocabulary, [], [END])


def write_dataset(
    folder: Path,
    train: Sequence[Sequence[int]],
    val: Sequence[Sequence[int]] = (),
    *,
    tokenizer: Tokenizer | None = None,
    end: bool = True,
    tokens_per_shard: int = 100,
    pack: int | None = None,
    run: str = "0123456789abcdef",
) -> Path:
    """Writes a valid dataset of these documents, given without end ids; packing is next-fit."""
    tokenizer = tokenizer or byte_tokenizer()
    end_id = tokenizer.end_of_text if end else None
    wide = tokenizer.vocab_size > 1 << 16
    folder.mkdir(parents=True)
    tokenizer.save(folder / "tokenizer.json")
    documents = {
        name: [[*document, *([] if end_id is None else [end_id])] for document in given]
        for name, given in (("train", train), ("val", val))
    }
    pad_id = end_id or 0
    splits: dict[str, Any] = {}
    padding = pieces = truncated = 0
    for name, whole in documents.items():
        (folder / name).mkdir()
        if pack is None:
            shards = whole_shards(whole, tokens_per_shard)
        else:
            shards = packed_shards(whole, tokens_per_shard, pack, pad_id)
            truncated += sum(len(document) > pack for document in whole)
        listed = []
        for number, (ids, ends) in enumerate(shards):
            file, index = f"{name}/shard_{number:05}.bin", f"{name}/shard_{number:05}.idx"
            (folder / file).write_bytes(struct.pack(f"<{len(ids)}{'I' if wide else 'H'}", *ids))
            (folder / index).write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
            pieces += len(ends)
            listed.append(
                {
                    "file": file,
                    "index": index,
                    "tokens": len(ids),
                    "documents": len(ends),
                    "bytes": len(ids) * (4 if wide else 2),
                    "xxh64": f"{xxh64((folder / file).read_bytes()):016x}",
                    "index_xxh64": f"{xxh64((folder / index).read_bytes()):016x}",
                    "run": 0,
                }
            )
        tokens = sum(one["tokens"] for one in listed)
        padding += tokens - sum(map(len, whole))
        splits[name] = {"tokens": tokens, "documents": sum(one["documents"] for one in listed), "shards": listed}
    everything = documents["train"] + documents["val"]
    size = sum(map(len, everything)) - (0 if end_id is None else len(everything))
    account = ledger(len(everything), size, {name: split["tokens"] for name, split in splits.items()})
    account["tokens"].update(end_ids=0 if end_id is None else len(everything), padding=padding)
    lengths = [0] * 12
    for document in everything:
        lengths[(len(document) - (end_id is not None)).bit_length() - 1] += 1
    manifest = {
        "format": "ramlet dataset",
        "version": 1,
        "created_by": "ramlet 0.1.0",
        "dtype": "uint32" if wide else "uint16",
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {
            "file": "tokenizer.json",
            "fingerprint": tokenizer.fingerprint,
            "kind": tokenizer.kind,
            "name": "bytes",
        },
        "end_id": end_id,
        "packed": None
        if pack is None
        else {
            "sequence_length": pack,
            "pad_id": pad_id,
            "sequences": sum(split["tokens"] for split in splits.values()) // pack,
            "padding": padding,
            "truncated_documents": truncated,
            "pieces": pieces,
        },
        "max_tokens": None,
        "tokens_per_shard": tokens_per_shard,
        "val_fraction": 0.1,
        "splits": splits,
        "ledger": account,
        "lengths": lengths,
        "examples": {"too_short": [{"file": "a.jsonl", "document": 17, "text": "hm\x1b[31m"}]},
        "runs": [
            {
                "id": run,
                "settings": {},
                "inputs": {"fingerprint": "ab", "files": 1, "bytes": 10},
                "ledger": account,
            }
        ],
    }
    (folder / "dataset_metadata.json").write_text(json.dumps(manifest))
    (folder / "stats.json").write_text("{}")
    return folder


def whole_shards(documents: Sequence[list[int]], most: int) -> list[tuple[list[int], list[int]]]:
    shards: list[tuple[list[int], list[int]]] = []
    for document in documents:
        if not shards or len(shards[-1][0]) + len(document) > most:
            shards.append(([], []))
        ids, ends = shards[-1]
        ids += document
        ends.append(len(ids))
    return shards


def packed_shards(
    documents: Sequence[list[int]], most: int, length: int, pad: int
) -> list[tuple[list[int], list[int]]]:
    sequences: list[list[list[int]]] = []
    for document in documents:
        for start in range(0, len(document), length):
            piece = document[start : start + length]
            if not sequences or sum(map(len, sequences[-1])) + len(piece) > length:
                sequences.append([])
            sequences[-1].append(piece)
    shards: list[tuple[list[int], list[int]]] = []
    for sequence in sequences:
        if not shards or len(shards[-1][0]) + length > most:
            shards.append(([], []))
        ids, ends = shards[-1]
        for piece in sequence:
            ids += piece
            ends.append(len(ids))
        ids += [pad] * (-len(ids) % length)
    return shards


def ledger(kept: int, size: int, tokens: dict[str, int]) -> dict[str, Any]:
    """For `kept` documents, two that were too short, and one line of seven bytes that was too long."""
    rules = "empty too_short too_long symbols repeated_lines bad_encoding duplicate too_few_tokens too_many_tokens"
    documents = dict.fromkeys(rules.split(), 0)
    lines = dict.fromkeys(["line_too_short", "line_too_long", "line_symbols", "duplicate_line"], 0)
    return {
        "documents": {"read": kept + 1, "cut": 1, "kept": kept, "dropped": {**documents, "too_short": 2}},
        "lines": {"dropped": {**lines, "line_too_long": 1}},
        "bytes": {
            "read": size + 5 + 7 - 3,
            "kept": size,
            "dropped": {**documents, "too_short": 5},
            "lines_dropped": {**lines, "line_too_long": 7},
            "normalised": -3,
        },
        "tokens": {**tokens, "end_ids": 0, "padding": 0},
        "characters": size,
        "input": {
            "files": 1,
            "bytes_on_disk": 99,
            "broken_records": 0,
            "broken_files": 0,
            "invalid_utf8": 0,
            "skipped_files": {"binary": 1},
        },
    }
