"""Every command must give the same bytes, whatever the budget, the number of threads and the interruptions.

    python benchmarks/same_result.py                      # all commands, about an hour
    python benchmarks/same_result.py --command train --runs 20
    python benchmarks/same_result.py --short              # what the tests run: a few runs per command

For each of tokenizer train, tokenizer encode, prepare, train (on a CPU) and eval: one run with plenty of memory is the
reference. Then it runs with the minimum budget that the command itself names, and with up to three times that, each
with a number of threads, uninterrupted or killed (SIGKILL, or SIGINT as for Ctrl-C) at random moments (--seed) and
restarted until it finishes. All output is compared byte by byte, except times and measured memory. The optimizer and
the dtype of the weights are fixed, because 8-bit states and bf16 weights change the result, with a note.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine_option import ENGINES, add_engine_option, with_engine

LARGEST = "8GB"
STEPS_ABOVE = (1.0, 1.01, 1.03, 1.1, 1.3, 3.0)
"""Budgets, as multiples of the smallest that works."""
engine = ENGINES[0]
"""Of all commands that have one (--engine)."""
NO_BUDGET = "1MB"
KILLS_A_RUN = 3
TIMES = ("tokens_per_second", "memory", "seconds", "time")
WORDS = [
    *("the", "a", "one", "red", "old", "small", "house", "tree", "river", "road", "sees", "finds", "keeps", "leaves"),
    *("under", "over", "near", "behind", "é", "漢字"),
]


@dataclass(frozen=True)
class Command:
    """One command: its arguments, and the part of its output that must not change."""

    arguments: Callable[[Path, Path], list[str]]
    """Takes the folder of all inputs and the output."""
    result: Callable[[Path, str], dict[str, str]]
    """Takes the output and what was printed."""
    made: str = ""
    """The name of its result in the inputs of later commands."""


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _files(out: Path, skipped: tuple[str, ...] = ("stats.json",)) -> dict[str, str]:
    found = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    return {
        str(path.relative_to(out)): _hashed(path.read_bytes())
        for path in found
        if path.name not in skipped and not path.name.endswith(".lock")
    }


def _dataset(out: Path, printed: str) -> dict[str, str]:
    manifest = json.loads((out / "dataset_metadata.json").read_text())
    for run in manifest["runs"]:
        run.pop("id")  # depends on the path: a dedup cache uses it to distinguish two datasets of the same inputs
    found = _files(out, ("stats.json", "dataset_metadata.json"))
    return {**found, "manifest": _hashed(json.dumps(manifest).encode())}


def _run(out: Path, printed: str) -> dict[str, str]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lasting = [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
    last = sorted((out / "checkpoints").glob("step_*"))[-1]
    kept = {path.name: _hashed(path.read_bytes()) for path in (out / "model.safetensors", *last.glob("*.safetensors"))}
    state = json.loads((last / "state.json").read_text())
    progress = {name: value for name, value in state["progress"].items() if name not in TIMES}
    return {
        **{name: kept[name] for name in sorted(kept)},
        "metrics": _hashed(json.dumps(lasting).encode()),
        "progress": _hashed(json.dumps(progress).encode()),
    }


COMMANDS = {
    "tokenizer train": Command(
        lambda inputs, out: ["tokenizer", "train", str(inputs / "text"), "--out", str(out), "--vocab-size", "1000"],
        lambda out, printed: _files(out),
        "tokenizer",
    ),
    "tokenizer encode": Command(
        lambda inputs, out: [
            *("tokenizer", "encode", str(inputs / "text"), "--out", str(out)),
            *("--tokenizer", str(inputs / "tokenizer")),
        ],
        lambda out, printed: _files(out),
    ),
    "prepare": Command(
        lambda inputs, out: [
            *("prepare", str(inputs / "text"), "--out", str(out), "--docs", "line", "--tokenizer"),
            str(inputs / "tokenizer"),
        ],
        _dataset,
        "data",
    ),
    "train": Command(
        lambda inputs, out: [
            *("train", "--data", str(inputs / "data"), "--out", str(out), "--params", "200000", "--seq-len", "64"),
            *("--batch-size", "44", "--max-steps", "6", "--eval-every", "3", "--eval-tokens", "3000"),
            *("--checkpoint-every", "2", "--log-every", "1", "--sample-every", "3", "--sample-tokens", "20"),
            *("--optimizer", "adamw", "--weights", "fp32", "--device", "cpu"),
        ],
        _run,
        "run",
    ),
    "eval": Command(
        lambda inputs, out: [
            *("eval", str(inputs / "run"), "--data", str(inputs / "data"), "--device", "cpu", "--tokens", "20000"),
            "--json",
        ],
        lambda out, printed: {"scores": json.dumps(json.loads(printed)["scores"], sort_keys=True)},
    ),
}


def make_inputs(folder: Path, size: int) -> None:
    """Creates text, and what each command needs from earlier commands."""
    chance = random.Random(1)
    (folder / "text").mkdir(parents=True)
    for number in range(4):
        with open(folder / "text" / f"{number}.txt", "w", encoding="utf-8") as file:
            while file.tell() < size // 4:
                made = (chance.choice(WORDS) + str(chance.randrange(200)) for _ in range(chance.randint(3, 30)))
                file.write(" ".join(made) + "\n")
    for command in COMMANDS.values():
        if command.made:
            once(command.arguments(folder, folder / command.made), LARGEST, 2)


def line_of(arguments: list[str], memory: str, threads: int) -> list[str]:
    quiet = [] if "--json" in arguments else ["--quiet"]
    words = with_engine(arguments, engine)
    return [sys.executable, "-m", "ramlet", *words, "--memory", memory, "--threads", str(threads), *quiet]


def once(arguments: list[str], memory: str, threads: int) -> str:
    """Runs the command to its end and returns what it printed."""
    done = subprocess.run(line_of(arguments, memory, threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} with {memory}: {done.stderr.strip()[-400:]}")
    return done.stdout


def smallest(arguments: list[str], threads: int) -> tuple[int, str, float]:
    """The minimum budget in MB that the command names; its output with that budget, and its seconds."""
    memory = NO_BUDGET
    for _ in range(5):
        began = time.monotonic()
        done = subprocess.run(line_of(arguments, memory, threads), capture_output=True, text=True, check=False)
        named = re.search(r"at least ([\d.]+) ?MB", done.stderr)
        if done.returncode == 0 or named is None:
            break
        memory = f"{-int(-float(named[1]) // 1)}MB"
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} does not name a budget that works: {done.stderr.strip()[-300:]}")
    return int(memory.removesuffix("MB")), done.stdout, time.monotonic() - began


def disturbed(
    arguments: list[str], memory: str, threads: int, seconds: float, kills: int, chance: random.Random
) -> tuple[str, int]:
    """Kills the command `kills` times, then runs it to its end; also returns how many kills hit."""
    hits = 0
    for _ in range(kills):
        with subprocess.Popen(
            line_of(arguments, memory, threads), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(chance.uniform(0.3, 0.9) * seconds)
            if process.poll() is None:
                process.send_signal(chance.choice((signal.SIGKILL, signal.SIGINT)))
                hits += 1
    return once(arguments, memory, threads), hits


def compare(name: str, inputs: Path, work: Path, runs: int, kills: int, chance: random.Random) -> tuple[int, list[str]]:
    """How many kills hit, and every run with a different result."""
    command = COMMANDS[name]
    wrong: list[str] = []

    def judge(out: Path, printed: str, how: str) -> None:
        found = command.result(out, printed)
        differ = [part for part in {**wanted, **found} if wanted.get(part) != found.get(part)]
        if differ:
            wrong.append(f"{name}, {how}: {', '.join(differ)}")
        if out.is_dir():
            shutil.rmtree(out)

    reference = inputs / command.made if command.made else work / "reference"
    wanted = command.result(reference, "" if command.made else once(command.arguments(inputs, reference), LARGEST, 2))
    least, seconds, hits = {}, 0.0, 0
    for threads in (1, 2)[: 1 + (runs > 1)]:
        least[threads], printed, seconds = smallest(command.arguments(inputs, work / f"least-{threads}"), threads)
        judge(work / f"least-{threads}", printed, f"{least[threads]}MB, {threads} threads")
    for number in range(runs):
        threads = 1 + number % len(least)
        memory = f"{int(least[threads] * STEPS_ABOVE[number // 2 % len(STEPS_ABOVE)])}MB"
        out = work / f"run-{number}"
        arguments = command.arguments(inputs, out)
        killed = number % 3 == 0 and name != "eval"  # which has nothing to resume from
        if killed:
            printed, hit = disturbed(arguments, memory, threads, seconds, kills, chance)
            hits += hit
        else:
            printed = once(arguments, memory, threads)
        judge(out, printed, f"{memory}, {threads} threads{', killed' * killed}")
    return hits, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", choices=COMMANDS, action="append", help="only these")
    parser.add_argument("--runs", type=int, default=36, help="runs of each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="one run per command, on little text")
    add_engine_option(parser)
    given = parser.parse_args()
    global engine
    engine = given.engine
    runs, kills, size = (1, 1, 60_000) if given.short else (given.runs, KILLS_A_RUN, 2_000_000)
    chance = random.Random(given.seed)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ramlet-same-") as folder:
        inputs = Path(folder) / "inputs"
        make_inputs(inputs, size)
        for name in given.command or COMMANDS:
            work = Path(folder) / name.replace(" ", "-")
            work.mkdir()
            again = 0 if given.short and name == "eval" else runs
            hits, found = compare(name, inputs, work, again, kills, chance)
            print(f"{name}: {again} runs and the minimum, {hits} kills, {len(found)} different results", flush=True)
            wrong += found
    for line in wrong:
        print(f"DIFFERS: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
