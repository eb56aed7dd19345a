"""The model of a folder as a `GPT`, and back; `ramlet.model.files` writes and reads all of the folder but the weights.

    save_model(model, "RUN", tokenizer_file="data/tokenizer.json", end_id=0)
    model = load_model("RUN", device="cuda", dtype=torch.bfloat16)

What is fused in memory is written as rows of the one tensor (q, k and v; gate and up), and rows that fill up the
vocabulary are left out; nothing is held a second time, in either direction.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.stored import NAMES, stored
from ramlet.engines.torch.weights import Weights
from ramlet.model.files import files_by_name, save_description
from ramlet.model.folder import WEIGHTS, ModelFolder, find_model
from ramlet.model.names import named_tensors
from ramlet.model.tensor_file import read_tensors_into, write_tensors

__all__ = ["load_model", "load_weights", "save_model", "tensors_by_name"]


def tensors_by_name(weights: Weights) -> dict[str, Tensor]:
    """The weights under transformers' names: views."""
    return {
        tensor.name: weights[tensor.fused].master[tensor.start : tensor.start + tensor.shape[0]]
        for tensor in named_tensors(weights.shape)
    }


def save_model(
    model: GPT,
    folder: str | os.PathLike[str],
    *,
    tokenizer_file: str | os.PathLike[str] | None = None,
    end_id: int | None = None,
    dtype: torch.dtype | None = None,
) -> str:
    """Writes the model, every file whole or not at all, the weights last; returns the checksum of these.

    Weights are written as they are kept (the norms in fp32), or all of them as `dtype`.
    """
    tensors = stored(tensors_by_name(model.weights))
    kept = NAMES[dtype or model.weights.matrices.dtype]
    save_description(model.shape, folder, tokenizer_file=tokenizer_file, end_id=end_id, dtype=kept)
    return write_tensors(Path(folder) / WEIGHTS, tensors, {"format": "pt"}, dtype=kept if dtype else None)


def load_model(
    folder: str | os.PathLike[str] | ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    chunk: int = 1024,
    recompute: bool = False,
) -> GPT:
    """The model of a folder, its weights kept as `dtype` whatever the file has; the rest as for `GPT`."""
    found = folder if isinstance(folder, ModelFolder) else find_model(folder)
    model = GPT(found.shape(), device=device, dtype=dtype, compute=compute, chunk=chunk, recompute=recompute)
    load_weights(model, found)
    return model


def load_weights(model: GPT, folder: str | os.PathLike[str] | ModelFolder) -> None:
    """Fills a model that is there already, straight from the file."""
    found = folder if isinstance(folder, ModelFolder) else find_model(folder)
    wanted = stored(tensors_by_name(model.weights))
    sources = files_by_name(found, model.shape)
    for path in sorted(set(sources.values())):
        read_tensors_into(path, {name: wanted[name] for name in wanted if sources[name] == path}, cast=True)
    model.weights.refresh()
