"""Opens an engine and loads a model to evaluate it, within a budget."""

from __future__ import annotations

from ramlet.engines import Division, Model
from ramlet.engines.opening import open_engine
from ramlet.errors import BudgetError
from ramlet.model.folder import ModelFolder
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter


def open_model(
    found: ModelFolder,
    *,
    seq_len: int,
    document_mask: bool,
    device: str,
    engine: str,
    precision: str,
    memory: Budget | str | int | None,
    threads: int | None,
    meter: Meter | None,
    aside: int = 0,
) -> tuple[Model, Division]:
    """The model, for sequences of this length, and how to divide them; a budget that is too small is refused before
    any weight is read. `aside` bytes of RAM are left for what the caller will hold."""
    opened = open_engine(device, threads, name=engine)
    if meter is not None:
        meter.sample()
    # Kept blocks fragment the heap, by up to 90 MB here; an evaluation is too short to gain from them.
    opened.keep_freed(False)
    if precision == "auto":
        precision = "fp32" if opened.kind == "cpu" else opened.precision("auto")
    budget = opened.budget(memory)
    opened.cap(budget)
    loaded = meter.peak if meter is not None and opened.uses_host_memory else 0
    held = b"\1" * aside  # so that it is found resident when what fits is decided
    try:
        division = opened.division(
            found.shape(), seq_len=seq_len, precision=precision, budget=budget, document_mask=document_mask
        )
    except BudgetError as refused:
        if refused.facts["needed"] > loaded:
            raise
    del held
    budget.require(loaded, f"loading {opened.baseline}", measured=loaded)
    return opened.load(found, precision, division=division, seq_len=seq_len), division
