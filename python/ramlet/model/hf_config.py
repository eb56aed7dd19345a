"""A model's config.json for transformers: written for every version from 4.40 on, read from any.

    config = hf_config(shape, dtype="float32", end_id=0)
    shape_from_hf(config, "RUN/config.json") == shape

A `LlamaForCausalLM` or `Qwen3ForCausalLM` can be read, with Llama 3's RoPE scaling or none; anything else (biases, a
sliding window) is refused by name, because a model that is loaded almost correctly generates almost correct text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramlet.errors import ModelError, SettingsError
from ramlet.model.shape import Shape

TYPES = ("llama", "qwen3")
"""The values of `model_type` that can be read."""

_DEFAULTS: dict[str, dict[str, int]] = {"llama": {}, "qwen3": {"head_dim": 128, "num_key_value_heads": 32}}
"""What transformers takes for a missing key, where it does not follow from other keys."""


def hf_config(shape: Shape, *, dtype: str, end_id: int | None) -> dict[str, Any]:
    kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}
    if not shape.qk_norm:
        kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
    rope = {"rope_type": "default"} if shape.rope_scaling is None else shape.rope_scaling.described()
    return {
        **kind,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.feed_forward,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        # Up to 4.x these are two keys, from 5.0 on one.
        "rope_theta": shape.rope_base,
        **({} if shape.rope_scaling is None else {"rope_scaling": rope}),
        "rope_parameters": {**rope, "rope_theta": shape.rope_base},
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        # The defaults would be 1 and 2, which are ordinary tokens here.
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "pad_token_id": None,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def generation_config(end_id: int | None) -> dict[str, Any]:
    """A text starts after the end of the previous one, so the same token is bos and eos."""
    ids: dict[str, Any] = {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id}
    # No text is empty: its first token is not an end (engines/torch/continuing.py).
    return ids if end_id is None else {**ids, "min_new_tokens": 1}


def shape_from_hf(config: Mapping[str, Any], where: str, **given: Any) -> Shape:
    """The shape that a config.json describes; `where` is its name in errors, `given` takes precedence."""
    kind = config.get("model_type")
    if kind not in TYPES:
        raise ModelError(f"{where} has model_type {kind}: only {' and '.join(TYPES)} are supported")
    layer_types = config.get("layer_types") or []
    full = isinstance(layer_types, list) and all(each == "full_attention" for each in layer_types)
    if config.get("use_sliding_window") or not full:
        raise ModelError(f"{where} has use_sliding_window or layer_types: only full attention is supported")
    if kind == "llama" and (config.get("qk_norm") or config.get("use_qk_norm")):
        raise ModelError(
            f"{where} has QK-norm and model_type llama, which has none: write model_type qwen3, or remove qk_norm"
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelError(f"{where} has {key}: models with biases are not supported")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where} has hidden_act {config['hidden_act']}: only silu is supported")
    if config.get("quantization_config"):
        raise ModelError(f"{where} is that of a quantized model: use the model before quantization")
    # Missing keys have transformers' defaults, which are not ours.
    theirs: dict[str, Any] = {
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qk_norm": kind == "qwen3",
    }
    try:
        return Shape.from_config({**_DEFAULTS[kind], **config}, **theirs, **given)
    except SettingsError as error:
        raise ModelError(f"{where} cannot be used: {error}") from None


def end_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end a text, from the first config that names any."""
    for config in configs:
        named = config.get("eos_token_id")
        if named is not None:
            ids = named if isinstance(named, list) else [named]
            return frozenset(number for number in ids if type(number) is int)
    return frozenset()
