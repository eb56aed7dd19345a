"""What to train, and how to fit it into a memory budget; the same for all engines.

    task = Task(shape, seq_len=256, batch_size=32, budget=Budget.parse("1GB"), precision="bf16")
    plan = engine.sketch(task)
    plan.choice.micro_batch, plan.accumulation, plan.peak, plan.notes

Each engine has its own way to find a choice and to predict its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from ramlet.engines import EIGHT_BIT, OPTIMIZERS, Trainee
from ramlet.errors import BudgetError, SettingsError, option
from ramlet.model.dtypes import PRECISIONS
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, format_bytes, refusal, with_reserve

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "data", "overhead")

SHARDS = ("none", "states", "gradients", "weights")
"""What ranks can divide among them, from what costs least time to what saves most memory."""

JITTER = 12_000_000
"""How much the memory resident before the model varies from run to run with the libraries of an engine; added to the
smallest budget that errors name."""


class Rehearsal(Protocol):
    """Does with a tiny model what a run does besides its steps, so that its code is resident when that is measured."""

    @property
    def loader_bytes(self) -> int:
        """Of a loader, what is then resident too."""

    def __call__(self, trainee: Trainee) -> None: ...


LoaderBytes = int | Callable[[int], int]
"""A loader's memory: a number, or a function of the micro-batch."""


@dataclass(frozen=True)
class Task:
    """What to plan for."""

    shape: Shape
    seq_len: int
    batch_size: int
    """Sequences in a step, over all ranks."""
    budget: Budget
    """Of this process."""
    precision: str = "fp32"
    """Of matrix products."""
    document_mask: bool = False
    optimizer: str = "adamw"
    """Unless it is forced: this one, or its 8-bit form if only that fits."""
    forced: Mapping[str, Any] = field(default_factory=dict)
    """What the user has fixed, by the names of `Choice`."""
    resident: int = 0
    """Bytes of the budget in use before the model is built."""
    loader_bytes: LoaderBytes = 0
    sampled: int = 100
    """Tokens of a text that is generated between steps, with its prompt; 0 without any."""
    prompted: int = 1
    """Of these, the prompt."""
    ranks: int = 0
    """Processes that train together; 0 means those that the engine has joined."""
    rehearsal: Rehearsal | None = None


