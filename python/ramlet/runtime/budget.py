"""The memory budget: read it, divide it, measure against it, report.

A budget is a promise about the peak resident set (RSS) of the whole process tree, file-mapped pages
included: what `htop`, `VmHWM` and `ru_maxrss` show. It is an object handed down and divided, never a
global:

    budget = Budget.parse("2GB")
    room = budget.grant({"a read block, a table and a spill buffer for each of 2 threads": 8_000_000})
    with Meter(budget) as meter:
        meter.stage("count")
        shares = budget.divide(table=6, blocks=1, spill=1)   # shares["table"].total bytes, ...
        meter.stage("merge")
        ...
    meter.closing_line()                                      # "peak 1.43 GB of 2.00 GB"

Accounting is not RSS: allocators, fragmentation and imports come on top of what a consumer was given.
So consumers are sized from `available()`, which starts from what is resident already and keeps a
reserve, and the meter says what became of it. Sizing is decided here, measuring in `ramlet.runtime.memory`.

What is resident before the work begins is not the same in two runs of one command: pages of libraries are
mapped as they happen to be cached, and addresses differ. So the least budget that `grant` names has an
allowance on top of what it would accept: whatever is named is accepted by every later run.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType

from ramlet.errors import BudgetError
from ramlet.runtime.amounts import SIZES, amount
from ramlet.runtime.memory import PeakCounter, free_memory, resident_memory

__all__ = [
    *("Budget", "Meter", "Point", "StageUsage"),
    *("adding_up", "budget_in_force", "format_bytes", "reserve_of", "with_reserve", "within"),
]

AUTO_PERCENT = 60
"""What `auto` takes of the free memory: the rest is for the page cache, which makes reading fast, and
for whatever else the machine does."""

MOST = 1e18
SMALLEST = 1_000_000
"""Anything below a megabyte is a forgotten unit, not a budget."""

LEAST_RESERVE = 2_000_000
"""What is kept for allocators and Python's own objects however small the budget is."""

DRIFT = 2_000_000
DRIFT_SHARE = 32
"""What is resident before the work begins differs from run to run by less than this many bytes, or this share of it."""


def format_bytes(count: float) -> str:
    """Three digits and a decimal unit, as a person says it.

    >>> format_bytes(1_430_000_000), format_bytes(128_000_000), format_bytes(512)
    ('1.43 GB', '128 MB', '512 B')
    """
    if abs(count) < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        # Compared as it will be rounded, or 999.7 MB would read "1000 MB".
        if abs(count) < 999.5 or unit == "TB":
            break
    digits = 2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0
    return f"{count:.{digits}f} {unit}"


