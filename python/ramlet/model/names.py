"""The tensors of a model by transformers' names, and where each is in the fused matrices in memory.

for tensor in named_tensors(shape):
    tensor.name, tensor.shape            # model.layers.0.self_attn.k_proj.weight, (64, 256)
    tensor.fused, tensor.start           # layers.0.qkv, from row 256 on
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ramlet.model.shape import Shape


class NamedTensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    fused: str
    """The matrix that contains it: one has queries, keys and values, another gate and up."""
    start: int = 0
    """Its first row there. The vocabulary's padding rows come last."""


def named_tensors(shape: Shape) -> Iterator[NamedTensor]:
    """In transformers' order."""
    width, hidden = shape.width, shape.feed_forward
    queries, keys = shape.queries_width, shape.keys_width
    yield NamedTensor("model.embed_tokens.weight", (shape.vocab_size, width), "embedding")
    for number in range(shape.layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        yield NamedTensor(f"{theirs}.input_layernorm.weight", (width,), f"{ours}.norm_attention")
        yield NamedTensor(f"{theirs}.self_attn.q_proj.weight", (queries, width), f"{ours}.qkv")
        yield NamedTensor(f"{theirs}.self_attn.k_proj.weight", (keys, width), f"{ours}.qkv", queries)
        yield NamedTensor(f"{theirs}.self_attn.v_proj.weight", (keys, width), f"{ours}.qkv", queries + keys)
        yield NamedTensor(f"{theirs}.self_attn.o_proj.weight", (width, queries), f"{ours}.out")
        if shape.qk_norm:
            yield NamedTensor(f"{theirs}.self_attn.q_norm.weight", (shape.head_width,), f"{ours}.norm_q")
            yield NamedTensor(f"{theirs}.self_attn.k_norm.weight", (shape.head_width,), f"{ours}.norm_k")
        yield NamedTensor(f"{theirs}.post_attention_layernorm.weight", (width,), f"{ours}.norm_feed_forward")
        yield NamedTensor(f"{theirs}.mlp.gate_proj.weight", (hidden, width), f"{ours}.gate_up")
        yield NamedTensor(f"{theirs}.mlp.up_proj.weight", (hidden, width), f"{ours}.gate_up", hidden)
        yield NamedTensor(f"{theirs}.mlp.down_proj.weight", (width, hidden), f"{ours}.down")
    yield NamedTensor("model.norm.weight", (width,), "norm")
    if not shape.tied:
        yield NamedTensor("lm_head.weight", (shape.vocab_size, width), "head")
