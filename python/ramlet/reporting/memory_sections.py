"""Sections about memory: over time against the budget, and predicted against measured."""

from __future__ import annotations

from typing import Any

from ramlet.reporting.bars import Part, stacked
from ramlet.reporting.charts import memory_chart, swatch
from ramlet.reporting.found import Run, number_at, value_at
from ramlet.reporting.lineage import Lineage
from ramlet.reporting.markup import duration, escape, is_number, number, share, size, table

PARTS = {
    "overhead": "Python and its libraries",
    "weights": "the model",
    "gradients": "of all weights",
    "optimizer": "its state for every weight",
    "activations": "of a micro-batch, kept for the backward pass",
    "logits": "a score for every token of the vocabulary",
    "data": "the loader's batches",
}
SHORTEST = 0.001
"""Seconds: shorter stages are not listed."""
Timeline = list[tuple[float, float, str]]


def memory_over_time(lineage: Lineage) -> str:
    """A chart for each command."""
    drawn = [_of_command("tokenizer train", each.path.name, each.statistics) for each in lineage.tokenizers]
    drawn += [_of_command("prepare", each.path.name, each.statistics) for each in lineage.datasets]
    if lineage.run is not None:
        drawn += _of_run(lineage.run)
    charts = "".join(drawn)
    panels = f'<div class="panels">{charts}</div>' if charts else ""
    commands: list[tuple[str, str, Any]] = [
        ("tokenizer train", each.path.name, each.statistics) for each in lineage.tokenizers
    ]
    commands += [("prepare", each.path.name, each.statistics) for each in lineage.datasets]
    return panels + "".join(_nodes(*each) for each in commands)


def _nodes(command: str, name: str, statistics: Any) -> str:
    """What the workers of a cluster used, by node."""
    found = value_at(statistics, "nodes")
    rows = [
        (
            escape(value_at(node, "node")),
            number(number_at(node, "workers") or 0, 0),
            number(number_at(node, "parts") or 0, 0),
            size(number_at(node, "peak") or 0),
        )
        for node in (found if isinstance(found, list) else [])
    ]
    if not rows:
        return ""
    head = (f"node of {command} {escape(name)}", "workers", "parts", "highest memory of a worker")
    return table(head, rows, numbers=(1, 2, 3))


def _of_command(command: str, name: str, statistics: Any) -> str:
    timeline = _timeline(statistics)
    if len(timeline) < 2:
        return ""
    budget = number_at(statistics, "memory", "budget")
    peak = number_at(statistics, "memory", "peak") or max(rss for _, rss, _ in timeline)
    stages = [
        (stage, f"{duration(number_at(used, 'seconds') or 0)}, {size(number_at(used, 'peak') or 0)}")
        for stage, used in (value_at(statistics, "memory", "stages") or {}).items()
        if (number_at(used, "seconds") or 0) >= SHORTEST
    ]
    about = f"{command} {name}: peak {size(peak)}" + (f" of a budget of {size(budget)}" if budget else "")
    return memory_chart(f"{command}: {name}", timeline, about=about, budget=budget, stages=stages)


def _of_run(run: Run) -> list[str]:
    drawn = [_of_command("train", run.path.name, run.statistics)]
    on_device = value_at(run.settings, "plan", "device") == "cuda"
    if run.statistics is None or on_device:
        points = run.metrics.memory.points()
        where = "on the device" if on_device else "so far"
        drawn.append(
            memory_chart(
                f"train: {run.path.name}, {where}",
                [(seconds, rss, "training") for seconds, rss in points],
                about=f"memory {where}, as logged by the steps",
                budget=number_at(run.settings, "plan", "budget"),
                stages=[("training", f"{duration(run.metrics.seconds)}, {size(points[-1][1])}")] if points else [],
            )
        )
    return drawn


def _timeline(statistics: Any) -> Timeline:
    points = value_at(statistics, "memory", "timeline")
    found: Timeline = []
    for point in points if isinstance(points, list) else []:
        if isinstance(point, list) and len(point) == 3 and all(map(is_number, point[:2])):
            found.append((point[0], point[1], str(point[2])))
    return sorted(found, key=lambda point: point[0])


def peak_of_budget(statistics: Any, run: Run | None = None) -> tuple[float | None, float | None]:
    """The most memory that was in use, and the budget; of an unfinished run, so far."""
    if run is None:
        return number_at(statistics, "memory", "peak"), number_at(statistics, "memory", "budget")
    highest = run.metrics.memory.highest
    peak = number_at(run.statistics, "memory", "device_peak")
    return peak or (highest[1] if highest else None), number_at(run.settings, "plan", "budget")


def predicted(run: Run) -> str:
    """What the plan predicted before the first step, next to what was measured."""
    found = value_at(run.settings, "plan", "parts")
    # The overhead comes first, in gray: the rest is the model's.
    parts: list[Part] = [
        (name, amount, at % 8)
        for at, name in enumerate(PARTS)
        if (amount := number_at(found, name)) is not None and amount > 0
    ]
    if not parts:
        return ""
    peak, budget = peak_of_budget(run.statistics, run)
    total = sum(amount for _, amount, _ in parts)
    rows: list[tuple[str, list[Part]]] = [("predicted", parts)]
    about = f"The plan predicted {size(total)} before the first step."
    if peak:
        rows.append(("measured", [("peak", peak, 3)]))
        off = share(abs(total - peak), peak)
        about += f" {size(peak)} was measured: the plan was {off} {'above' if total >= peak else 'below'} that."
    drawn = stacked("Peak memory", rows, about=about, limit=budget)
    own = [part for part in parts if part[0] != "overhead"]
    grown = sum(amount for _, amount, _ in own)
    if 0 < grown < total / 3:
        about = "The same without the overhead, which does not depend on the model."
        drawn += stacked("Memory of the model", [("predicted", own)], about=about, limit=None)
    listed = table(
        ("part", "bytes", "share"),
        [
            (f"{swatch(color)}{escape(name)} <small>{PARTS[name]}</small>", size(amount), share(amount, total))
            for name, amount, color in parts
        ],
        numbers=(1, 2),
    )
    return drawn + listed