@dataclass(frozen=True)
class Budget:
    """So many bytes of RSS for the process tree, or for one part of the work.

    budget = ramlet.Budget.parse("2GB")
    budget.total, budget.available(), str(budget)
    """

    total: int
    """The promise, in bytes."""

    reserve: int = -1
    """Kept out of `available()` for what no consumer accounts for; -1 is a 32nd of the total, and at least
    `LEAST_RESERVE`: an assumption about allocator slack that the meter shows right or wrong."""

    held: int = 0
    """What a process that waits for this one holds of the budget that was asked for, beside the total."""

    def __post_init__(self) -> None:
        if self.total < 0:
            raise BudgetError(f"a memory budget of {self.total} bytes is no budget: give one like 2GB")
        if self.reserve < 0:
            object.__setattr__(self, "reserve", reserve_of(self.total))

    @classmethod
    def parse(cls, value: Budget | str | int | None) -> Budget:
        """A budget from what a user wrote.

        `512MB`, `2GB`, `1.5g` are decimal, `2GiB`, `512mi` binary; `50%` is a part of what is free on
        the machine or in its cgroup, whichever is less; `auto`, or None, is 60% of it. A whole number
        is bytes. `2GB-32MB` is what `ramlet run` gives a stage: of the 2GB that the user asked for, the
        process that waits for the stage holds 32MB.
        """
        if isinstance(value, Budget):
            return value
        if isinstance(value, int):
            return cls(_checked(value, str(value)))
        if value is not None and not isinstance(value, str):
            raise BudgetError(f"{value!r} is no memory budget: give a text like 2GB, or a whole number of bytes")
        text = f"{AUTO_PERCENT}%" if value is None or value.strip().lower() == "auto" else value.strip()
        asked, minus, waiting = text.partition("-")
        if minus and asked:
            whole, held = cls.parse(asked).total, cls.parse(waiting).total
            return cls(max(0, whole - held), held=min(held, whole))
        percent = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*%", text)
        if percent is None:
            return cls(_checked(amount(text, SIZES), text))
        if not 0 < (part := float(percent[1])) <= 100:
            raise BudgetError(f"{text} of the free memory is no budget: give a part between 1% and 100%")
        return cls(int(free_memory() * part / 100))

    def divide(self, **weights: float) -> dict[str, Budget]:
        """The whole, divided in proportion to the weights; the parts never add up to more than it.

        >>> {name: part.total for name, part in Budget(1000).divide(table=3, blocks=1).items()}
        {'table': 750, 'blocks': 250}
        """
        whole = sum(weights.values())
        if whole <= 0 or min(weights.values()) < 0:
            raise ValueError(f"weights must be positive: {weights}")
        return {name: Budget(int(self.total * weight / whole)) for name, weight in weights.items()}

    def share(self, fraction: float) -> Budget:
        """One part of the budget, as a fraction of it."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"a share is between 0 and 1, not {fraction}")
        return Budget(int(self.total * fraction))

    def room(self) -> int:
        """Bytes that may still be taken now; below 0 it is how many are missing."""
        return self.total - resident_memory() - self.reserve

    def available(self) -> int:
        """Bytes that may still be taken now: the total less what is resident and less the reserve."""
        return max(0, self.room())

    def grant(self, parts: Mapping[str, int], base: str = "Python and what it has loaded", *, peak: int = 0) -> int:
        """The room for work, which is at least the sum of `parts`: bytes by what takes them.

        A budget without it is refused, with one that this process and every other run of the same command accepts.
        `peak` is the most that was resident on the way here, under this very budget.
        """
        room, need = self.room(), sum(parts.values())
        if room >= need and peak <= self.total:
            return room
        resident = _coarse(resident_memory())
        enough = with_reserve(resident + need)
        if (before := _coarse(peak)) > enough:
            # Loading took more than the work will.
            enough, parts, base = before, {}, f"{base}, while it was loaded"
            resident = before
        raise self._refusal(enough, {base: resident, **parts})

    def require(self, minimum: int, what: str | Mapping[str, int], *, measured: int = 0) -> None:
        """Refuses a budget too small to work in, naming the smallest that does and what takes it.

        `what` is the words, or the bytes each consumer takes, from which the words are made. `measured` of the minimum
        were found resident: in another run it may be a little more, and the budget that is named has room for that.
        """
        if self.total < minimum:
            raise self._refusal(minimum + (_coarse(measured) - measured if measured else 0), what)

    def _refusal(self, minimum: int, what: str | Mapping[str, int]) -> BudgetError:
        # As a user would type it, rounded up so that it is enough.
        enough = math.ceil((minimum + self.held) / 1e6)
        parts: Mapping[str, int] = {}
        if not isinstance(what, str):
            parts = self.all_parts(what)
            what = adding_up(parts, enough)
        return BudgetError(
            f"needs at least {enough}MB: {what} (the budget is {self})",
            needed=enough * 1_000_000,
            parts=dict(parts),
            budget=self.asked,
        )

    def all_parts(self, parts: Mapping[str, int]) -> dict[str, int]:
        """What takes the budget that was asked for, with what a process that waits holds of it."""
        return {**parts, "the process that waits for this one": self.held} if self.held else dict(parts)

    @property
    def asked(self) -> int:
        """As a user gave it, for whatever is told: the total, and what another process holds of it."""
        return self.total + self.held

    def __str__(self) -> str:
        return format_bytes(self.asked)


def reserve_of(total: int) -> int:
    """What a budget of so many bytes keeps back."""
    return max(total // 32, LEAST_RESERVE)


def with_reserve(work: int) -> int:
    """The least total that has so many bytes beside its reserve."""
    return work + max(-(-work // 31), LEAST_RESERVE)


def _coarse(resident: int) -> int:
    """What is resident in any run of this command, in whole megabytes: two runs mostly name the same."""
    return -(-(resident + max(DRIFT, resident // DRIFT_SHARE)) // 1_000_000) * 1_000_000


def adding_up(parts: Mapping[str, int], megabytes: int) -> str:
    """The parts in words, the largest first, to a tenth of a megabyte; what is shown adds up to the whole."""
    rest = megabytes * 1_000_000 - sum(parts.values())
    # Rounding alone is no part of its own.
    named = {**parts, "what no one accounts for": rest} if rest >= 1_000_000 else dict(parts)
    ordered = sorted(named.items(), key=lambda part: -part[1])
    tenths = [round(size / 1e5) for _, size in ordered]
    tenths[0] += megabytes * 10 - sum(tenths)
    shown = zip(tenths, ordered, strict=True)
    return ", ".join(f"{tenth / 10:,.1f} MB for {name}" for tenth, (name, _) in shown)


def _checked(total: int | None, text: str) -> int:
    how = "write it like 512MB, 2GB, 2GiB, 50% or auto"
    if re.fullmatch(r"[\d.]{20,}.*", text) or (total or 0) > MOST:
        raise BudgetError(f"{text[:20]}... is more memory than there is: {how}")
    if total is None:
        raise BudgetError(f"cannot read {text!r} as memory: {how}")
    if total < SMALLEST:
        raise BudgetError(f"{text} is less than a megabyte of memory: give a unit, as in 512MB or 2GB")
    return total


@dataclass(frozen=True)
class Point:
    """The most memory resident in one slice of time."""

    seconds: float
    rss: int
    stage: str


@dataclass
class StageUsage:
    """What one stage took."""

    seconds: float = 0.0
    peak: int = 0


_IN_FORCE: list[Budget] = []


def budget_in_force() -> Budget | None:
    """That of the run that is being measured, for what reads files deep below it; None where there is none."""
    return _IN_FORCE[-1] if _IN_FORCE else None


@contextmanager
def within(budget: Budget | None) -> Iterator[None]:
    """The budget is in force; a meter's is while it measures."""
    if budget is None:
        yield
        return
    _IN_FORCE.append(budget)
    try:
        yield
    finally:
        _IN_FORCE.remove(budget)


