"""The memory that a run uses, measured while it runs.

with Meter(budget) as meter:
    meter.stage("count")
    ...
    meter.stage("merge")
    ...
meter.closing_line()        # "peak 1.43 GB of 2.00 GB"
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass

from ramlet.runtime.budget import Budget, format_bytes, using_budget
from ramlet.runtime.memory import PeakCounter, resident_memory


@dataclass(frozen=True)
class Point:
    """The largest resident memory in one interval of time."""

    seconds: float
    rss: int
    stage: str


@dataclass
class StageUsage:
    """Time and peak memory of one stage."""

    seconds: float = 0.0
    peak: int = 0


class Meter:
    """Samples the RSS of the process tree in a thread, by stage.

        with ramlet.Meter(ramlet.Budget.parse("2GB")) as meter:
            meter.stage("reading")
        print(meter.closing_line(), meter.peak, meter.timeline)

    20 samples per second, about 0.1 ms each. The timeline stays under 512 points however long the run: when it is
    full, neighbors are merged (the larger is kept), and each later point covers twice the time. `peak` includes the
    kernel's own high-water marks, so a spike between two samples is not missed.
    """

    POINTS = 512

    def __init__(self, budget: Budget | None = None, *, interval: float = 0.05) -> None:
        self.budget = budget
        self.stages: dict[str, StageUsage] = {}
        self._interval = interval
        self._points: list[Point] = []
        self._stride = 1  # samples merged into one point
        self._pending: list[Point] = []
        self._stage = ""
        self._stage_began = 0.0
        self._began = 0.0
        self._current = 0
        self._peak = 0
        self._counter = PeakCounter()
        self._using = ExitStack()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Meter:
        if self._thread is not None:
            raise RuntimeError("a meter measures one run: create another")
        self._using.enter_context(using_budget(self.budget))
        self._began = self._stage_began = time.monotonic()
        self._counter = PeakCounter()
        self.sample()
        self._thread = threading.Thread(target=self._watch, name="ramlet-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._using.close()
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
                continue  # for example out of file descriptors; the high-water mark catches up later

    def sample(self) -> int:
        """Takes a sample now and returns it: the resident bytes of the process tree."""
        rss = resident_memory()
        high = self._counter.grown()
        with self._lock:
            self._current = rss
            self._record(rss, max(rss, high))
        return rss

    def _record(self, rss: int, peak: int) -> None:
        # A high-water mark that grew since the last sample belongs to the current stage.
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
        """Starts a stage; a name that was used before continues that stage."""
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
        """The largest resident memory of the run so far, in bytes."""
        return self._peak

    @property
    def timeline(self) -> list[Point]:
        """At most 512 points over the whole run, oldest first."""
        with self._lock:
            latest = [max(self._pending, key=lambda point: point.rss)] if self._pending else []
            return self._points + latest

    def closing_line(self) -> str:
        """`peak 1.43 GB of 2.00 GB`, the last line of every command."""
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
