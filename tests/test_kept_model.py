"""The model of a run is the best one that it had, not the last, and resuming it continues from the last."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from oracles_training import last_checkpoint, make_data, metrics, run, steps_kept, write_state
from ramlet.cli.train import _kept
from ramlet.errors import Interrupted, SettingsError
from ramlet.model.folder import find_model
from ramlet.training import loop
from ramlet.training.evaluate import Score, judged_by
from ramlet.training.listener import Listener
from ramlet.training.progress import Progress


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("kept"))


def evaluations_give(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    left = list(losses)
    monkeypatch.setattr(loop, "evaluate_model", lambda *_: Score(left.pop(0), 10, None))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step_{step:06}"


def test_the_best_is_the_model(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 3.0, 2.0, 2.5)
    done = run(data, out, keep=1)
    assert steps_kept(out) == [8, 12]
    assert weights(out) == weights(checkpoint(out, 8)) != weights(checkpoint(out, 12))
    assert done.statistics["model"] == {"step": 8, "averaged": 0}
    assert done.scores["val"]["loss"] == 2.0
    assert done.statistics["last_scores"]["val"]["loss"] == 2.5
    said = list(_kept(done.statistics))
    assert said == ["the model is that of step 8, which had the lowest loss (after the last step: val 2.5000)"]
    # Longer, it continues from the end.
    evaluations_give(monkeypatch, 1.5)
    more = run(data, out, keep=1, max_steps=16, resume=True)
    assert [line["step"] for line in metrics(out) if "loss" in line] == list(range(1, 17))
    assert more.statistics["model"] == {"step": 16, "averaged": 0}
    assert weights(out) == weights(checkpoint(out, 16))
    assert list(_kept(more.statistics)) == []


def test_the_last_is_the_model_without_a_better_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 3.0, 2.0, 1.5)
    assert run(data, out).statistics["model"] == {"step": 12, "averaged": 0}
    assert weights(out) == weights(checkpoint(out, 12))


class StopAt(Listener):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_is_opened_at_its_best(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But at its last as long as no evaluation was worse, and its last is what it resumes from."""
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 3.0)
    with pytest.raises(Interrupted):
        run(data, out, listener=StopAt(6))
    assert find_model(out).weights == checkpoint(out, 6)
    evaluations_give(monkeypatch, 3.5)
    with pytest.raises(Interrupted):
        run(data, out, listener=StopAt(10))
    assert find_model(out).weights == checkpoint(out, 4)
    shutil.copytree(out, tmp_path / "copy")
    (last_checkpoint(tmp_path / "copy") / "state.json").write_text("nothing")
    assert find_model(tmp_path / "copy").weights == checkpoint(tmp_path / "copy", 10)
    evaluations_give(monkeypatch, 3.2)
    assert run(data, out).statistics["model"] == {"step": 4, "averaged": 0}
    assert [line["step"] for line in metrics(out) if "loss" in line] == list(range(1, 13))


def test_a_run_that_is_made_shorter_has_the_scores_of_its_model(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 3.0)
    with pytest.raises(Interrupted):
        run(data, out, listener=StopAt(6))
    evaluations_give(monkeypatch, 2.0)
    done = run(data, out, max_steps=5, resume=True)
    assert done.statistics["model"] == {"step": 6, "averaged": 0}
    assert done.scores["val"]["loss"] == 2.0


