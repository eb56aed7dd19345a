"""Drops near-duplicates from jsonl files with one of the other tools; near.py runs it as a separate process.

    python benchmarks/near_worker.py datatrove FOLDER OUT
    python benchmarks/near_worker.py rensa FOLDER OUT --threshold 0.8

FOLDER contains the sample in two files, because datatrove distributes work by files. Neither tool tokenizes or cleans,
and neither compares documents on their shingles: both decide by MinHash alone, which is to their advantage.

`datatrove`  its four stages, signatures, buckets, clusters and filter, each under a LocalPipelineExecutor with two
             workers, and its defaults: word 5-grams of spaCy's English tokenizer, 14 buckets of 8 hashes. With 0.8 that
             finds 92% of the pairs. Everything in a cluster is dropped but one, by transitivity.
`datatrove-whitespace`  the same with its simplest tokenizer, which splits at whitespace.
`rensa`      RMinHashDeduplicator with 128 functions in 16 bands, in memory; Rust, on one thread, after Python has made
             the word 5-grams. `call_seconds` is all of it, `rust_seconds` only what runs in Rust.

Prints one JSON line: the seconds from the first call to the last byte, without imports; documents and those kept.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

WORDS = 5
FUNCTIONS, BANDS = 128, 16
BATCH = 1000
TOOLS = ("datatrove", "datatrove-whitespace", "rensa")


def lines_in(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as file:
            count += sum(1 for _ in file)
    return count


def run_datatrove(folder: Path, out: Path, workers: int, words: str) -> dict[str, Any]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.typeshelper import Languages
    from datatrove.utils.word_tokenizers import WhitespaceTokenizer

    language = WhitespaceTokenizer() if words == "whitespace" else Languages.english
    config = MinhashConfig(n_grams=WORDS)
    signatures, buckets, removed = (str(out / name) for name in ("signatures", "buckets", "removed"))
    reader = JsonlReader(str(folder), glob_pattern="*.jsonl")
    stages = {
        "signatures": (2, [reader, MinhashDedupSignature(signatures, config, language)]),
        "buckets": (config.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=config)]),
        "clusters": (1, [MinhashDedupCluster(buckets, removed, config=config)]),
        "filter": (2, [reader, MinhashDedupFilter(removed), JsonlWriter(str(out / "kept"), compression=None)]),
    }
    seconds = {}
    for name, (tasks, pipeline) in stages.items():
        start = time.perf_counter()
        logs = str(out / "logs" / name)
        LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=min(tasks, workers), logging_dir=logs).run()
        seconds[name] = time.perf_counter() - start
    return {
        "call_seconds": sum(seconds.values()),
        "stages": seconds,
        "kept": lines_in(out / "kept"),
        "version": f"datatrove {version('datatrove')}",
    }


def batches(folder: Path) -> Iterator[list[str]]:
    texts: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                texts.append(json.loads(line)["text"])
                if len(texts) == BATCH:
                    yield texts
                    texts = []
    yield texts


def run_rensa(folder: Path, out: Path, threshold: float) -> dict[str, Any]:
    from rensa import RMinHashDeduplicator

    start = time.perf_counter()
    within, number, kept = 0.0, 0, 0
    dedup = RMinHashDeduplicator(threshold=threshold, num_perm=FUNCTIONS, use_lsh=True, num_bands=BANDS)
    with (out / "kept.jsonl").open("w") as file:
        for texts in batches(folder):
            entries = []
            for text in texts:
                words = text.lower().split()
                shingles = [" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))]
                entries.append((str(number), shingles))
                number += 1
            called = time.perf_counter()
            stays = dedup.add_pairs(entries)
            within += time.perf_counter() - called
            for text, stay in zip(texts, stays):
                if stay:
                    kept += 1
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return {
        "call_seconds": time.perf_counter() - start,
        "rust_seconds": within,
        "kept": kept,
        "version": f"rensa {version('rensa')}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    options.out.mkdir(parents=True)
    if options.tool == "rensa":
        report = run_rensa(options.folder, options.out, options.threshold)
    else:
        words = options.tool.removeprefix("datatrove").removeprefix("-")
        report = run_datatrove(options.folder, options.out, options.threads, words)
    report["documents"] = lines_in(options.folder)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
