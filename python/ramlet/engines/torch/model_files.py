"""Loads a `GPT` from a folder and saves it; `ramlet.model.files` has everything but the weights.

    save_model(model, "RUN", tokenizer_file="data/tokenizer.json", end_id=0)
    model = load_model("RUN", device="cuda", dtype=torch.bfloat16)

Matrices that are fused in memory (q, k and v; gate and up) are separate tensors in the file, and the vocabulary's
padding rows are not written; nothing is copied as a whole, in either direction.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor

from ramlet.engines.torch.division import Range
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.stored import NAMES, Copies, stored
from ramlet.engines.torch.stored_shares import divided_weight
from ramlet.engines.torch.weights import Weights
from ramlet.model.files import read_weights, save_description
from ramlet.model.folder import WEIGHTS, ModelFolder, find_model
from ramlet.model.names import named_tensors
from ramlet.model.tensor_file import Stored, write_tensors


def tensors_by_name(weights: Weights) -> dict[str, Tensor]:
    """Views of the weights, by transformers' names."""
    return {
        tensor.name: weights[tensor.fused].master[tensor.start : tensor.start + tensor.shape[0]]
        for tensor in named_tensors(weights.shape)
    }


def stored_weights(weights: Weights, copies: Copies | None = None) -> dict[str, Stored]:
    """The weights to write or read into; in a run that divides them, all ranks together."""
    sharding = weights.sharding
    if sharding is None or not sharding.divides_weights:
        return stored(tensors_by_name(weights), copies)
    found: dict[str, Stored] = {}
    for tensor in named_tensors(weights.shape):
        start, size = weights.place(tensor.fused)
        if len(size) == 1:
            found |= stored({tensor.name: weights[tensor.fused].master})
        else:
            first = start + tensor.start * size[1]
            found[tensor.name] = divided_weight(weights, Range(first, first + math.prod(tensor.shape)), tensor.shape)
    return found


def save_model(
    model: GPT,
    folder: str | os.PathLike[str],
    *,
    tokenizer_file: str | os.PathLike[str] | None = None,
    end_id: int | None = None,
    dtype: torch.dtype | None = None,
) -> str:
    """Writes the model, every file atomically and the weights last; returns the checksum of the weights.

    Weights are written as they are stored (the norms in fp32), or all as `dtype`.
    """
    tensors = stored(tensors_by_name(model.weights))
    name = NAMES[dtype or model.weights.matrices.dtype]
    save_description(model.shape, folder, tokenizer_file=tokenizer_file, end_id=end_id, dtype=name)
    return write_tensors(Path(folder) / WEIGHTS, tensors, {"format": "pt"}, dtype=name if dtype else None)


def load_model(
    folder: str | os.PathLike[str] | ModelFolder,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    chunk: int = 1024,
    recompute: bool = False,
) -> GPT:
    """The model of a folder, its weights converted to `dtype`; the other arguments as for `GPT`."""
    found = folder if isinstance(folder, ModelFolder) else find_model(folder)
    model = GPT(found.shape(), device=device, dtype=dtype, compute=compute, chunk=chunk, recompute=recompute)
    load_weights(model, found)
    return model


def load_weights(model: GPT, folder: str | os.PathLike[str] | ModelFolder) -> None:
    """Reads the weights of a folder directly into a model."""
    found = folder if isinstance(folder, ModelFolder) else find_model(folder)
    read_weights(found, model.shape, stored_weights(model.weights))
    model.weights.refresh()
