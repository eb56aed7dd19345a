"""What is to be trained, and a way of doing it that fits a memory budget; the same for all engines.

    task = Task(shape, seq_len=256, batch_size=32, budget=Budget.parse("1GB"), precision="bf16")
    plan = engine.sketch(task)
    plan.choice.micro_batch, plan.accumulation, plan.peak, plan.notes

How a choice is found, and how much memory it takes, is each engine's own matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ramlet.errors import BudgetError, SettingsError, option
from ramlet.model.dtypes import PRECISIONS
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, format_bytes, format_parts, with_reserve

__all__ = ["PARTS", "Choice", "Correction", "Plan", "Task", "too_small"]

OPTIMIZERS = ("adamw", "adamw8bit")
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "data", "overhead")

JITTER = 12_000_000
"""By how much what is resident before the model differs from run to run; added to a smallest budget that is named."""

LoaderBytes = int | Callable[[int], int]
"""What a loader holds: a number, or one that follows from the micro-batch."""


@dataclass(frozen=True)
class Task:
    """What a plan is made for."""

    shape: Shape
    seq_len: int
    batch_size: int
    """Sequences in a step, over all ranks."""
    budget: Budget
    """Of this process."""
    precision: str
    """What products are made in."""
    document_mask: bool = False
    forced: Mapping[str, Any] = field(default_factory=dict)
    """What the user has fixed, by the names of `Choice`."""
    resident: int = 0
    """Bytes of the budget that are taken before the model is made."""
    loader_bytes: LoaderBytes = 0


@dataclass(frozen=True)
class Choice:
    """What the planner decides. The effective batch is not among it: it never changes."""

    micro_batch: int
    """Sequences that go through the model at once."""
    chunk: int
    """Tokens whose logits exist at once."""
    recompute: bool = False
    """Activation checkpointing: keep only each layer's input, and compute the rest again in the backward pass."""
    optimizer: str = "adamw"
    weights: str = "fp32"
    """The type that weights and their gradients are kept in."""
    compute: str = "fp32"
    """The type that products are made in."""
    reuse: bool = True
    """On a CPU, freed tensors stay with the allocator for the next ones: a tenth faster, with gaps between them."""
    held: int = 0
    """Tokens whose embedding gradients are added together, where micro-batches are smaller (engines/torch/order.py)."""

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("weights", ("fp32", "bf16")), ("compute", PRECISIONS)):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} {getattr(self, name)!r} is unknown: choose {', '.join(known)}")
        for name in ("micro_batch", "chunk"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")

    def with_(self, **changes: Any) -> Choice:
        return replace(self, **changes)


@dataclass(frozen=True)
class Correction:
    """What measuring taught: the work of a step times `factor`, and `extra` bytes whatever its size."""

    factor: float = 1.0
    extra: int = 0


@dataclass(frozen=True)
class Plan:
    """A choice that fits, and what it was made from."""

    shape: Shape
    seq_len: int
    batch_size: int
    device: str
    choice: Choice
    parts: dict[str, int]
    """Bytes at the highest moment, by part."""
    budget: int
    moment: str = ""
    logits: int = 0
    """Bytes of a chunk's logits, which may be gone at the highest moment."""
    world: int = 1
    notes: tuple[str, ...] = ()
    """What the user should know: a sentence each."""
    document_mask: bool = False
    correction: Correction = Correction()
    """What a probe has taught, already in the parts."""
    whole_data: int = 0
    """Bytes of all sequences, were they held at once; 0 where no one asked."""
    measured: int = 0
    """The highest that the probe saw, also at a smaller micro-batch; 0 where there was none."""
    held: int = 0
    """Of the budget that was asked for, beside this one: what a process that waits for the run takes."""

    @property
    def peak(self) -> int:
        """The predicted peak in bytes, corrected by the probe where there was one."""
        return sum(self.parts.values())

    def at_least(self, peak: int) -> Plan:
        """The same, where so much was resident already: while torch was loaded, say."""
        missing = max(0, peak - self.peak)
        return replace(self, parts={**self.parts, "overhead": self.parts["overhead"] + missing})

    @property
    def share(self) -> int:
        """Sequences of a batch that one rank learns from, at most."""
        return -(-self.batch_size // self.world)

    @property
    def accumulation(self) -> int:
        """Micro-batches in a batch; the last may be smaller."""
        return -(-self.share // self.choice.micro_batch)

    def part_sizes(self, rank: int = 0) -> set[int]:
        """How many sequences a rank's micro-batches have: the planned number, and what is left for the last."""
        share = len(range(rank, self.batch_size, self.world))
        micro_batch = min(self.choice.micro_batch, share)
        return {size for size in (micro_batch, share % micro_batch if micro_batch else 0) if size}

    def table(self) -> list[tuple[str, str, str]]:
        """Rows for people: what, how much, and a word on it."""
        words = {
            "weights": f"{self.choice.weights}{_copy_words(self.choice)}",
            "gradients": self.choice.weights,
            "optimizer": self.choice.optimizer,
            "activations": f"{self.choice.micro_batch} x {self.seq_len} tokens, {self.choice.compute}"
            + (", layers made again on the way back" if self.choice.recompute else ""),
            "logits": f"{self.choice.chunk} tokens at a time"
            + ("" if self.parts["logits"] else f"; {format_bytes(self.logits)}, gone before the peak"),
            "data": "what the loader and the micro-batch hold"
            + (f", instead of {format_bytes(self.whole_data)}" if self.whole_data else ""),
            "overhead": "Python, torch and its libraries" if self.device == "cpu" else "the libraries' workspace",
        }
        rows = [(name, format_bytes(self.parts[name]), words[name]) for name in PARTS]
        of = f"of {format_bytes(self.budget + self.held)}"
        return [*rows, ("predicted peak", format_bytes(self.peak), of)]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shape": self.shape.to_dict(), "notes": list(self.notes), "peak": self.peak}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        given = {name: value for name, value in values.items() if name not in ("peak", "tokens_per_second")}
        given["shape"] = Shape(**given["shape"])
        given["choice"] = Choice(**given["choice"])
        given["correction"] = Correction(**given["correction"])
        given["notes"] = tuple(given["notes"])
        return cls(**given)


def _copy_words(choice: Choice) -> str:
    return "" if choice.compute == choice.weights else f", and a copy in {choice.compute}"


def too_small(budget: Budget, choice: Choice, taken: Mapping[str, int]) -> BudgetError:
    """The error that names the smallest budget that works, and what takes it."""
    enough = math.ceil((smallest_budget(sum(taken.values())) + budget.held) / 1e6)
    parts = budget.all_parts({name: size for name, size in taken.items() if size})
    words = format_parts(parts, enough)
    how = f"micro-batches of {choice.micro_batch}, {choice.optimizer}, {choice.weights} weights"
    return BudgetError(
        f"needs at least {enough}MB: {words}, with {how} "
        f"(the budget is {budget}); give more, or take a smaller model, a shorter {option('seq_len')}"
        f"{'' if choice.optimizer == 'adamw8bit' else ' or ' + option('optimizer', 'adamw8bit')}",
        needed=enough * 1_000_000,
        parts=parts,
        budget=budget.asked,
    )


def smallest_budget(peak: int) -> int:
    """The budget, in whole megabytes, whose room holds the peak also when a run finds a little more resident."""
    needed = peak + JITTER
    total = math.ceil(with_reserve(needed) / 1e6) * 10**6
    assert total - Budget(total).reserve >= needed
    return total
