"""A progress line: stage, amount done, speed, time left, memory and budget.

    counting   1.20 GB of 4.00 GB   30%   212 MB/s   13 s left   memory 812 MB of 2.00 GB

It is redrawn in place on a terminal; elsewhere, and with --quiet or --json, nothing is shown. When a stage ends, its
line stays, with the time it took. Plain escape codes: rich would cost 7 MB of RSS.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from ramlet.cli.color import bold
from ramlet.cluster import Status
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import noun

REDRAW_SECONDS = 0.1
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
    """Bytes with a suitable unit, anything else as a whole number with its name.

    >>> format_count(32000, "merges"), format_count(1, "steps"), format_count(2_000_000)
    ('32,000 merges', '1 step', '2.00 MB')
    """
    return format_bytes(count) if unit == "bytes" else f"{count:,.0f} {_unit(count, unit)}"


def _unit(count: float, unit: str) -> str:
    return noun(round(count), "hash" if unit == "hashes" else unit.removesuffix("s"), unit)


def format_perplexity(value: float) -> str:
    """
    >>> format_perplexity(48.0085), format_perplexity(1.5e70)
    ('48.01', '1.5e+70')
    """
    return f"{value:.2f}" if value < 1e6 else f"{value:.2g}"


def format_score(name: str, score: Mapping[str, Any]) -> str:
    """The result of an evaluation."""
    bits = "" if score["bits_per_byte"] is None else f", {score['bits_per_byte']:.3f} bits per byte"
    return f"{name}: loss {score['loss']:.4f}, perplexity {format_perplexity(score['perplexity'])}{bits}"


class Progress:
    """Draws what a stage reports; `update` may be called any number of times."""

    def __init__(self, meter: Meter | None = None, *, silent: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._meter = meter
        self._on = not silent and self._stream.isatty()
        self._what = ""
        self._unit = "bytes"
        self._done = 0.0
        self._total: float | None = None
        self._detail = ""
        self._left: float | None = None
        self._began: dict[str, tuple[float, float]] = {}
        """For each stage, when it began and how far it is; a stage that continues keeps its start."""
        self._drawn = 0.0
        self._recent: deque[tuple[float, float]] = deque()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(finished=error is None)

    def update(
        self,
        what: str,
        done: float,
        total: float | None = None,
        unit: str = "bytes",
        detail: str = "",
        left: float | None = None,
    ) -> None:
        """`done` of `total` (None if unknown), counted in `unit`; a different `what` begins a new line.

        `detail` is shown instead of the speed. `left` is the number of seconds left, if the caller has a better
        estimate than the speed gives.
        """
        if not self._on:
            return
        now = time.monotonic()
        if what != self._what:
            self.close()
            self._what, self._unit, self._drawn = what, unit, 0.0
            began, before = self._began.get(what, (now, done))
            self._began[what] = (began if done >= before else now, done)
            self._recent.clear()
        self._done, self._total, self._detail, self._left = done, total, detail, left
        if now - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        self._recent.append((now, done))
        while len(self._recent) > 2 and now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()
        self._draw(self._running_line())

    def close(self, *, finished: bool = True) -> None:
        """Ends the line: with the time the stage took, or unchanged if it did not finish."""
        if not self._on or not self._what:
            return
        if finished:
            began, _ = self._began[self._what]
            self._began[self._what] = (began, self._done)
            seconds = time.monotonic() - began
            parts = [self._what, format_count(self._done, self._unit), f"in {format_duration(seconds)}"]
            if self._detail:
                parts.append(self._detail)
            elif seconds > 0:
                parts.append(format_count(self._done / seconds, self._unit) + "/s")
            self._draw("   ".join(parts))
        self._stream.write("\n")
        self._stream.flush()
        self._what = ""

    def erase(self) -> None:
        """Removes the line, because its content is printed in another way."""
        if self._on and self._what:
            self._draw("")
            self._began.pop(self._what, None)
            self._what = ""

    def _running_line(self) -> str:
        parts = [self._what]
        speed = self._speed()
        if self._total:
            part = min(1.0, self._done / self._total)
            total = format_count(self._total, self._unit)
            done = format_bytes(self._done) if self._unit == "bytes" else f"{self._done:,.0f}"
            parts += [f"{done} of {total}", f"{part:4.0%}"]
        else:
            parts.append(format_count(self._done, self._unit))
        if self._detail or speed > 0:
            parts.append(self._detail or format_count(speed, self._unit) + "/s")
        left = self._left
        if left is None and self._total and speed > 0:
            left = max(0.0, self._total - self._done) / speed
        if left is not None:
            parts.append(f"{format_duration(left)} left")
        if self._meter is not None:
            memory = f"memory {format_bytes(self._meter.current)}"
            if self._meter.budget is not None:
                memory += f" of {self._meter.budget}"
            parts.append(memory)
        return "   ".join(parts)

    def _speed(self) -> float:
        began, before = self._recent[0]
        now, done = self._recent[-1]
        return (done - before) / (now - began) if now > began else 0.0

    def _draw(self, line: str) -> None:
        # One column less than the terminal has: a full line would wrap and could not be overwritten.
        columns = shutil.get_terminal_size().columns - 1
        shown = line[:columns]
        what = shown[: len(self._what)]
        self._stream.write(f"\r{bold(what, self._stream)}{shown[len(what) :]}\x1b[K")
        self._stream.flush()


def show_status(bar: Progress, status: Status) -> None:
    """How far a whole cluster is, in one line."""
    parts = []
    if status.bytes:
        parts.append(f"{format_bytes(status.speed)}/s")
    parts.append(f"{status.nodes:,} {noun(status.nodes, 'node')}")
    if status.peak:
        parts.append(f"memory at most {format_bytes(status.peak)} of {format_bytes(status.budget)}")
    bar.update(status.stage, status.done, status.parts, "parts", "   ".join(parts))
