"""kill -9 at random moments: the same command resumes, and the dataset is byte-identical.

    python benchmarks/prepare_kills.py --kills 300

A round prepares a small input in many small tasks, killed and restarted until it finishes; then every file except
stats.json must be that of an uninterrupted run, no other file may remain, and `ramlet data verify` must succeed. Rounds
cover all cases: every input format, each kind of tokenizer, dedup by documents, by lines, with a cache and not at all,
packing, appending to a dataset, one to four threads. Only kills of a running process count. Most come after Python has
started, at a random moment within the time that the uninterrupted run took; every tenth counts from the start.

The run has its own process group, which is killed as a whole, including any child processes.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bpe_train import HERE, check, peers_python, print_checks, ramlet_python
from corpora import DATA
from measure import markdown_table

TASK_BYTES = 24_000
KILLS_A_ROUND = 25  # then it may finish, so that every round ends

CASES: dict[str, dict[str, Any]] = {
    "jsonl, gpt2, documents": {"inputs": ["a.jsonl", "b.jsonl"], "threads": 2},
    "text files, bytes, lines": {
        "inputs": ["texts"],
        "threads": 1,
        "settings": {"tokenizer": "byte", "dedup": "line", "tokens_per_shard": 50_000},
    },
    "gzip and zstd, characters": {
        "inputs": ["a.jsonl.gz", "b.jsonl.zst"],
        "threads": 3,
        "settings": {"tokenizer": "char", "tokens_per_shard": 100_000},
    },
    "parquet, packed": {"inputs": ["a.parquet"], "threads": 2, "settings": {"pack": 256, "tokens_per_shard": 20_000}},
    "lines as documents": {
        "inputs": ["lines.txt"],
        "threads": 4,
        "settings": {"documents": "line", "tokens_per_shard": 30_000},
    },
    "appended, packed": {
        "before": ["a.jsonl"],
        "inputs": ["b.jsonl", "texts"],
        "threads": 2,
        "settings": {"pack": 128, "dedup": "none"},
    },
    "near-duplicates, with a cache": {
        "before": ["a.jsonl"],
        "inputs": ["lines.txt", "b.jsonl"],
        "threads": 2,
        "cache": True,
        "settings": {"near": 0.7, "documents": "line"},
    },
    "appended, with a cache": {"before": ["a.parquet"], "inputs": ["b.jsonl"], "threads": 2, "cache": True},
}

STAGES = {
    "shards": "sharding",
    "near": "comparing texts",
    "near_pairs": "pairing",
    "tokens": "tokenizing",
    "drops": "comparing",
    "scan": "scanning",
}
"""The folders in `.work`, the last one first, and the stages that create them."""

# Prints a line after the imports, which take most of the time of such a small run: kills there would show nothing.
CHILD = """
import json, sys
from pathlib import Path
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
case = json.loads(sys.argv[1])
settings = PrepareSettings(**case["settings"])
print("started", flush=True)
with Meter(Budget.parse(case["memory"])) as meter:
    prepare_to(case["inputs"], Path(case["out"]), settings, meter=meter, threads=case["threads"],
               append=case["append"], own_tokenizer=case["append"], task_bytes=case["task_bytes"])
"""


class Failed(Exception):
    """A run that was not killed failed, or its result differs from the uninterrupted one."""


class Runner:
    """One case in one folder, always the same one, because the plan's name depends on the path."""

    def __init__(self, case: dict[str, Any], inputs: Path, folder: Path, python: str, memory: str) -> None:
        self.case, self.inputs, self.folder, self.python, self.memory = case, inputs, folder, python, memory

    def command(self, names: list[str], append: bool) -> list[str]:
        settings = dict(self.case.get("settings", {}))
        if self.case.get("cache"):
            settings["dedup_cache"] = str(self.folder / "cache")
        task = {
            "inputs": [str(self.inputs / name) for name in names],
            "out": str(self.folder / "dataset"),
            "settings": settings,
            "threads": self.case["threads"],
            "memory": self.memory,
            "append": append,
            "task_bytes": TASK_BYTES,
        }
        return [self.python, "-c", CHILD, json.dumps(task)]

    def begin(self) -> None:
        """Creates an empty folder, or one with the dataset to append to."""
        self.folder.mkdir()
        if "before" in self.case:
            self.run(self.command(self.case["before"], False), None)

    def finish_or_die(self, wait: float | None, from_start: bool = False) -> tuple[bool, float]:
        """(whether it was killed, seconds it ran). Without `wait` it is not killed."""
        return self.run(self.command(self.case["inputs"], "before" in self.case), wait, from_start)

    def run(self, command: list[str], wait: float | None, from_start: bool = False) -> tuple[bool, float]:
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            assert child.stdout is not None
            if not from_start:
                child.stdout.readline()
            start = time.perf_counter()
            try:
                child.wait(wait)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)
                raise
            finally:
                child.stdout.close()
            seconds = time.perf_counter() - start
            if child.returncode not in (0, -signal.SIGKILL):
                errors.seek(0)
                raise Failed(f"ended with {child.returncode}: {errors.read()[-3000:]}")
            return child.returncode != 0, seconds