class Meter:
    """Samples the RSS of the process tree in a thread, by stage.

        with ramlet.Meter(ramlet.Budget.parse("2GB")) as meter:
            meter.stage("reading")
        print(meter.closing_line(), meter.peak, meter.timeline)

    20 samples a second, about 0.1 ms each. The timeline stays under 512 points however long the run:
    when it is full, neighbours are folded into one (the larger is kept) and each later point covers
    twice the time. `peak` also takes in the kernel's own high-water marks, so that a spike between
    two samples is not missed.
    """

    POINTS = 512

    def __init__(self, budget: Budget | None = None, *, interval: float = 0.05) -> None:
        self.budget = budget
        self.stages: dict[str, StageUsage] = {}
        self._interval = interval
        self._points: list[Point] = []
        self._stride = 1  # samples folded into one point
        self._pending: list[Point] = []
        self._stage = ""
        self._stage_began = 0.0
        self._began = 0.0
        self._current = 0
        self._peak = 0
        self._counter = PeakCounter()
        self._in_force = ExitStack()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Meter:
        if self._thread is not None:
            raise RuntimeError("a meter measures one run: make another")
        self._in_force.enter_context(within(self.budget))
        self._began = self._stage_began = time.monotonic()
        self._counter = PeakCounter()
        self.sample()
        self._thread = threading.Thread(target=self._watch, name="ramlet-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._in_force.close()
        if self._thread is not None:
            self._thread.join()
        self.sample()
        with self._lock:
            self._close_stage()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.sample()
            except OSError:
                continue  # out of file descriptors, say; the high-water mark catches up later

    def sample(self) -> int:
        """Takes a sample now and returns it: bytes resident in the process tree."""
        rss = resident_memory()
        high = self._counter.grown()
        with self._lock:
            self._current = rss
            self._record(rss, max(rss, high))
        return rss

    def _record(self, rss: int, peak: int) -> None:
        # A high-water mark that grew since the last sample belongs to the stage that was running.
        if peak > self._peak:
            self._peak = rss = peak
        if self._stage:
            usage = self.stages[self._stage]
            usage.peak = max(usage.peak, rss)
        self._pending.append(Point(time.monotonic() - self._began, rss, self._stage))
        if len(self._pending) < self._stride:
            return
        self._points.append(max(self._pending, key=lambda point: point.rss))
        self._pending.clear()
        if len(self._points) == self.POINTS:
            pairs = [self._points[at : at + 2] for at in range(0, len(self._points), 2)]
            self._points = [max(pair, key=lambda point: point.rss) for pair in pairs]
            self._stride *= 2

    def stage(self, name: str) -> None:
        """From here on the run is in this stage; coming back to a name adds to it."""
        self.sample()
        with self._lock:
            self._close_stage()
            self._stage = name
            self.stages.setdefault(name, StageUsage())
        self.sample()

    def _close_stage(self) -> None:
        now = time.monotonic()
        if self._stage:
            self.stages[self._stage].seconds += now - self._stage_began
        self._stage_began = now

    @property
    def current(self) -> int:
        """The latest sample, in bytes."""
        return self._current

    @property
    def peak(self) -> int:
        """The most bytes resident at any moment of the run so far."""
        return self._peak

    @property
    def timeline(self) -> list[Point]:
        """At most 512 points over the whole run, oldest first."""
        with self._lock:
            latest = [max(self._pending, key=lambda point: point.rss)] if self._pending else []
            return self._points + latest

    def closing_line(self) -> str:
        """`peak 1.43 GB of 2.00 GB`, with which every command ends."""
        if self.budget is None:
            return f"peak {format_bytes(self.peak)}"
        return f"peak {format_bytes(self.peak)} of {self.budget}"

    def summary(self) -> dict[str, object]:
        """For `stats.json`: budget and peak in bytes, the stages, and the timeline by stage."""
        return {
            "budget": self.budget.asked if self.budget else None,
            "peak": self.peak,
            "stages": {
                name: {"seconds": round(usage.seconds, 3), "peak": usage.peak} for name, usage in self.stages.items()
            },
            "timeline": [[round(point.seconds, 2), point.rss, point.stage] for point in self.timeline],
        }
