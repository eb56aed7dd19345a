"""The average of the weights at the end of a run: the same bits after any kill, and kept if it is better."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from conftest import AMPLE
from oracles_training import apart, make_data, metrics, ranks, run, steps_kept
from ramlet.cli.train import _kept
from ramlet.engines.torch.stored import stored
from ramlet.errors import Interrupted
from ramlet.model.tensor_file import BLEND_BUFFER, blend_tensors
from ramlet.runtime.budget import Budget
from ramlet.training import average, loop
from ramlet.training.average import Averaging
from ramlet.training.evaluate import Score
from ramlet.training.listener import Listener
from ramlet.training.run_folder import RunFolder
from ramlet.training.saver import Saver

PART = {"average": 0.5, "schedule": "constant", "keep": 20, "checkpoint_every": 1}
AVERAGED = {"average": 0.5, "schedule": "constant"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("average"))


def test_the_moments_are_spread_over_the_last_part() -> None:
    assert Averaging(12, 0.5).moments == (7, 8, 9, 10, 11, 12)
    assert Averaging(1000, 0.2).moments == (820, 840, 860, 880, 900, 920, 940, 960, 980, 1000)
    assert Averaging(1001, 0.1).moments[-1] == 1001
    assert Averaging(3, 0.01).moments == (3,)


def test_blending_is_the_mean_in_pieces(tmp_path: Path) -> None:
    """Of several pieces, of views, and of another dtype."""
    torch.manual_seed(0)
    size = BLEND_BUFFER // 4 * 2 + 77
    samples = [
        {"a": torch.randn(size), "b": torch.randn(6, 8)[:, ::2], "c": torch.randn(5).bfloat16()} for _ in range(3)
    ]
    before = None
    for count, sample in enumerate(samples, 1):
        file = tmp_path / f"{count}.safetensors"
        blend_tensors(file, stored(sample), before, 1 / count, {"format": "pt"})
        before = file
    made = load_file(file)
    for name in ("a", "b", "c"):
        mean = torch.stack([sample[name].double() for sample in samples]).mean(0)
        assert made[name].dtype == np.float32
        np.testing.assert_allclose(made[name], mean.numpy(), atol=1e-6)


def test_it_is_the_mean_of_the_checkpoints(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3.0, 2.5, 2.4, 1.9]
    monkeypatch.setattr(loop, "evaluate_model", lambda *_: Score(left.pop(0), 10, None))
    done = run(data, tmp_path / "out", **PART)
    assert done.statistics["model"] == {"step": 12, "averaged": 6}
    assert done.scores["val"]["loss"] == 1.9
    made = load_file(tmp_path / "out" / "model.safetensors")
    steps = [load_file(tmp_path / "out" / "checkpoints" / f"step_{at:06}" / "model.safetensors") for at in range(7, 13)]
    for name, mean in made.items():
        np.testing.assert_allclose(mean, np.mean([step[name] for step in steps], axis=0), atol=1e-6)
    assert metrics(tmp_path / "out")[-1] == {"step": 12, "averaged": 6, "average": done.scores}
    assert list(_kept(done.statistics)) == [
        "the model is the average of the last 6 samples of the weights (the best step without averaging: loss 2.4000)"
    ]


def test_it_is_kept_only_if_it_is_better(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3.0, 2.0, 2.4, 2.1]
    monkeypatch.setattr(loop, "evaluate_model", lambda *_: Score(left.pop(0), 10, None))
    out = tmp_path / "out"
    done = run(data, out, **AVERAGED)
    assert done.statistics["model"] == {"step": 8, "averaged": 0}
    best = out / "checkpoints" / "step_000008" / "model.safetensors"
    assert (out / "model.safetensors").read_bytes() == best.read_bytes()


def test_without_an_evaluation_it_is_kept(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text that is long enough. " * 200)
    given = {"stream": tmp_path / "text.txt", "tokenizer": "byte", "weights": "bf16", "optimizer": "adamw8bit"}
    done = run(None, tmp_path / "out", average=0.3, **given)
    assert done.statistics["model"] == {"step": 12, "averaged": 4}
    # The same types as every model of this run.
    header = (tmp_path / "out" / "model.safetensors").read_bytes()[:4000]
    assert b'"BF16"' in header


def files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").glob("*.safetensors"))


class KillAt(Listener):
    def __init__(self, step: int, number: int = signal.SIGKILL) -> None:
        self.step, self.number = step, number

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def killed(data: Path, out: Path, step: int) -> None:
    run(data, out, listener=KillAt(step), **AVERAGED)


def killed_while_averaging(data: Path, out: Path, name: str, call: int) -> None:
    real, calls = getattr(average, name), 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(average, name, deadly)
    run(data, out, **AVERAGED)


def result(out: Path) -> tuple[bytes, list[dict[str, Any]], list[str]]:
    scored = [{name: value for name, value in line.items() if name != "average"} for line in metrics(out)]
    return (out / "checkpoints" / "average_000012.safetensors").read_bytes(), scored, files(out)


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    run(data, data.parent / "whole", **AVERAGED)
    return data.parent / "whole"


def test_killed_at_random_steps_it_is_the_same(data: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in sorted(random.Random(3).sample(range(5, 12), 4)):
        assert apart(killed, data, out, step) == -signal.SIGKILL
    run(data, out, **AVERAGED)
    assert result(out) == result(whole)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert steps_kept(out) == steps_kept(whole)


@pytest.mark.parametrize(("name", "call"), [("blend_tensors", 3), ("prune", 5), ("read_tensors_into", 1)])
def test_killed_while_writing_it_is_the_same(data: Path, whole: Path, tmp_path: Path, name: str, call: int) -> None:
    out = tmp_path / "out"
    assert apart(killed_while_averaging, data, out, name, call) == -signal.SIGKILL
    run(data, out, **AVERAGED)
    assert result(out) == result(whole)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_interrupted_at_a_moment_and_in_the_last_step(data: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in (8, 12):
        with pytest.raises(Interrupted):
            run(data, out, listener=KillAt(step, signal.SIGINT), **AVERAGED)
    run(data, out, **AVERAGED)
    assert result(out)[:2] == result(whole)[:2]


def test_few_files_are_left(data: Path, whole: Path) -> None:
    """Those that the checkpoints continue with."""
    assert steps_kept(whole)[-2:] == [9, 12]
    assert set(files(whole)) <= {
        "average_000008.safetensors",
        "average_000009.safetensors",
        "average_000012.safetensors",
    }


def test_a_run_of_another_length_starts_its_average_anew(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(data, out, max_steps=6, **AVERAGED)
    done = run(data, out, max_steps=8, resume=True, **AVERAGED)
    # Steps 5 and 6 of its last half were before it was resumed.
    assert load_metadata(out / "checkpoints" / "average_000008.safetensors") == ("2", "8")
    assert done.steps == 8


def load_metadata(file: Path) -> tuple[str, str]:
    from ramlet.model.tensor_file import read_header

    known = read_header(file).metadata
    return known["averaged"], known["steps"]


def of_rank(data: Path, out: Path) -> None:
    run(data, out, **AVERAGED)


def test_two_ranks_have_one_average(data: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    run(data, whole, engine="torch", **AVERAGED)
    assert ranks(2, of_rank, data, out) == [0, 0]
    mine, theirs = (load_file(place / "checkpoints" / "average_000012.safetensors") for place in (out, whole))
    for name in theirs:
        np.testing.assert_allclose(mine[name], theirs[name], atol=1e-3)
    assert files(out) == files(whole)


def test_a_run_without_it_has_none(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "out", max_steps=3)
    assert files(tmp_path / "out") == []


def test_in_the_background_it_has_the_weights_of_its_step(tmp_path: Path) -> None:
    """As on a GPU, where the next step may change them before they are written."""
    saver = Saver(RunFolder(tmp_path), 1, averaging=Averaging(2, 0.9), background=True, host=Budget.parse(AMPLE))
    weights = {"a": torch.ones(8)}
    for step, value in ((1, 1.0), (2, 3.0)):
        weights["a"].fill_(value)
        saver.average(step, stored(weights))
        weights["a"].fill_(99.0)
    saver.wait()
    assert load_file(tmp_path / "checkpoints" / "average_000002.safetensors")["a"].tolist() == [2.0] * 8
