"""Every command with the minimum budget that it names and up to 10% more: never exceeded or refused, same result.

    python benchmarks/limits.py --count 1000              # about an hour on two cores
    python benchmarks/limits.py --count 50 --only prepare

Each case (`limits_cases.py`) is first run with 2 MB, which is refused with a message that names the minimum budget
("needs at least 31MB"). With that, one more megabyte, and 1, 2, 5 and 10% more it must then work. The budget is
compared with the peak resident memory of the whole process tree, measured from outside: every 5 ms over all its
processes, and by the kernel's high-water mark. The files it writes must be the same as with a large budget. The texts
are ordinary ones and those that need the most memory (`limits_texts.py`); --seed selects cases, texts and budgets.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock

from engine_option import add_engine_option, with_engine
from limits_cases import CASES, Case, make_fixtures
from limits_texts import write_texts
from measure import CommandFailed, markdown_table, measure

STEPS: tuple[Callable[[int], int], ...] = (
    lambda least: least,
    lambda least: least + 1,
    *(lambda least, more=more: math.ceil(least * more) for more in (1.01, 1.02, 1.05, 1.10)),
)  # fmt: skip
"""Megabytes to try, given the minimum that was named."""
AMPLE = "3GB"
UNLIKE = {"stats.json", "metrics.jsonl", "settings.yaml", "state.json", "page.html"}
"""Files that contain times and memory."""


@dataclass
class Tally:
    """The results of a group's runs."""

    runs: int = 0
    over: int = 0
    refused: int = 0
    differ: int = 0
    failed: int = 0
    worst: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.over + self.refused + self.differ + self.failed


class Limits:
    """Runs cases in a folder, and remembers the minimum budgets and the results."""

    def __init__(
        self, folder: Path, texts: dict[str, Path], fixtures: dict[str, Path], python: str, engine: str = "native"
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.texts = texts
        self.fixtures = fixtures
        self.python = python
        self.tallies: dict[str, Tally] = {}
        self._least: dict[tuple[str, str], int] = {}
        self._expected: dict[tuple[str, str], str] = {}
        self._lock = Lock()
        self._running: dict[tuple[str, str], Lock] = {}

    def run(self, case: Case, text: str, step: Callable[[int], int]) -> None:
        """One run with one budget, counted in the tally of the case's group."""
        key = case.words, text
        with self._lock:
            tally = self.tallies.setdefault(case.group, Tally())
            running = self._running.setdefault(key, Lock())
        with running:
            self._run(case, text, step, key, tally)

    def _run(self, case: Case, text: str, step: Callable[[int], int], key: tuple[str, str], tally: Tally) -> None:
        try:
            if key not in self._expected:
                self._expected[key] = self._once(case, text, AMPLE)[1]
                self._least[key] = self._named(case, text)
        except CommandFailed as error:
            self._count(tally, "failed", f"{case.words} on {text}: {error}")
            return
        budget = step(self._least[key])
        said = f"{case.words} on {text}, {budget} MB of at least {self._least[key]}"
        try:
            peak, made = self._once(case, text, f"{budget}MB")
        except CommandFailed as error:
            refused = "needs at least" in str(error)
            self._count(tally, "refused" if refused else "failed", f"{said}: {str(error).strip().splitlines()[-1]}")
            return
        with self._lock:
            tally.worst = max(tally.worst, peak / budget / 1e6)
        if peak > budget * 1_000_000:
            self._count(tally, "over", f"{said}: {peak / 1e6:.1f} MB")
        elif made != self._expected[key]:
            self._count(tally, "differ", f"{said}: different files than with {AMPLE}")
        else:
            self._count(tally, "", "")

    def _count(self, tally: Tally, what: str, problem: str) -> None:
        with self._lock:
            tally.runs += 1
            if what:
                setattr(tally, what, getattr(tally, what) + 1)
                tally.problems.append(f"{what}: {problem}")
                print(tally.problems[-1], file=sys.stderr, flush=True)

    def _named(self, case: Case, text: str) -> int:
        """The minimum budget in megabytes, from the error message."""
        try:
            self._once(case, text, "2MB")
        except CommandFailed as error:
            found = re.search(r"needs at least (\d+)MB", str(error))
            if found is None:
                raise
            return int(found[1])
        raise CommandFailed(f"{case.words}: should be refused with 2 MB, but it was not")

    def _once(self, case: Case, text: str, memory: str) -> tuple[int, str]:
        """Peak bytes of the process tree, and a digest of the files written."""
        # The same path each time, because it is part of what identifies a dataset with a dedup cache.
        place = self.folder / hashlib.blake2b(f"{case.words} {text}".encode(), digest_size=8).hexdigest()
        out = place / "out"
        places = {"text": self.texts[text], "out": out, **self.fixtures}
        words = with_engine([word.format(**places) for word in case.words.split()], self.engine)
        try:
            (out if "{out}/" in case.words else place).mkdir(parents=True)
            measurement = measure([self.python, "-m", "ramlet", *words, "--memory", memory])
            return measurement.peak_rss, digest(out)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def digest(folder: Path) -> str:
    """Digest of the names and contents of all files except those with times."""
    hashed = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in UNLIKE:
            hashed.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 18):
                    hashed.update(block)
    return hashed.hexdigest()


