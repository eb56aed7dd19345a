"""Runs the tests in random order on a busy machine: none may depend on other tests, an idle machine or free memory.

    python benchmarks/random_order.py --runs 10 --load 2 --held 2GB

Each run has a seed, which decides the order of the files and of the tests in each (`--shuffle` of tests/conftest.py).
Meanwhile `--load` background processes keep cores busy, and with `--held` each test process uses that much memory from
the start. At the end it lists the tests that failed, with their seeds and a command that runs the same files in the
same order as the failing process did; pytest's reports are saved in data/random_order. Arguments after `--` go to
pytest.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = Path(__file__).resolve().parent / "data" / "random_order"
OUTCOME = re.compile(r"^\[(gw\d+)\] \[ *\d+%\] ([A-Z]+) (\S+?)::(.*?) *$")
REASON = re.compile(r"^(?:FAILED|ERROR) (\S+?)::(.*?) - (.*)$")
BUSY = "while True: pass"


@dataclass
class Run:
    """One run of the tests: which process ran what, in which order, and the results."""

    seed: int
    seconds: float = 0.0
    passed: int = 0
    last: str = ""
    files: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The files of each process, in order."""
    failed: dict[str, str] = field(default_factory=dict)
    """The process of each failed test."""
    reasons: dict[str, str] = field(default_factory=dict)

    def hear(self, line: str) -> None:
        if found := OUTCOME.match(line):
            process, outcome, path, name = found.groups()
            if path not in self.files[process]:
                self.files[process].append(path)
            self.passed += outcome == "PASSED"
            if outcome in ("FAILED", "ERROR"):
                self.failed[f"{path}::{name}"] = process
        elif found := REASON.match(line):
            self.reasons[f"{found[1]}::{found[2]}"] = found[3]
        self.last = line or self.last

    def again(self, test: str) -> str:
        """A command that runs the files of this process up to that of the test."""
        files = self.files[self.failed[test]]
        until = files[: files.index(test.partition("::")[0]) + 1]
        return shlex.join([".venv/bin/python", "-m", "pytest", "--shuffle", str(self.seed), *until])


def run(python: str, seed: int, processes: int, held: str | None, arguments: list[str]) -> Run:
    command = [python, "-m", "pytest", "-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    command += ["-o", "addopts=--strict-markers", "-v", "-rfE", "--tb=short", "--shuffle", str(seed)]
    command += ["--held", held] if held else []
    done = Run(seed)
    began = time.monotonic()
    with subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        log = []
        for line in tests.stdout:
            log.append(line)
            done.hear(line.rstrip())
    done.seconds = time.monotonic() - began
    if done.failed:
        REPORTS.mkdir(parents=True, exist_ok=True)
        (REPORTS / f"{seed}.log").write_text("".join(log))
    if tests.returncode and not done.failed:
        sys.exit("".join(log[-50:]) + f"\npytest ended with {tests.returncode}, seed {seed}")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="number of runs [default: 10]")
    parser.add_argument("--seed", type=int, help="seed of the first run, plus one for each later run [default: random]")
    parser.add_argument("--load", type=int, default=2, help="busy background processes [default: 2]")
    parser.add_argument("--held", metavar="SIZE", help="memory that each test process uses from the start")
    parser.add_argument("--processes", type=int, default=2, help="test processes [default: 2]")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="[default: that of .venv]")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args()
    first = random.randrange(10**6) if given.seed is None else given.seed
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(given.load)]
    failed: dict[str, list[Run]] = defaultdict(list)
    try:
        for seed in range(first, first + given.runs):
            print(f"seed {seed}: ", end="", flush=True)
            done = run(given.python, seed, given.processes, given.held, given.pytest)
            print(f"{done.passed:,} passed, {len(done.failed)} failed, {done.seconds:.0f} s", flush=True)
            for test in done.failed:
                failed[test].append(done)
                print(f"  {test}: {done.reasons.get(test, f'see {REPORTS}/{seed}.log')}", flush=True)
    finally:
        for process in load:
            process.kill()
            process.wait()
    print(f"\nruns: {given.runs}; background processes: {given.load}; tests that failed: {len(failed)}")
    for test, runs in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"\n{test}\n  failed {len(runs)} of {given.runs}, with the seeds {', '.join(str(r.seed) for r in runs)}")
        print(f"  repeat with: {runs[0].again(test)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
