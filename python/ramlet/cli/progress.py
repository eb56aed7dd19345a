"""Progress: stage, amount done, speed, time left, memory and budget.

    counting   1.20 GB of 4.00 GB   30%   212 MB/s   13 s left   memory 812 MB of 2.00 GB

On a terminal one line is redrawn in place; when a stage ends it stays, with the time it took. In a log, where nothing
can be redrawn, the same line is written every half minute, so a command that takes less writes none, and once more when
a stage of which it was written ends. With --quiet or --json nothing is shown. Plain escape codes: rich would cost 7 MB
of RSS.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from ramlet.cli.color import bold, warm
from ramlet.cluster import Status
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import noun
from ramlet.runtime.progress import Stage

REDRAW_SECONDS = 0.1
LOG_SECONDS = 30.0
SHORT_OF_MEMORY = 0.95
"""From this part of the budget on, the memory is shown in color."""


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
        self._on = not silent
        self._terminal = self._stream.isatty()
        self._stage: Stage | None = None
        self._began: dict[str, tuple[float, float]] = {}
        """For each stage, when it began and how far it is; a stage that continues keeps its start."""
        self._drawn = 0.0
        self._logged = time.monotonic()
        self._in_log = False
        """Whether the log has a line of this stage."""

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
        stage = self._stage
        if stage is None or what != stage.name:
            self.close()
            began, before = self._began.get(what, (now, done))
            stage = self._stage = Stage(what, unit, meter=self._meter, began=began if done >= before else now)
            self._began[what] = (stage.began, done)
            self._drawn = 0.0
        stage.update(done, total, detail, left)
        if not self._terminal:
            self._log(stage, now)
        elif now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._draw([stage.name, *stage.running()])

    def close(self, *, finished: bool = True) -> None:
        """Ends the line: with the time the stage took, or unchanged if it did not finish."""
        stage, self._stage = self._stage, None
        if stage is None:
            return
        self._began[stage.name] = (stage.began, stage.done)
        if self._terminal:
            if finished:
                self._draw([stage.name, *stage.finished()])
            self._stream.write("\n")
            self._stream.flush()
        elif self._in_log and finished:
            self._write([stage.name, *stage.finished()])
        self._in_log = False

    def erase(self) -> None:
        """Removes the line, because its content is printed in another way."""
        stage, self._stage = self._stage, None
        if stage is not None:
            if self._terminal:
                self._draw([])
            self._began.pop(stage.name, None)
            self._in_log = False

    def _log(self, stage: Stage, now: float) -> None:
        if now - self._logged >= LOG_SECONDS:
            self._logged, self._in_log = now, True
            self._write([stage.name, *stage.running()])

    def _write(self, parts: list[str]) -> None:
        self._stream.write("   ".join(parts) + "\n")
        self._stream.flush()

    def _draw(self, parts: list[str]) -> None:
        # One column less than the terminal has: a full line would wrap and could not be overwritten.
        line = "   ".join(parts)[: shutil.get_terminal_size().columns - 1]
        name = parts[0][: len(line)] if parts else ""
        rest = line[len(name) :]
        if self._is_short():
            before, memory, after = rest.partition("memory ")
            rest = before + warm(memory + after, self._stream)
        self._stream.write(f"\r{bold(name, self._stream)}{rest}\x1b[K")
        self._stream.flush()

    def _is_short(self) -> bool:
        meter = self._meter
        return meter is not None and meter.budget is not None and meter.current > SHORT_OF_MEMORY * meter.budget.total


def show_status(bar: Progress, status: Status) -> None:
    """How far a whole cluster is, in one line."""
    parts = []
    if status.bytes:
        parts.append(f"{format_bytes(status.speed)}/s")
    parts.append(f"{status.nodes:,} {noun(status.nodes, 'node')}")
    if status.peak:
        parts.append(f"memory at most {format_bytes(status.peak)} of {format_bytes(status.budget)}")
    bar.update(status.stage, status.done, status.parts, "parts", "   ".join(parts))
