"""A run with the schedule wsd that is resumed for longer continues from before its decay, as if begun that long."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from oracles_kills import changes_of, killed_at
from oracles_training import last_checkpoint, losses, make_data, metrics, run, steps_kept
from ramlet.errors import Interrupted
from ramlet.model.folder import find_model
from ramlet.training import loop
from ramlet.training.evaluate import Score
from ramlet.training.job import Job
from ramlet.training.listener import Listener

WSD = {"schedule": "wsd", "warmup": 2, "keep": 1, "checkpoint_every": 0}
SHORT, LONG = {**WSD, "max_steps": 10}, {**WSD, "max_steps": 16}
STABLE = 6
"""The last step of the short run before its decay; the long one decays from step 9."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("extending"))


@pytest.fixture(scope="module")
def short(data: Path) -> Path:
    run(data, data.parent / "short", **SHORT)
    return data.parent / "short"


@pytest.fixture(scope="module")
def long(data: Path) -> Path:
    """Begun with all of its steps."""
    run(data, data.parent / "long", **LONG)
    return data.parent / "long"


@pytest.fixture
def out(short: Path, tmp_path: Path) -> Path:
    shutil.copytree(short, tmp_path / "out")
    return tmp_path / "out"


def assert_same(out: Path, other: Path) -> None:
    """Every byte of the result; the shorter run had other evaluations and checkpoints."""
    assert losses(out) == losses(other)
    assert metrics(out) == metrics(other)
    assert steps_kept(out) == steps_kept(other)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (last_checkpoint(out) / name).read_bytes() == (last_checkpoint(other) / name).read_bytes()
    assert (out / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert sorted(os.listdir(out)) == sorted(os.listdir(other))


class Notes(Listener):
    def __init__(self, stop_at: int = 0) -> None:
        self.notes: list[str] = []
        self.stop_at = stop_at
        self.first = 0

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def stepped(self, step: int, *_: Any) -> None:
        self.first = self.first or step
        if step == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)


def extend(data: Path, out: Path, **changes: Any) -> None:
    run(data, out, resume=True, **{**LONG, **changes})


def test_it_is_the_run_that_was_begun_that_long(data: Path, short: Path, long: Path, out: Path) -> None:
    assert STABLE in steps_kept(short)
    assert 9 in steps_kept(long)
    heard = Notes()
    extend(data, out, listener=heard)
    assert f"this run is longer: continuing from step {STABLE}, before the learning rate decayed" in heard.notes
    assert heard.first == STABLE + 1
    assert_same(out, long)
    # It is that run from now on, and can be extended again.
    assert run(data, out, **LONG).already_done
    again = Notes(stop_at=11)
    with pytest.raises(Interrupted):
        extend(data, out, max_steps=20, listener=again)
    assert again.first == 10


