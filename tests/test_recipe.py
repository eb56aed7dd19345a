"""The recipe of a run: what it is by default, and that a run keeps the one it was begun with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from oracles_training import make_data, run
from ramlet.errors import SettingsError
from ramlet.model.sizing import shape_for
from ramlet.pipeline.due import decide
from ramlet.pipeline.record import Recorded
from ramlet.pipeline.stages import Stage
from ramlet.settings.declared import declared
from ramlet.training.recipe import BEFORE, Recipe, as_recorded_now, recipe_for, recipe_of, step_flops
from ramlet.training.settings import RunSettings

SHAPE = shape_for(10_000_000, vocab_size=8192, context=256)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("recipe"))


def old_record(**given: Any) -> dict[str, Any]:
    """What 0.1.0 recorded for these settings."""
    later = {name for name, each in declared(RunSettings).items() if each.later}
    known = {**RunSettings().decisive(), "schedule": "cosine", **given}
    return {name: value for name, value in known.items() if name not in later}


@pytest.mark.parametrize(
    ("step_tokens", "continued", "optimizer"),
    [(8192, False, "muon"), (2 * SHAPE.width, False, "muon"), (SHAPE.width, False, "adamw"), (8192, True, "adamw")],
)
def test_the_optimizer(step_tokens: int, continued: bool, optimizer: str) -> None:
    assert recipe_for(SHAPE, step_tokens=step_tokens, continued=continued).optimizer == optimizer


def test_settings_take_precedence() -> None:
    settings = RunSettings(schedule="linear", decay=0.7, optimizer="adamw8bit")
    assert Recipe("muon").given(settings) == Recipe("adamw", "linear", 0.7)
    assert Recipe("muon").given(RunSettings()) == Recipe("muon")


def test_an_older_run_has_the_recipe_of_its_time() -> None:
    noted = {"settings": old_record(), "job": {}}
    assert recipe_of(noted) == BEFORE
    assert recipe_of({"settings": old_record(schedule="linear"), "job": {}}).schedule == "linear"
    assert recipe_of({"settings": {}, "job": {"recipe": {"optimizer": "muon", "schedule": "wsd", "decay": 0.2}}}) == (
        Recipe("muon", "wsd", 0.2)
    )


def test_settings_of_older_runs_are_recognized() -> None:
    assert as_recorded_now(old_record()) == RunSettings().decisive()
    assert as_recorded_now(old_record(schedule="linear")) == RunSettings(schedule="linear").decisive()
    # A record of this version is left alone: there the default is not cosine.
    explicit = RunSettings(schedule="cosine").decisive()
    assert as_recorded_now(explicit) == explicit != RunSettings().decisive()


@pytest.mark.parametrize(("schedule", "action"), [(None, "keep"), ("linear", "rebuild")])
def test_an_older_pipeline_is_not_trained_again(tmp_path: Path, schedule: str | None, action: str) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "stats.json").write_text("{}")
    reads = {"data": "the same"}
    stage = Stage("training", str(out), (str(out / "stats.json"),), RunSettings(schedule=schedule).decisive(), reads)
    recorded = Recorded("done", "another fingerprint", old_record(), reads, False)
    assert decide(stage, recorded).action == action


def test_a_run_keeps_its_recipe(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"max_steps": 4, "optimizer": "auto", "lr": None, "eval_every": 0, "schedule": None}
    run(data, tmp_path / "out", **given)
    first = yaml.safe_load((tmp_path / "out/settings.yaml").read_text())["job"]
    assert first["recipe"]["schedule"] == "wsd"
    monkeypatch.setattr("ramlet.training.job.recipe_for", lambda *_, **__: BEFORE)
    monkeypatch.setattr("ramlet.training.job.QK_NORM", False)
    run(data, tmp_path / "out", **{**given, "max_steps": 6}, resume=True)
    second = yaml.safe_load((tmp_path / "out/settings.yaml").read_text())["job"]
    assert (second["recipe"], second["lr"], second["shape"]) == (first["recipe"], first["lr"], first["shape"])
    run(data, tmp_path / "out", **{**given, "max_steps": 6, "schedule": "wsd", "qk_norm": True})
    with pytest.raises(SettingsError, match="has a run with schedule wsd, not linear"):
        run(data, tmp_path / "out", **{**given, "max_steps": 6, "schedule": "linear"})
    with pytest.raises(SettingsError, match="has a run with qk_norm True, not False"):
        run(data, tmp_path / "out", **{**given, "max_steps": 6, "qk_norm": False})


def test_the_operations_of_a_step() -> None:
    """A small step is mostly Muon's update, a large one is hardly affected by it."""
    learning = SHAPE.step_flops(1024, 256)
    small = step_flops(SHAPE, 1024, 256) - learning
    assert small == step_flops(SHAPE, 8192, 256) - SHAPE.step_flops(8192, 256)
    assert 0.1 < small / learning < 1
    assert step_flops(SHAPE, SHAPE.width, 256) == SHAPE.step_flops(SHAPE.width, 256), "AdamW"
