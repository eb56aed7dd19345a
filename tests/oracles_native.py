"""What the native engine asks of the native core, in NumPy: a bigram model, trained with AdamW or the like.

It has all weights, states and sizes of a model, but uses only its embedding (and its head): enough to test everything
around `NativeGPT` and its decoder without them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ramlet.engines import Sampling
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape

TYPES: dict[str, Any] = {"F32": np.float32, "BF16": np.uint16, "I64": np.int64, "U8": np.uint8, "I8": np.int8}


def shape_of(given: Mapping[str, Any]) -> Shape:
    return Shape(**{name: value for name, value in given.items() if name not in ("cos", "sin")})


def fused(shape: Shape) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {}
    for each in named_tensors(shape):
        rows = shape.padded_vocab if each.fused in ("embedding", "head") else each.start + each.shape[0]
        sizes[each.fused] = (rows, *each.shape[1:])
    return sizes


class NativeGPT:
    learned: list[dict[str, Any]] = []  # noqa: RUF012 - what the tests look at
    """The arguments of every `learn`."""

    def __init__(self, shape: Mapping[str, Any], **layout: Any) -> None:
        self.shape, self.layout = shape_of(shape), layout
        half = self.shape.head_width // 2
        assert all(np.asarray(shape[name]).shape == (layout["seq_len"], half) for name in ("cos", "sin"))
        stored = {"fp32": "F32", "bf16": "BF16"}[layout["weights"]]
        self._tensors = {
            name: (stored if len(size) > 1 else "F32", np.zeros(size, TYPES[stored if len(size) > 1 else "F32"]))
            for name, size in fused(self.shape).items()
        }
        embedding = self._tensors["embedding"][1]
        self._gradient = np.zeros(embedding.shape)
        self._states: dict[str, tuple[str, Any]] = {}
        if layout["training"]:
            flat = np.zeros(embedding.size, np.float32)
            self._states = {
                "matrices.exp_avg": ("F32", flat),
                "matrices.exp_avg_sq": ("F32", flat.copy()),
                "matrices.step": ("F32", np.zeros((), np.float32)),
            }

    @staticmethod
    def parts(shape: Mapping[str, Any], **layout: Any) -> dict[str, int]:
        made, item = shape_of(shape), {"fp32": 4, "bf16": 2}
        elements = sum(math.prod(size) for size in fused(made).values())
        tokens = layout["micro_batch"] * layout["seq_len"]
        layers = 1 if layout["recompute"] or not layout["training"] else made.layers
        states = {"adamw": 8, "adamw8bit": 2, "muon": 4, "muon8bit": 1}[layout["optimizer"]]
        kept = layout["held"] * made.width * item[layout["compute"]]
        return {
            "weights": elements * item[layout["weights"]],
            "gradients": elements * (1 if layout["unit"] else 4) + kept if layout["training"] else 0,
            "optimizer": elements * states if layout["training"] else 0,
            "activations": tokens * made.width * 16 * layers * item[layout["compute"]],
            "logits": min(layout["chunk"], tokens) * made.padded_vocab * item[layout["compute"]],
        }

    def tensors(self) -> list[Any]:
        return [_listed(name, *each) for name, each in self._tensors.items()]

    def states(self) -> list[Any]:
        return [_listed(name, *each) for name, each in self._states.items()]

    def initialize(self, seed: int) -> None:
        for number, (dtype, array) in enumerate(self._tensors.values()):
            drawn = np.random.default_rng([seed, number]).normal(0, 0.02, array.shape)
            array[...] = drawn if dtype == "F32" else (drawn.astype(np.float32).view(np.uint32) >> 16)

    def _logits(self, ids: Any) -> Any:
        rows = self._tensors["embedding"][1][ids.reshape(-1)].astype(np.float64)
        head = self._tensors["embedding" if self.shape.tied else "head"][1][: self.shape.vocab_size]
        logits = 40 * rows @ head.T.astype(np.float64)
        return rows, head, logits - logits.max(1, keepdims=True)

    def _losses(self, input_ids: Any, targets: Any) -> tuple[Any, Any, Any]:
        assert input_ids.dtype == targets.dtype == np.int64
        assert len(input_ids) <= self.layout["micro_batch"]
        assert input_ids.shape[1] <= self.layout["seq_len"]
        rows, head, logits = self._logits(input_ids)
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        labels = targets.reshape(-1)
        counted = labels >= 0
        at, labels = np.arange(len(labels)), np.maximum(labels, 0)
        losses = np.where(counted, -np.log(shares[at, labels]), 0.0)
        shares[at, labels] -= 1
        shares[~counted] = 0
        return losses, shares @ head * 40, shares.T @ rows * 40

    def learn(
        self, input_ids: Any, targets: Any, position_ids: Any, document_ids: Any, dropout_keys: Any, scale: float
    ) -> float:
        given = (input_ids, targets, position_ids, document_ids, dropout_keys, scale)
        self.learned.append(dict(zip(("ids", "targets", "positions", "documents", "keys", "scale"), given)))
        losses, to_rows, to_head = self._losses(input_ids, targets)
        np.add.at(self._gradient, input_ids.reshape(-1), scale * to_rows)
        self._gradient[: self.shape.vocab_size] += scale * to_head
        return float(losses.sum())

    def losses(self, input_ids: Any, targets: Any, position_ids: Any, document_ids: Any) -> list[float]:
        losses: list[float] = self._losses(input_ids, targets)[0].tolist()
        return losses

    def update(self, rate: float, clip: float, correction: float, hyper: tuple[float, ...], seed: int) -> float:
        beta1, beta2, eps, weight_decay = hyper
        first, second, step = (self._states[f"matrices.{name}"][1] for name in ("exp_avg", "exp_avg_sq", "step"))
        gradient = (self._gradient * correction).reshape(-1)
        norm = float(np.linalg.norm(gradient))
        gradient *= min(1.0, clip / (norm + 1e-6))
        step += 1
        first += (1 - beta1) * (gradient - first)
        second += (1 - beta2) * (gradient**2 - second)
        weights = self._tensors["embedding"][1]
        change = first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + eps)
        weights *= 1 - rate * weight_decay
        weights -= (rate * change).reshape(weights.shape).astype(np.float32)
        self._gradient[:] = 0
        return norm


def _listed(name: str, dtype: str, array: Any) -> tuple[str, str, tuple[int, ...], tuple[int, int]]:
    assert array.flags["C_CONTIGUOUS"]
    return name, dtype, array.shape, (array.ctypes.data, array.nbytes)


class Decoder:
    """Of a model, which it is given as `owner`."""

    def __init__(self, shape: Mapping[str, Any], owner: Any, tensors: list[Any], **limits: int) -> None:
        assert len(shape["cos"]) >= limits["capacity"]
        assert {each[0] for each in tensors} == set(fused(owner.shape))
        self._native = owner._native

    def probabilities(self, token: int) -> list[float]:
        logits = self._native._logits(np.array([[token]]))[2][0]
        shares: list[float] = (np.exp(logits) / np.exp(logits).sum()).tolist()
        return shares


class Continuation:
    def __init__(
        self,
        model: Any,
        prompt: Sequence[int],
        settings: Sampling,
        *,
        end_ids: Collection[int] = (),
        known: bytearray | None = None,
    ) -> None:
        capacity = min(model.shape.context, len(prompt) + settings.max_tokens)
        self._decoder = model.decoder(rows=settings.num_samples, capacity=capacity, tokens=settings.num_samples)
        self._last, self._settings = [prompt[-1]] * settings.num_samples, settings
        self._ended = [False] * settings.num_samples

    def end(self, sample: int) -> None:
        self._ended[sample] = True

    def __iter__(self) -> Iterator[list[int | None]]:
        chances = [random.Random((self._settings.seed or 0) + number) for number in range(len(self._last))]
        for _ in range(self._settings.max_tokens):
            for sample, chance in enumerate(chances):
                shares = self._decoder.probabilities(self._last[sample])
                self._last[sample] = chance.choices(range(len(shares)), shares)[0]
            yield [None if ended else token for ended, token in zip(self._ended, self._last)]


def continuing_parts(shape: Shape, *, precision: str, prompt: int, settings: Sampling, threads: int) -> dict[str, int]:
    capacity = min(shape.context, prompt + settings.max_tokens)
    cache = 2 * shape.layers * settings.num_samples * capacity * shape.keys_width * (2 if precision == "bf16" else 4)
    return {"the KV cache": cache, "a forward pass": settings.num_samples * shape.vocab_size * 8}


CONTINUING = SimpleNamespace(Continuation=Continuation, continuing_parts=continuing_parts)
