"""kill -9 at every change on disk, for every command that writes: nothing is lost, and running the same command again
gives the result of an uninterrupted run.

    python benchmarks/kills.py --count 1000
    python benchmarks/kills.py --only "prepare --append" --count 200

A command is killed before its n-th rename, link, unlink, mkdir, fsync, creation or truncation of a file (forked.py),
for n spread evenly over all of them. Then

- its inputs are unchanged, and the result that it should replace can still be opened, old or new;
- every fourth time it is killed a second time while it resumes;
- the same command ends with exit code 0, and every file is that of an uninterrupted run, except times and memory;
- no extra file remains.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine_option import add_engine_option
from forked import Forks
from measure import markdown_table
from writing_commands import CASES, Case, build, differences, fresh, snapshot

SECOND_KILL = 4


@dataclass
class Result:
    """The result for one command."""

    calls: int = 0
    kills: int = 0
    losses: list[str] = field(default_factory=list)


def kill_everywhere(forks: Forks, case: Case, world: Path, place: Path, count: int, seed: int) -> Result:
    """Kills the command `count` times, spread over its calls."""
    words = case.words.split()
    fresh(case, world, place)
    before = snapshot(place)
    ended = forks.run(words, place)
    result = Result(ended.calls)
    if ended.code != 0:
        result.losses.append(f"uninterrupted: exit {ended.code}: {ended.said.strip()[-300:]}")
        return result
    wanted = snapshot(place)
    draw = random.Random(f"{case.words} {seed}")
    turn = 0
    while result.kills < count and turn < 3 * count:
        for at in _spread(ended.calls, count, draw):
            turn += 1
            fresh(case, world, place)
            result.losses += [
                f"killed at {at} of {ended.calls}: {loss}"
                for loss in _one(forks, case, place, at, turn, draw, before, wanted, result)
            ]
            if result.kills >= count or len(result.losses) > 20:
                return result
    return result


def _spread(calls: int, count: int, draw: random.Random) -> list[int]:
    """Every call, or `count` of them, spread evenly, different ones each time."""
    if count >= calls:
        return list(range(1, calls + 1))
    step = calls / count
    return [1 + int((at + draw.random()) * step) for at in range(count)]


def _one(
    forks: Forks,
    case: Case,
    place: Path,
    at: int,
    turn: int,
    draw: random.Random,
    before: dict[str, bytes],
    wanted: dict[str, bytes],
    result: Result,
) -> Iterator[str]:
    words = case.words.split()
    ended = forks.run(words, place, at=at)
    for second in (False, True):
        result.kills += ended.killed
        if not ended.killed and ended.code != 0:
            yield f"exit {ended.code}: {ended.said.strip()[-300:]}"
            return
        yield from _lost(forks, case, place, before, wanted)
        if second or not ended.killed or turn % SECOND_KILL:
            break
        ended = forks.run(words, place, at=draw.randint(1, max(1, result.calls)))
    ended = forks.run(words, place)
    if ended.code != 0:
        yield f"then exit {ended.code}: {ended.said.strip()[-300:]}"
        return
    yield from differences(wanted, snapshot(place))


def _lost(forks: Forks, case: Case, place: Path, before: dict[str, bytes], wanted: dict[str, bytes]) -> Iterator[str]:
    """What the killed command has lost or changed."""
    found = snapshot(place)
    for name, content in before.items():
        of_out = name == case.out or name.startswith(f"{case.out}/")
        if of_out and case.checks == "file":
            if found.get(name) not in (content, wanted[name]):
                yield f"{name} is neither the old nor the new file"
        elif not of_out and found.get(name) != content:
            yield f"{name}, which is an input, was changed"
    if case.checks not in ("", "file"):
        checked = forks.run(["check", case.checks, case.out], place)
        if checked.code != 0:
            yield f"{case.out} cannot be opened: {checked.said.strip()[-300:]}"


def shares(names: list[str], count: int) -> dict[str, int]:
    """The number of kills for each command."""
    whole = sum(CASES[name].share for name in names)
    return {name: max(1, -int(-count * CASES[name].share // whole)) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="kills over all commands [default: 1000]")
    parser.add_argument("--only", action="append", choices=list(CASES), help="only this command; can be repeated")
    parser.add_argument("--seed", type=int, default=0)
    add_engine_option(parser)
    options = parser.parse_args()
    names = options.only or list(CASES)
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as scratch,
        Forks(Path(scratch), engine=options.engine) as forks,
    ):
        world = Path(scratch, "world")
        build(forks, world, models=any(CASES[name].models for name in names))
        rows, total, losses = [], 0, 0
        for name, count in shares(names, options.count).items():
            began = time.monotonic()
            result = kill_everywhere(forks, CASES[name], world, Path(scratch, "place"), count, options.seed)
            seconds = time.monotonic() - began
            for loss in result.losses[:10]:
                print(f"  {name}: {loss}", file=sys.stderr)
            print(f"  {name}: {result.kills} kills in {seconds:.0f} s, {len(result.losses)} losses", file=sys.stderr)
            rows.append([name, f"{result.calls}", f"{result.kills}", f"{len(result.losses)}"])
            total, losses = total + result.kills, losses + len(result.losses)
    rows.append(["all", "", f"{total}", f"{losses}"])
    print(markdown_table(["command", "changes on disk", "kills", "losses"], rows))
    sys.exit(1 if losses or total < options.count else 0)


if __name__ == "__main__":
    main()
