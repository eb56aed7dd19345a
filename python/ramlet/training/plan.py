"""Finds the plan of a run: with what the user has fixed, and what a resumed run must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramlet.engines import Engine
from ramlet.engines.plan import Plan, Rehearsal, Task
from ramlet.errors import BudgetError
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training.feed import Feed
from ramlet.training.job import Job
from ramlet.training.listener import Listener
from ramlet.training.run_folder import KEPT, other_choice, other_engine
from ramlet.training.settings import RunSettings


def plan_run(
    job: Job,
    feed: Feed,
    engine: Engine,
    budget: Budget,
    meter: Meter,
    listener: Listener,
    run: Path,
    noted: Mapping[str, Any] | None,
    rehearsal: Rehearsal,
) -> Plan:
    """A plan that fits the budget, corrected by a few real steps; a resumed run keeps its plan if it fits.

    `noted` is the settings.yaml of a resumed `run`, `rehearsal` as in a `Task`.
    """
    import yaml  # noqa: F401 - to write settings.yaml: resident before it is measured what is

    with feed.loader(job.seq_len, job.sequences, None, engine.ranks) as loader:
        held = loader.memory
    task = Task(
        job.shape,
        job.seq_len,
        job.sequences,
        budget,
        job.precision,
        job.settings.document_mask,
        job.recipe.optimizer,
        fixed(job.settings),
        resident=engine.resident(stepping=True),
        loader_bytes=(lambda rows: held(micro_batch=rows)) if engine.uses_host_memory else 0,
        sampled=_sampled(job.settings),
        prompted=_prompted(job.settings),
        rehearsal=rehearsal,
    )
    meter.stage("probing")
    if noted is None:
        return engine.fit(task, job.settings, meter)
    before = dict(noted["plan"]["choice"])
    if noted["plan"].get("world", 1) != engine.ranks.world:
        before.pop("shard", None)  # for another number of ranks
    # Its states are stored in this form; only how a step is divided may change, and with it the last bits on a GPU.
    kept = {name: before[name] for name in (*KEPT, "compute")}
    for name in KEPT:
        if task.forced.get(name, kept[name]) != kept[name]:
            raise other_choice(run, name, kept[name], task.forced[name])
    try:
        # Another engine divides steps by its own measure.
        again = kept if other_engine(noted, engine) else before
        return engine.fit(replace(task, forced={**again, **task.forced}), job.settings, meter)
    except BudgetError:
        if engine.kind != "cpu":
            listener.noted("the budget is smaller than before: steps are divided differently, so last bits may differ")
    return engine.fit(replace(task, forced={**task.forced, **kept}), job.settings, meter)


def _sampled(settings: RunSettings) -> int:
    """Tokens of a sample, with its prompt."""
    return 0 if settings.sample_every == 0 else settings.sample_tokens + _prompted(settings)


def _prompted(settings: RunSettings) -> int:
    """At most: a token has at least a byte."""
    return max(1, len(settings.sample_prompt.encode()))


def fixed(settings: RunSettings) -> dict[str, Any]:
    """What the user has fixed, by the names of `Choice`."""
    wanted = {
        "micro_batch": settings.micro_batch,
        "recompute": settings.recompute,
        "optimizer": None if settings.optimizer == "auto" else settings.optimizer,
        "weights": None if settings.weights == "auto" else settings.weights,
        "dropout": settings.dropout or None,
        "shard": None if settings.shard == "auto" else settings.shard,
    }
    return {name: value for name, value in wanted.items() if value is not None}
