"""Runs a command and measures its time and the memory of its whole process tree.

Memory is the resident set summed over the process and all its descendants, sampled every 5 ms from /proc, or the
kernel's own high-water mark (exact, but of the largest single process) if that is higher: `ru_maxrss`, or `VmHWM` at
the last sample if the calling process is larger, because Linux passes its mark on to its children. Resident pages of
mapped files count, since other processes cannot use that memory; `anonymous` is the part without them. Pages that a
forked process shares with its parent count in both: `peak_process`, the largest single process, is a lower bound for
the tree.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

INTERVAL = 0.005
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measurement:
    """One run of one command."""

    seconds: float
    cpu_seconds: float
    peak_rss: int
    peak_anonymous: int
    peak_process: int
    output: str
    timeline: list[tuple[float, int]] = field(repr=False)
    """(seconds since the start, resident bytes), at most a thousand points."""

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in {"output", "timeline"}}


def descendants(process: int) -> list[int]:
    found, open_ones = [], [process]
    while open_ones:
        current = open_ones.pop()
        found.append(current)
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                with open(f"/proc/{current}/task/{thread}/children") as children:
                    open_ones.extend(map(int, children.read().split()))
        except OSError:
            continue
    return found


def resident(process: int) -> tuple[int, int, int]:
    """Current bytes of the process tree: (resident, anonymous part, resident in the largest process)."""
    total = anonymous = largest = 0
    for member in descendants(process):
        try:
            with open(f"/proc/{member}/statm") as statm:
                _, pages, shared, *_ = map(int, statm.read().split())
        except (OSError, ValueError):
            continue
        total += pages * PAGE
        anonymous += (pages - shared) * PAGE
        largest = max(largest, pages * PAGE)
    return total, anonymous, largest


def high_water_mark(process: int | str) -> int:
    """Peak resident bytes of a process so far; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)
    except (OSError, ValueError):
        return 0


class Sampler(threading.Thread):
    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.done = threading.Event()
        self.peak_rss = self.peak_anonymous = self.peak_process = 0
        self.timeline: list[tuple[float, int]] = []

    def run(self) -> None:
        start, apart, due = time.monotonic(), 0.05, 0.0
        while not self.done.wait(INTERVAL):
            total, anonymous, largest = resident(self.process)
            self.peak_rss = max(self.peak_rss, total)
            self.peak_anonymous = max(self.peak_anonymous, anonymous)
            self.peak_process = max(self.peak_process, largest, high_water_mark(self.process))
            passed = time.monotonic() - start
            if passed >= due:
                self.timeline.append((round(passed, 3), total))
                due = passed + apart
                if len(self.timeline) >= 1000:  # a longer run: keep every second point, sample half as often
                    self.timeline = self.timeline[::2]
                    apart *= 2


class CommandFailed(Exception):
    """The command failed; the message has its last lines of output."""


def measure(
    command: list[str], environment: dict[str, str] | None = None, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> Measurement:
    """Runs `command` to its end. Returns its standard output; its standard error is shown only if it fails."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=output, stderr=errors, stdin=stdin, env={**os.environ, **(environment or {})}
        )
        sampler = Sampler(child.pid)
        sampler.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        finally:
            sampler.done.set()
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        sampler.join()
        mark = usage.ru_maxrss * 1024
        if mark <= high_water_mark("self"):
            mark = sampler.peak_process
        output.seek(0)
        errors.seek(0)
        if child.returncode != 0:
            last = "".join(errors.readlines()[-20:])
            raise CommandFailed(f"{' '.join(command)}\nended with {child.returncode}\n{last}")
        return Measurement(
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_rss=max(sampler.peak_rss, mark),
            peak_anonymous=sampler.peak_anonymous,
            peak_process=max(sampler.peak_process, mark),
            output=output.read(),
            timeline=sampler.timeline,
        )


def median(values: list[float]) -> float:
    return statistics.median(values)


def warm(path: Path) -> None:
    """Reads the file once, so that it is in the page cache for all tools."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def machine() -> dict[str, Any]:
    """The machine that the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def megabytes(amount: float) -> str:
    return f"{amount / 1e6:,.0f} MB"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *(["---:"] * (len(header) - 1))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])
