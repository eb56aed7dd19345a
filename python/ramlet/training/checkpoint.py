"""Everything a run needs to go on, written whole or not at all.

    RUN/checkpoints/step_000500/
      model.safetensors       the weights, in transformers' names
      optimizer.safetensors   the optimizer's states
      state.json              step, place in the data, figures; the checksums of the two files; written last

A checkpoint is made in a hidden folder beside, synced, and renamed: a kill leaves none or a whole one. Tensors are
written and read in pieces of 16 MiB, straight from and into those of the run, so neither takes memory that training
does not.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramlet.engines import Trainee
from ramlet.errors import ModelError
from ramlet.model.dtypes import DTYPES
from ramlet.model.tensor_file import Stored, read_header, read_tensors_into, write_tensors
from ramlet.runtime.atomic_files import replacing, sync_folder
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.small_files import read_json_object
from ramlet.training.run_files import CHECKPOINTS

__all__ = ["Snapshot", "checkpoints", "damaged", "latest", "load", "path_of", "prune", "read_state", "save"]

_NAME = re.compile(r"step_(\d{6,})")
_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """A run at one step: what a checkpoint is made of."""

    step: int
    state: dict[str, Any]
    model: dict[str, Stored]
    optimizer: dict[str, Stored]

    @classmethod
    def of(cls, trainee: Trainee, step: int, state: Mapping[str, Any]) -> Snapshot:
        """The tensors themselves: to be written before the next step."""
        return cls(step, {**state, "loss_scale": trainee.scale_state()}, trainee.weights(), trainee.states())

    def on_host(self) -> Snapshot:
        """A copy in RAM, which the next steps leave alone."""
        model = {name: tensor.copied() for name, tensor in self.model.items()}
        optimizer = {name: tensor.copied() for name, tensor in self.optimizer.items()}
        return replace(self, model=model, optimizer=optimizer)

    @property
    def bytes(self) -> int:
        tensors = (*self.model.values(), *self.optimizer.values())
        return sum(math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def path_of(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step_{step:06}"


def save(run: Path, snapshot: Snapshot) -> Path:
    """Writes a checkpoint; of one that is there already, for the run went on from it, only the state."""
    folder = run / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    final = path_of(run, snapshot.step)
    if (final / "state.json").is_file():
        _write_state(final, snapshot, read_state(final)["xxh64"])
        return final
    hidden = folder / f".{final.name}"
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    try:
        sums = {
            "model.safetensors": write_tensors(hidden / _FILES[0], snapshot.model, {"format": "pt"}),
            "optimizer.safetensors": write_tensors(hidden / _FILES[1], snapshot.optimizer),
        }
        _write_state(hidden, snapshot, sums)
        shutil.rmtree(final, ignore_errors=True)
        hidden.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return final


def _write_state(folder: Path, snapshot: Snapshot, sums: Mapping[str, str]) -> None:
    with replacing(folder / "state.json") as file:
        json.dump({"step": snapshot.step, **snapshot.state, "xxh64": dict(sums)}, file, indent=1)


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """The whole ones, oldest first."""
    found = []
    for path in (run / CHECKPOINTS).glob("step_*"):
        match = _NAME.fullmatch(path.name)
        if match and (path / "state.json").is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def latest(run: Path) -> Path | None:
    found = checkpoints(run)
    return found[-1][1] if found else None


def read_state(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, all of it there and of the right kind."""
    file = path / "state.json"
    try:
        state = read_json_object(file, ModelError)
    except (OSError, ModelError) as error:
        raise ModelError(f"{error}: {_way_out(path)}") from None
    scale = state.get("loss_scale")
    for name, holds in {
        "step": _is_count(state.get("step")),
        "journal": _is_count(state.get("journal")),
        "xxh64": isinstance(state.get("xxh64"), dict),
        "progress": isinstance(state.get("progress"), dict),
        "data": isinstance(state.get("data"), dict),
        "loss_scale": isinstance(scale, dict) and _is_scale(scale),
    }.items():
        if not holds:
            raise damaged(path, f"{name} is missing" if name not in state else f"{name} is not as it was written")
    return state


def damaged(path: Path, what: str) -> ModelError:
    """The error about a checkpoint whose state says too little, or nonsense."""
    return ModelError(f"{path / 'state.json'} is damaged ({what}): {_way_out(path)}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_scale(scale: Mapping[str, Any]) -> bool:
    value = scale.get("loss_scale")
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0 and _is_count(scale.get("good_steps"))


def load(path: Path, trainee: Trainee) -> dict[str, Any]:
    """Reads a checkpoint into the run's own tensors and returns its state."""
    state = read_state(path)
    for name in _FILES:
        file = path / name
        if not file.is_file():
            raise ModelError(f"{file} is missing: {_way_out(path)}")
        try:
            read_header(file)  # by which it has the size that it should: a checksum goes over all of it
        except ModelError:
            raise ModelError(f"{file} is damaged, its tensors are not as they were written: {_way_out(path)}") from None
        if file_checksum(file) != state["xxh64"].get(name):
            raise ModelError(f"{file} is damaged, its checksum is not the one written down: {_way_out(path)}")
    read_tensors_into(path / _FILES[0], trainee.weights())
    trainee.prepare_states()
    read_tensors_into(path / _FILES[1], trainee.states())
    trainee.restored(state["loss_scale"])
    return state


def _way_out(path: Path) -> str:
    others = [other for _, other in checkpoints(path.parent.parent) if other != path]
    if others:
        return f"remove {path} to go on from {others[-1].name}"
    return f"remove {path} to begin anew, for there is no other checkpoint"


def prune(run: Path, keep: int, best: int | None) -> None:
    """Removes all but the newest `keep` and the best; and what kills left half-made."""
    found = checkpoints(run)
    for step, path in found[: max(0, len(found) - keep)]:
        if step != best:
            # Without its state it counts no more, wherever a kill interrupts the removal.
            (path / "state.json").unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
    for path in (run / CHECKPOINTS).glob("step_*"):
        if not (path / "state.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    for path in (run / CHECKPOINTS).glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)
