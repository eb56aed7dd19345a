"""How far a stage is, in words: amount done, share, speed, time left, memory and budget.

    stage = Stage("counting", meter=meter)
    stage.update(1.2e9, total=4e9)
    stage.running()         ["1.20 GB of 4.00 GB", " 30%", "212 MB/s", "13 s left", "memory 812 MB of 2.00 GB"]

`cli/progress.py` shows it in a terminal or a log, `notebook/` in a notebook.
"""

from __future__ import annotations

import time
from collections import deque

from ramlet.runtime.budget import format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import noun

SAMPLE_SECONDS = 0.1
"""Between two samples of the speed."""
SPEED_SECONDS = 5.0
"""The speed is an average over this time, so it follows changes and the time left stays accurate."""


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(4.26), format_duration(75), format_duration(7260)
    ('4.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_count(count: float, unit: str = "bytes") -> str:
    """Bytes and seconds with a suitable unit, anything else as a whole number with its name.

    >>> format_count(32000, "merges"), format_count(1, "steps"), format_count(2_000_000)
    ('32,000 merges', '1 step', '2.00 MB')
    """
    if unit == "seconds":
        return format_duration(count)
    return format_bytes(count) if unit == "bytes" else f"{count:,.0f} {_unit(count, unit)}"


def _unit(count: float, unit: str) -> str:
    return noun(round(count), "hash" if unit == "hashes" else unit.removesuffix("s"), unit)


class Stage:
    """One stage of some work; `update` may be called any number of times."""

    def __init__(self, name: str, unit: str = "bytes", *, meter: Meter | None = None, began: float = 0.0) -> None:
        """`unit` is what is counted: bytes, tokens, ... or seconds. `began` is for a stage that continues."""
        self.name = name
        self.unit = unit
        self.done = 0.0
        self.total: float | None = None
        self.detail = ""
        self.began = began or time.monotonic()
        self._meter = meter
        self._left: float | None = None
        self._recent: deque[tuple[float, float]] = deque()

    def update(self, done: float, total: float | None = None, detail: str = "", left: float | None = None) -> None:
        """`done` of `total` (None if unknown).

        `detail` is shown instead of the speed. `left` is the number of seconds left, if the caller has a better
        estimate than the speed gives.
        """
        self.done, self.total, self.detail, self._left = done, total, detail, left
        now = time.monotonic()
        if self._recent and now - self._recent[-1][0] < SAMPLE_SECONDS:
            return
        self._recent.append((now, done))
        while len(self._recent) > 2 and now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()

    @property
    def share(self) -> float | None:
        """Of the total, if it is known."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        """Seconds, if they can be estimated."""
        if self._left is not None:
            return self._left
        speed = self._speed()
        return max(0.0, self.total - self.done) / speed if self.total and speed > 0 else None

    def running(self) -> list[str]:
        """What there is to say while it runs."""
        parts = []
        if self.total:
            done = format_bytes(self.done) if self.unit == "bytes" else f"{self.done:,.0f}"
            parts += [f"{done} of {format_count(self.total, self.unit)}", f"{self.share:4.0%}"]
        else:
            parts.append(format_count(self.done, self.unit))
        speed = self._speed()
        if self.detail or (speed > 0 and self.unit != "seconds"):
            parts.append(self.detail or format_count(speed, self.unit) + "/s")
        if (left := self.left) is not None:
            parts.append(f"{format_duration(left)} left")
        if self._meter is not None:
            memory = f"memory {format_bytes(self._meter.current)}"
            parts.append(memory if self._meter.budget is None else f"{memory} of {self._meter.budget}")
        return parts

    def finished(self) -> list[str]:
        """What there is to say when it has ended."""
        seconds = self.seconds
        if self.unit == "seconds":
            return [f"in {format_duration(seconds)}"]
        parts = [format_count(self.done, self.unit), f"in {format_duration(seconds)}"]
        if self.detail:
            parts.append(self.detail)
        elif seconds > 0:
            parts.append(format_count(self.done / seconds, self.unit) + "/s")
        return parts

    def _speed(self) -> float:
        if not self._recent:
            return 0.0
        (began, before), (now, done) = self._recent[0], self._recent[-1]
        return (done - before) / (now - began) if now > began else 0.0
