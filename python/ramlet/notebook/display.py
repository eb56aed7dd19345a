"""What a notebook shows of a stage of work: one line per stage, and of a training run its curve, notes and a sample.

    with Display(meter) as shown:
        prepare_to(..., progress=shown.progress)

One output is redrawn in place, at most twice per second. It stays when the work ends, and when it fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from html import escape
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ramlet.notebook.curve import Curve, svg
from ramlet.runtime.meter import Meter
from ramlet.runtime.progress import Stage

if TYPE_CHECKING:
    from ramlet.engines.plan import Plan

REDRAW_SECONDS = 0.5
LINES = 12
"""The most notes and finished stages that are shown: the latest."""
SAMPLE_CHARACTERS = 400

D = TypeVar("D", bound="Display")


class Display:
    """The stages of some work."""

    def __init__(self, meter: Meter, units: Mapping[str, str] | None = None) -> None:
        """`units` is what a stage counts, if not bytes."""
        self._meter = meter
        self._units = units or {}
        self._stage: Stage | None = None
        self._ended: dict[str, Stage] = {}
        self._lines: dict[str, str] = {}
        """Notes, and stages that have ended, by their name: of one that continues there is no second line."""
        self._drawn = 0.0
        self._handle: Any = None

    def __enter__(self: D) -> D:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(finished=error is None)
        self._draw(now=True)

    def progress(self, stage: str, done: int, total: int) -> None:
        """As `ramlet.prepare` calls it."""
        self.update(stage, done, total or None, self._units.get(stage, "bytes"))

    def update(
        self, what: str, done: float, total: float | None, unit: str, detail: str = "", left: float | None = None
    ) -> None:
        """As `Progress.update` of the command line."""
        if self._stage is None or self._stage.name != what:
            self._end()
            self._stage = self._ended.pop(what, None) or Stage(what, unit, meter=self._meter)
            self._lines.pop(what, None)
        self._stage.update(done, total, detail, left)
        self._draw()

    def note(self, line: str) -> None:
        self._add(line, escape(line))
        self._draw()

    def _add(self, key: str, line: str) -> None:
        self._lines.pop(key, None)
        self._lines[key] = line
        while len(self._lines) > LINES:
            oldest = next(iter(self._lines))
            del self._lines[oldest]
            self._ended.pop(oldest, None)

    def _end(self, *, finished: bool = True) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            parts = stage.finished() if finished else stage.running()
            self._ended[stage.name] = stage
            self._add(stage.name, f"<b>{escape(stage.name)}</b> {escape('   '.join(parts))}")

    def _draw(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = moment
        shown: Any = import_module("IPython.display")
        page = shown.HTML(f'<div style="font: 13px monospace; white-space: pre-wrap">{self._page()}</div>')
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)

    def _page(self) -> str:
        lines = list(self._lines.values())
        if self._stage is not None:
            bar = "" if self._stage.share is None else _bar(self._stage.share)
            lines.append(f"{bar}<b>{escape(self._stage.name)}</b> {escape('   '.join(self._stage.running()))}")
        return "<br>".join(lines)


class TrainingDisplay(Display):
    """A training run: a listener (`ramlet.Listener`)."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self._steps = 0
        self._left: float | None = None
        self._curves = {"loss": Curve()}
        self._sample = ""

    def noted(self, line: str) -> None:
        self.note(line)

    def warned(self, line: str) -> None:
        self.note(f"warning: {line}")

    def planned(self, plan: Plan, resumed_at: int) -> None:
        self.note(f"{plan.shape.parameters:,} parameters" + (f", from step {resumed_at:,} on" if resumed_at else ""))

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        self._steps = steps
        self._curves["loss"].add(step, loss)
        detail = f"loss {loss:.4f}   {tokens_per_second:,.0f} tokens/s"
        self.update("training", step, steps, "steps", detail, self._left)

    def expected(self, seconds: float) -> None:
        self._left = seconds

    def stopping(self) -> None:
        self.note("stopping and saving a checkpoint")

    def evaluating(self, name: str, done: int, total: int) -> None:
        self.update(f"evaluating {name}", done, total, "tokens")

    def evaluated(self, step: int, scores: Mapping[str, Any], forgotten: Mapping[str, float]) -> None:
        self._stage = None  # the curve has it
        for name, score in scores.items():
            self._curves.setdefault(name, Curve()).add(step, score.loss)
        self._draw(now=True)

    def averaged(self, count: int, scores: Mapping[str, Any]) -> None:
        for name, score in scores.items():
            self.note(f"average of the last {count}: {name} loss {score.loss:.4f}")

    def sampled(self, step: int, text: str) -> None:
        self._sample = f"step {step:,} writes: {text[:SAMPLE_CHARACTERS]}"

    def saved(self, step: int, path: Path) -> None:
        pass

    def _page(self) -> str:
        parts = (super()._page(), svg(self._curves, self._steps), escape(self._sample))
        return "<br>".join(part for part in parts if part)


def _bar(share: float) -> str:
    full = f'<span style="display: inline-block; width: {share:.1%}; height: 100%; background: #1f77b4"></span>'
    outside = "display: inline-block; width: 120px; height: 9px; background: rgba(127, 127, 127, 0.3)"
    return f'<span style="{outside}; line-height: 0">{full}</span> '
