"""A run that is interrupted, in whatever way and however often, ends like one that never was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from oracles_training import SMALL, apart, assert_same_run, last_checkpoint, losses, make_data, metrics, run, steps_kept
from ramlet.engines.torch.step import Trainee
from ramlet.errors import Interrupted, SettingsError
from ramlet.training import checkpoint, loop
from ramlet.training.listener import Listener

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw8bit": {"optimizer": "adamw8bit", "weights": "bf16", "precision": "bf16"},
    "muon": {"optimizer": "muon", "qk_norm": True, "schedule": "wsd", "precision": "bf16"},
    "muon8bit": {"optimizer": "muon8bit", "weights": "bf16", "precision": "bf16"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def whole(data: Path) -> dict[str, Path]:
    """Runs that were never interrupted."""
    made = {}
    for kind, settings in KINDS.items():
        made[kind] = data.parent / f"whole-{kind}"
        run(data, made[kind], **settings)
    return made


class At(Listener):
    """Sends this process a signal behind a step."""

    def __init__(self, step: int, number: int) -> None:
        self.step = step
        self.number = number

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def killed_at_step(data: Path, out: Path, settings: dict[str, Any], step: int) -> None:
    run(data, out, listener=At(step, signal.SIGKILL), **settings)


def killed_before(data: Path, out: Path, settings: dict[str, Any], module: str, name: str, call: int) -> None:
    """Is killed at the n-th call of a function."""
    from importlib import import_module

    home = import_module(module)
    real, calls = getattr(home, name), 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(home, name, deadly)
    run(data, out, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_steps(data: Path, whole: dict[str, Path], tmp_path: Path, kind: str) -> None:
    chance = random.Random(kind)
    steps = sorted(chance.sample(range(1, SMALL["max_steps"]), 4))
    for step in steps:
        assert apart(killed_at_step, data, tmp_path / "out", KINDS[kind], step) == -signal.SIGKILL
    run(data, tmp_path / "out", **KINDS[kind])
    assert_same_run(tmp_path / "out", whole[kind])


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        ("ramlet.training.checkpoint", "write_tensors", 3),  # nothing of the second checkpoint is there yet
        ("ramlet.training.checkpoint", "write_tensors", 4),  # its weights are, its states are not
        ("ramlet.training.checkpoint", "replacing", 2),  # all but its state
        ("ramlet.training.checkpoint", "sync_folder", 2),  # renamed
        ("ramlet.training.checkpoint", "prune", 3),  # saved, those that are too old still there
        ("ramlet.training.kept", "link", 1),  # learned to the end, not told
        ("ramlet.training.run_folder", "replacing", 2),  # the model is in its place, stats.json is not
    ],
)
def test_killed_while_writing(
    data: Path, whole: dict[str, Path], tmp_path: Path, module: str, name: str, call: int
) -> None:
    assert apart(killed_before, data, tmp_path / "out", {}, module, name, call) == -signal.SIGKILL
    assert not (tmp_path / "out" / "stats.json").exists()
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole["adamw"])
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_and_saves(data: Path, whole: dict[str, Path], tmp_path: Path, number: int) -> None:
    with pytest.raises(Interrupted, match=r"at step 5 of 12, and saved: run the same command"):
        run(data, tmp_path / "out", listener=At(5, number))
    assert steps_kept(tmp_path / "out") == [4, 5]
    run(data, tmp_path / "out")
    assert_same_weights(tmp_path / "out", whole["adamw"])


def test_a_second_signal_ends_at_once(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    class Impatient(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "out", listener=Impatient())
    assert steps_kept(tmp_path / "out") == [3, 4]
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole["adamw"])


def signalled(step: Any) -> Any:
    """A step in which Ctrl-C is heard."""

    def with_signal(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    return with_signal


@pytest.mark.parametrize(
    ("kind", "call", "saved"), [("adamw", 16, [1, 2]), ("muon", 27, [3, 4]), ("adamw8bit", 22, [3])]
)
def test_a_signal_in_the_middle_of_a_step_does_not_wait_for_its_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, call: int, saved: list[int]
) -> None:
    """A step of many micro-batches can take minutes; it is made again, to the same bits."""
    given = {**KINDS[kind], "engine": "torch", "micro_batch": 1, "checkpoint_every": 1, "eval_every": 0, "max_steps": 6}
    run(data, tmp_path / "whole", **given)
    learned = 0

    def heard(real: Any) -> Any:
        def learn(*arguments: Any) -> Any:
            nonlocal learned
            learned += 1
            if learned == call:
                os.kill(os.getpid(), signal.SIGINT)
            return real(*arguments)

        return learn

    with monkeypatch.context() as patched:
        patched.setattr(Trainee, "learn", heard(Trainee.learn))
        with pytest.raises(Interrupted, match=rf"at step {saved[-1]} of 6, and saved"):
            run(data, tmp_path / "out", **given)
    assert learned == call
    run(data, tmp_path / "out", **given)
    assert_same_run(tmp_path / "out", tmp_path / "whole")


def dies_without(data: Path, out: Path, settings: dict[str, Any], sample: int) -> None:
    """Ctrl-C while this sequence is learned, and a kill as soon as any checkpoint is removed."""
    real, learn = checkpoint.remove, Trainee.learn

    def removed(path: Path) -> None:
        existed = path.exists()
        real(path)
        if existed:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(self: Any, batch: Any, scale: float) -> Any:
        if sample in batch["samples"]:
            os.kill(os.getpid(), signal.SIGINT)
        return learn(self, batch, scale)

    checkpoint.remove, Trainee.learn = removed, heard  # type: ignore[method-assign, assignment]
    run(data, out, **settings)


def test_the_checkpoint_of_an_abandoned_step_is_not_written_again(data: Path, tmp_path: Path) -> None:
    """It was there already: for a moment there would be none, and a kill then would lose the run."""
    given = {"engine": "torch", "micro_batch": 1, "checkpoint_every": 2, "eval_every": 0, "max_steps": 4, "keep": 1}
    assert apart(dies_without, data, tmp_path / "out", given, 13) == 1, "interrupted, not killed"
    assert steps_kept(tmp_path / "out") == [2]
    run(data, tmp_path / "out", **given)
    run(data, tmp_path / "whole", **given)
    assert_same_run(tmp_path / "out", tmp_path / "whole")


def assert_same_weights(out: Path, other: Path) -> None:
    """What is left of `assert_same_run` where a run has checkpoints that the other has not."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (last_checkpoint(out) / name).read_bytes() == (last_checkpoint(other) / name).read_bytes()
    assert metrics(out) == metrics(other)


