"""Fuzzing: corrupts every file that ramlet reads, and runs every command that reads it.

    python benchmarks/fuzz.py --seconds 3600            # all kinds of files; --list shows them, --only selects one
    python benchmarks/fuzz.py --cases 40 --no-models    # the short form, as the tests run it

A case copies a small world (text in all formats, tokenizers, datasets, an unfinished run of `prepare`, a trained model
with its checkpoints), corrupts one file of it (mutations.py: truncated, bits flipped, huge numbers, missing, extra and
repeated keys, wrong types, deep nesting, devices, pipes and folders in its place) and runs one command, in a process
forked from one that has loaded everything. The command must end by itself with 0, 1 or 2, print one sentence, no
traceback and no panic, and stay within its budget. Failures are saved, with the corrupted file, in --save.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from engine_option import add_engine_option, with_engine
from fuzz_world import KINDS, Kind
from mutations import DEVICES, corrupt

SECONDS = 60
"""A case that takes longer counts as hanging: on two idle cores the longest take two seconds."""
ROOM = {"light": 160_000_000, "native": 160_000_000, "torch": 450_000_000}
"""Bytes that a case may use in addition to the process that it was forked from."""
FAULTS = ("panic", "traceback", "sentence", "code", "signal", "hang", "over")


@dataclass(frozen=True)
class Outcome:
    fault: str
    """One of `FAULTS`, or empty."""
    told: str
    code: int
    peak: int
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, help="how long to run")
    parser.add_argument("--cases", type=int, help="or the number of cases, of all kinds in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="KIND")
    parser.add_argument("--no-models", action="store_true", help="skip commands that train or load a model")
    add_engine_option(parser)
    parser.add_argument("--save", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--list", action="store_true", help="list the kinds of files")
    parser.add_argument("--lane", choices=ROOM, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds = [
        kind for kind in KINDS if (not given.only or kind.name in given.only) and not (given.no_models and kind.models)
    ]
    if given.list or not kinds:
        print("\n".join(kind.name for kind in kinds or KINDS))
        return 0 if given.list else 2
    if given.lane:
        return _lane(given, [kind for kind in kinds if kind.models == (given.lane != "light")])
    with tempfile.TemporaryDirectory(prefix="ramlet-fuzz-") as folder:
        world = Path(folder) / "world"
        models = [] if given.no_models else [given.engine]
        made = subprocess.run([sys.executable, Path(__file__).with_name("fuzz_world.py"), world, *models])
        if made.returncode:
            return made.returncode
        return _both_lanes(given, kinds, world)


def _both_lanes(given: argparse.Namespace, kinds: list[Kind], world: Path) -> int:
    """torch is loaded in a separate process, because processes forked from it are five times as large."""
    both = {"light": False, given.engine: True}
    lanes = [lane for lane, models in both.items() if any(kind.models == models for kind in kinds)]
    running = []
    for lane in lanes:
        words = [sys.executable, __file__, *sys.argv[1:], "--lane", lane, "--world", str(world)]
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    rows = []
    for process in running:
        said, _ = process.communicate()
        rows += json.loads(said.splitlines()[-1]) if said else []
    print(
        f"{'kind':28} {'cases':>6} {'refused':>8} " + " ".join(f"{fault:>9}" for fault in FAULTS) + f" {'peak MB':>9}"
    )
    total: Counter[str] = Counter()
    for row in rows:
        total.update({key: value for key, value in row.items() if key not in ("kind", "peak")})
        _print_row(row)
    _print_row({"kind": "all", "peak": max((row["peak"] for row in rows), default=0), **total})
    failed = sum(total[fault] for fault in FAULTS)
    if failed:
        print(f"{failed} cases failed; see {given.save}")
    return 1 if failed or any(process.returncode for process in running) else 0


def _print_row(row: dict[str, int | str]) -> None:
    counts = " ".join(f"{row.get(fault, 0):>9}" for fault in FAULTS)
    print(
        f"{row['kind']:28} {row.get('cases', 0):>6} {row.get('refused', 0):>8} {counts} {int(row['peak']) / 1e6:>9.0f}"
    )


def _lane(given: argparse.Namespace, kinds: list[Kind]) -> int:
    _load_all(given.lane)
    tables: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    began, number = time.monotonic(), 0
    while kinds:
        if given.cases is not None and number >= given.cases:
            break
        if given.cases is None and time.monotonic() - began > (given.seconds or 60):
            break
        kind = kinds[number % len(kinds)]
        outcome = _case(kind, number // len(kinds), given)
        table = tables[kind.name]
        table["cases"] += 1
        table["refused"] += outcome.code == 1
        table["peak"] = max(table["peak"], outcome.peak)
        if outcome.fault:
            table[outcome.fault] += 1
        number += 1
    print(json.dumps([{"kind": name, "peak": 0, **table} for name, table in tables.items()]))
    return 0


def _load_all(lane: str) -> None:
    """Imports everything that a command imports, so that a case needs only a fork, not a start of Python."""
    import importlib
    import pkgutil

    import numpy  # noqa: F401
    import yaml  # noqa: F401

    import ramlet.cli

    for name in ("cli", "dataset", "inputs", "loading", "pipeline", "preparing", "reporting", "tokenizer"):
        package = importlib.import_module(f"ramlet.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"ramlet.{name}."):
            importlib.import_module(module.name)
    for module in pkgutil.iter_modules(ramlet.__path__, "ramlet."):
        if not module.ispkg and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    if lane == "torch":
        from ramlet.engines.torch.base_memory import load_torch

        load_torch(1)
    if lane != "light":
        from ramlet.generation import entry  # noqa: F401
        from ramlet.training import evaluate_run, trainer  # noqa: F401


def _case(kind: Kind, number: int, given: argparse.Namespace) -> Outcome:
    chance = Random(f"{given.seed}/{kind.name}/{number}")
    with tempfile.TemporaryDirectory(prefix="ramlet-case-") as folder:
        place = Path(folder) / "w"
        shutil.copytree(given.world, place, symlinks=True)
        target = place / chance.choice(sorted(str(path.relative_to(place)) for path in place.glob(kind.file)))
        # For inputs, waiting for a pipe's writer and reading all of a terabyte are correct, so those are not tried.
        how = corrupt(target, chance, endless=not kind.name.startswith(("input", "init", "file of ids")))
        command = chance.choice(kind.commands)
        corrupted = target.read_bytes() if target.is_file() and target.stat().st_size < 1 << 24 else b""
        if isinstance(command, list):
            command = with_engine(command, given.engine)
        outcome = _run(command, place, ROOM[given.lane])
        for device in DEVICES:
            if not stat.S_ISCHR(os.stat(device).st_mode):
                raise SystemExit(
                    f"{device} is no longer a device after {kind.name} {number} of seed {given.seed}: {command}"
                )
        if outcome.fault:
            kept = given.save / f"{kind.name.replace(' ', '-')}-{given.seed}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            (kept / target.name).write_bytes(corrupted)
            words = command if isinstance(command, list) else [command.__name__]
            about = {"file": str(target.relative_to(place)), "how": how, "command": words, **vars(outcome)}
            (kept / "case.json").write_text(json.dumps(about, indent=1))
            print(f"{outcome.fault}: {kind.name} {number} ({how}): {' '.join(words)}", file=sys.stderr, flush=True)
        return outcome


def _run(command: list[str] | Callable[[], None], place: Path, room: int) -> Outcome:
    budget = _resident() + room
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(command, place, budget)
    code, hung = None, False
    while code is None:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - began > SECONDS:
            hung = True
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            code = -9
        else:
            time.sleep(0.002)
    told = (place.parent / "stderr").read_text(errors="replace")
    if code == 1 and not told:
        told = (
            "error: " + (place.parent / "stdout").read_text(errors="replace")[:1000].replace("\n", " ").strip()
        )  # `verify`
    peak = usage.ru_maxrss * 1024
    fault = "hang" if hung else _fault(code, told, peak > budget)
    return Outcome(fault, told[-3000:], code, peak, round(time.monotonic() - began, 2))


def _child(command: list[str] | Callable[[], None], place: Path, budget: int) -> None:
    """Ends the process."""
    code = 99
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        errors = os.open(place.parent / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        output = os.open(place.parent / "stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor, number in ((nothing, 0), (output, 1), (errors, 2)):
            os.dup2(descriptor, number)
        if isinstance(command, list):
            from ramlet.cli import main as ramlet

            memory = f"{budget // 1_000_000}MB"
            code = ramlet([word.replace("MEMORY", memory) for word in command])
        else:
            code = _called(command)
    except BaseException:  # noqa: BLE001 - any error is what we are looking for
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _called(function: Callable[[], None]) -> int:
    from ramlet.errors import RamletError

    try:
        function()
    except RamletError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _fault(code: int, told: str, over: bool) -> str:
    if "panicked" in told or "a bug in ramlet" in told or "PanicException" in told:
        return "panic"
    if "Traceback" in told or "defect of ramlet" in told or "bug in ramlet" in told:
        return "traceback"
    if code < 0:
        return "signal"
    if code not in (0, 1, 2):
        return "code"
    sentences = re.findall(r"^(?:\x1b\[[\d;]*m)?error:.*", told, re.MULTILINE)
    if code and (len(sentences) != 1 or len(sentences[0]) > 2000 or told.rstrip().splitlines()[-1] != sentences[0]):
        return "sentence"
    return "over" if over else ""


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
