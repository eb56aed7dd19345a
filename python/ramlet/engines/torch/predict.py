"""The memory of a training step by part, from formulas.

    choice = Choice(micro_batch=8, chunk=512, recompute=False, optimizer="adamw", weights="fp32", compute="bf16")
    prediction = predict(shape, choice, seq_len=256, device="cpu", base=310_000_000, loader_bytes=1_000_000)
    prediction.peak, prediction.parts["activations"], prediction.moment

There are few moments in a step at which its memory can peak; `_moments` lists them in the order of gpt.py, with what is
alive in each; blocks.py has the memory of each block. Tensors are counted exactly (tests/test_predict.py compares with
the requests to torch's allocator); the rest, scratch memory of libraries and the rounding of allocators, was measured:
the constants below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramlet.engines.plan import Choice, Correction
from ramlet.engines.torch.blocks import Sizes, gradient_scratch, layer_blocks, sizes_of
from ramlet.engines.torch.division import Held, held_by, owners_of
from ramlet.engines.torch.optim import needs_whole_matrices, optimizer_module
from ramlet.engines.torch.sizes import BYTES, buffer_elements, flat_elements, rotary_bytes, tensors_of
from ramlet.model.shape import Shape

SCRATCH = {"cpu": 54_000_000, "cuda": 100_000_000}
"""Memory of the libraries: on a CPU their pages that a step touches, and code generated at run time; on CUDA the
workspaces of cuBLAS, one per stream."""
UNCAPTURED = 60_000_000
"""How much less a step on CUDA needs if it is not captured, as with fp16: the workspaces of one stream."""
PIECES, PIECES_FROM = 40_000_000, 50_000_000
"""On CUDA, the unused rest of segments shared by small tensors: approaches PIECES if the states are large."""
THREAD_SCRATCH = {"cpu": 4_000_000, "cuda": 0}
GAPS, GAPS_FROM = 0.45, 40_000_000
DEVICE_GAPS = 0.01
"""Fragmentation: measured on an H200 with 26 models of 1M to 1.3B parameters (benchmarks/plan.py)."""


@dataclass(frozen=True)
class Prediction:
    """The parts at the peak; they add up to it."""

    parts: dict[str, int]
    moment: str
    """When it peaks: `forward`, `head`, `feed-forward`, `attention`, `again` (activation checkpointing) or `update`."""
    logits: int
    """The logits of a chunk, which may be freed before the peak."""

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def state_bytes(shape: Shape, choice: Choice, *, world: int = 1, rank: int | None = None) -> dict[str, int]:
    """Weights, gradients and optimizer states: the same for every batch size.

    In a sharded run, of a rank, or of the one that has most. What is not divided yet is on all of them.
    """
    if choice.shard == "none":
        return _state_bytes(shape, choice, held_by(shape))
    owners = owners_of(shape, whole_matrices=needs_whole_matrices(choice.optimizer), world=world)
    every = [_state_bytes(shape, choice, held_by(shape, owned)) for owned in owners]
    return every[rank] if rank is not None else max(every, key=lambda parts: sum(parts.values()))


def _state_bytes(shape: Shape, choice: Choice, own: Held) -> dict[str, int]:
    """Of a rank whose optimizer updates these."""
    matrices, gains = flat_elements(shape)
    stored, computed = BYTES[choice.weights], tensors_of(choice.compute)
    copy = BYTES[computed] if computed != choice.weights else 0
    copy += 1 if choice.compute == "fp8" else 0
    weights, gradients = matrices * (stored + copy), matrices * stored
    if choice.shard in ("gradients", "weights"):
        gradients = (own.matrices + buffer_elements(shape)) * stored
    if choice.shard == "weights":
        weights = own.matrices * stored + buffer_elements(shape) * BYTES[computed]
    return {
        "weights": weights + gains * 4,
        "gradients": gradients + gains * 4,
        "optimizer": optimizer_module(choice.optimizer).state_bytes(own, stored),
    }


def _moments(shape: Shape, choice: Choice, sizes: Sizes, device: str, threads: int) -> dict[str, int]:
    """The bytes of a micro-batch at each moment that can be the peak, in the order of a step."""
    blocks = layer_blocks(shape, choice, sizes, device)
    layers = shape.layers * (sizes.stream if choice.recompute else blocks.keeps)
    once = blocks.keeps - sizes.stream if choice.recompute else 0  # the layer that is being recomputed
    # The last layer's result, the same normalized, and its gradient.
    head_grad = gradient_scratch(shape.padded_vocab, shape.width, choice, device)
    head = layers + 3 * sizes.stream + sizes.logits + head_grad
    # While attention is computed, the feed-forward block has not kept anything yet.
    forward = layers + once + max(blocks.feed_forward.forward, blocks.attention.forward - blocks.feed_forward.keeps)
    if device == "cuda":
        # Logits are larger than any tensor before them: no segment freed by the forward pass is large enough.
        head = max(head, forward + sizes.logits)
    # The backward pass of the last layer, with the gradient of its result: all layers still have what they keep.
    held = layers + once + sizes.stream
    attention = held - blocks.feed_forward.keeps
    # What attention kept is free by then; on CUDA as segments, which may not fit what comes next.
    project = attention - blocks.attention_out.keeps - (blocks.attention.keeps if device == "cpu" else 0)
    return {
        "forward": forward,
        "head": head,
        "again": forward + sizes.stream if choice.recompute else 0,
        "feed-forward": held + blocks.feed_forward.backward,
        "attention": max(
            attention + blocks.attention_out.backward,
            attention + blocks.attention.backward,
            project + blocks.project.backward,
        ),
        # On CUDA a captured update uses the memory of the captured micro-batches.
        "update": _update_scratch(shape, choice, device, threads) if device == "cpu" or _is_captured(choice) else 0,
    }


def _is_captured(choice: Choice) -> bool:
    """Whether a CUDA graph has the update (`Trainee.capture`)."""
    return (
        choice.shard == "none"
        and choice.compute != "fp16"
        and getattr(optimizer_module(choice.optimizer), "CAPTURABLE", False)
    )


def _update_scratch(shape: Shape, choice: Choice, device: str, threads: int) -> int:
    scratch_bytes = getattr(optimizer_module(choice.optimizer), "scratch_bytes", None)
    return scratch_bytes(shape, choice, device, threads) if scratch_bytes is not None else 0


def predict(
    shape: Shape,
    choice: Choice,
    *,
    seq_len: int,
    device: str = "cpu",
    base: int = 0,
    loader_bytes: int = 0,
    document_mask: bool = False,
    threads: int = 1,
    world: int = 1,
    correction: Correction | None = None,
) -> Prediction:
    """The parts at the peak of a run, on the rank of `world` that needs most; `base` is what is resident before the
    model is built."""
    correction = correction or Correction()
    sizes, moments = _walk(shape, choice, seq_len, device, document_mask, threads)
    moment = max(moments, key=lambda name: moments[name])
    logits = sizes.logits if moment == "head" else 0
    work = work_bytes(shape, choice, seq_len=seq_len, device=device, document_mask=document_mask, threads=threads)
    states = state_bytes(shape, choice, world=world)
    parts = {
        **states,
        "gradients": states["gradients"] + choice.held * (shape.width * BYTES[tensors_of(choice.compute)] + 8),
        "activations": int(work * correction.factor) - logits,
        "logits": logits,
        "data": loader_bytes + _batch_bytes(choice.micro_batch * seq_len, seq_len, document_mask),
        "overhead": base
        + _scratch(shape, choice, device, states)
        + THREAD_SCRATCH[device] * threads
        + rotary_bytes(shape, seq_len)
        + correction.extra,
    }
    return Prediction(parts, moment, sizes.logits)


def _scratch(shape: Shape, choice: Choice, device: str, states: Mapping[str, int]) -> int:
    if device == "cpu":
        return SCRATCH["cpu"]
    total = sum(states.values())
    pieces = PIECES * total // (total + PIECES_FROM)
    captured = 0 if choice.compute == "fp16" or choice.shard in ("gradients", "weights") else UNCAPTURED
    update = 0 if _is_captured(choice) else _update_scratch(shape, choice, device, threads=1)
    return SCRATCH["cuda"] - UNCAPTURED + captured + pieces + update


def work_bytes(
    shape: Shape, choice: Choice, *, seq_len: int, device: str, document_mask: bool = False, threads: int = 1
) -> int:
    """The memory of a micro-batch's forward and backward pass or of the update, with logits and fragmentation."""
    _, moments = _walk(shape, choice, seq_len, device, document_mask, threads)
    work = max(moments.values())
    if device == "cpu" and choice.reuse:
        # Measured: hardly any fragmentation if the work is small, approaching GAPS of it if it is large.
        work += int(GAPS * work * work / (work + GAPS_FROM))
    if device == "cuda":
        work += int(DEVICE_GAPS * work)
    return work


def _walk(
    shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool, threads: int
) -> tuple[Sizes, dict[str, int]]:
    sizes = sizes_of(shape, choice, seq_len, device, document_mask)
    return sizes, _moments(shape, choice, sizes, device, threads)


def _batch_bytes(tokens: int, seq_len: int, document_mask: bool) -> int:
    """Of the current micro-batch: ids, labels and positions, 8 bytes each, and the attention mask."""
    return tokens * 24 + (tokens * seq_len if document_mask else 0)