@dataclass(frozen=True)
class Choice:
    """What the planner decides. The effective batch size is never changed."""

    micro_batch: int
    """Sequences in one forward pass."""
    chunk: int
    """Tokens whose logits exist at once."""
    recompute: bool = False
    """Activation checkpointing: keep only each layer's input, and recompute the rest in the backward pass."""
    optimizer: str = "adamw"
    weights: str = "fp32"
    """Precision of the stored weights and their gradients."""
    compute: str = "fp32"
    """Precision of matrix products."""
    reuse: bool = True
    """On a CPU, the allocator keeps freed tensors for reuse: 10% faster, but fragmented."""
    held: int = 0
    """Tokens whose embedding gradients are summed together if micro-batches are smaller (engines/order.py)."""
    dropout: float = 0.0
    """The rate."""
    shard: str = "none"
    """What several ranks divide among them, each with what comes before it: optimizer states, gradients, weights."""
    keeps_qk: bool = False
    """On a GPU: keep queries and keys after QK-norm, instead of normalizing them again in the backward pass."""

    def __post_init__(self) -> None:
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("weights", ("fp32", "bf16")),
            ("compute", ("fp8", *PRECISIONS)),
            ("shard", SHARDS),
        ):
            if getattr(self, name) not in known:
                raise SettingsError(f"unknown {name} {getattr(self, name)!r}: choose from {', '.join(known)}")
        for name in ("micro_batch", "chunk"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")

    def with_(self, **changes: Any) -> Choice:
        return replace(self, **changes)


@dataclass(frozen=True)
class Correction:
    """A measured correction of the prediction: activations times `factor`, plus `extra` bytes for any micro-batch."""

    factor: float = 1.0
    extra: int = 0


@dataclass(frozen=True)
class Plan:
    """A choice that fits, and what it is based on."""

    shape: Shape
    seq_len: int
    batch_size: int
    device: str
    choice: Choice
    parts: dict[str, int]
    """Bytes at the peak, by part."""
    budget: int
    moment: str = ""
    """When in a step the peak is."""
    logits: int = 0
    """Bytes of a chunk's logits, which may be freed before the peak."""
    world: int = 1
    notes: tuple[str, ...] = ()
    """Sentences that the user should read."""
    document_mask: bool = False
    correction: Correction = Correction()
    """From the probe; already in the parts."""
    whole_data: int = 0
    """Bytes of all sequences if they were in memory at once; 0 if unknown."""
    measured: int = 0
    """The highest peak that the probe measured, also at a smaller micro-batch; 0 without a probe."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """On parts, where the engine stores something else than `choice` says."""
    held: int = 0
    """Bytes that a process waiting for this run uses of the budget asked for; not in `budget`."""

    @property
    def peak(self) -> int:
        """The predicted peak in bytes, corrected by the probe if there was one."""
        return sum(self.parts.values())

    def at_least(self, peak: int) -> Plan:
        """The same plan if this much was resident already, for example while libraries were loaded."""
        missing = max(0, peak - self.peak)
        return replace(self, parts={**self.parts, "overhead": self.parts["overhead"] + missing})

    @property
    def share(self) -> int:
        """The most sequences of a batch that one rank gets."""
        return -(-self.batch_size // self.world)

    @property
    def accumulation(self) -> int:
        """Micro-batches in a batch; the last may be smaller."""
        return -(-self.share // self.choice.micro_batch)

    def calls(self, sequences: int) -> int:
        """How often every rank learns in a step of this many sequences, if ranks exchange something each time: as often
        as the first, which has most."""
        if self.choice.shard not in ("gradients", "weights"):
            return 0
        return -(-len(range(0, sequences, self.world)) // min(self.choice.micro_batch, self.share))

    @property
    def shard(self) -> str:
        return self.choice.shard

    @property
    def step_tokens(self) -> int:
        """Of a step over all ranks."""
        return self.batch_size * self.seq_len

    def part_sizes(self, rank: int = 0) -> set[int]:
        """The sizes of a rank's micro-batches: the planned one, and that of the last."""
        share = len(range(rank, self.batch_size, self.world))
        micro_batch = min(self.choice.micro_batch, share)
        return {size for size in (micro_batch, share % micro_batch if micro_batch else 0) if size}

    def table(self) -> list[tuple[str, str, str]]:
        """Rows to print: the part, its size, and a remark."""
        choice = self.choice
        remarks = {
            "weights": choice.weights + ("" if choice.compute == choice.weights else f" and a {choice.compute} copy"),
            "gradients": choice.weights,
            "optimizer": choice.optimizer,
            "activations": f"{choice.micro_batch} x {self.seq_len} tokens, {choice.compute}"
            + (", activation checkpointing" if choice.recompute else ""),
            "logits": f"{choice.chunk} tokens at a time"
            + (
                ""
                if self.parts["logits"] or not self.logits
                else f"; {format_bytes(self.logits)}, freed before the peak"
            ),
            "data": "the loader and the micro-batch"
            + (f", instead of {format_bytes(self.whole_data)} for all data" if self.whole_data else ""),
            "overhead": "Python and libraries" if self.device == "cpu" else "workspace of the libraries",
            **self._shares(),
            **self.remarks,
        }
        rows = [(name, format_bytes(self.parts[name]), remarks[name]) for name in PARTS]
        of = f"of {format_bytes(self.budget + self.held)}"
        return [*rows, ("predicted peak", format_bytes(self.peak), of)]

    def _shares(self) -> dict[str, str]:
        """Remarks on what the ranks divide among them."""
        choice, of = self.choice, f"of {self.world} ranks"
        level = SHARDS.index(choice.shard)
        sent = "and what is in use of all"
        return {
            **({"optimizer": f"{choice.optimizer}, the share of one {of}"} if level >= 1 else {}),
            **({"gradients": f"{choice.weights}, the share of one {of} {sent}"} if level >= 2 else {}),
            **({"weights": f"{choice.weights}, the share of one {of} {sent}, {choice.compute}"} if level >= 3 else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shape": self.shape.to_dict(), "notes": list(self.notes), "peak": self.peak}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        given["shape"] = Shape(**given["shape"])
        given["choice"] = Choice(**given["choice"])
        given["correction"] = Correction(**given["correction"])
        given["notes"] = tuple(given["notes"])
        return cls(**given)


def too_small(
    budget: Budget, choice: Choice, needed: Mapping[str, int], *, jitter: int = JITTER, world: int = 1
) -> BudgetError:
    """The error that names the smallest budget that works, part by part, for each of `world` ranks."""
    how = f"micro-batches of {choice.micro_batch}, {choice.optimizer}, {choice.weights} weights"
    more = "give more"
    if world > 1:
        how += "" if choice.shard == "none" else f", {choice.shard} divided over the ranks"
        more += ", use more ranks"
    smaller = EIGHT_BIT.get(choice.optimizer)
    return refusal(
        budget,
        smallest_budget(sum(needed.values()), jitter),
        {name: size for name, size in needed.items() if size},
        each=f" on each of {world} ranks" if world > 1 else "",
        how=f", with {how}",
        remedy=f"; {more}, or use a smaller model, a shorter {option('seq_len')}"
        f"{'' if smaller is None else ' or ' + option('optimizer', smaller)}",
    )


def ran_out(budget: Budget, then: str = "") -> BudgetError:
    """The error of a device whose allocator had to refuse memory during a run."""
    return BudgetError(
        f"the device ran out of memory within the budget of {budget}: give more {option('memory')}, "
        f"or a smaller {option('micro_batch')}{then}"
    )


def smallest_budget(peak: int, jitter: int = JITTER) -> int:
    """The budget, in whole megabytes, that fits the peak even if a run finds a little more resident memory."""
    needed = peak + jitter
    total = math.ceil(with_reserve(needed) / 1e6) * 10**6
    assert total - Budget(total).reserve >= needed
    return total
