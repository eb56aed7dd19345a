"""How much memory a step of training takes, in closed form and by part.

    choice = Choice(micro_batch=8, chunk=512, recompute=False, optimizer="adamw", weights="fp32", compute="bf16")
    prediction = predict(shape, choice, seq_len=256, device="cpu", base=310_000_000, loader_bytes=1_000_000)
    prediction.peak, prediction.parts["activations"], prediction.moment

A step has few moments at which its memory can be at its highest; `_moments` goes through them in the order in which
gpt.py does and says what is alive in each; blocks.py has what the parts of a layer take. The tensors are counted
exactly (tests/test_predict.py compares with what torch's allocator was asked for); what comes on top, the
scratch of libraries and the rounding of allocators, is measured and stands at the top of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramlet.engines.plan import Choice, Correction
from ramlet.engines.torch.blocks import Sizes, gradient_scratch, layer_blocks, sizes_of
from ramlet.engines.torch.sizes import ALIGNMENT, BYTES, adamw8bit_bytes
from ramlet.model.shape import Shape

__all__ = ["Prediction", "predict", "state_bytes", "work_bytes"]

SCRATCH = {"cpu": 54_000_000, "cuda": 100_000_000}
"""What libraries take of themselves: on a CPU the pages of theirs that a step touches, and code made at run time; on
CUDA the workspaces of cuBLAS, one a stream."""
UNRECORDED = 60_000_000
"""By how much less a step takes on CUDA that is not recorded, as in fp16: the workspaces of one stream."""
PIECES, PIECES_FROM = 40_000_000, 50_000_000
"""On CUDA, what is left of the pieces that small tensors share: towards PIECES where the states are large."""
THREAD_SCRATCH = {"cpu": 4_000_000, "cuda": 0}
GAPS, GAPS_FROM = 0.45, 40_000_000
DEVICE_GAPS = 0.01
"""Between the blocks of a step: measured on an H200 with 26 models of 1M to 1.3B parameters (benchmarks/plan.py)."""


@dataclass(frozen=True)
class Prediction:
    """The parts as they are at the highest moment, which they add up to."""

    parts: dict[str, int]
    moment: str
    """`forward`, `head`, `feed-forward`, `attention` or `again`: when the memory is at its highest."""
    logits: int
    """The logits of a chunk, which may be gone at the highest moment."""

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def _flat_elements(sizes: list[int]) -> int:
    """Elements of a flat tensor in which every part begins at a multiple of ALIGNMENT."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1]) + sizes[-1]


def _elements(shape: Shape) -> tuple[int, int]:
    """Of the two flat tensors of weights.py: matrices and gains."""
    width = shape.width
    layer = [shape.qkv_width * width, width * width, 2 * shape.feed_forward * width, width * shape.feed_forward]
    embeddings = [shape.padded_vocab * width] * (1 if shape.tied else 2)
    return _flat_elements(embeddings + layer * shape.layers), _flat_elements([width] * (2 * shape.layers + 1))


def state_bytes(shape: Shape, choice: Choice) -> dict[str, int]:
    """Weights, gradients and optimizer states: what is held whatever the batch."""
    matrices, gains = _elements(shape)
    kept = BYTES[choice.weights]
    copy = BYTES[choice.compute] if choice.compute != choice.weights else 0
    return {
        "weights": matrices * (kept + copy) + gains * 4,
        "gradients": matrices * kept + gains * 4,
        # AdamW keeps two moments in the type of the weights.
        "optimizer": 2 * (matrices * kept + gains * 4)
        if choice.optimizer == "adamw"
        else adamw8bit_bytes(matrices) + adamw8bit_bytes(gains),
    }


def _moments(shape: Shape, choice: Choice, sizes: Sizes, device: str) -> dict[str, int]:
    """The bytes that a micro-batch holds at each moment that can be the highest, in the order of a step."""
    blocks = layer_blocks(shape, choice, sizes, device)
    layers = shape.layers * (sizes.stream if choice.recompute else blocks.keeps)
    once = blocks.keeps - sizes.stream if choice.recompute else 0  # the layer that is being made again
    # The last layer's result, that normed, and its gradient.
    head_grad = gradient_scratch(shape.padded_vocab, shape.width, choice, device)
    head = layers + 3 * sizes.stream + sizes.logits + head_grad
    forward = layers + once + blocks.feed_forward.forward
    if device == "cuda":
        # Logits are larger than any tensor before them: none of the pieces that the way forward leaves free holds them.
        head = max(head, forward + sizes.logits)
    # The backward pass of the last layer, with what came back to it, when every layer still has all it kept.
    held = layers + once + sizes.stream
    attention = held - blocks.feed_forward.keeps
    project = attention - blocks.attention_out.keeps
    return {
        "forward": forward,
        "head": head,
        "again": forward + sizes.stream if choice.recompute else 0,
        "feed-forward": held + blocks.feed_forward.backward,
        "attention": max(attention + blocks.attention.backward, project + blocks.project.backward),
    }


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
    correction: Correction | None = None,
) -> Prediction:
    """The parts of the highest moment of a run; `base` is what is resident before the model is made."""
    correction = correction or Correction()
    sizes, moments = _walk(shape, choice, seq_len, device, document_mask)
    moment = max(moments, key=lambda name: moments[name])
    logits = sizes.logits if moment == "head" else 0
    work = work_bytes(shape, choice, seq_len=seq_len, device=device, document_mask=document_mask)
    states = state_bytes(shape, choice)
    parts = {
        **states,
        "gradients": states["gradients"] + choice.held * (shape.width * BYTES[choice.compute] + 8),
        "activations": int(work * correction.factor) - logits,
        "logits": logits,
        "data": loader_bytes + _batch_bytes(choice.micro_batch * seq_len, seq_len, document_mask),
        "overhead": base + _scratch(choice, device, states) + THREAD_SCRATCH[device] * threads + correction.extra,
    }
    return Prediction(parts, moment, sizes.logits)


def _scratch(choice: Choice, device: str, states: Mapping[str, int]) -> int:
    if device == "cpu":
        return SCRATCH["cpu"]
    held = sum(states.values())
    pieces = PIECES * held // (held + PIECES_FROM)
    return SCRATCH["cuda"] + pieces - (UNRECORDED if choice.compute == "fp16" else 0)


def work_bytes(shape: Shape, choice: Choice, *, seq_len: int, device: str, document_mask: bool = False) -> int:
    """What one micro-batch takes on its way through the model and back, logits and the allocator's gaps included."""
    _, moments = _walk(shape, choice, seq_len, device, document_mask)
    work = max(moments.values())
    if device == "cpu" and choice.reuse:
        # Measured: no gaps to speak of where the work is small, towards GAPS of it where it is large.
        work += int(GAPS * work * work / (work + GAPS_FROM))
    if device == "cuda":
        work += int(DEVICE_GAPS * work)
    return work


def _walk(shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool) -> tuple[Sizes, dict[str, int]]:
    sizes = sizes_of(shape, choice, seq_len, device, document_mask)
    return sizes, _moments(shape, choice, sizes, device)


def _batch_bytes(tokens: int, seq_len: int, document_mask: bool) -> int:
    """Of the micro-batch in use: ids, labels and positions, 8 bytes each, and who may look at whom."""
    return tokens * 24 + (tokens * seq_len if document_mask else 0)
