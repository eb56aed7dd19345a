"""What generating takes, by part, before any of it is taken.

parts = memory_parts(shape, precision="bf16", prompt=12, settings=settings, tokenizer=50_257)
sum(parts.values())
"""

from __future__ import annotations

from ramlet.generation.settings import SampleSettings
from ramlet.model.shape import Shape

__all__ = ["READING_PIECE", "memory_parts"]

READING_PIECE = 256
"""Tokens, of all rows together, that the model reads at once."""
LOADING = 16 << 20
"""The buffer through which weights of another type are read."""
LIBRARIES = 64 << 20
"""What torch and its libraries take when the first products are made."""
TOKEN_BYTES = 200
"""What a token takes when its bytes are first looked up; the tokenizer itself is resident before."""


def memory_parts(
    shape: Shape, *, precision: str, prompt: int, settings: SampleSettings, vocabulary: int
) -> dict[str, int]:
    """Bytes by part, beside what is resident before; `vocabulary` is that of the tokenizer."""
    item = 4 if precision == "fp32" else 2
    rows = settings.num_samples
    capacity = min(shape.context, prompt + settings.max_tokens)
    filled = (shape.padded_vocab - shape.vocab_size) * shape.width * (1 if shape.tied else 2)
    weights = (shape.parameters + filled) * item + shape.context * shape.head_width * 4
    cache = 2 * shape.layers * rows * shape.kv_heads * shape.head_width * capacity * item
    # The widest moment of a layer: its input, normed; gate and up and their product, in fp32 while they are reckoned.
    tokens = max(rows, min(READING_PIECE, rows * capacity))
    layer = tokens * (4 * shape.width + 2 * shape.qkv_width + 6 * shape.feed_forward) * 4
    attention = tokens * shape.heads * capacity * 4 * 3
    logits = rows * shape.padded_vocab * (item + 4) + rows * shape.vocab_size * 48
    # For products of 16 bits a CPU's library may first put the matrix into another order, as a copy.
    largest = max(shape.padded_vocab, 2 * shape.feed_forward, shape.qkv_width) * shape.width
    reordered = 0 if precision == "fp32" else largest * item
    return {
        "the weights": weights,
        "keys and values": cache,
        "a piece of text on its way": max(layer, attention) + logits + reordered,
        "the tokenizer": vocabulary * TOKEN_BYTES,
        "reading and libraries": LOADING + LIBRARIES,
    }
