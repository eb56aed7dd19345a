"""Checkpoints: everything a run needs to resume, written atomically.

    RUN/checkpoints/step_000500/
      model.safetensors       the weights, by transformers' names
      optimizer.safetensors   the optimizer's states
      state.json              step, position in the data, metrics, schedule; checksums of the two files and of itself;
                              written last

A checkpoint is written to a hidden folder, synced, and renamed: a kill leaves a complete one or none. Tensors are
written and read in pieces of 16 MiB, directly from and into those of the run, so neither needs more memory than
training.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramlet.engines import Learner
from ramlet.errors import ModelError, RamletError
from ramlet.model.tensor_file import Stored, read_header, read_tensors_into, send_tensors, stored_bytes, write_tensors
from ramlet.runtime.atomic_files import replacing, sync_folder
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.small_files import read_json_object
from ramlet.training.run_files import CHECKPOINTS
from ramlet.training.schedule import Schedule

_NAME = re.compile(r"step_(\d{6,})")
_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one step."""

    step: int
    state: dict[str, Any]
    model: dict[str, Stored]
    optimizer: dict[str, Stored]

    @classmethod
    def of(cls, trainee: Learner, step: int, state: Mapping[str, Any]) -> Snapshot:
        """With the tensors themselves: write them before the next step."""
        return cls(step, {**state, "loss_scale": trainee.scale_state()}, trainee.weights(), trainee.states())

    def on_host(self) -> Snapshot:
        """A copy in RAM, which later steps do not change."""
        model = {name: tensor.copied() for name, tensor in self.model.items()}
        optimizer = {name: tensor.copied() for name, tensor in self.optimizer.items()}
        return replace(self, model=model, optimizer=optimizer)

    @property
    def bytes(self) -> int:
        return stored_bytes(self.model, self.optimizer)

    def send(self) -> None:
        """On the other ranks of a run that divides its tensors, while the first one saves this checkpoint."""
        send_tensors(self.model)
        send_tensors(self.optimizer)


def path_of(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step_{step:06}"


def save(run: Path, snapshot: Snapshot, *, only_state: bool = False) -> Path:
    """Writes a checkpoint; `only_state` if there is one of this step with the same tensors."""
    folder = run / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    final = path_of(run, snapshot.step)
    if only_state and is_complete(final):
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
        remove(final)  # incomplete, or from before the run went back to an earlier checkpoint
        hidden.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return final


def _write_state(folder: Path, snapshot: Snapshot, sums: Mapping[str, str]) -> None:
    state = {"step": snapshot.step, **snapshot.state, "xxh64": dict(sums)}
    with replacing(folder / "state.json") as file:
        json.dump({**state, "crc32": _checksum(state)}, file, indent=1)


def _checksum(state: Mapping[str, Any]) -> str:
    """Of everything in state.json except itself."""
    others = {name: value for name, value in state.items() if name != "crc32"}
    return f"{zlib.crc32(json.dumps(others).encode()):08x}"


def is_complete(path: Path) -> bool:
    return (path / "state.json").is_file()


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """The complete ones, oldest first."""
    found = []
    for path in (run / CHECKPOINTS).glob("step_*"):
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path):
            found.append((int(match[1]), path))
    return sorted(found)


def latest(run: Path) -> Path | None:
    found = checkpoints(run)
    return found[-1][1] if found else None


def read_state(path: Path) -> dict[str, Any]:
    """The state.json of a checkpoint, with all keys present and of the right type."""
    try:
        state = read_json_object(path / "state.json", ModelError)
    except (OSError, ModelError) as error:
        raise ModelError(f"{error}: {_remedy(path)}") from None
    if "crc32" in state and state["crc32"] != _checksum(state):  # older checkpoints do not have it
        raise damaged(path, "its checksum does not match")
    scale = state.get("loss_scale")
    for name, holds in {
        "step": _is_count(state.get("step")),
        "journal": _is_count(state.get("journal")),
        "xxh64": isinstance(state.get("xxh64"), dict),
        "progress": isinstance(state.get("progress"), dict),
        "data": isinstance(state.get("data"), dict),
        "loss_scale": isinstance(scale, dict) and _is_scale(scale),
        # Older checkpoints do not have it.
        "schedule": "schedule" not in state or Schedule.is_valid(state["schedule"]),
    }.items():
        if not holds:
            raise damaged(path, f"{name} is missing" if name not in state else f"{name} is invalid")
    return state


