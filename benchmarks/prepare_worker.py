"""Prepares a jsonl sample as GPT-2 ids with one of the other tools; prepare.py runs it as a separate process.

    python benchmarks/prepare_worker.py datatrove benchmarks/data/gpt2.json FOLDER OUT

FOLDER contains the sample in two files, because both tools distribute work by files. They do not clean or deduplicate
here, only read, tokenize and write, which is to their advantage.

`datatrove`  JsonlReader and DocumentTokenizer under a LocalPipelineExecutor with two tasks and two workers. The
             documents stay in order (shuffle_documents=False), because shuffling would be one more pass.
`nanogpt`    what nanoGPT's data/openwebtext/prepare.py does: load_dataset, train_test_split, map with tiktoken
             document by document, then a np.memmap filled in 1,024 batches. A tenth goes to validation, as with ramlet.

Prints one JSON line: the seconds from the first call to the last byte, without imports and without loading the
vocabulary; the number of tokens including end ids; for datatrove a digest of all ids in order. `lines-digest` checks
deduplication: count and order-independent digest of the lines of a text file, or of the documents of a dataset.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

END_OF_TEXT = 50256
BATCHES = 1024  # nanoGPT's


def run_datatrove(vocabulary: Path, folder: Path, out: Path, workers: int) -> dict[str, Any]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokens = out / "tokens"
    start = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(folder), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                str(tokens), str(vocabulary.resolve()), eos_token="<|endoftext|>", shuffle_documents=False
            ),
        ],
        tasks=2,
        workers=workers,
        logging_dir=str(out / "logs"),
    ).run()
    seconds = time.perf_counter() - start
    digest, size = hashlib.sha256(), 0
    for path in sorted(tokens.glob("*.ds")):
        content = path.read_bytes()
        digest.update(content)
        size += len(content)
    return {
        "call_seconds": seconds,
        "tokens": size // 2,
        "ids_sha256": digest.hexdigest(),
        "version": f"datatrove {version('datatrove')}",
    }


def run_nanogpt(vocabulary: Path, folder: Path, out: Path, workers: int) -> dict[str, Any]:
    os.environ["HF_DATASETS_CACHE"] = str(out / "cache")  # a new cache for each run
    import numpy as np
    from datasets import load_dataset

    encoding = gpt2_of_tiktoken(vocabulary)

    def tokenise(example: dict[str, str]) -> dict[str, Any]:
        ids = encoding.encode_ordinary(example["text"])
        ids.append(END_OF_TEXT)
        return {"ids": ids, "len": len(ids)}

    start = time.perf_counter()
    files = sorted(map(str, folder.glob("*.jsonl")))
    loaded = load_dataset("json", data_files=files, split="train", num_proc=workers)
    splits = loaded.train_test_split(test_size=0.1, seed=2357, shuffle=True)
    tokenised = splits.map(tokenise, remove_columns=["text"], num_proc=workers)
    total = 0
    for name, rows in tokenised.items():
        length = int(np.sum(rows["len"], dtype=np.uint64))
        ids = np.memmap(out / f"{name}.bin", dtype=np.uint16, mode="w+", shape=(length,))
        batches, filled = min(BATCHES, len(rows)), 0
        for index in range(batches):
            batch = rows.shard(num_shards=batches, index=index, contiguous=True).with_format("numpy")
            piece = np.concatenate(batch["ids"])
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
        ids.flush()
        total += length
    return {
        "call_seconds": time.perf_counter() - start,
        "tokens": total,
        "version": f"datasets {version('datasets')}, tiktoken {version('tiktoken')}",
    }


def gpt2_of_tiktoken(vocabulary: Path) -> Any:
    """The same encoding as tiktoken's own, which it would download, from the file that all tools use."""
    import tiktoken

    from encode_worker import GPT2_PATTERN
    from train_worker import ALPHABET

    byte_of = {character: byte for byte, character in enumerate(ALPHABET)}
    vocab = json.loads(vocabulary.read_text(encoding="utf-8"))["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items() if rank < END_OF_TEXT}
    return tiktoken.Encoding("gpt2-from-file", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})


def lines_of(source: Path) -> Iterator[bytes]:
    """The lines of a text file, or the documents of a dataset with byte ids, without their line ends."""
    if source.is_file():
        with source.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\n")
        return
    import numpy as np

    for shard in json.loads((source / "dataset_metadata.json").read_text())["splits"]["train"]["shards"]:
        text = np.fromfile(source / shard["file"], dtype="<u2").astype(np.uint8).tobytes()
        start = 0
        for end in np.fromfile(source / shard["index"], dtype="<u8").tolist():
            yield text[start:end]
            start = end


def lines_digest(source: Path) -> dict[str, Any]:
    """A sum of 128-bit hashes, which depends on the set of lines but not on their order."""
    count = total = 0
    for line in lines_of(source):
        count += 1
        total += int.from_bytes(hashlib.blake2b(line, digest_size=16).digest(), "little")
    return {"lines": count, "digest": f"{total % 2**128:032x}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in ("datatrove", "nanogpt"):
        kind = kinds.add_parser(name)
        kind.add_argument("vocabulary", type=Path)
        kind.add_argument("folder", type=Path)
        kind.add_argument("out", type=Path)
        kind.add_argument("--threads", type=int, default=2)
    kinds.add_parser("lines-digest").add_argument("source", type=Path)
    options = parser.parse_args()
    if options.kind == "lines-digest":
        print(json.dumps(lines_digest(options.source)))
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    options.out.mkdir(parents=True)
    run = {"datatrove": run_datatrove, "nanogpt": run_nanogpt}[options.kind]
    report = run(options.vocabulary, options.folder, options.out, options.threads)
    report["bytes"] = sum(path.stat().st_size for path in options.folder.glob("*.jsonl"))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
