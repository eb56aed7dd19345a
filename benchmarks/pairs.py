"""Two commands on one output at the same time: one is refused or runs later, and the result is that of one of them.

    python benchmarks/pairs.py --count 200

Every command that writes is paired with every other on one file or folder, and with itself on another input. To make
them overlap, the first stops itself (SIGSTOP) before a random one of its changes on disk (forked.py). The second runs
meanwhile, to its end or until it stops itself too; then both continue. Afterwards the folder must be, file by file,
the result of running one after the other, in either order, or of running only one of them. The only allowed errors are
that the other command is writing, and those that the later one gets when they run one after the other. Commands that
read a dataset while another appends to it are pairs as well.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from itertools import combinations_with_replacement
from pathlib import Path

from engine_option import add_engine_option
from forked import Ended, Forks
from measure import markdown_table
from writing_commands import PREPARE, READ, TRAIN, Case, build, differences, fresh, snapshot

INTO_A_FOLDER = {
    "tokenizer train": [f"tokenizer train {one} --vocab-size 290 --out out {READ}" for one in ("in", "more")],
    "prepare": [f"prepare {one} --out out {PREPARE}" for one in ("in", "more")],
    "data merge": [f"data merge {two} --out out --quiet" for two in ("data other", "other data")],
    "data export nanogpt": [f"data export {one} --to nanogpt --out out --quiet" for one in ("data", "other")],
    "data export megatron": [f"data export {one} --to megatron --out out --quiet" for one in ("data", "other")],
    "data export hf": [f"data export {one} --to hf --out out --quiet" for one in ("data", "other")],
    "export": [f"export run --to hf out --quiet --dtype {one}" for one in ("fp32", "bf16")],
    "train": [f"{TRAIN} --max-steps {one} --out out" for one in (2, 3)],
}
INTO_A_FILE = {
    "tokenizer encode": [f"tokenizer encode --tokenizer tok {one} --out out.npy {READ}" for one in ("in", "more")],
    "prepare --format npy": [
        f"prepare {one} --out out.npy --format npy {READ} --tokenizer byte" for one in ("in", "more")
    ],
    "report": [f"report {one} --out out.npy --quiet" for one in ("data", "tok")],
}
INTO_A_DATASET = {
    "prepare --append": [f"prepare {one} --out out --append {READ}" for one in ("in", "in/0.txt")],
    "data verify --adopt": ["data verify out --adopt --quiet"] * 2,
    "data merge of it": [f"data merge {two} --out new --quiet" for two in ("out data", "data out")],
    "data export of it": [f"data export out --to {to} --out new --quiet" for to in ("npy", "nanogpt")],
}
_INPUTS = ("in", "more", "tok", "data", "other")
GROUPS: list[tuple[dict[str, list[str]], tuple[str, ...]]] = [
    (INTO_A_FOLDER, _INPUTS),
    (INTO_A_FILE, _INPUTS),
    (INTO_A_DATASET, ("in", "data", "out=with-shards")),
]
REFUSALS = (" is being written by another ramlet", " while it was read: run the same again")


def pairs(*, models: bool = True) -> dict[str, Case]:
    """The pairs by name; the words of both commands, separated by a newline."""
    found = {}
    for commands, reads in GROUPS:
        for one, other in combinations_with_replacement(commands, 2):
            needs = any(name in ("train", "export") for name in (one, other))
            if needs and not models:
                continue
            words = f"{commands[one][0]}\n{commands[other][1]}"
            found[f"{one} + {other}"] = Case(words, "out", (*reads, "run") if needs else reads)
    return found


class Pair:
    """Two commands, and their allowed results."""

    def __init__(self, forks: Forks, case: Case, world: Path, place: Path) -> None:
        self.forks, self.case, self.world, self.place = forks, case, world, place
        self.words = [line.split() for line in case.words.splitlines()]
        self.calls = [0, 0]
        self.wanted: list[dict[str, bytes]] = []
        self.errors: set[str] = set()
        """Messages of the command that runs later."""
        for order in ((0,), (1,), (0, 1), (1, 0)):
            fresh(case, world, place)
            ended = [forks.run(self.words[at], place) for at in order]
            self.calls[order[0]] = max(self.calls[order[0]], ended[0].calls)
            self.wanted.append(snapshot(place))
            self.errors |= {each.said for each in ended if each.code != 0}

    def at_once(self, draw: random.Random) -> tuple[bool, list[str]]:
        """Runs both at the same time; returns whether one was refused, and what is wrong."""
        fresh(self.case, self.world, self.place)
        first = draw.randint(0, 1)
        stops = [draw.randint(1, max(1, self.calls[first])), 0]
        if draw.random() < 0.5:
            stops[1] = draw.randint(1, max(1, self.calls[1 - first]))
        pids = []
        for slot, at in enumerate((first, 1 - first)):
            words = self.words[at]
            pids.append(self.forks.start(words, self.place, slot=slot, at=stops[slot], with_signal=signal.SIGSTOP))
            self._until_it_stops_or_ends(pids[-1])
        order = [0, 1] if draw.random() < 0.5 else [1, 0]
        ended: list[Ended | None] = [None, None]
        for slot in order:
            _resume(pids[slot])
            ended[slot] = self.forks.wait(pids[slot], slot=slot)
        return self._judged([each for each in ended if each is not None])

    def _until_it_stops_or_ends(self, pid: int) -> None:
        while not self.forks.is_stopped(pid) and not _is_over(pid):
            time.sleep(0.002)

    def _judged(self, ended: list[Ended]) -> tuple[bool, list[str]]:
        refused = [any(words in each.said for words in REFUSALS) for each in ended]
        wrong = [
            f"exit {each.code}: {each.said.strip()[-400:]}"
            for each, known in zip(ended, refused)
            if each.code != 0 and not (each.code == 1 and (known or each.said in self.errors))
        ]
        found = snapshot(self.place)
        if found not in self.wanted:
            nearest = min((differences(wanted, found) for wanted in self.wanted), key=len)
            outputs = " / ".join(each.said.strip()[-200:] for each in ended)
            wrong.append(f"unexpected result: {', '.join(nearest[:5])} ({[each.code for each in ended]}; {outputs})")
        return any(refused), wrong


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="runs over all pairs [default: 200]")
    parser.add_argument("--only", action="append", help="only pairs whose name contains this; can be repeated")
    parser.add_argument("--seed", type=int, default=0)
    add_engine_option(parser)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="pairs-") as scratch,
        Forks(Path(scratch), engine=options.engine) as forks,
    ):
        world = Path(scratch, "world")
        build(forks, world)
        every = {
            name: case
            for name, case in pairs().items()
            if not options.only or any(word in name for word in options.only)
        }
        rows, meetings, corruptions = [], 0, 0
        for number, (name, case) in enumerate(every.items()):
            draw = random.Random(f"{name} {options.seed}")
            pair = Pair(forks, case, world, Path(scratch, "place"))
            refused, wrong = 0, []
            turns = -(-(options.count - meetings) // (len(every) - number))
            for _ in range(turns):
                one_refused, problems = pair.at_once(draw)
                refused += one_refused
                wrong += problems
            for problem in wrong:
                print(f"  {name}: {problem}", file=sys.stderr)
            rows.append([name, f"{turns}", f"{refused}", f"{len(wrong)}"])
            meetings, corruptions = meetings + turns, corruptions + len(wrong)
            print(f"  {meetings} runs, {corruptions} wrong", file=sys.stderr)
    rows.append(["all", f"{meetings}", f"{sum(int(row[2]) for row in rows)}", f"{corruptions}"])
    print(markdown_table(["commands", "runs", "one was refused", "wrong"], rows))
    sys.exit(1 if corruptions or meetings < options.count else 0)


if __name__ == "__main__":
    main()
