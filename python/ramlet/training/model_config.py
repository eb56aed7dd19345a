"""The shape of a model from the file or folder that the setting `config` names.

shape_from_file("shape.yaml", settings, vocab_size=8192)        # keys of ramlet, transformers or nanoGPT
shape_from_file("Qwen3-0.6B", settings, vocab_size=8192)        # the config.json of a Llama or Qwen3 folder
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.model.hf_config import TYPES, shape_from_hf
from ramlet.model.shape import NAMES, Shape
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import YAML, parse_json, parse_yaml, read_text
from ramlet.settings.declared import declared
from ramlet.training.settings import RunSettings


def shape_from_file(
    path: str,
    settings: RunSettings,
    *,
    vocab_size: int | None,
    packed_length: int | None = None,
    otherwise: int | None = None,
) -> Shape:
    """`vocab_size` is that of the data; without data it is None, and the config's counts, or else `otherwise`."""
    config = read_model_config(path)
    if vocab_size is None:
        vocab_size = config.get("vocab_size", otherwise)
    context = settings.seq_len or packed_length
    if config.get("model_type") in TYPES:
        # All of the model but its vocabulary, and the context only as an upper limit: both are those of the data.
        shape = shape_from_hf(config, path, vocab_size=vocab_size, context=context)
        shape = shape if context else replace(shape, context=shape.usual_length)
    else:
        stated = config.get("vocab_size")
        if stated not in (None, vocab_size):
            raise SettingsError(
                f"{path} has a vocabulary of {stated}, the data one of {vocab_size:,}: remove vocab_size from it"
            )
        unsaid = {name: getattr(settings, name) for name in ("qk_norm", "tied") if not set(NAMES[name]) & config.keys()}
        shape = Shape.from_config(config, vocab_size=vocab_size, context=context, **unsaid)
        if not set(NAMES["kv_heads"]) & config.keys() and not shape.heads % settings.kv_groups:
            shape = replace(shape, kv_heads=shape.heads // settings.kv_groups)
    refuse_other_shape(settings, shape, path)
    return shape


def refuse_other_shape(settings: RunSettings, shape: Shape, source: str) -> None:
    """Refuses settings that contradict the file or folder that the model's shape is from."""
    if settings.qk_norm not in (declared(RunSettings)["qk_norm"].default, shape.qk_norm):
        what, kind = ("has QK-norm", "a Qwen3") if shape.qk_norm else ("has no QK-norm", "a Llama")
        raise SettingsError(f"the model of {source} {what}, like {kind}: do not give {option('qk_norm')}")
    if shape.tied and not settings.tied:
        raise SettingsError(f"the head of {source} is tied to its embedding: do not give {option('tied', False)}")
    if settings.kv_groups not in (1, shape.heads // shape.kv_heads):
        raise SettingsError(
            f"the model of {source} has {plural(shape.heads, 'head')} and {plural(shape.kv_heads, 'key/value head')}: "
            f"do not give {option('kv_groups')}"
        )


def read_model_config(path: str) -> dict[str, Any]:
    """A JSON or YAML file with a model's shape, or a folder with a config.json."""
    import yaml

    folder = os.path.isdir(path)
    path = os.path.join(path, "config.json") if folder else path
    try:
        text = read_text(path, SettingsError, YAML)
        config = parse_json(text) if path.endswith(".json") else parse_yaml(text)
    except FileNotFoundError:
        raise SettingsError(
            f"there is no config {path}: give a JSON or YAML file with the model's shape, or a folder of transformers"
        ) from None
    except SettingsError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{path} is not a mapping: write the model's shape as KEY: VALUE lines")
    model = config.get("model", config)
    if not isinstance(model, dict):
        raise SettingsError(f"{path}: `model` is not a mapping: write the model's shape as KEY: VALUE lines")
    return model
