"""What a model takes that only reads: an evaluation, and writing text. What training takes is in predict.py.

    for way in evaluation_ways(shape, seq_len=256, precision="bf16", base=310_000_000, document_mask=False): ...
    writing_parts(shape, precision="bf16", prompt=12, settings=settings, vocabulary=50_257)

Nothing is kept from layer to layer, so a pass takes the weights and the widest moment of one layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ramlet.engines import Division, Sampling
from ramlet.engines.torch.blocks import evaluated_token, written_token
from ramlet.engines.torch.order import unit_rows
from ramlet.engines.torch.sizes import BYTES
from ramlet.model.shape import Shape

__all__ = ["EVALUATED_AT_ONCE", "READING_PIECE", "evaluation_ways", "writing_parts"]

EVALUATED_TOKENS = 2048
"""In a micro-batch of an evaluation. While training on a GPU, what these take comes on top of what training keeps."""
EVALUATED_AT_ONCE, LEAST_AT_ONCE = 512, 64
"""Tokens of it whose logits exist at once."""
READING_PIECE = 256
"""Tokens of a prompt, of all rows together, that the model reads at once."""
LOADING = 16 << 20
"""The buffer through which weights of another type are read."""
LIBRARIES = 64 << 20
"""What torch and its libraries take when the first products are made."""
TOKEN_BYTES = 200
"""What a token takes when its bytes are first looked up; the tokenizer itself is resident before."""


def evaluation_ways(
    shape: Shape, *, seq_len: int, precision: str, base: int, document_mask: bool
) -> Iterator[tuple[Division, dict[str, int]]]:
    """From the fastest to the smallest, each with what it takes by part; `base` is what is resident before."""
    item = BYTES[precision]
    micro_batch = max(1, EVALUATED_TOKENS // seq_len)
    chunk = min(EVALUATED_AT_ONCE, micro_batch * seq_len)
    while True:
        tokens = micro_batch * seq_len
        layer = tokens * evaluated_token(shape) * 4  # in fp32 while it is reckoned
        mask = tokens * seq_len * (1 + item * shape.heads * 2) if document_mask else 0
        yield (
            Division(micro_batch, chunk),
            {
                "Python and PyTorch": base,
                "the weights": _weights(shape, item),
                "a micro-batch on its way": layer + mask + tokens * 8 * 16,
                "logits": chunk * shape.padded_vocab * (item + 4),
                "tokens' lengths": shape.vocab_size * TOKEN_BYTES,
                "libraries": LIBRARIES,
            },
        )
        if micro_batch // 2 >= unit_rows(seq_len):
            micro_batch //= 2
            chunk = min(chunk, micro_batch * seq_len)
        elif chunk > LEAST_AT_ONCE:
            chunk = max(LEAST_AT_ONCE, chunk // 2)
        else:
            return


def writing_parts(shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int) -> dict[str, int]:
    """Bytes by part, beside what is resident before; `vocabulary` is that of the tokenizer."""
    item = BYTES[precision]
    rows = settings.num_samples
    capacity = min(shape.context, prompt + settings.max_tokens)
    cache = 2 * shape.layers * rows * shape.kv_heads * shape.head_width * capacity * item
    tokens = max(rows, min(READING_PIECE, rows * capacity))
    layer = tokens * written_token(shape) * 4
    attention = tokens * shape.heads * capacity * 4 * 3
    logits = rows * shape.padded_vocab * (item + 4) + rows * shape.vocab_size * 48
    # For products of 16 bits a CPU's library may first put the matrix into another order, as a copy.
    largest = max(shape.padded_vocab, 2 * shape.feed_forward, shape.qkv_width) * shape.width
    reordered = 0 if precision == "fp32" else largest * item
    return {
        "the weights": _weights(shape, item),
        "keys and values": cache,
        "a piece of text on its way": max(layer, attention) + logits + reordered,
        "the tokenizer": vocabulary * TOKEN_BYTES,
        "reading and libraries": LOADING + LIBRARIES,
    }


def _weights(shape: Shape, item: int) -> int:
    """With the rows that fill up the vocabulary, and the tables of the rotary positions."""
    filled = (shape.padded_vocab - shape.vocab_size) * shape.width * (1 if shape.tied else 2)
    return (shape.parameters + filled) * item + shape.context * shape.head_width * 4
