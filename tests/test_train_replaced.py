"""A run that is begun anew where another one is, or was begun: nothing is lost before there is something better."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles_kills import changes_of, killed_at
from oracles_training import assert_same_run, left_behind, make_data, metrics, run, steps_kept
from ramlet.engines.torch.model_files import load_model
from ramlet.errors import BudgetError, DatasetError, Interrupted, TrainingStopped
from ramlet.training import loop
from ramlet.training.listener import Listener
from ramlet.training.run_files import SETTINGS, WRITTEN

OTHER = {"seed": 6, "max_steps": 4, "kv_groups": 2}
"""Of the run that replaces the one of the settings of all tests."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("replaced"))


@pytest.fixture(scope="module")
def old(data: Path) -> Path:
    """A finished run."""
    run(data, data.parent / "old", max_steps=3)
    return data.parent / "old"


@pytest.fixture(scope="module")
def new(data: Path) -> Path:
    """The other one, in a folder of its own."""
    run(data, data.parent / "new", **OTHER)
    return data.parent / "new"


@pytest.fixture
def out(old: Path, tmp_path: Path) -> Path:
    shutil.copytree(old, tmp_path / "out")
    return tmp_path / "out"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def anew(data: Path, out: Path) -> None:
    run(data, out, resume=False, **OTHER)


def test_a_refusal_removes_nothing(data: Path, old: Path, out: Path) -> None:
    with pytest.raises(BudgetError, match="needs at least"):
        run(data, out, resume=False, memory="50MB")
    with pytest.raises(DatasetError, match="no such file or folder"):
        run(data, out, resume=False, evals={"general": out / "nowhere"}, **OTHER)
    assert files(out) == files(old)


def test_it_is_replaced_with_the_first_checkpoint(data: Path, old: Path, new: Path, out: Path) -> None:
    seen: dict[int, bool] = {}

    class Looking(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            visible = {name: raw for name, raw in files(out).items() if not name.startswith(".")}
            seen[step] = visible == files(old)

        def saved(self, step: int, path: Path) -> None:
            assert path.parent.parent == out
            assert not (out / "stats.json").exists()
            assert path.is_dir()

    run(data, out, resume=False, listener=Looking(), **OTHER)
    assert seen == {1: True, 2: True, 3: True, 4: False}
    assert_same_run(out, new)


def test_a_new_run_that_goes_wrong_leaves_the_old_one(
    data: Path, old: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop._one_step

    def poisoned(state: Any, batches: Any) -> Any:
        figures = real(state, batches)
        figures.loss = torch.tensor(float("nan"))
        return figures

    monkeypatch.setattr(loop, "_one_step", poisoned)
    with pytest.raises(TrainingStopped, match="there is no checkpoint before it"):
        run(data, out, resume=False, **OTHER)
    assert files(out) == files(old)


def test_it_begins_from_the_one_that_it_replaces(data: Path, old: Path, out: Path) -> None:
    done = run(data, out, resume=False, init_from=str(out), params=None, seq_len=None, max_steps=2)
    assert done.steps == 2
    assert steps_kept(out) == [2]
    first = next(line for line in metrics(out) if "loss" in line)["loss"]
    assert first < next(line for line in metrics(old) if "loss" in line)["loss"]


def test_interrupted_before_its_first_checkpoint_it_has_one(data: Path, new: Path, out: Path) -> None:
    class Stop(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 1:
                os.kill(os.getpid(), 2)

    with pytest.raises(Interrupted, match="at step 1 of 4, and saved"):
        run(data, out, resume=False, listener=Stop(), **OTHER)
    assert steps_kept(out) == [1]
    run(data, out, **OTHER)
    assert left_behind(out)["model"] == left_behind(new)["model"]
    assert metrics(out) == metrics(new)


def test_killed_anywhere_one_of_the_two_is_there(data: Path, old: Path, new: Path, tmp_path: Path) -> None:
    """The same command, later, ends as if nothing had happened."""
    shutil.copytree(old, tmp_path / "calm")
    changes = changes_of(tmp_path / "told", anew, data, tmp_path / "calm")
    assert_same_run(tmp_path / "calm", new)
    weights = {(place / "model.safetensors").read_bytes() for place in (old, new)}
    moments = [round(changes * part) for part in (0.02, 0.2, 0.45, 0.6, 0.7, 0.8, 0.97)]
    for change in moments:
        out = tmp_path / f"at-{change}"
        shutil.copytree(old, out)
        killed_at(change, anew, data, out)
        shape = load_model(out).shape
        if shape == load_model(old).shape:
            # What was there before it was replaced is all there.
            assert {name: raw for name, raw in files(out).items() if not name.startswith(".")} == files(old)
            assert run(data, out, max_steps=3).already_done
        else:
            assert shape == load_model(new).shape
        anew(data, out)
        assert_same_run(out, new)
        assert (out / "model.safetensors").read_bytes() in weights


def begun(data: Path, out: Path) -> None:
    run(data, out, **OTHER)


def test_killed_early_and_again_it_still_begins(data: Path, new: Path, tmp_path: Path) -> None:
    """Also in a folder of another run that never came to a checkpoint."""
    changes = changes_of(tmp_path / "told", begun, data, tmp_path / "calm")
    out = tmp_path / "out"
    for part in (0.3, 0.1, 0.2, 0.02, 0.25, 0.01):
        killed_at(max(1, round(changes * part)), begun, data, out)
        assert (out / SETTINGS).exists() or not set(os.listdir(out)) - {".lock"} or part < 0.1
    begun(data, out)
    assert_same_run(out, new)


def test_all_that_a_run_writes_has_its_name_in_one_place(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(data, tmp_path / "out", max_steps=2, tensorboard=True)
    assert set(os.listdir(tmp_path / "out")) <= {SETTINGS, *WRITTEN}
    # A run in its place has no curves of the one before.
    before = set(os.listdir(tmp_path / "out" / "tensorboard"))
    run(data, tmp_path / "out", max_steps=2, tensorboard=True, resume=False)
    assert not before & set(os.listdir(tmp_path / "out" / "tensorboard"))
