"""Two processes train the model that one does, within rounding, and either goes on with the run of the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oracles_training import losses, make_data, metrics, ranks, sentences, steps_kept
from oracles_training import run as train_small
from ramlet.engines import Ranks
from ramlet.errors import Interrupted, SettingsError, TrainingStopped
from ramlet.training import loop
from ramlet.training.listener import Listener


def run(data: Any, out: Path, **changes: Any) -> Any:
    """With PyTorch, also where one process trains: the first weights of engines differ."""
    return train_small(data, out, engine="torch", **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone(data: Path) -> Path:
    """By one process."""
    run(data, data.parent / "alone")
    return data.parent / "alone"


class StopAt(Listener):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def on_ranks(data: Any, out: Path, changes: dict[str, Any], stop_first_at: int = 0) -> None:
    """One rank's run; of a signal only the first is told."""
    first = os.environ["RANK"] == "0"
    try:
        done = run(data, out, listener=StopAt(stop_first_at if first else 0), **changes)
    except Interrupted:
        assert stop_first_at
        return
    assert not stop_first_at
    assert done.steps == changes.get("max_steps", 12)
    (out / f"rank-{os.environ['RANK']}.txt").write_text(repr(done.loss))


def assert_same_curve(out: Path, other: Path) -> None:
    assert losses(out) == pytest.approx(losses(other), abs=2e-4)
    for mine, theirs in zip(metrics(out), metrics(other), strict=True):
        assert set(mine) == set(theirs)
        for name in ("step", "tokens", "lr"):
            assert mine.get(name) == theirs.get(name)
        if "eval" in mine:
            assert mine["eval"]["val"]["loss"] == pytest.approx(theirs["eval"]["val"]["loss"], abs=2e-4)


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 1}, {"optimizer": "adamw8bit"}], ids=["", "parts", "8-bit"])
def test_two_ranks_are_one(data: Path, alone: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    if "optimizer" in changes:
        run(data, tmp_path / "alone", **changes)
        alone = tmp_path / "alone"
    assert ranks(2, on_ranks, data, tmp_path / "out", changes) == [0, 0]
    assert_same_curve(tmp_path / "out", alone)
    told = [(tmp_path / "out" / f"rank-{rank}.txt").read_text() for rank in range(2)]
    assert told[0] == told[1]


def test_a_step_that_does_not_divide(data: Path, alone: Path, tmp_path: Path) -> None:
    """Six sequences on four ranks: two have one less. One sequence on two: one has none."""
    assert ranks(4, on_ranks, data, tmp_path / "four", {}) == [0] * 4
    assert_same_curve(tmp_path / "four", alone)
    small = {"batch_size": 1, "max_steps": 4}
    run(data, tmp_path / "alone", **small)
    assert ranks(2, on_ranks, data, tmp_path / "two", small) == [0, 0]
    assert_same_curve(tmp_path / "two", tmp_path / "alone")


def test_another_number_of_ranks_goes_on(data: Path, alone: Path, tmp_path: Path) -> None:
    """Two, stopped by a signal that only one hears; then one; then two again."""
    out = tmp_path / "out"
    assert ranks(2, on_ranks, data, out, {}, 3) == [0, 0]
    assert steps_kept(out)[-1] == 3
    with pytest.raises(Interrupted, match="at step 7"):
        run(data, out, listener=StopAt(7))
    assert ranks(2, on_ranks, data, out, {}) == [0, 0]
    assert_same_curve(out, alone)


def test_two_ranks_resume_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    assert ranks(2, on_ranks, data, tmp_path / "whole", {}) == [0, 0]
    assert ranks(2, on_ranks, data, tmp_path / "out", {}, 5) == [0, 0]
    assert ranks(2, on_ranks, data, tmp_path / "out", {}) == [0, 0]
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert weights[0] == weights[1]


def test_the_best_between_checkpoints(data: Path, tmp_path: Path) -> None:
    """Only the first evaluates; all must take part when it saves."""
    changes = {"eval_every": 2, "checkpoint_every": 100, "keep": 1}
    assert ranks(2, on_ranks, data, tmp_path / "out", changes) == [0, 0]
    assert steps_kept(tmp_path / "out") == [12]


def test_a_stream_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(sentences(300))
    given = {"stream": tmp_path / "text.txt", "tokenizer": "byte", "shuffle_buffer": 20}
    run(None, tmp_path / "alone", **given)
    assert ranks(2, on_ranks, None, tmp_path / "out", given) == [0, 0]
    assert_same_curve(tmp_path / "out", tmp_path / "alone")


def stopped_together(data: Path, out: Path) -> None:
    """A loss that is no number on one rank stops all: what they look at is the sum."""
    real = loop._one_step

    def poisoned(state: Any, batches: Any) -> Any:
        if state.progress.step == 4 and os.environ["RANK"] == "1":
            state.trainee.model.weights.matrices.fill_(float("nan"))
            state.trainee.model.weights.refresh()
        return real(state, batches)

    loop._one_step = poisoned
    with pytest.raises(TrainingStopped, match="at step 5"):
        run(data, out)


def refused_together(data: Path, out: Path) -> None:
    with pytest.raises(SettingsError, match="a run with seed 5, not 6"):
        run(data, out, seed=6)


def test_all_ranks_end_together(data: Path, alone: Path, tmp_path: Path) -> None:
    assert ranks(2, stopped_together, data, tmp_path / "out") == [0, 0]
    assert ranks(2, refused_together, data, alone) == [0, 0]


def test_one_process_needs_no_others() -> None:
    lonely = Ranks()
    assert lonely.first
    assert lonely.any(True)
    assert not lonely.any(False)
    lonely.wait()


def test_torchrun(tmp_path: Path) -> None:
    """The command as it is typed: the text is prepared once, and one process speaks for both."""
    (tmp_path / "text.txt").write_text(sentences(300))
    given = (
        *("train", "--input", "text.txt", "--out", "out", "--params", "40k", "--seq-len", "32", "--batch-size", "6"),
        *("--max-steps", "6", "--device", "cpu", "--precision", "fp32", "--memory", "2GB", "--threads", "1", "--json"),
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ramlet"]
    done = subprocess.run([*launch, *given], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["steps"], told["tokens"]) == (6, 6 * 6 * 32)
    assert "parameters" not in done.stderr
