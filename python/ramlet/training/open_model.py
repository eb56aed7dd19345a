"""Opens an engine and loads a model to evaluate it, within a budget.

opening = Opening(find_model("RUN"), document_mask=False, memory="1GB")
division = opening.division(256)        # a budget that is too small is refused before any weight is read
model = opening.load(256, division)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ramlet.engines import Division, Engine, Model
from ramlet.engines.opening import check_of_weights, open_engine
from ramlet.errors import BudgetError
from ramlet.model.folder import ModelFolder
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import free_memory
from ramlet.runtime.meter import Meter


@dataclass(frozen=True)
class Opening:
    """A model and where it will be evaluated; the libraries of an engine are loaded when they are first needed."""

    found: ModelFolder
    document_mask: bool
    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    memory: Budget | str | int | None = "auto"
    threads: int | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        check_of_weights(self.precision)

    @cached_property
    def _opened(self) -> Engine:
        opened = open_engine(self.device, self.threads, name=self.engine)
        if self.meter is not None:
            self.meter.sample()
        # Kept blocks fragment the heap, by up to 90 MB here; an evaluation is too short to gain from them.
        opened.keep_freed(False)
        return opened

    @cached_property
    def _budget(self) -> Budget:
        budget = self._opened.budget(self.memory)
        self._opened.cap(budget)
        return budget

    @property
    def _chosen_precision(self) -> str:
        if self.precision != "auto":
            return self.precision
        return "fp32" if self._opened.kind == "cpu" else self._opened.precision("auto")

    def division(self, seq_len: int, aside: Mapping[str, int] | None = None) -> Division:
        """How sequences of this length are divided; `aside` are bytes of RAM, by what the caller needs them for."""
        opened, budget = self._opened, self._budget
        if aside and not opened.uses_host_memory:
            # The budget is that of the device; RAM has what is free.
            Budget(free_memory()).require(sum(aside.values()), aside)
            aside = None
        loaded = self.meter.peak if self.meter is not None and opened.uses_host_memory else 0
        try:
            division = opened.division(
                self.found.shape(),
                seq_len=seq_len,
                precision=self._chosen_precision,
                budget=budget,
                document_mask=self.document_mask,
                aside=aside,
            )
        except BudgetError as refused:
            if refused.facts["needed"] > loaded:
                raise
        budget.require(loaded, f"loading {opened.baseline}", measured=loaded)
        return division

    def load(self, seq_len: int, division: Division) -> Model:
        """The model, for sequences of this length."""
        return self._opened.load(self.found, self._chosen_precision, division=division, seq_len=seq_len)
