"""`ramlet.fit` and `ramlet.plan_module`: any torch module within a memory budget.

plan = ramlet.plan_module(module, loader, loss=loss, memory="4GB")
result = ramlet.fit(module, loader, loss=loss, out="my-run", max_steps=2000, memory="4GB")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ramlet.engines.opening import open_subject
from ramlet.engines.plan import ran_out
from ramlet.errors import SettingsError, option
from ramlet.fitting.job import settings_of
from ramlet.inputs.paths import check_path
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import check_threads
from ramlet.training.listener import Listener, Silent
from ramlet.training.settings import RunSettings

if TYPE_CHECKING:
    from ramlet.engines.torch.modules.plan import ModulePlan
    from ramlet.engines.torch.modules.subject import Module, Optimizer, Subject
    from ramlet.fitting.run import FitResult

    LossOf = Callable[[Any, Any], Any] | Module | None
    OptimizerOf = str | Optimizer | Callable[[Any], Optimizer]


def fit(
    module: Module,
    loader: Iterable[Any],
    loss: LossOf = None,
    *,
    out: str | os.PathLike[str],
    memory: Budget | str | int | None = "auto",
    host_memory: Budget | str | int | None = None,
    optimizer: OptimizerOf = "auto",
    precision: str = "fp32",
    device: str | None = None,
    threads: int | None = None,
    evals: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    eval_batches: int | None = None,
    resume: bool | None = None,
    meter: Meter | None = None,
    listener: Listener | None = None,
    **settings: Any,
) -> FitResult:
    """Trains a module in place within a memory budget, in the folder `out`, or resumes the run that is there.

        result = ramlet.fit(module, loader, loss=loss, out="my-run", max_steps=2000, memory="4GB")

    A batch of `loader` is a step, however little of it fits at once: a dict or tuple of tensors whose first dimension
    is the sample. `loss(module, batch)` returns its mean, or (sum, count); a criterion of torch.nn is for batches
    (inputs, targets); without one the module's output has a `loss`, as in transformers. `optimizer` is auto, adamw,
    adamw8bit, muon, a torch optimizer, or a function that makes one from parameters. `evals` is a loader, or loaders by
    name. The settings are those of `ramlet train` that a module has too: max_steps, epochs, lr, schedule, clip, ...
    """
    own = tuple(fit.__kwdefaults__ or ())
    chosen = settings_of(settings, own)
    check_path(out)
    check_threads(threads)
    _check_batches(eval_batches)
    from ramlet.fitting.run import eval_loaders

    sets = eval_loaders(evals, eval_batches, training=loader)
    subject = open_subject(module, loss, device=device, threads=threads, precision=precision)
    host = Budget.parse(memory if subject.engine.uses_host_memory else host_memory)
    with nullcontext(meter) if meter is not None else Meter(host) as watching, subject.borrowed():
        return _fitted(subject, loader, out, chosen, optimizer, sets, memory, resume, watching, listener or Silent())


def _fitted(
    subject: Subject,
    loader: Any,
    out: str | os.PathLike[str],
    settings: RunSettings,
    optimizer: Any,
    evals: list[Any],
    memory: Any,
    resume: bool | None,
    meter: Meter,
    listener: Listener,
) -> FitResult:
    from ramlet.fitting.folder import ModuleFolder
    from ramlet.fitting.run import Fitting, result_of
    from ramlet.fitting.source import Source
    from ramlet.training import checkpoint

    budget = subject.engine.budget(memory)
    source = Source(loader, subject, seed=settings.seed, accumulation=settings.gradient_accumulation_steps)
    steps = settings.max_steps or source.steps(settings.epochs or 1.0)
    with ModuleFolder(out) as folder:
        done = folder.statistics()
        noted = None if resume is False or not folder.has_model() else folder.noted()
        name = subject.optimizer_name(optimizer)
        decisive = {**settings.decisive(), "optimizer": name, "precision": subject.precision}
        described = {"settings": decisive, "data": [], "job": subject.described()}
        if noted is not None:
            folder.refuse_other_modules(noted, described, resume=bool(resume))
            latest = checkpoint.latest(folder.path)
            if latest is None:
                raise SettingsError(f"{folder.path} has no checkpoints any more: choose another {option('out')}")
            if done is not None and done["steps"] >= steps:
                subject.read_weights(latest / "model.safetensors")
                return result_of(folder.path, done, subject.noted_plan(noted["plan"]), already_done=True)
        fitting = Fitting(
            subject,
            source,
            folder,
            settings=settings,
            steps=steps,
            optimizer=optimizer,
            evals=evals,
            described=described,
            noted=noted,
            budget=budget,
            meter=meter,
            listener=listener,
        )
        try:
            fitting.begin(fitting.plan())
            fitting.run()
            return fitting.finish()
        except subject.engine.out_of_memory:
            raise ran_out(budget) from None


def plan_module(
    module: Module,
    loader: Iterable[Any],
    loss: LossOf = None,
    *,
    memory: Budget | str | int | None = "auto",
    optimizer: OptimizerOf = "auto",
    precision: str = "fp32",
    device: str | None = None,
    threads: int | None = None,
    **settings: Any,
) -> ModulePlan:
    """How `ramlet.fit` would train this module: the largest micro-batch that fits, found by running it.

        plan = ramlet.plan_module(module, loader, loss=loss, memory="4GB")
        plan.micro_batch, plan.recompute, plan.optimizer, plan.peak, plan.parts

    The arguments are those of `fit`. No weight changes. What does not fit is a `BudgetError` with the smallest budget
    that would be enough.
    """
    own = tuple(plan_module.__kwdefaults__ or ())
    chosen = settings_of(settings, own)
    check_threads(threads)
    from ramlet.fitting.run import planned
    from ramlet.fitting.source import Source

    subject = open_subject(module, loss, device=device, threads=threads, precision=precision)
    host = Budget.parse(memory if subject.engine.uses_host_memory else None)
    with Meter(host) as meter, subject.borrowed():
        budget = subject.engine.budget(memory)
        source = Source(loader, subject, seed=chosen.seed, accumulation=chosen.gradient_accumulation_steps)
        try:
            return planned(subject, source, chosen, optimizer, budget=budget, meter=meter, listener=Silent())
        except subject.engine.out_of_memory:
            raise ran_out(budget) from None


def _check_batches(count: int | None) -> None:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise SettingsError(f"{option('eval_batches')} must be a whole number from 1, not {count!r}")