def test_a_best_checkpoint_that_was_removed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next best takes its place."""
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 1.0, 3.0)
    with pytest.raises(Interrupted):
        run(data, out, listener=StopAt(10))
    shutil.rmtree(checkpoint(out, 4))
    evaluations_give(monkeypatch, 2.0)
    assert run(data, out).statistics["model"] == {"step": 12, "averaged": 0}


def test_evaluations_of_another_size_are_not_compared() -> None:
    progress = Progress(step=4)
    progress.evaluated_as({"val": Score(2.0, 100, None)}, Score(2.0, 100, None))
    progress.step = 8
    progress.evaluated_as({"val": Score(3.0, 200, None)}, Score(3.0, 200, None))
    assert (progress.best, progress.best_loss) == (8, 3.0)


@pytest.mark.parametrize("now", [{"other": "other"}, {"general": "other"}, {}])
def test_evaluations_on_other_sets_are_not_compared(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: dict[str, str]
) -> None:
    """After a run was resumed with them: its best model is the best of what it is judged by now."""
    for name, seed in (("train", 1), ("general", 2), ("other", 3)):
        make_data(tmp_path, name, seed=seed, val_fraction=0)
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 1.0, 2.0)
    with pytest.raises(Interrupted):
        run(tmp_path / "train", out, evals={"general": tmp_path / "general"}, listener=StopAt(10))
    evaluations_give(monkeypatch, 9.0)
    evals = {name: tmp_path / folder for name, folder in now.items()}
    done = run(tmp_path / "train", out, evals=evals)
    assert done.statistics["model"] == {"step": 12, "averaged": 0}
    assert weights(out) == weights(checkpoint(out, 12))


def test_what_a_model_forgets_is_measured_on_the_same_data(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    general, other, out = make_data(tmp_path, "general", seed=2), make_data(tmp_path, "other", seed=3), tmp_path / "out"
    run(data, tmp_path / "base", max_steps=2)
    given: dict[str, Any] = {"params": None, "init_from": str(tmp_path / "base")}
    with pytest.raises(Interrupted):
        run(data, out, evals={"general": general}, listener=StopAt(8), **given)
    assert run(data, out, evals={"general": other}, **given).statistics["forgetting"].keys() == {"val"}


class StopBehindAnEvaluation(Listener):
    def evaluated(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("steps", "scores"), [(4, {"val": 3.0, "general": 2.0}), (8, {"val": 3.0})])
def test_scores_on_other_data_are_not_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, scores: dict[str, float]
) -> None:
    """Of a run that was resumed with another set of the same name, with no step left or with a worse model."""
    general, other, out = make_data(tmp_path, "general", seed=2), make_data(tmp_path, "other", seed=3), tmp_path / "out"
    evaluations_give(monkeypatch, 3.0, 1.0)
    with pytest.raises(Interrupted):
        run(data, out, evals={"general": general}, listener=StopBehindAnEvaluation())
    evaluations_give(monkeypatch, 3.0, 2.0)
    done = run(data, out, evals={"general": other}, max_steps=steps, resume=True)
    assert done.statistics["model"] == {"step": 4, "averaged": 0}
    assert {name: score["loss"] for name, score in done.scores.items()} == scores


def test_what_models_are_judged_by() -> None:
    val, general, code = Score(2.0, 10, None), Score(1.0, 10, None), Score(5.0, 20, None)
    assert judged_by({"general": general, "val": val}, continued=True) == val
    assert judged_by({"val_prose": val, "general": general, "val_code": code}, continued=False) == Score(4.0, 30, None)
    assert judged_by({"general": general, "other": val}, continued=False) == general
    # These measure what a model forgets: the best would be the one that has learned least.
    assert judged_by({"general": general}, continued=True) is None
    assert judged_by({}, continued=False) is None


def test_a_checkpoint_from_before_there_was_a_choice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    evaluations_give(monkeypatch, 2.0)
    with pytest.raises(Interrupted):
        run(data, out, listener=StopAt(5))
    for path in out.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text())
        del state["model"], state["schedule"]
        for name in ("evaluated", "best_tokens", "best_scores"):
            del state["progress"][name]
        write_state(path, state)
    assert find_model(out).weights == checkpoint(out, 5)
    evaluations_give(monkeypatch, 2.5, 2.6)
    assert run(data, out).statistics["model"] == {"step": 4, "averaged": 0}
    assert weights(out) == weights(checkpoint(out, 4))


def test_another_optimizer_is_refused_with_both_names(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        run(data, out, optimizer="auto", listener=StopAt(2))
    for resume in (None, True):
        with pytest.raises(SettingsError) as caught:
            run(data, out, optimizer="adamw8bit", resume=resume)
        said = str(caught.value)
        assert "out was begun with optimizer muon, and a run keeps it: give optimizer=" in said
        assert "adamw8bit in another out, with init_from=" in said
    # What was chosen for it may be named, and left out again.
    with pytest.raises(Interrupted):
        run(data, out, optimizer="muon", listener=StopAt(4))
    assert run(data, out, optimizer="auto").steps == 12
