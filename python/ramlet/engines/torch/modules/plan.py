"""How a step of a module fits a budget: what `ramlet.plan_module` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ramlet.runtime.budget import format_bytes

PARTS = ("weights", "gradients", "optimizer", "activations", "overhead")


@dataclass(frozen=True)
class ModulePlan:
    """A division of a step that was measured, and fits."""

    module: str
    """The name of its class."""
    device: str
    batch_size: int
    """Samples in a batch of the loader."""
    accumulation: int
    """Batches of the loader in a step."""
    micro_batch: int
    """Samples in one forward pass."""
    recompute: bool
    """Activation checkpointing."""
    optimizer: str
    precision: str
    reuse: bool
    """On a CPU, freed tensors are kept for reuse: faster, but fragmented."""
    count: float
    """What a batch counts: targets or samples."""
    unit: str
    """tokens or samples."""
    row_size: float
    """Elements of a sample, as measured: longer ones are trained in smaller micro-batches."""
    parts: dict[str, int]
    """Bytes at the peak, by part."""
    budget: int
    measured: int
    """The highest peak of the trial, in bytes."""
    notes: tuple[str, ...] = ()
    """Sentences that the user should read."""

    @property
    def peak(self) -> int:
        """The predicted peak in bytes."""
        return sum(self.parts.values())

    @property
    def micro_batches(self) -> int:
        """In a step."""
        return self.accumulation * -(-self.batch_size // self.micro_batch)

    @property
    def shard(self) -> str:
        return "none"

    def calls(self, sequences: int) -> int:
        return 0

    @property
    def step_tokens(self) -> int:
        """What a step is expected to count."""
        return max(1, round(self.count * self.accumulation))

    def table(self) -> list[tuple[str, str, str]]:
        """Rows to print: the part, its size, and a remark."""
        remarks = {
            "weights": self.module,
            "gradients": "of the trainable weights",
            "optimizer": self.optimizer,
            "activations": f"of {self.micro_batch:,} samples, {self.precision}"
            + (", activation checkpointing" if self.recompute else ""),
            "overhead": "Python, libraries and your program" if self.device == "cpu" else "workspace of the libraries",
        }
        rows = [(name, format_bytes(self.parts[name]), remarks[name]) for name in PARTS]
        return [*rows, ("predicted peak", format_bytes(self.peak), f"of {format_bytes(self.budget)}")]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "notes": list(self.notes), "peak": self.peak}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModulePlan:
        given = {each.name: values[each.name] for each in fields(cls)}
        return cls(**{**given, "notes": tuple(given["notes"])})