def test_the_finished_model_stays_until_the_longer_run_has_ended(data: Path, short: Path, out: Path) -> None:
    seen = []

    class Looking(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            found = find_model(out)
            same = (found.weights / "model.safetensors").read_bytes() == (short / "model.safetensors").read_bytes()
            seen.append((same, (out / "stats.json").exists(), {10} <= set(steps_kept(out))))

    extend(data, out, listener=Looking(), checkpoint_every=8)
    # The old checkpoints are removed with the first new one, at step 8.
    assert seen[:2] == [(True, True, True)] * 2
    assert seen[2:] == [(True, True, False)] * 8


def test_killed_anywhere_it_ends_the_same(data: Path, short: Path, long: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "calm")
    changes = changes_of(tmp_path / "count", extend, data, tmp_path / "calm")
    assert_same(tmp_path / "calm", long)
    models = [(place / "model.safetensors").read_bytes() for place in (short, long)]
    for part in (0.3, 0.5, 0.6, 0.97):
        out = tmp_path / f"at-{part}"
        shutil.copytree(short, out)
        killed_at(round(changes * part), extend, data, out)
        assert (find_model(out).weights / "model.safetensors").read_bytes() in models
        extend(data, out)
        assert_same(out, long)


def test_the_first_checkpoint_has_the_step_of_an_old_one(data: Path, out: Path, tmp_path: Path) -> None:
    """It replaces it, with the weights of the longer run."""
    changes = {**LONG, "decay": 0.375, "eval_every": 16}
    for place in (out, tmp_path / "begun"):
        with pytest.raises(Interrupted):
            run(data, place, resume=True, listener=Notes(stop_at=10), **changes)
        assert steps_kept(place)[-1] == 10
    for name in ("model.safetensors", "optimizer.safetensors"):
        mine, theirs = (last_checkpoint(place) / name for place in (out, tmp_path / "begun"))
        assert mine.read_bytes() == theirs.read_bytes()


def test_killed_before_an_old_checkpoint_is_removed(
    data: Path, long: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of the longer run, at step 8, counts, though that of the shorter, at 10, is later."""
    from ramlet.training import checkpoint

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(checkpoint, "prune", stop)
        extend(data, out, checkpoint_every=8)
    assert steps_kept(out)[-3:] == [STABLE, 8, 10]
    heard = Notes()
    extend(data, out, listener=heard)
    assert heard.first == 9
    assert_same(out, long)


def test_without_the_checkpoint_it_continues_from_the_last(data: Path, out: Path) -> None:
    for step in steps_kept(out)[:-1]:
        shutil.rmtree(out / "checkpoints" / f"step_{step:06}")
    heard = Notes()
    extend(data, out, listener=heard)
    assert any("continuing from step 10, where the learning rate had decayed already" in line for line in heard.notes)
    assert heard.first == 11


def test_interrupted_in_its_decay_and_then_longer(data: Path, long: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(data, tmp_path / "out", listener=Notes(stop_at=8), **SHORT)
    extend(data, tmp_path / "out")
    assert_same(tmp_path / "out", long)


def test_other_schedules_continue_from_their_end(data: Path, out: Path, tmp_path: Path) -> None:
    heard = Notes()
    extend(data, out, schedule="cosine", listener=heard)
    assert heard.first == 11
    linear = {"schedule": "linear", "warmup": 2}
    run(data, tmp_path / "linear", max_steps=4, **linear)
    heard = Notes()
    run(data, tmp_path / "linear", max_steps=6, resume=True, listener=heard, **linear)
    assert heard.first == 5


def test_the_best_until_then_is_kept_for_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no model of the longer run is better than the one at step 4, that is its model."""
    left = [1.0, 0.5, 2.0, 3.0, 2.5]
    monkeypatch.setattr(loop, "evaluate_model", lambda *_: Score(left.pop(0), 10, None))
    out = tmp_path / "out"
    assert run(data, out, **SHORT, eval_every=4).statistics["model"]["step"] == 8
    assert steps_kept(out) == [4, STABLE, 8, 10]
    done = run(data, out, **LONG, eval_every=6, resume=True)
    assert done.statistics["model"]["step"] == 4
    assert done.scores["val"]["loss"] == 1.0


def test_what_was_computed_for_the_run_stays(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rate, warmup and the size of evaluations, though they may depend on the number of steps; if given, they count."""
    seen: list[Job] = []
    real = loop.run_steps

    def noticed(state: Any) -> None:
        seen.append(state.job)
        real(state)

    monkeypatch.setattr("ramlet.training.trainer.run_steps", noticed)
    open_ended = {"schedule": "wsd", "lr": None, "eval_tokens": None}
    run(data, tmp_path / "out", max_steps=2, **open_ended)
    run(data, tmp_path / "out", max_steps=22, resume=True, **open_ended)
    before, after = seen
    assert before.schedule.warmup == after.schedule.warmup == 1
    assert before.eval_tokens == after.eval_tokens
    assert before.schedule.peak == after.schedule.peak
    given = after.as_begun({"lr": 9.0, "warmup": 7, "eval_tokens": 99})
    assert (given.schedule.peak, given.schedule.warmup, given.eval_tokens) == (9.0, 7, 99)
    for odd in ("x", None, True, -1, float("nan"), 1e400):
        assert after.as_begun(dict.fromkeys(("lr", "warmup", "eval_tokens"), odd)) == after