def test_the_signal_in_the_last_step_leaves_its_evaluation(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"after the last of 12 steps, and saved: run the same command to resume"):
        run(data, tmp_path / "out", listener=At(12, signal.SIGTERM))
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole["adamw"])


def test_the_signal_in_the_last_step_with_nothing_left_to_do_changes_nothing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text that is long enough. " * 200)
    given = {"stream": tmp_path / "text.txt", "tokenizer": "byte"}
    assert run(None, tmp_path / "out", listener=At(12, signal.SIGTERM), **given).steps == 12


def test_lines_behind_a_checkpoint_are_never_told_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first checkpoint after going on comes before the first line."""
    sparse = {"log_every": 5, "eval_every": 0, "checkpoint_every": 3, "max_steps": 8}
    run(data, tmp_path / "whole", **sparse)
    assert apart(killed_at_step, data, tmp_path / "out", sparse, 5) == -signal.SIGKILL
    with monkeypatch.context() as patched, pytest.raises(Interrupted, match=r"at step 4 of"):
        patched.setattr(loop, "_one_step", signalled(loop._one_step))
        run(data, tmp_path / "out", **sparse)
    assert apart(killed_at_step, data, tmp_path / "out", sparse, 5) == -signal.SIGKILL
    run(data, tmp_path / "out", **sparse)
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")


def test_a_finished_run_again_is_nothing_to_do(data: Path, whole: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole["adamw"].rglob("*")}
    again = run(data, whole["adamw"])
    assert again.already_done
    assert again.steps == 12
    assert {path: path.stat().st_mtime_ns for path in whole["adamw"].rglob("*")} == before


def test_a_later_end(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    """With the same rates, a run in two parts is the run in one."""
    constant = {"schedule": "constant", "warmup": 2}
    run(data, tmp_path / "whole", max_steps=10, **constant)
    run(data, tmp_path / "out", max_steps=6, **constant)
    with pytest.raises(SettingsError, match=r"a run with max_steps 6, not 10: .* or resume to continue it"):
        run(data, tmp_path / "out", max_steps=10, **constant)
    more = run(data, tmp_path / "out", max_steps=10, resume=True, **constant)
    assert (more.steps, more.already_done) == (10, False)
    for name in ("model.safetensors", "optimizer.safetensors"):
        mine, theirs = (last_checkpoint(tmp_path / each) / name for each in ("out", "whole"))
        assert mine.read_bytes() == theirs.read_bytes()
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["steps"] == 10
    # What it was extended to is what it is from now on.
    assert run(data, tmp_path / "out", max_steps=10, **constant).already_done


def test_beginning_anew(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(whole["adamw"], tmp_path / "out")
    anew = run(data, tmp_path / "out", resume=False, max_steps=7, seed=6)
    assert (anew.steps, anew.already_done) == (7, False)
    assert [line["step"] for line in metrics(tmp_path / "out") if "loss" in line] == list(range(1, 8))
    assert max(steps_kept(tmp_path / "out")) == 7


def test_another_budget(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    """A plan that still fits is kept, whatever the budget: the same bits."""
    with pytest.raises(Interrupted):
        run(data, tmp_path / "out", listener=At(5, signal.SIGINT), memory="6GB")
    run(data, tmp_path / "out", memory="7.5GB")
    assert_same_run(tmp_path / "out", whole["adamw"])


def test_the_first_steps_are_lost_without_a_checkpoint(data: Path, whole: dict[str, Path], tmp_path: Path) -> None:
    assert apart(killed_at_step, data, tmp_path / "out", {}, 2) == -signal.SIGKILL
    assert steps_kept(tmp_path / "out") == []
    run(data, tmp_path / "out")
    assert_same_run(tmp_path / "out", whole["adamw"])
