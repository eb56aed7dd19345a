"""The model in the native core: the only code that calls `NativeGPT` and `NativeDecoder`.

    layout = Layout.of(choice, seq_len=256, document_mask=False, threads=2)
    arena_parts(shape, layout)              # its memory, to the byte
    model = GPT(shape, layout)
    model.learn(batch, keys, scale=1 / tokens)

All memory of a model is one arena, and the layout says how large it is: a step allocates nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from ramlet._native import NativeDecoder, NativeGPT
from ramlet.engines import Continuation, Sampling, training_names
from ramlet.engines.native.rotary import rotary_tables
from ramlet.engines.native.tensors import Tensor, stored_parts
from ramlet.engines.order import Order, unit_rows
from ramlet.engines.plan import Choice
from ramlet.model.files import read_weights
from ramlet.model.folder import ModelFolder
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored


@dataclass(frozen=True)
class Layout:
    """Everything besides the shape that decides how large an arena is."""

    micro_batch: int
    """Sequences in one pass, at most, as long as `seq_len`."""
    seq_len: int
    chunk: int
    """Tokens whose logits exist at once."""
    recompute: bool
    optimizer: str
    weights: str
    compute: str
    dropout: float
    document_mask: bool
    held: int
    unit: int
    """Sequences whose gradients are summed before they are rounded to 8 bits; 0 if gradients are fp32."""
    training: bool
    """Without it there are weights and a forward pass only."""
    threads: int

    @classmethod
    def of(cls, choice: Choice, *, seq_len: int, document_mask: bool, threads: int) -> Layout:
        """To train."""
        return cls(
            choice.micro_batch,
            seq_len,
            choice.chunk,
            choice.recompute,
            choice.optimizer,
            choice.weights,
            choice.compute,
            choice.dropout,
            document_mask,
            choice.held,
            grad_unit(choice.weights, seq_len),
            training=True,
            threads=threads,
        )

    @classmethod
    def forward(
        cls, precision: str, *, micro_batch: int, seq_len: int, chunk: int, document_mask: bool, threads: int
    ) -> Layout:
        """To evaluate, or to generate text."""
        return cls(
            micro_batch,
            seq_len,
            chunk,
            False,
            "adamw",
            precision,
            precision,
            0.0,
            document_mask,
            held=0,
            unit=0,
            training=False,
            threads=threads,
        )


ORDER = Order(unit=1, group=512)
"""Every sequence is a unit. 512 tokens cost 3 to 4% of the speed of 2,048 on two threads, and save most of the
activations' memory (docs/design/native.md)."""
WIDE_ORDER, WIDE = Order(unit=1, group=1024), 256
"""From this width on, weights and states are so much of the memory that 1,024 tokens are worth their speed."""
ROUNDED_ORDER = Order(unit=256, group=512)
"""With gradients in 8 bits, which are rounded after each unit."""


def sum_order(weights: str, shape: Shape) -> Order:
    if weights == "bf16":
        return ROUNDED_ORDER
    return WIDE_ORDER if shape.width >= WIDE else ORDER


def grad_unit(weights: str, seq_len: int) -> int:
    """Gradients of bf16 weights have 8 bits: see `Layout.unit`."""
    return unit_rows(seq_len, ROUNDED_ORDER) if weights == "bf16" else 0


def arena_parts(shape: Shape, layout: Layout) -> dict[str, int]:
    """Bytes of weights, gradients, optimizer, activations and logits: together the arena."""
    parts: dict[str, int] = NativeGPT.parts(shape.to_dict(), **asdict(layout))
    return parts


def continuing_parts(
    shape: Shape, *, precision: str, settings: Sampling, threads: int, prompt: int = 0
) -> dict[str, int]:
    """Bytes by part that generating text needs on top of the weights."""
    parts: dict[str, int] = _continuing().continuing_parts(
        shape, precision=precision, prompt=prompt, settings=settings, threads=threads
    )
    return parts


def _continuing() -> Any:
    """On demand: training without samples does not need it."""
    return import_module("ramlet.engines.native.continuing")


class GPT:
    """A model in its arena."""

    def __init__(self, shape: Shape, layout: Layout) -> None:
        self.shape, self.layout = shape, layout
        self._native = NativeGPT(_with_tables(shape, layout.seq_len), **asdict(layout))

    # Weights.

    def initialize(self, seed: int) -> None:
        self._native.initialize(seed)

    def weights(self) -> dict[str, Stored]:
        """By transformers' names."""
        return stored_parts(self._tensors(), named_tensors(self.shape), self)

    def load_weights(self, found: ModelFolder) -> None:
        read_weights(found, self.shape, self.weights())

    def states(self) -> list[Tensor]:
        return [Tensor(*each) for each in self._native.states()]

    def _tensors(self) -> list[Tensor]:
        return [Tensor(*each) for each in self._native.tensors()]

    # Training.

    def learn(self, batch: Mapping[str, Any], dropout_keys: Any, scale: float) -> float:
        loss: float = self._native.learn(*_arrays(batch), dropout_keys, scale)
        return loss

    def update(
        self, rate: float, clip: float, correction: float, hyper: tuple[float, float, float, float], seed: int
    ) -> float:
        grad_norm: float = self._native.update(rate, clip, correction, hyper, seed)
        return grad_norm

    # Evaluation and generation.

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        losses = self._native.losses(*_arrays(batch))
        length = batch["targets"].shape[1]
        return [losses[start : start + length] for start in range(0, len(losses), length)]

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Continuation:
        made: Continuation = _continuing().Continuation(self, prompt, settings, end_ids=end_ids, known=known)
        return made

    def decoder(self, *, rows: int, capacity: int, tokens: int) -> Any:
        """For so many samples, tokens of each in the KV cache, and tokens in a forward pass."""
        return NativeDecoder(
            _with_tables(self.shape, capacity),
            self,
            self._native.tensors(),
            rows=rows,
            capacity=capacity,
            tokens=tokens,
            threads=self.layout.threads,
        )


def _with_tables(shape: Shape, length: int) -> dict[str, Any]:
    """A shape as the native core reads it."""
    cos, sin = rotary_tables(shape, length)
    return {**shape.to_dict(), "cos": cos, "sin": sin}


def _arrays(batch: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Ids, targets, positions and documents, as contiguous arrays; the last two may be missing."""
    import numpy as np

    given = training_names("document_ids" in batch)
    ids, targets, positions, documents = (
        np.ascontiguousarray(batch[name]) if name in given else None for name in training_names(True)
    )
    return ids, targets, positions, documents
