"""Runs that divide their model over ranks: the curve of one process, and any number of ranks goes on with any other."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import ramlet
from oracles_training import losses, make_data, metrics, ranks, run, steps_kept
from ramlet.engines.plan import SHARDS
from ramlet.errors import BudgetError, Interrupted, SettingsError
from ramlet.training import loop
from ramlet.training.listener import Listener

EVERYTHING = {"sample_every": 6, "sample_tokens": 8, "average": 0.5, "dropout": 0.1, "document_mask": True}
"""What a run does besides steps, and what a step can have."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("shards"))


class StopAt(Listener):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluating(self, name: str, done: int, total: int) -> None:
        if self.step < 0:
            os.kill(os.getpid(), signal.SIGTERM)


def on_ranks(runs: list[tuple[Any, Path, dict[str, Any], int]]) -> None:
    """Some runs, one after the other; `stop` is the step after which the first rank is told to stop."""
    for data, out, changes, stop in runs:
        listener = StopAt(stop if os.environ["RANK"] == "0" else 0)
        try:
            run(data, out, engine="torch", listener=listener, **changes)
        except Interrupted:
            assert stop
        else:
            assert not stop


def assert_same_curve(out: Path, other: Path) -> None:
    assert losses(out) == pytest.approx(losses(other), abs=2e-4)
    for mine, theirs in zip(metrics(out), metrics(other), strict=True):
        assert set(mine) == set(theirs)
        for kind in ("eval", "average"):
            if kind in mine:
                assert mine[kind]["val"]["loss"] == pytest.approx(theirs[kind]["val"]["loss"], abs=2e-4)


def test_the_curve_of_one_process(data: Path, tmp_path: Path) -> None:
    """With everything that a run can do in between; six sequences on two ranks, one or two at a time."""
    given: dict[str, dict[str, Any]] = {
        "tied": {**EVERYTHING, "optimizer": "muon", "micro_batch": 2},
        "untied": {"tied": False, "optimizer": "adamw8bit", "recompute": True, "qk_norm": False, "batch_size": 5},
    }
    for name, changes in given.items():
        run(data, tmp_path / name, engine="torch", **changes)
    runs = [
        (data, tmp_path / f"{name}-{shard}", {**changes, "shard": shard}, 0)
        for name, changes in given.items()
        for shard in SHARDS[1:]
    ]
    assert ranks(2, on_ranks, runs) == [0, 0]
    for _, out, changes, _ in runs:
        assert_same_curve(out, tmp_path / out.name.split("-")[0])
        noted = json.loads((out / "stats.json").read_text())
        assert len(noted["memory"]["ranks"]) == 2
        assert (out / "settings.yaml").read_text().count(f"shard: {changes['shard']}") >= 1


def test_any_number_of_ranks_goes_on(data: Path, tmp_path: Path) -> None:
    """Three, then two, then one, then two again, each stopped; the file of weights opens in transformers."""
    out, changes = tmp_path / "out", {"optimizer": "muon8bit"}
    run(data, tmp_path / "alone", engine="torch", **changes)
    assert ranks(3, on_ranks, [(data, out, {**changes, "shard": "weights"}, 3)]) == [0] * 3
    assert steps_kept(out)[-1] == 3
    # An evaluation that is given up, on all ranks; it is made up for by the next.
    assert ranks(2, on_ranks, [(data, out, {**changes, "shard": "weights"}, -1)]) == [0] * 2
    assert steps_kept(out)[-1] == 4
    with pytest.raises(Interrupted, match="at step 6"):
        run(data, out, engine="torch", listener=StopAt(6), **changes)
    started = {"init_from": str(out), "params": None, "shard": "weights", "max_steps": 2, "optimizer": "adamw"}
    runs = [(data, out, {**changes, "shard": "gradients"}, 0), (data, tmp_path / "next", started, 0)]
    assert ranks(2, on_ranks, runs) == [0, 0]
    assert_same_curve(out, tmp_path / "alone")
    run(data, tmp_path / "next alone", engine="torch", **{**started, "shard": "auto"})
    assert_same_curve(tmp_path / "next", tmp_path / "next alone")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "next")
    assert sum(each.numel() for each in model.parameters()) > 30_000


def killed(data: Path, out: Path) -> None:
    """Each rank kills itself in the middle of the second checkpoint."""
    real = loop._save
    saves = 0

    def save(state: Any, **given: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 2:
            sent = state.trainee.states()
            state.trainee.states = lambda: {name: Dying(each) for name, each in sent.items()}
        real(state, **given)

    loop._save = save
    run(data, out, engine="torch", shard="weights")


class Dying:
    """A tensor at which the process ends."""

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape = tensor.dtype, tensor.shape

    def pieces(self, *_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_while_saving(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(data, tmp_path / "alone", engine="torch")
    assert ranks(2, killed, data, out) == [-signal.SIGKILL] * 2
    assert steps_kept(out) == [3]
    assert ranks(2, on_ranks, [(data, out, {"shard": "states"}, 0)]) == [0, 0]
    assert_same_curve(out, tmp_path / "alone")


def refused(data: Path, out: Path) -> None:
    rank = int(os.environ["RANK"])
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (SettingsError, "different settings", {"eval_every": 3 + rank}),
        (SettingsError, "different budgets", {"memory": f"{800 + rank}MB"}),
        (SettingsError, "native engine is a single process", {"engine": "native", "shard": "states"}),
        (BudgetError, "on each of 2 ranks", {"memory": "200MB"}),
    ]
    for kind, message, changes in cases:
        with pytest.raises(kind, match=message):
            run(data, out, **{"engine": "torch", **changes})
    assert not list(out.parent.glob("out*/*"))


def test_bad_input(data: Path, tmp_path: Path) -> None:
    assert ranks(2, refused, data, tmp_path / "out") == [0, 0]
    with pytest.raises(SettingsError, match="start them with torchrun"):
        run(data, tmp_path / "out", shard="weights")
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"data: {data}\nmodel: {{params: 40k}}\ntraining: {{shard: weights, max_steps: 2}}\n")
    with pytest.raises(SettingsError, match="start them with torchrun"):
        ramlet.run_pipeline(file)
