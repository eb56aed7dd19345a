"""How much memory a step of training takes, in closed form and by part.

    choice = Choice(micro_batch=8, chunk=512, recompute=False, optimizer="adamw", weights="fp32", compute="bf16")
    prediction = predict(shape, choice, seq_len=256, device="cpu", base=310_000_000, loader_bytes=1_000_000)
    prediction.peak, prediction.parts["activations"], prediction.moment

A step has few moments at which its memory can be at its highest; `_moments` goes through them in the order in which
model/gpt.py and model/layers.py do and says what is alive in each: read the three side by side. The tensors are
counted exactly (tests/test_predict.py compares with what torch's allocator was asked for); what comes on top, the
scratch of libraries and the rounding of allocators, is measured and stands at the top of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramlet.engines.plan import Choice, Correction
from ramlet.model.shape import Shape

__all__ = ["Prediction", "predict", "state_bytes", "work_bytes"]

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

ALIGNMENT = 256
"""Elements at whose multiples a matrix begins in the flat weights; as in model/weights.py, which loads torch."""

SMALLEST_QUANTISED = 4096
"""A tensor of fewer elements keeps 32-bit states in the 8-bit optimizer."""

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
    """Of the two flat tensors of model/weights.py: matrices and gains."""
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
        "optimizer": _optimizer_state(matrices, kept, choice.optimizer) + _optimizer_state(gains, 4, choice.optimizer),
    }


def _optimizer_state(elements: int, kept: int, optimizer: str) -> int:
    """AdamW keeps two moments in the type of the weights; the 8-bit one two codes, and two fp32 scales a block."""
    if optimizer == "adamw":
        return 2 * elements * kept
    if elements < SMALLEST_QUANTISED:
        return 2 * elements * 4
    return 2 * elements + 2 * 4 * -(-elements // ALIGNMENT)


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the tensors of one micro-batch."""

    stream: int
    """(tokens, width): what goes from layer to layer, and its gradient."""
    qkv: int
    repeated: int
    """Keys and values written out once a head, where groups of heads share them."""
    hidden: int
    """(tokens, feed-forward); gate and up are two of them."""
    log_sums: int
    """The attention's, fp32."""
    mask: int
    """Of one layer: (batch, 1, tokens, tokens) in the type of the products."""
    logits: int

    @property
    def layer(self) -> int:
        """What a layer keeps: what came in, queries, keys, values, the attention's result, the middle, gate and up."""
        return 3 * self.stream + self.qkv + self.repeated + self.log_sums + self.mask + 2 * self.hidden


def _sizes(shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool) -> _Sizes:
    tokens = choice.micro_batch * seq_len
    compute = BYTES[choice.compute]
    # CUDA's fast attention takes shared keys and values as they are; what stands in for it does not.
    repeats = device == "cuda" and shape.heads != shape.kv_heads and (choice.compute == "fp32" or document_mask)
    taken = _reserved if device == "cuda" else int
    return _Sizes(
        stream=taken(tokens * shape.width * compute),
        qkv=taken(tokens * shape.qkv_width * compute),
        repeated=2 * taken(tokens * shape.width * compute) if repeats else 0,
        hidden=taken(tokens * shape.feed_forward * compute),
        log_sums=taken(tokens * shape.heads * 4),
        mask=taken(tokens * seq_len * compute) if document_mask else 0,
        logits=taken(min(choice.chunk, tokens) * shape.padded_vocab * compute),
    )


def _reserved(size: int) -> int:
    """What torch's CUDA allocator takes for a tensor: from 10 MiB on a piece of its own, in steps of 2 MiB."""
    step = 2 << 20 if size >= 10 << 20 else 512
    return -(-size // step) * step


def _moments(shape: Shape, choice: Choice, sizes: _Sizes, device: str) -> dict[str, int]:
    """The bytes that a micro-batch holds at each moment that can be the highest, in the order of a step."""
    kept = sizes.stream if choice.recompute else sizes.layer
    layers = shape.layers * kept
    once = sizes.layer - sizes.stream if choice.recompute else 0  # the layer that is being made again
    slope = sizes.stream  # what came back to the layer that is under way

    def product(rows: int, columns: int) -> int:
        return _gradient_scratch(rows, columns, choice, device)

    width, wide = shape.width, shape.feed_forward
    # The last layer's result, that normed, and its gradient.
    head = layers + 3 * sizes.stream + sizes.logits + product(shape.padded_vocab, width)
    # FeedForward.forward: normed, the gated product and the result while all is there that was kept.
    forward = layers + once + 2 * sizes.stream + sizes.hidden
    if device == "cuda":
        # Logits are larger than any tensor before them: none of the pieces that the way forward leaves free holds them.
        head = max(head, forward + sizes.logits)
    again = forward + slope if choice.recompute else 0
    # FeedForward.backward of the last layer, when every layer still has all it kept.
    down = 2 * sizes.hidden + product(width, wide)
    up = sizes.stream + max(product(2 * wide, width), sizes.stream)
    feed_forward = layers + once + slope + max(down, up)
    # Then gate, up and the middle are gone, and the attention and Project.backward have their turn.
    left = layers + once + slope - 2 * sizes.hidden - sizes.stream
    slopes = sizes.qkv + sizes.repeated
    attention = left + sizes.stream + slopes + _attention_scratch(sizes, choice, device)
    project = (
        left - sizes.stream + slopes + sizes.qkv + sizes.stream + max(product(shape.qkv_width, width), sizes.stream)
    )
    return {
        "forward": forward,
        "head": head,
        "again": again,
        "feed-forward": feed_forward,
        "attention": max(attention, project),
    }


def _gradient_scratch(rows: int, columns: int, choice: Choice, device: str) -> int:
    """`accumulate_`: a product in few bits is made apart and then added to gradients of more bits.

    On CUDA the product itself adds in fp32.
    """
    if choice.compute == choice.weights or device != "cpu":
        return 0
    return rows * columns * BYTES[choice.compute]


def _attention_scratch(sizes: _Sizes, choice: Choice, device: str) -> int:
    """On CUDA the gradient of the queries is summed in fp32 first."""
    return 0 if device == "cpu" else sizes.stream * 4 // BYTES[choice.compute]


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


def _walk(
    shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool
) -> tuple[_Sizes, dict[str, int]]:
    sizes = _sizes(shape, choice, seq_len, device, document_mask)
    return sizes, _moments(shape, choice, sizes, device)


def _batch_bytes(tokens: int, seq_len: int, document_mask: bool) -> int:
    """Of the micro-batch in use: ids, labels and positions, 8 bytes each, and who may look at whom."""
    return tokens * 24 + (tokens * seq_len if document_mask else 0)