def damaged(path: Path, what: str) -> ModelError:
    """The error about an incomplete or invalid state.json."""
    return ModelError(f"{path / 'state.json'} is damaged ({what}): {_remedy(path)}")


@contextmanager
def restoring_data(path: Path) -> Iterator[None]:
    """Inside the block a loader gets its position from the state.json of this checkpoint."""
    try:
        yield
    except RamletError as error:
        if "damaged" not in error.facts:
            raise
        raise damaged(path, "data is invalid") from None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise damaged(path, "data is invalid") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_scale(scale: Mapping[str, Any]) -> bool:
    value = scale.get("loss_scale")
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0 and _is_count(scale.get("good_steps"))


def load(path: Path, trainee: Learner, *, prepare: Callable[[Collection[str]], object] | None = None) -> dict[str, Any]:
    """Reads a checkpoint into the run's own tensors and returns its state.

    `prepare` is called with the names of the optimizer's states in it, instead of the trainee's `prepare_states`: of a
    module some parameters may have none.
    """
    state = read_state(path)
    for name in _FILES:
        file = path / name
        if not file.is_file():
            raise ModelError(f"{file} is missing: {_remedy(path)}")
        try:
            read_header(file)  # checks the size first: a checksum reads the whole file
        except ModelError:
            raise ModelError(f"{file} is damaged, its header is invalid: {_remedy(path)}") from None
        if file_checksum(file) != state["xxh64"].get(name):
            raise ModelError(f"{file} is damaged, its checksum does not match state.json: {_remedy(path)}")
    read_tensors_into(path / _FILES[0], trainee.weights())
    if prepare is None:
        trainee.prepare_states()
    else:
        prepare(read_header(path / _FILES[1]).tensors.keys())
    read_tensors_into(path / _FILES[1], trainee.states())
    trainee.restored(state["loss_scale"])
    return state


def _remedy(path: Path) -> str:
    others = [other for _, other in checkpoints(path.parent.parent) if other != path]
    if others:
        return f"remove {path} to resume from {others[-1].name}"
    return f"remove {path} to start over, because there is no other checkpoint"


def schedule_of(state: Mapping[str, Any]) -> Schedule | None:
    """The schedule that a checkpoint was made with; None for older ones."""
    return Schedule(**state["schedule"]) if "schedule" in state else None


def prune(run: Path, step: int, keep: int, *, best: int | None, stable: int | None = None) -> None:
    """Removes all but the newest `keep`, the best, and the last one before the learning rate decayed (`stable`).

    Also those after `step`, of steps that are trained again, and incomplete ones left by kills.
    """
    found = checkpoints(run)
    reached = [(at, path) for at, path in found if at <= step]
    pinned = {best, *_continued_with(run, stable)}
    recent = {at for at, _ in reached[-keep:]}
    for at, path in found:
        if at > step or at not in recent | pinned:
            remove(path)
    for path in (run / CHECKPOINTS).glob("step_*"):
        if not (path / "state.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    for path in (run / CHECKPOINTS).glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Removes a checkpoint: without state.json it is none any more, even if a kill interrupts the removal."""
    (path / "state.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _continued_with(run: Path, step: int | None) -> set[int | None]:
    """What a run that goes back to this step needs: its checkpoint, and the best one until then."""
    if step is None or not (path_of(run, step) / "state.json").is_file():
        return set()
    with suppress(ModelError):  # damaged: whoever goes back to it is told
        return {step, read_state(path_of(run, step))["progress"].get("best")}
    return {step}
