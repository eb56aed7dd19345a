"""Which checkpoints are written in the background, and which are only copied."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import AMPLE
from oracles_training import make_data, run, steps_kept
from ramlet.errors import TrainingStopped
from ramlet.runtime.budget import Budget
from ramlet.training import loop
from ramlet.training import saver as module
from ramlet.training.run_folder import RunFolder
from ramlet.training.saver import SHARE, Saver


@dataclass(frozen=True)
class Copy:
    """In place of a snapshot."""

    step: int
    bytes: int = 1000

    def on_host(self) -> Copy:
        return self


class Clock:
    """A second per checkpoint, and what a test adds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written: list[int] = []

    def save(self, place: Path, snapshot: Any, *, only_state: bool) -> Path:
        self.now += 1.0
        self.written.append(snapshot.step)
        (place / "checkpoints").mkdir(exist_ok=True)
        return place


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.checkpoint, "save", clock.save)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    return clock


def saver(folder: Path, *, background: bool = True) -> Saver:
    return Saver(RunFolder(folder), 2, background=background, host=Budget.parse(AMPLE))


def save(one: Saver, step: int, best: int | None, *, required: bool = False) -> None:
    one.save(Copy(step), best, lambda *_: None, required=required)  # type: ignore[arg-type]


def test_what_comes_too_soon_is_replaced_by_what_is_better(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path)
    for step in (1, 2, 3):
        save(one, step, best=step)
    assert clock.written == [1]
    clock.now += 1 / SHARE
    save(one, 4, best=4)
    one.wait()
    assert clock.written == [1, 4]


def test_the_best_is_written_before_it_is_replaced(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path)
    save(one, 1, best=1)
    save(one, 2, best=2)
    save(one, 3, best=2)
    save(one, 4, best=2)
    assert clock.written == [1, 2]
    one.wait()
    assert clock.written == [1, 2, 4], "a run that ends loses nothing"


def test_what_is_required_is_written(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path)
    save(one, 1, best=1)
    save(one, 2, best=2, required=True)
    one.wait()
    assert clock.written == [1, 2]


def test_without_a_thread_all_are_written(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path, background=False)
    for step in (1, 2, 3):
        save(one, step, best=step)
    assert clock.written == [1, 2, 3]


def test_a_run_that_diverged_leaves_out_what_may_be_bad(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path)
    for step in (1, 2):
        save(one, step, best=step)
    one.settle(1)
    one.wait()
    assert clock.written == [1], "it would take the place of the checkpoint that is said to be good"


def test_a_run_that_diverged_keeps_what_is_good(clock: Clock, tmp_path: Path) -> None:
    one = saver(tmp_path)
    for step in (1, 2):
        save(one, step, best=step)
    one.settle(2)
    assert clock.written == [1, 2], "before it is looked for"


def test_the_last_good_checkpoint_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where later ones are copied, to be written when the run ends."""
    real, step = Saver.__init__, loop._one_step

    def in_the_background(self: Saver, *given: Any, **named: Any) -> None:
        real(self, *given, **{**named, "background": True, "host": Budget.parse(AMPLE)})

    def poisoned(*given: Any) -> Any:
        metrics = step(*given)
        if metrics.step == 7:
            metrics.loss = float("nan")
        return metrics

    monkeypatch.setattr(Saver, "__init__", in_the_background)
    monkeypatch.setattr(module, "SHARE", 1e-9)
    monkeypatch.setattr(loop, "_one_step", poisoned)
    with pytest.raises(TrainingStopped, match="step_000002: continue from it"):
        run(make_data(tmp_path), tmp_path / "out", keep=1, checkpoint_every=None, eval_every=0)
    assert steps_kept(tmp_path / "out") == [2]
