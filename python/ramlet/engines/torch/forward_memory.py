"""The memory of evaluation and generation; that of training is in predict.py.

    for division, parts in divisions(shape, seq_len=256, precision="bf16", base={...}, document_mask=False): ...
    generation_parts(shape, precision="bf16", prompt=12, settings=settings, vocabulary=50_257)

Without gradients nothing is kept from layer to layer: a pass needs the weights and the tensors of one (blocks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ramlet.engines import Division, Sampling, choices
from ramlet.engines.continuing import cached_tokens, tokens_at_once
from ramlet.engines.plan import Choice
from ramlet.engines.torch.blocks import layer_blocks, sizes_of
from ramlet.engines.torch.predict import SCRATCH
from ramlet.engines.torch.sizes import BYTES, rotary_bytes
from ramlet.model.shape import Shape

LOADING = 16 << 20
"""The buffer for reading weights of another type."""
LIBRARIES = {"cpu": 64 << 20, "cuda": SCRATCH["cuda"]}
"""What torch and its libraries allocate with the first matrix products."""
TOKEN_BYTES = 200
"""Per token when its bytes are first looked up; the tokenizer itself is resident before."""


def divisions(
    shape: Shape,
    *,
    seq_len: int,
    precision: str,
    base: Mapping[str, int],
    document_mask: bool,
    device: str = "cpu",
) -> Iterator[tuple[Division, dict[str, int]]]:
    """From the fastest to the smallest, each with its bytes by part; `base` is what is resident before."""
    item = BYTES[precision]
    for division in choices.divisions(seq_len):
        tokens = division.micro_batch * seq_len
        batch = tokens * 8 * 16 + (tokens * seq_len if document_mask else 0)
        activations = _activations(shape, division.micro_batch, seq_len, precision, device, document_mask)
        yield (
            division,
            {
                **base,
                "weights": _weights(shape, item, seq_len),
                "a micro-batch": activations + batch,
                "logits": division.chunk * shape.padded_vocab * (item + 4),
                "the byte lengths of tokens": shape.vocab_size * TOKEN_BYTES,
                "libraries": LIBRARIES[device],
            },
        )


def _activations(
    shape: Shape, micro_batch: int, seq_len: int, precision: str, device: str, document_mask: bool = False
) -> int:
    choice = Choice(micro_batch, chunk=1, compute=precision)
    return layer_blocks(shape, choice, sizes_of(shape, choice, seq_len, device, document_mask), device).forward_only


def generation_parts(
    shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int, device: str = "cpu"
) -> dict[str, int]:
    """Bytes by part, on top of what is resident before; `vocabulary` is the tokenizer's size."""
    item = BYTES[precision]
    rows = settings.num_samples
    capacity = cached_tokens(shape.context, prompt, settings)
    cache = 2 * shape.layers * rows * shape.keys_width * capacity * item
    tokens = tokens_at_once(capacity, settings)
    layer = _activations(shape, tokens, 1, precision, device)
    attention = tokens * shape.heads * capacity * 4 * 3
    logits = rows * shape.padded_vocab * (item + 4) + rows * shape.vocab_size * 48
    # For 16-bit products a CPU's library may first copy the matrix into another layout.
    largest = max(shape.padded_vocab, 2 * shape.feed_forward, shape.qkv_width) * shape.width
    reordered = 0 if precision == "fp32" else largest * item
    return {
        "weights": _weights(shape, item, capacity),
        "the KV cache": cache,
        "a forward pass": max(layer, attention) + logits + reordered,
        **({"the tokenizer": vocabulary * TOKEN_BYTES} if vocabulary else {}),
        "reading and libraries": LOADING + LIBRARIES[device],
    }


def _weights(shape: Shape, item: int, length: int) -> int:
    """With the vocabulary's padding rows, and the tables of the rotary positions."""
    padding = (shape.padded_vocab - shape.vocab_size) * shape.width * (1 if shape.tied else 2)
    return (shape.parameters + padding) * item + rotary_bytes(shape, length)
