"""transformers' Llama or Qwen3 with the weights of our model, and small models to compare with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import tensors_by_name
from ramlet.model.hf_config import hf_config
from ramlet.model.rope import RopeScaling
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

SMALL = Shape(vocab_size=131, context=48, layers=2, width=32, heads=4, feed_forward=80)
GROUPED = Shape(vocab_size=131, context=48, layers=3, width=48, heads=6, kv_heads=2, feed_forward=96, rope_base=500.0)
UNTIED = Shape(vocab_size=131, context=48, layers=2, width=32, heads=2, kv_heads=1, tied=False, norm_eps=1e-3)
QK_NORM = replace(SMALL, qk_norm=True)
GROUPED_QK_NORM = replace(GROUPED, qk_norm=True)
WIDE_HEADS = replace(GROUPED, head_width=24, tied=False)
NARROW_HEADS = replace(QK_NORM, head_width=4, kv_heads=1)
ODD_HEADS = replace(GROUPED_QK_NORM, width=40, head_width=10)  # as many as do not divide the width
SCALED = replace(GROUPED, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16))
SHAPES = {
    "small": SMALL,
    "grouped": GROUPED,
    "untied": UNTIED,
    "qk_norm": QK_NORM,
    "grouped_qk_norm": GROUPED_QK_NORM,
    "wide_heads": WIDE_HEADS,
    "narrow_heads": NARROW_HEADS,
    "odd_heads": ODD_HEADS,
    "scaled": SCALED,
}


def model_of(shape: Shape, seed: int = 1, **options: Any) -> GPT:
    """A model whose norm gains are not all 1, and whose weights are large enough for every part to matter."""
    model = GPT(shape, **options)
    model.weights.initialize(seed)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.weights:
        if weight.master.dim() == 1:
            weight.master.uniform_(0.5, 1.5, generator=generator)
    model.weights.matrices.mul_(4)
    model.weights.refresh()
    return model


def llama_of(model: GPT) -> Any:
    """transformers' model with the same weights, in fp32."""
    written = hf_config(model.shape, dtype="float32", end_id=None)
    config = transformers.AutoConfig.for_model(**written)
    config._attn_implementation = "eager"
    llama = getattr(transformers, written["architectures"][0])(config).eval()
    state = {name: tensor.float() for name, tensor in tensors_by_name(model.weights).items()}
    if model.shape.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    llama.load_state_dict(state, strict=True)
    return llama


def gradients(model: GPT) -> dict[str, torch.Tensor]:
    """By transformers' names: the same views, of a store that holds the gradients."""
    for weight in model.weights:
        assert weight.grad is not None
        weight.master, weight.grad = weight.grad, weight.master
    try:
        return {name: tensor.clone() for name, tensor in tensors_by_name(model.weights).items()}
    finally:
        for weight in model.weights:
            assert weight.grad is not None
            weight.master, weight.grad = weight.grad, weight.master


def closeness(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-12))


def some_ids(shape: Shape, *size: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, shape.vocab_size, size, generator=torch.Generator().manual_seed(seed))


def byte_tokenizer(folder: Path) -> Path:
    """Writes a tokenizer.json with 257 tokens: all bytes and an end of text."""
    vocab = {byte: bytes([byte]) for byte in range(256)}
    Tokenizer.from_merges(vocab, [], ["<|endoftext|>"]).save(folder / "tokenizer.json")
    return folder / "tokenizer.json"
