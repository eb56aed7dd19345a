"""The page's word on memory: over time against the budget, and predicted against measured."""

from __future__ import annotations

from typing import Any

from ramlet.reporting.bars import Part, stacked
from ramlet.reporting.charts import memory_chart, swatch
from ramlet.reporting.found import Run, figure, look
from ramlet.reporting.markup import duration, escape, share, size, table
from ramlet.reporting.story import Story

__all__ = ["memory_over_time", "peak_of_budget", "predicted"]

PARTS = {
    "overhead": "Python, PyTorch and their libraries",
    "weights": "the model",
    "gradients": "what a step changes it by",
    "optimizer": "what the optimizer remembers of each weight",
    "activations": "what a micro-batch leaves on its way through",
    "logits": "a score for every token of the vocabulary",
    "data": "what the loader holds",
}
SHORTEST = 0.001
"""Seconds of a stage that can be seen."""
Timeline = list[tuple[float, float, str]]


def memory_over_time(story: Story) -> str:
    """A chart for each command that took part."""
    drawn = [_of_command("tokenizer train", each.path.name, each.statistics) for each in story.tokenizers]
    drawn += [_of_command("prepare", each.path.name, each.statistics) for each in story.datasets]
    if story.run is not None:
        drawn += _of_run(story.run)
    charts = "".join(drawn)
    return f'<div class="panels">{charts}</div>' if charts else ""


def _of_command(command: str, name: str, statistics: Any) -> str:
    timeline = _timeline(statistics)
    if len(timeline) < 2:
        return ""
    budget = figure(statistics, "memory", "budget")
    peak = figure(statistics, "memory", "peak") or max(rss for _, rss, _ in timeline)
    stages = [
        (stage, f"{duration(figure(used, 'seconds') or 0)}, {size(figure(used, 'peak') or 0)}")
        for stage, used in (look(statistics, "memory", "stages") or {}).items()
        if (figure(used, "seconds") or 0) >= SHORTEST
    ]
    about = f"{command} {name}: peak {size(peak)}" + (f" of a budget of {size(budget)}" if budget else "")
    return memory_chart(f"{command}: {name}", timeline, about=about, budget=budget, stages=stages)


def _of_run(run: Run) -> list[str]:
    drawn = [_of_command("train", run.path.name, run.statistics)]
    on_device = look(run.settings, "plan", "device") == "cuda"
    if run.statistics is None or on_device:
        points = run.metrics.memory.points()
        where = "on the device" if on_device else "so far"
        drawn.append(
            memory_chart(
                f"train: {run.path.name}, {where}",
                [(seconds, rss, "training") for seconds, rss in points],
                about=f"memory {where}, as the steps noted it",
                budget=figure(run.settings, "plan", "budget"),
                stages=[("training", f"{duration(run.metrics.seconds)}, {size(points[-1][1])}")] if points else [],
            )
        )
    return drawn


def _timeline(statistics: Any) -> Timeline:
    points = look(statistics, "memory", "timeline")
    found: Timeline = []
    for point in points if isinstance(points, list) else []:
        if isinstance(point, list) and len(point) == 3 and all(isinstance(value, (int, float)) for value in point[:2]):
            found.append((point[0], point[1], str(point[2])))
    return sorted(found, key=lambda point: point[0])


def peak_of_budget(statistics: Any, run: Run | None = None) -> tuple[float | None, float | None]:
    """The most memory that was held, and what was allowed; of a run that goes on, as far as it is known."""
    if run is None:
        return figure(statistics, "memory", "peak"), figure(statistics, "memory", "budget")
    highest = run.metrics.memory.highest
    peak = figure(run.statistics, "memory", "device_peak")
    return peak or (highest[1] if highest else None), figure(run.settings, "plan", "budget")


def predicted(run: Run) -> str:
    """What the plan said before the first step, beside what was measured."""
    found = look(run.settings, "plan", "parts")
    # What is there before the model comes first, in grey: what is left is the model's.
    parts: list[Part] = [
        (name, amount, at % 8)
        for at, name in enumerate(PARTS)
        if (amount := figure(found, name)) is not None and amount > 0
    ]
    if not parts:
        return ""
    peak, budget = peak_of_budget(run.statistics, run)
    total = sum(amount for _, amount, _ in parts)
    rows: list[tuple[str, list[Part]]] = [("predicted", parts)]
    words = f"The plan said {size(total)} before the first step."
    if peak:
        rows.append(("measured", [("peak", peak, 3)]))
        off = share(abs(total - peak), peak)
        words += f" {size(peak)} were measured: the plan was {off} {'above' if total >= peak else 'below'} that."
    drawn = stacked("Peak memory", rows, about=words, limit=budget)
    own = [part for part in parts if part[0] != "overhead"]
    grown = sum(amount for _, amount, _ in own)
    if 0 < grown < total / 3:
        about = "The same without the overhead, which a small model does not change."
        drawn += stacked("What the model takes of it", [("predicted", own)], about=about, limit=None)
    listed = table(
        ("part", "bytes", "share"),
        [
            (f"{swatch(colour)}{escape(name)} <small>{PARTS[name]}</small>", size(amount), share(amount, total))
            for name, amount, colour in parts
        ],
        numbers=(1, 2),
    )
    return drawn + listed
