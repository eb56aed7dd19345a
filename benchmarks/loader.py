"""Batches for training from ids on disk: ramlet's loader and others in the same run.

    python benchmarks/loader.py            # all bars
    python benchmarks/loader.py --bar 1    # tokens per second on one thread, files in the page cache
    python benchmarks/loader.py --bar 2    # resident memory over an epoch of 2 GB
    python benchmarks/loader.py --bar 3    # the first batch of 10,000 shards

The ids are random, uint16: 1 billion in 20 shards for ramlet, the same in one file for nanoGPT's method, the first 50
million as rows for HF datasets (loader_worker.py describes each of them). All return int64 tensors, inputs and labels.
Every run is a separate process; the loaders take turns, and the numbers are medians of --repeats.

Prints a Markdown table and the checks with measured value and limit; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from bpe_train import HERE, check, print_checks, ramlet_python
from corpora import DATA
from measure import CommandFailed, Measurement, machine, markdown_table, measure, median, megabytes, warm

LIBRARIES = ["ramlet", "ramlet-ahead", "nanogpt", "hf"]
BATCHES = {"ramlet": 6000, "ramlet-ahead": 6000, "nanogpt": 6000, "hf": 300}
VOCABULARY = 50257
BLOCK = 10_000_000

Run = tuple[Measurement, dict[str, Any]]


def dataset(folder: Path, shards: int, tokens_each: int, *, one_file: bool) -> Path:
    """A dataset of random ids, written once; with `one_file` also as train.bin."""
    if (folder / "dataset_metadata.json").exists():
        return folder
    import numpy as np

    from ramlet.dataset import ledger
    from ramlet.dataset.manifest import Manifest, Shard, Split, TokenizerNote

    (folder / "train").mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(1)
    listed = []
    with open(folder / "train.bin", "wb") if one_file else open("/dev/null", "wb") as whole:
        for number in range(shards):
            file, index = Shard.names("train", number)
            with open(folder / file, "wb") as shard:
                for start in range(0, tokens_each, BLOCK):
                    size = min(BLOCK, tokens_each - start)
                    ids = chance.integers(0, VOCABULARY, size, dtype=np.uint16)
                    ids.tofile(shard)
                    ids.tofile(whole) if one_file else None
            listed.append(Shard(file, index, tokens_each, 1, 2 * tokens_each, f"{number:016x}", "0" * 16, 0))
    Manifest(
        dtype="uint16",
        vocab_size=VOCABULARY,
        tokenizer=TokenizerNote("tokenizer.json", "random", "bpe", "random"),
        end_id=None,
        packed=None,
        max_tokens=None,
        tokens_per_shard=tokens_each,
        val_fraction=0.0,
        splits={"train": Split.of(tuple(listed)), "val": Split.of(())},
        ledger=ledger.empty(),
    ).write(folder)
    return folder


def run_once(library: str, folder: Path, options: argparse.Namespace, *extra: str) -> Run:
    command = [options.ramlet_python, str(HERE / "loader_worker.py"), library, str(folder), *extra]
    run = measure(command, {"OMP_NUM_THREADS": "1", "HF_DATASETS_OFFLINE": "1"})
    return run, json.loads(run.output.strip().splitlines()[-1] if run.output.strip() else "{}")


def rate_of(runs: list[Run]) -> float:
    return median([report["tokens"] / 1e6 / report["seconds"] for _, report in runs])


def run_speed(options: argparse.Namespace, folder: Path) -> tuple[str, list[Any], dict[str, list[Run]]]:
    for path in sorted(folder.glob("**/*.bin")):
        warm(path)
    runs: dict[str, list[Run]] = {}
    for length in (1024, 256):
        if "hf" in options.libraries:
            run_once("hf", folder, options, "--prepare", "--seq-len", str(length))
        for _ in range(options.repeats):
            for library in options.libraries:
                extra = ["--seq-len", str(length), "--batches", str(BATCHES[library])]
                try:
                    got = run_once(library, folder, options, *extra)
                except CommandFailed as error:
                    print(f"  {library} failed: {error}", file=sys.stderr)
                    continue
                runs.setdefault(f"{library} {length}", []).append(got)
                print(f"  {library:<13} {length:>5} {rate_of([got]):8.1f} million tokens/s", file=sys.stderr)
    rows, checks = [], []
    for name, results in runs.items():
        library, length = name.split()
        ours, rate = rate_of(runs[f"ramlet {length}"]), rate_of(results)
        rows.append([library, length, f"{rate:.1f}", f"{ours / rate:.1f}"])
        if library == "ramlet":
            claim = f"million tokens per second on one thread, sequences of {length} in batches of 32"
            checks.append(check(claim, round(rate, 1), ">= 50", rate >= 50))
    return markdown_table(["loader", "seq_len", "million tokens/s", "ramlet's speed / its"], rows), checks, runs


def run_memory(options: argparse.Namespace, folder: Path) -> tuple[str, list[Any], dict[str, list[Run]]]:
    rows, checks = [], []
    runs: dict[str, list[Run]] = {}
    for library in [name for name in options.libraries if name != "hf"]:
        runs[library] = [run_once(library, folder, options, "--batches", "0")]
        report = runs[library][0][1]
        growth = report["resident_most"] - report["resident_at_first"]
        tokens = f"{report['tokens'] / 1e6:,.0f} million"
        rows.append([library, tokens, megabytes(report["resident_at_first"]), megabytes(growth)])
        if library.startswith("ramlet"):
            claim = f"{library}: growth of resident memory over an epoch of 2 GB, MB"
            checks.append(check(claim, round(growth / 1e6, 1), "< 64", growth < 64e6))
    return markdown_table(["loader", "tokens", "RSS at the first batch", "growth"], rows), checks, runs


def run_start(options: argparse.Namespace, folder: Path) -> tuple[str, list[Any], dict[str, list[Run]]]:
    runs = [run_once("ramlet-ahead", folder, options, "--batches", "200", "--arrays") for _ in range(options.repeats)]
    seconds = median([report["start_seconds"] for _, report in runs])
    rate = rate_of(runs)
    rows = [["ramlet", f"{seconds:.2f}", f"{rate:.1f}"]]
    claim = "seconds to the first batch of 10,000 shards, including imports"
    checks = [check(claim, round(seconds, 3), "< 1", seconds < 1)]
    header = ["10,000 shards", "seconds to the first batch", "million tokens/s"]
    return markdown_table(header, rows), checks, {"ramlet": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bar", type=int, choices=[1, 2, 3], action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--ramlet-python", help="the interpreter, with torch and datasets [default: .venv/bin/python]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    options.ramlet_python = ramlet_python(options.ramlet_python)
    few = dataset(DATA / "loader-20", 20, 50_000_000, one_file=True)
    many = dataset(DATA / "loader-10000", 10_000, 20_000, one_file=False)
    parts = {1: ("speed", run_speed, few), 2: ("memory", run_memory, few), 3: ("start", run_start, many)}
    kept: dict[str, Any] = {}
    for bar in options.bar or [1, 2, 3]:
        name, function, folder = parts[bar]
        shown, checks, runs = function(options, folder)
        print(f"\n## Bar {bar}, {name}\n\n{shown}\n")
        print_checks(checks)
        kept[name] = {
            "settings": {"repeats": options.repeats},
            "checks": checks,
            "runs": [
                {"loader": loader, **run.as_json(), "worker": report}
                for loader, results in runs.items()
                for run, report in results
            ],
        }
    if not options.no_results:
        today = datetime.date.today().isoformat()
        target = Path(HERE, "results", f"{today}-loader.json")
        target.parent.mkdir(exist_ok=True)
        before: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"date": today}
        target.write_text(json.dumps({**before, "machine": machine(), **kept}, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}")


if __name__ == "__main__":
    main()