def drawn(cases: list[Case], rng: random.Random) -> Iterator[tuple[Case, str, Callable[[int], int]]]:
    """An endless series of cases: each case and text with its minimum budget, then with random budgets of STEPS."""
    pairs = [(case, text) for case in cases for text in case.texts]
    first = True
    while True:
        rng.shuffle(pairs)
        for case, text in pairs:
            if first or rng.random() < case.weight:
                yield case, text, STEPS[0] if first else rng.choice(STEPS)
        first = False


def table(tallies: dict[str, Tally]) -> str:
    rows = [
        [name, *(str(value) for value in (of.runs, of.over, of.refused, of.differ, of.failed)), f"{of.worst:.1%}"]
        for name, of in sorted(tallies.items())
    ]
    every = list(tallies.values())
    sums = [str(sum(getattr(of, name) for of in every)) for name in ("runs", "over", "refused", "differ", "failed")]
    rows.append(["all", *sums, f"{max((of.worst for of in every), default=0):.1%}"])
    header = ["command", "runs", "over", "refused", "different result", "failed", "max. of the budget"]
    return markdown_table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of runs [default: 1000]")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="REGEX", help="only groups whose name matches")
    parser.add_argument("--size", type=int, default=1_000_000, help="size of a text in bytes [default: 1000000]")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs [default: 2]")
    parser.add_argument("--ramlet-python", default=sys.executable, help="ramlet's interpreter [default: this one]")
    add_engine_option(parser)
    given = parser.parse_args()
    cases = [case for case in CASES if re.search(given.only, case.group)]
    if not cases:
        parser.error(f"no group matches {given.only!r}: choose from {', '.join(sorted({c.group for c in CASES}))}")
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="ramlet-limits-") as scratch, ThreadPoolExecutor(given.jobs) as pool:
        folder = Path(scratch)
        texts = write_texts(folder / "texts", given.seed, given.size)
        fixtures = make_fixtures(folder, texts, given.ramlet_python, given.engine)
        limits = Limits(folder, texts, fixtures, given.ramlet_python, given.engine)
        end = time.monotonic() + given.seconds

        def run(chosen: tuple[Case, str, Callable[[int], int]]) -> None:
            if time.monotonic() < end:
                limits.run(*chosen)

        for done, _ in enumerate(pool.map(run, islice(drawn(cases, rng), given.count)), 1):
            if done % 20 == 0 and time.monotonic() < end:
                wrong = sum(of.wrong for of in limits.tallies.values())
                print(f"  {done:>5} runs, {wrong} problems", file=sys.stderr, flush=True)
    print(table(limits.tallies))
    return 1 if any(of.wrong for of in limits.tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
