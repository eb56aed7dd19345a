"""How a run finds its plan: what the user has fixed, what a run that goes on must keep, and what fits beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ramlet.engines import Engine
from ramlet.engines.plan import Plan, Task
from ramlet.errors import BudgetError, SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training.feed import Feed
from ramlet.training.job import Job
from ramlet.training.listener import Listener
from ramlet.training.settings import RunSettings

__all__ = ["plan_run"]


def plan_run(
    job: Job,
    feed: Feed,
    engine: Engine,
    budget: Budget,
    meter: Meter,
    listener: Listener,
    noted: Mapping[str, Any] | None,
) -> Plan:
    """What fits the budget, corrected by a few real steps; of a run that goes on what it was begun with, if it fits."""
    with feed.loader(job.seq_len, job.sequences, None, engine.ranks) as loader:
        held = loader.memory
    task = Task(
        job.shape,
        job.seq_len,
        job.sequences,
        budget,
        job.precision,
        job.settings.document_mask,
        _fixed(job.settings),
        resident=engine.resident(stepping=True),
        loader_bytes=(lambda rows: held(micro_batch=rows)) if engine.kind == "cpu" else 0,
    )
    meter.stage("probing")
    if noted is None:
        return engine.fit(task, job.settings, meter)
    before = dict(noted["plan"]["choice"])
    # Its states are on disk as they are; only how a step is divided may change, and on a GPU with it the last bits.
    kept = {name: before[name] for name in ("optimizer", "weights", "compute")}
    if any(kept[name] != value for name, value in task.forced.items() if name in kept):
        raise SettingsError("a run keeps its optimizer and its kind of weights: leave these settings as they were")
    try:
        return engine.fit(replace(task, forced={**before, **task.forced}), job.settings, meter)
    except BudgetError:
        if engine.kind != "cpu":
            listener.noted("the budget is smaller than before: steps are divided differently, which changes last bits")
    return engine.fit(replace(task, forced={**task.forced, **kept}), job.settings, meter)


def _fixed(settings: RunSettings) -> dict[str, Any]:
    """By the names of `Choice`: what is not left to the plan."""
    wanted = {
        "micro_batch": settings.micro_batch,
        "recompute": settings.recompute,
        "optimizer": None if settings.optimizer == "auto" else settings.optimizer,
        "weights": None if settings.weights == "auto" else settings.weights,
    }
    return {name: value for name, value in wanted.items() if value is not None}
