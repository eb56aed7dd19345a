"""Finds a model on disk, without loading an engine.

    found = find_model("RUN")
    found.shape(), found.tokenizer_file

A path may be that of a run, one of its checkpoints (RUN/checkpoints/step_000500, which has only weights), an unfinished
run (then its last checkpoint is used, or its best one if it got worse since), or a folder of transformers.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.errors import ModelError
from ramlet.inputs.paths import check_path
from ramlet.model.hf_config import end_ids, shape_from_hf
from ramlet.model.shape import Shape
from ramlet.runtime.small_files import SMALL, read_json_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NEXT = ".next"
"""Inside a run: the one that is replacing it (training/run_files.py)."""


@dataclass(frozen=True)
class ModelFolder:
    """Where the parts of a model are."""

    weights: Path
    """The folder of the weights."""
    described: Path
    """The folder of config.json and the tokenizer: the same, or the run of a checkpoint."""

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
            raise ModelError(f"{self.described} has no tokenizer.json: copy the one that the model was trained with")
        return path

    def shape(self) -> Shape:
        return shape_from_hf(self.config(), str(self.config_file))


def find_model(path: str | os.PathLike[str]) -> ModelFolder:
    """The model at a path: a run, a checkpoint, a folder of transformers, or a file in one."""
    check_path(path)
    folder = Path(path)
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}: give a run, one of its checkpoints or a model of transformers")
    folder = whole_run(folder)
    weights = folder if _has_weights(folder) else _last_checkpoint(folder)
    if weights is None:
        pickled = next(
            (name for name in os.listdir(folder) if re.fullmatch(r"pytorch_model.*\.bin|.*\.pth?", name)), None
        )
        if pickled:
            raise ModelError(
                f"{folder} has its weights in {pickled}, which can run code when it is read: save them as safetensors"
            )
        # The result of `ramlet run` has its run in a subfolder.
        inside = folder / "run"
        if _has_weights(inside) or _last_checkpoint(inside):
            raise ModelError(f"{folder} is not a model: did you mean {inside}?")
        raise ModelError(f"{folder} is not a model: it has no {WEIGHTS} and no checkpoint; ramlet train writes them")
    # Next to the weights, in the run, or in the run of a checkpoint.
    for described in (weights, folder, *list(weights.absolute().parents)[:2]):
        if (described / "config.json").exists():
            return ModelFolder(weights, described)
    raise ModelError(f"{weights} has no config.json, which has the model's shape: copy it there")


def whole_run(run: Path) -> Path:
    """Where the files of a run are: its folder, or `.next` if a kill interrupted the replacement of an old run."""
    moving = run / NEXT
    return moving if moving.is_dir() else run


def _has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).exists() or (folder / INDEX).exists()


def _last_checkpoint(run: Path) -> Path | None:
    """By step, not by name: step_1000000 is later than step_999999. If the model got worse, the one that it names."""
    steps = {
        int(match[1]): path
        for path in run.glob("checkpoints/step_*")
        if (match := re.fullmatch(r"step_(\d+)", path.name)) and _has_weights(path)
    }
    if not steps:
        return None
    last = steps[max(steps)]
    with suppress(OSError, ModelError):  # a copy without it, or with another
        better = read_json_object(last / "state.json", ModelError).get("model")
        return steps.get(better, last) if isinstance(better, int) else last
    return last


def read_json(path: Path, most: int = SMALL) -> dict[str, Any]:
    try:
        return read_json_object(path, ModelError, most)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except ModelError as error:
        raise ModelError(f"{error}; restore it, or use another model") from None
