"""Finding a model on disk, without loading torch for it.

    found = find_model("RUN")
    found.shape(), found.tokenizer_file

A path may name a run, one of its checkpoints (RUN/checkpoints/step_000500, which holds the weights alone), a run that
has only checkpoints yet, of which the last is taken, or a folder of transformers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.errors import ModelError
from ramlet.model.hf_config import end_ids, shape_from_hf
from ramlet.model.shape import Shape
from ramlet.runtime.small_files import SMALL, read_json_object

__all__ = ["ModelFolder", "find_model", "read_json", "whole_run"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NEXT = ".next"
"""In a run: the one that is about to replace it (training/run_files.py)."""


@dataclass(frozen=True)
class ModelFolder:
    """Where the parts of a model were found."""

    weights: Path
    """The folder of the weights."""
    described: Path
    """The folder of config.json and of the tokenizer: the same, or the run that a checkpoint belongs to."""

    @property
    def config_file(self) -> Path:
        return self.described / "config.json"

    def config(self) -> dict[str, Any]:
        return read_json(self.config_file)

    def end_ids(self) -> frozenset[int]:
        """The ids that end a text."""
        path = self.described / "generation_config.json"
        return end_ids(read_json(path) if path.exists() else {}, self.config())

    @property
    def tokenizer_file(self) -> Path:
        path = self.described / "tokenizer.json"
        if not path.exists():
            raise ModelError(
                f"{self.described} holds no tokenizer.json: copy the tokenizer that the model learned with"
            )
        return path

    def shape(self) -> Shape:
        return shape_from_hf(self.config(), str(self.config_file))


def find_model(path: str | os.PathLike[str]) -> ModelFolder:
    """The model at a path: a run, a checkpoint, a folder of transformers, or a file in one."""
    folder = Path(path)
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}: give a run, one of its checkpoints or a model for transformers")
    folder = whole_run(folder)
    weights = folder if _has_weights(folder) else _last_checkpoint(folder)
    if weights is None:
        pickled = next(
            (name for name in os.listdir(folder) if re.fullmatch(r"pytorch_model.*\.bin|.*\.pth?", name)), None
        )
        if pickled:
            raise ModelError(
                f"{folder} has its weights in {pickled}, which runs code when it is read: save them as safetensors"
            )
        # What `ramlet run` makes has its run in a folder of its own.
        inside = folder / "run"
        if _has_weights(inside) or _last_checkpoint(inside):
            raise ModelError(f"{folder} holds no model itself: did you mean {inside}?")
        raise ModelError(
            f"{folder} holds no model: there is no {WEIGHTS} in it, nor a checkpoint; ramlet train writes one"
        )
    # Beside the weights, in the run, or in the run of a checkpoint.
    for described in (weights, folder, *list(weights.absolute().parents)[:2]):
        if (described / "config.json").exists():
            return ModelFolder(weights, described)
    raise ModelError(f"{weights} has no config.json, nor has the run above it: a model's shape must be known")


def whole_run(run: Path) -> Path:
    """Where the files of the run in this folder are: the folder itself, or `.next` after a kill while it moved in."""
    moving = run / NEXT
    return moving if moving.is_dir() else run


def _has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).exists() or (folder / INDEX).exists()


def _last_checkpoint(run: Path) -> Path | None:
    """By its step, not by its name: step_1000000 is later than step_999999."""
    steps = [
        (int(match[1]), path)
        for path in run.glob("checkpoints/step_*")
        if (match := re.fullmatch(r"step_(\d+)", path.name))
    ]
    return next((path for _, path in sorted(steps, reverse=True) if _has_weights(path)), None)


def read_json(path: Path, most: int = SMALL) -> dict[str, Any]:
    try:
        return read_json_object(path, ModelError, most)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except ModelError as error:
        raise ModelError(f"{error}; restore it, or take another model") from None
