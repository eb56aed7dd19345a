"""Reference implementation of `prepare`: slow and obvious, from documents to shards and the ledger.

Documents are lists of texts in input order. Reading documents from files is tested elsewhere (`test_sources.py`,
`rust/source`); `read_text` has the little that is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import oracles_clean
from ramlet.dataset.ledger import RULES
from ramlet.preparing.settings import PrepareSettings
from ramlet.tokenizer.tokenizer import Tokenizer

DOCUMENT_RULES, LINE_RULES = (tuple(rule.name for rule in RULES if rule.unit == unit) for unit in ("document", "line"))
SPLITS = ("train", "val")


@dataclass
class Document:
    """A document that is kept, or a piece of one that had too many tokens."""

    text: str
    ids: list[int]
    """Including the end id."""

    first_piece: bool = True


@dataclass
class Expected:
    """The expected contents of a dataset."""

    splits: dict[str, list[Document]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    read: int = 0
    cut: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOCUMENT_RULES, 0))
    lines_dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LINE_RULES, 0))
    bytes_read: int = 0
    bytes_kept: int = 0
    characters: int = 0
    lengths: list[int] = field(default_factory=list)

    def ids(self, split: str) -> list[list[int]]:
        return [document.ids for document in self.splits[split]]


def read_text(text: str, documents: str, separator: str | None = None) -> list[str]:
    """The documents of a text file."""
    if separator is not None:
        found = text.split(separator)
        return found if found[-1] else found[:-1]
    if documents == "file":
        return [text]
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def cut(text: str, limit: int) -> list[str]:
    """Parts of at most `limit` bytes: split after a blank line in the second half, else a line end, else a blank."""
    parts = []
    while len(text.encode()) > limit:
        prefix = text.encode()[:limit].decode(errors="ignore")
        # In latin-1 one character is one byte, so positions are byte offsets.
        raw = prefix.encode().decode("latin-1")
        place = 0
        for endings in (("\n\n", "\n\r\n"), ("\n",), (" ", "\t")):
            places = [raw.rfind(ending) + len(ending) for ending in endings if ending in raw]
            if max(places, default=0) > limit // 2:
                place = max(places)
                break
        first = raw[: place or len(raw)].encode("latin-1").decode()
        parts.append(first)
        text = text[len(first) :]
    # Nothing remains if the last cut was at the end of the text.
    return [*parts, text] if text or not parts else parts


def without_known_lines(text: str, seen: set[str], arranged: bool) -> tuple[str, int]:
    """The text without duplicate lines, and how many were dropped. Blank lines are never dropped, only normalized."""
    kept: list[str] = []
    dropped = 0
    for line in text.split("\n"):
        if oracles_clean.is_blank(line):
            if kept:
                kept.append(line)
        elif line in seen:
            dropped += 1
        else:
            seen.add(line)
            kept.append(line)
    left = "\n".join(kept).rstrip("\n")
    if not dropped:
        return text, 0
    return (oracles_clean.arrange(left) if arranged else left), dropped


def prepare_slowly(
    documents: list[str],
    settings: PrepareSettings,
    tokenizer: Tokenizer,
    *,
    end_id: int | None,
    limit: int,
    moves: bool = True,
) -> Expected:
    """The whole pipeline. Documents over `limit` bytes are split; with `moves`, neither split of a dataset is empty."""
    made = Expected()
    seen: set[str] = set()
    hashes: dict[str, list[int]] = {"train": [], "val": []}
    for whole in documents:
        made.read += 1
        for at, part in enumerate(cut(whole, limit)):
            made.cut += at > 0
            made.bytes_read += len(part.encode())
            text, rule, lines = oracles_clean.clean(part, settings)
            for name, (count, _) in lines.items():
                made.lines_dropped[name] += count
            if rule is not None or text is None:
                made.dropped[str(rule)] += 1
                continue
            number = xxhash.xxh3_128_intdigest(text.encode()) % 2**64
            if settings.dedup == "doc":
                if text in seen:
                    made.dropped["duplicate"] += 1
                    continue
                seen.add(text)
            elif settings.dedup == "line":
                text, count = without_known_lines(text, seen, settings.normalize)
                made.lines_dropped["duplicate_line"] += count
                if not text:
                    made.dropped["duplicate"] += 1
                    continue
            _tokenize(text, number, settings, tokenizer, end_id, made, hashes)
    if moves and settings.val_fraction > 0:
        _move_one(made, hashes)
    return made


def _tokenize(
    text: str,
    number: int,
    settings: PrepareSettings,
    tokenizer: Tokenizer,
    end_id: int | None,
    made: Expected,
    hashes: dict[str, list[int]],
) -> None:
    ids = tokenizer.encode(text)
    most = settings.max_tokens or len(ids) or 1
    if len(ids) < max(1, settings.min_tokens):
        made.dropped["too_few_tokens"] += 1
        return
    if len(ids) > most and settings.long_documents == "drop":
        made.dropped["too_many_tokens"] += 1
        return
    pieces = [ids[at : at + most] for at in range(0, len(ids), most)]
    made.cut += len(pieces) - 1
    made.kept += len(pieces)
    made.bytes_kept += len(text.encode())
    made.characters += len(text)
    split = "val" if number < int(settings.val_fraction * 2.0**64) else "train"
    for at, piece in enumerate(pieces):
        made.splits[split].append(Document(text, piece + ([] if end_id is None else [end_id]), at == 0))
        hashes[split].append(number)
        log = len(piece).bit_length() - 1
        made.lengths += [0] * (log + 1 - len(made.lengths))
        made.lengths[log] += 1


def _move_one(made: Expected, hashes: dict[str, list[int]]) -> None:
    """If one split is empty, the document whose hash is nearest moves there. A single document is for training."""
    train, val = made.splits["train"], made.splits["val"]
    if not train and val:
        last = len(val) - 1 - hashes["val"][::-1].index(max(hashes["val"]))
        at = next(n for n in range(last, -1, -1) if val[n].first_piece)
        made.splits["train"], made.splits["val"] = _taken(val, at)
    elif not val and sum(document.first_piece for document in train) > 1:
        made.splits["val"], made.splits["train"] = _taken(train, hashes["train"].index(min(hashes["train"])))


def _taken(documents: list[Document], at: int) -> tuple[list[Document], list[Document]]:
    """The document that begins at `at`, with all its pieces, and the other documents."""
    end = next((n for n in range(at + 1, len(documents)) if documents[n].first_piece), len(documents))
    return documents[at:end], documents[:at] + documents[end:]


def shards(documents: list[list[int]], most: int) -> list[list[list[int]]]:
    """Shards of whole documents with at most `most` ids, or of one longer document."""
    made: list[list[list[int]]] = []
    for ids in documents:
        if not made or sum(map(len, made[-1])) + len(ids) > most:
            made.append([])
        made[-1].append(ids)
    return made


def pack(documents: list[list[int]], length: int) -> list[list[list[int]]]:
    """Packs pieces of at most `length` ids by best fit: longest first, into the sequence with the least space left."""
    pieces = [ids[at : at + length] for ids in documents for at in range(0, len(ids), length)]
    order = sorted(range(len(pieces)), key=lambda piece: (-len(pieces[piece]), piece))
    made: list[list[int]] = []
    for piece in order:
        room = {n: length - sum(len(pieces[one]) for one in inside) for n, inside in enumerate(made)}
        fitting = [(left, n) for n, left in room.items() if left >= len(pieces[piece])]
        if fitting:
            made[min(fitting)[1]].append(piece)
        else:
            made.append([piece])
    ordered = sorted((sorted(inside) for inside in made), key=lambda inside: inside[0])
    return [[pieces[piece] for piece in inside] for inside in ordered]


def shards_on_disk(folder: Path, manifest: dict[str, Any], split: str) -> list[list[list[int]]]:
    """The documents of every shard, read directly from its bytes."""
    kind = np.dtype("<u2" if manifest["dtype"] == "uint16" else "<u4")
    found = []
    for at, shard in enumerate(manifest["splits"][split]["shards"]):
        assert shard["file"] == f"{split}/shard_{at:05}.bin"
        raw = (folder / shard["file"]).read_bytes()
        index = (folder / shard["index"]).read_bytes()
        assert shard["bytes"] == len(raw)
        assert shard["xxh64"] == xxhash.xxh64_hexdigest(raw)
        assert shard["index_xxh64"] == xxhash.xxh64_hexdigest(index)
        ids, ends = np.frombuffer(raw, kind), np.frombuffer(index, "<u8")
        assert shard["tokens"] == len(ids)
        starts = [0, *ends[:-1].tolist()]
        if manifest["packed"]:
            length = manifest["packed"]["sequence_length"]
            starts = [
                -(-start // length) * length if end > -(-start // length) * length else start
                for start, end in zip(starts, ends.tolist())
            ]
        found.append([ids[start:end].tolist() for start, end in zip(starts, ends.tolist())])
    return found


def check_ledger(ledger: dict[str, Any], expected: Expected | None = None) -> None:
    """Checks that the ledger adds up and has the expected numbers."""
    documents, amounts = ledger["documents"], ledger["bytes"]
    assert documents["read"] + documents["cut"] == documents["kept"] + sum(documents["dropped"].values())
    accounted = sum(amounts["dropped"].values()) + sum(amounts["lines_dropped"].values()) + amounts["normalised"]
    assert amounts["read"] == amounts["kept"] + accounted
    assert set(documents["dropped"]) == set(amounts["dropped"]) == set(DOCUMENT_RULES)
    if expected is not None:
        assert documents == {
            "read": expected.read,
            "cut": expected.cut,
            "kept": expected.kept,
            "dropped": expected.dropped,
        }
        assert ledger["lines"]["dropped"] == expected.lines_dropped
        assert (amounts["read"], amounts["kept"]) == (expected.bytes_read, expected.bytes_kept)
        assert ledger["characters"] == expected.characters
