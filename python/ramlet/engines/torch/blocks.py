"""The memory of each block of a layer: what it keeps for the backward pass, and its scratch memory.

    sizes = sizes_of(shape, choice, seq_len=256, device="cpu", document_mask=False)
    blocks = layer_blocks(shape, choice, sizes, "cpu")
    blocks.feed_forward.keeps, blocks.feed_forward.backward

Read it next to layers.py, whose functions have the same names. From the blocks predict.py predicts a training step and
forward_memory.py a pass without gradients. Tensors are counted exactly (tests/test_predict.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ramlet.engines.plan import Choice
from ramlet.engines.torch.sizes import BYTES, recomputes_qk_norm, repeats_keys, tensors_of
from ramlet.model.shape import Shape


@dataclass(frozen=True)
class Sizes:
    """Bytes of the tensors of one micro-batch."""

    stream: int
    """(tokens, width): the residual stream, or its gradient."""
    attended: int
    """(tokens, heads x head width): the attention's result, or its gradient."""
    qkv: int
    repeated: int
    """Keys and values repeated for every head, in grouped-query attention."""
    qk: int
    """With QK-norm: queries and keys after it."""
    hidden: int
    """(tokens, feed-forward); gate and up are two of them."""
    log_sums: int
    """The attention's logsumexp, fp32."""
    mask: int
    """Of one layer: (batch, 1, tokens, tokens) in the precision of the matrix products."""
    logits: int


def sizes_of(shape: Shape, choice: Choice, seq_len: int, device: str, document_mask: bool) -> Sizes:
    tokens = choice.micro_batch * seq_len
    compute = BYTES[tensors_of(choice.compute)]
    repeats = repeats_keys(shape, device, document_mask, fp32=choice.compute == "fp32")
    allocated = _reserved if device == "cuda" else int
    return Sizes(
        stream=allocated(tokens * shape.width * compute),
        attended=allocated(tokens * shape.queries_width * compute),
        qkv=allocated(tokens * shape.qkv_width * compute),
        repeated=2 * allocated(tokens * shape.queries_width * compute) if repeats else 0,
        qk=allocated(tokens * (shape.qkv_width - shape.keys_width) * compute) if shape.qk_norm else 0,
        hidden=allocated(tokens * shape.feed_forward * compute),
        log_sums=allocated(tokens * shape.heads * 4),
        mask=allocated(tokens * seq_len * compute) if document_mask else 0,
        logits=allocated(min(choice.chunk, tokens) * shape.padded_vocab * compute),
    )


def _reserved(size: int) -> int:
    """What torch's CUDA allocator reserves for a tensor: from 10 MiB on its own segment, in steps of 2 MiB."""
    step = 2 << 20 if size >= 10 << 20 else 512
    return -(-size // step) * step


class Block(NamedTuple):
    """Bytes for a micro-batch."""

    keeps: int
    """From the forward to the backward pass."""
    forward: int = 0
    """Scratch memory of the forward pass, on top of what it keeps; only of the block that needs most."""
    backward: int = 0
    """Scratch memory of the backward pass, on top of what it keeps and the gradient of its result."""


class Blocks(NamedTuple):
    project: Block
    attention: Block
    attention_out: Block
    feed_forward: Block

    @property
    def keeps(self) -> int:
        return sum(block.keeps for block in self)

    @property
    def forward_only(self) -> int:
        """A pass without gradients, at its peak: a layer's tensors are freed only when it returns (`GPT._through`)."""
        return self.keeps + self.attention.forward + self.feed_forward.forward


def layer_blocks(shape: Shape, choice: Choice, sizes: Sizes, device: str) -> Blocks:
    width, wide = shape.width, shape.feed_forward
    stream, attended, hidden = sizes.stream, sizes.attended, sizes.hidden

    def product(rows: int, columns: int) -> int:
        return gradient_scratch(rows, columns, choice, device)

    grads = sizes.qkv + sizes.repeated
    scratch = _attention_scratch(sizes, choice, device)
    attention = Block(sizes.qkv + sizes.repeated + sizes.log_sums + sizes.mask, backward=attended + grads + scratch)
    projected = grads + sizes.qkv
    if recomputes_qk_norm(shape, device, bool(sizes.mask), fp32=choice.compute == "fp32"):
        # Normalized queries and keys exist while they are needed, or are kept (attention.py).
        kept, again = (sizes.qk, 0) if choice.keeps_qk else (0, sizes.qk)
        backward = attended + grads + max(again + scratch, sizes.qkv)
        attention = Block(sizes.qkv + kept + sizes.log_sums, forward=again, backward=backward)
        projected = sizes.qkv
    elif shape.qk_norm:
        attention = attention._replace(keeps=attention.keeps + sizes.qk)
    dropped = stream if choice.dropout else 0  # the gradient of what was added, with its mask applied
    down = dropped + 2 * hidden + product(width, wide)
    up = stream + max(product(2 * wide, width), stream)
    return Blocks(
        # Keeps its input. Backward: the gradients of queries, keys and values, separate and concatenated.
        project=Block(stream, backward=projected + stream + max(product(shape.qkv_width, width), stream)),
        attention=attention,
        # Keeps the attention's result. Backward: its gradient.
        attention_out=Block(attended, backward=dropped + max(product(width, shape.queries_width), attended)),
        # Keeps its input, gate and up. Forward: the gated product and the result.
        feed_forward=Block(stream + 2 * hidden, forward=stream + hidden, backward=max(down, up)),
    )


def gradient_scratch(rows: int, columns: int, choice: Choice, device: str) -> int:
    """`accumulate_`: on a CPU a low-precision product is computed separately and then added to the gradient.

    On CUDA the matrix product itself accumulates in fp32.
    """
    if tensors_of(choice.compute) == choice.weights or device != "cpu":
        return 0
    return rows * columns * BYTES[tensors_of(choice.compute)]


def _attention_scratch(sizes: Sizes, choice: Choice, device: str) -> int:
    """On CUDA the gradient of the queries is summed in fp32 first."""
    return 0 if device == "cpu" else sizes.attended * 4 // BYTES[tensors_of(choice.compute)]