def how_far(dataset: Path, appends: bool) -> str:
    """The stage that a killed run had reached, judging by its files."""
    work = dataset / ".work"
    if not appends and (dataset / "dataset_metadata.json").exists():
        return "cleaning up"
    for name, stage in STAGES.items():
        if (work / name).exists():
            return stage
    return "planning" if work.exists() else "starting, or cleaned up"


def files_under(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def differences(expected: Path, found: Path) -> list[str]:
    """Names of files that only one folder has or whose bytes differ; stats.json contains times and may differ."""
    one, other = files_under(expected), files_under(found)
    lone = sorted(one.keys() ^ other.keys())
    both = [name for name in one.keys() & other.keys() if Path(name).name != "stats.json"]
    return lone + sorted(name for name in both if not filecmp.cmp(one[name], other[name], shallow=False))


def verify(python: str, dataset: Path) -> str:
    """Empty if the dataset is valid, else the output of `ramlet data verify`."""
    command = [python, "-m", "ramlet", "data", "verify", str(dataset), "--quiet"]
    got = subprocess.run(command, capture_output=True, text=True)
    return "" if got.returncode == 0 else got.stdout + got.stderr


def round_of(runner: Runner, seconds: float, left: int, draw: random.Random, stages: Counter[str]) -> int:
    """One round; returns the number of kills that hit."""
    hits = 0
    runner.begin()
    while True:
        from_start = draw.random() < 0.1
        wait = draw.random() * seconds if hits < min(left, KILLS_A_ROUND) else None
        killed, _ = runner.finish_or_die(wait, from_start and wait is not None)
        if not killed:
            return hits
        hits += 1
        stages[how_far(runner.folder / "dataset", "before" in runner.case)] += 1


def kill_rounds(
    kills: int,
    seed: int,
    python: str,
    peers: str,
    memory: str = "256MB",
    cases: dict[str, dict[str, Any]] = CASES,
    maker: str = "prepare_inputs.py formats",
) -> dict[str, Any]:
    """`maker`: the script, and its argument before the folder, that creates the inputs of the cases."""
    draw = random.Random(seed)
    names = list(cases)
    rounds, hits, stages = Counter[str](), Counter[str](), Counter[str]()
    problems: list[str] = []
    undisturbed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=DATA, prefix="kills-") as scratch:
        inputs = Path(scratch, "inputs")
        script, kind = maker.split()
        subprocess.run([peers, str(HERE / script), kind, str(inputs)], check=True)
        number = 0
        while sum(hits.values()) < kills and len(problems) < 5:
            name = names[number % len(names)]
            number += 1
            expected = Path(scratch, f"expected-{names.index(name)}")
            runner = Runner(cases[name], inputs, Path(scratch, f"round-{names.index(name)}"), python, memory)
            try:
                if name not in undisturbed:
                    runner.begin()
                    _, undisturbed[name] = runner.finish_or_die(None)
                    runner.folder.rename(expected)
                hits[name] += round_of(runner, undisturbed[name], kills - sum(hits.values()), draw, stages)
                rounds[name] += 1
                problems += [f"{name}: {file} differs" for file in differences(expected, runner.folder)]
                if wrong := verify(python, runner.folder / "dataset"):
                    problems.append(f"{name}: {wrong}")
            except Failed as error:
                problems.append(f"{name}: {error}")
            shutil.rmtree(runner.folder, ignore_errors=True)
            print(f"  {sum(hits.values()):>4} kills, {number} rounds, {len(problems)} problems", file=sys.stderr)
    return {
        "kills": sum(hits.values()),
        "seed": seed,
        "cases": {name: {"rounds": rounds[name], "kills": hits[name]} for name in names},
        "stages": dict(stages),
        "undisturbed_seconds": undisturbed,
        "problems": problems,
    }


def kills_table(result: dict[str, Any]) -> str:
    rows = [[name, f"{of['rounds']}", f"{of['kills']}"] for name, of in result["cases"].items()]
    stages = [[stage, f"{count}"] for stage, count in sorted(result["stages"].items())]
    return (
        markdown_table(["case", "rounds", "kills"], rows)
        + "\n\n"
        + markdown_table(["the last stage that was started", "kills"], stages)
    )


def kills_checks(result: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
    problems = result["problems"]
    shown = "none" if not problems else "; ".join(problems)[:1000]
    return [
        check("kills that hit", result["kills"], f">= {wanted}", result["kills"] >= wanted),
        check("runs that differ, fail or do not verify", shown, "none", not problems),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", help="an interpreter with pyarrow [default: that of benchmarks/data/venv]")
    parser.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
    options = parser.parse_args()
    result = kill_rounds(
        options.kills, options.seed, ramlet_python(options.ramlet_python), peers_python(options.python)
    )
    print(kills_table(result))
    print_checks(kills_checks(result, options.kills))


if __name__ == "__main__":
    main()
