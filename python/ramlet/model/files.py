"""A model's folder except the weights: the files that transformers needs, and which file has which weights.

    save_description(shape, "RUN", tokenizer_file="data/tokenizer.json", end_id=0, dtype="F32")
    files_by_name(find_model("RUN"), shape)

    RUN/config.json                    the shape, as transformers names it
        model.safetensors              the weights by the names of transformers
        generation_config.json         the id that ends a text
        tokenizer.json, tokenizer_config.json

A folder made elsewhere may have its weights in several files (model.safetensors.index.json). `ramlet.model.folder`
finds the folder of a model; an engine reads and writes the weights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramlet.errors import DiskFull, ModelError
from ramlet.model.dtypes import DTYPES
from ramlet.model.folder import INDEX, WEIGHTS, ModelFolder, read_json
from ramlet.model.hf_config import generation_config, hf_config
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored, check_tensor, read_header, read_tensors_into
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.small_files import LARGE, TOKENIZER, open_regular

_LOADABLE = ("F32", "F16", "BF16", "F64")
_UNUSED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Old files contain what follows from the config."""


def save_description(
    shape: Shape,
    folder: str | os.PathLike[str],
    *,
    tokenizer_file: str | os.PathLike[str] | None = None,
    end_id: int | None = None,
    dtype: str = "F32",
) -> None:
    """Writes a model's folder except the weights, whose dtype is `dtype`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", hf_config(shape, dtype=DTYPES[dtype].name, end_id=end_id))
    _write_json(folder / "generation_config.json", generation_config(end_id))
    if tokenizer_file is not None:
        save_tokenizer(folder, tokenizer_file, end_id=end_id, context=shape.context)


def save_tokenizer(
    folder: str | os.PathLike[str], tokenizer_file: str | os.PathLike[str], *, end_id: int | None, context: int
) -> None:
    """Copies the tokenizer next to the model, and writes AutoTokenizer's config for it."""
    target = Path(folder) / "tokenizer.json"
    try:
        if not (target.exists() and target.samefile(tokenizer_file)):
            with open_regular(tokenizer_file, ModelError, TOKENIZER) as source, replacing(target, binary=True) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        config: dict[str, Any] = {
            # Otherwise the model's type would select Llama's own, which splits text differently.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "add_eos_token": False,
        }
        end = next((token["content"] for token in _added_tokens(target) if token["id"] == end_id), None)
    except DiskFull:
        raise
    except OSError as error:
        raise ModelError(f"cannot read {tokenizer_file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ModelError(f"{tokenizer_file} is not a tokenizer.json: give the tokenizer of the model") from None
    if end is not None:
        # No separate padding token: padding is always masked. On the left, where generate() needs it.
        config |= {"bos_token": end, "eos_token": end, "pad_token": end, "padding_side": "left"}
    _write_json(Path(folder) / "tokenizer_config.json", config)


def _added_tokens(path: Path) -> list[dict[str, Any]]:
    """They come before the vocabulary, which needs a hundred times the memory to read."""
    with open_regular(path, ModelError) as file:
        beginning = file.read(1 << 16).decode("utf-8", "replace")
    if begins := re.search(r'"added_tokens"\s*:\s*(?=\[)', beginning):
        try:
            return json.JSONDecoder().raw_decode(beginning, begins.end())[0]  # type: ignore[no-any-return]
        except ValueError:
            pass  # more of them than fit into what was read
    return read_json(path, TOKENIZER)["added_tokens"]  # type: ignore[no-any-return]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with replacing(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def files_by_name(found: ModelFolder, shape: Shape) -> dict[str, Path]:
    """The file of each tensor of a model; refuses weights that are missing or have the wrong shape or dtype."""
    wanted = {tensor.name: tensor.shape for tensor in named_tensors(shape)}
    sources: dict[str, Path] = {}
    for path, names in _files(found.weights).items():
        header = read_header(path)
        for name in header.tensors if names is None else names:
            if name in wanted:
                check_tensor(path, header, name, wanted[name])
                if header.tensors[name].dtype not in _LOADABLE:
                    raise ModelError(f"{path} has {name} in a quantized dtype: use the model before quantization")
                sources[name] = path
            elif not _UNUSED.fullmatch(name) and not (shape.tied and name == "lm_head.weight"):
                kind = "Qwen3" if shape.qk_norm else "Llama"
                raise ModelError(f"{path} has the tensor {name}, which a {kind} with this config does not have")
    if missing := wanted.keys() - sources.keys():
        raise ModelError(f"{found.weights} has no {min(missing)}: its weights do not match its config.json")
    return sources


def read_weights(found: ModelFolder, shape: Shape, tensors: Mapping[str, Stored]) -> None:
    """Reads all weights of a folder, whatever their type, into an engine's tensors."""
    sources = files_by_name(found, shape)
    for path in sorted(set(sources.values())):
        read_tensors_into(path, {name: tensors[name] for name in tensors if sources[name] == path}, cast=True)


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The files of the weights, each with the tensors to read from it; None means all."""
    if (folder / WEIGHTS).exists():
        return {folder / WEIGHTS: None}
    by_file: dict[Path, list[str] | None] = {}
    index = read_json(folder / INDEX, LARGE).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ModelError(f"{folder / INDEX} lists no weights: restore it, or use another model")
    for name, file in index.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{folder / INDEX} says that {name} is in {file!r}, which is not a file in its folder")
        names = by_file.setdefault(folder / file, [])
        assert names is not None
        names.append(name)
    return by_file
