"""What each block of a layer takes, said once: what training keeps of it, and what it needs while it is under way.

    sizes = sizes_of(shape, choice, seq_len=256, device="cpu", document_mask=False)
    blocks = layer_blocks(shape, choice, sizes, "cpu")
    blocks.feed_forward.keeps, blocks.feed_forward.backward

Read it beside layers.py, whose functions have the same names. predict.py makes a step of training of the blocks,
forward_memory.py to a pass that keeps nothing. Tensors are counted exactly (tests/test_predict.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ramlet.engines.plan import Choice
from ramlet.engines.torch.sizes import BYTES
from ramlet.model.shape import Shape

__all__ = [
    "Block",
    "Blocks",
    "Sizes",
    "evaluated_token",
    "gradient_scratch",
    "layer_blocks",
    "sizes_of",
    "written_token",
]


@dataclass(frozen=True)
class Sizes:
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


def sizes_of(shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool) -> Sizes:
    tokens = choice.micro_batch * seq_len
    compute = BYTES[choice.compute]
    # CUDA's fast attention takes shared keys and values as they are; what stands in for it does not.
    repeats = device == "cuda" and shape.heads != shape.kv_heads and (choice.compute == "fp32" or document_mask)
    taken = _reserved if device == "cuda" else int
    return Sizes(
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


class Block(NamedTuple):
    """Bytes of a micro-batch."""

    keeps: int
    """From the forward to the backward pass."""
    forward: int = 0
    """In the forward pass, beside what it keeps; only of the block that takes most."""
    backward: int = 0
    """In the backward pass, beside what it keeps and the gradient of its result."""


class Blocks(NamedTuple):
    project: Block
    attention: Block
    attention_out: Block
    feed_forward: Block

    @property
    def keeps(self) -> int:
        return sum(block.keeps for block in self)


def layer_blocks(shape: Shape, choice: Choice, sizes: Sizes, device: str) -> Blocks:
    width, wide = shape.width, shape.feed_forward
    stream, hidden = sizes.stream, sizes.hidden

    def product(rows: int, columns: int) -> int:
        return gradient_scratch(rows, columns, choice, device)

    grads = sizes.qkv + sizes.repeated
    down = 2 * hidden + product(width, wide)
    up = stream + max(product(2 * wide, width), stream)
    return Blocks(
        # What came in; on the way back the gradients of queries, keys and values, apart and as one.
        project=Block(stream, backward=grads + sizes.qkv + stream + max(product(shape.qkv_width, width), stream)),
        attention=Block(
            sizes.qkv + sizes.repeated + sizes.log_sums + sizes.mask,
            backward=stream + grads + _attention_scratch(sizes, choice, device),
        ),
        # The attention's result.
        attention_out=Block(stream),
        # What came in, gate and up. Forward: normed, the gated product and the result.
        feed_forward=Block(stream + 2 * hidden, forward=2 * stream + hidden, backward=max(down, up)),
    )


def evaluated_token(shape: Shape) -> int:
    """Elements a token takes, at most, in a layer that keeps nothing: the stream and its norm; queries, keys and
    values, rotated and not; or gate, up and their product."""
    return 4 * shape.width + max(2 * shape.qkv_width + 2 * shape.width, 4 * shape.feed_forward)


def written_token(shape: Shape) -> int:
    """The same with room to spare: pieces of text are short, and take little."""
    return 4 * shape.width + 2 * shape.qkv_width + 6 * shape.feed_forward


def gradient_scratch(rows: int, columns: int, choice: Choice, device: str) -> int:
    """`accumulate_`: a product in few bits is made apart and then added to gradients of more bits.

    On CUDA the product itself adds in fp32.
    """
    if choice.compute == choice.weights or device != "cpu":
        return 0
    return rows * columns * BYTES[choice.compute]


def _attention_scratch(sizes: Sizes, choice: Choice, device: str) -> int:
    """On CUDA the gradient of the queries is summed in fp32 first."""
    return 0 if device == "cpu" else sizes.stream * 4 // BYTES[choice.compute]
