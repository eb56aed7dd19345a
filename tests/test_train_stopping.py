"""Ctrl-C while a run is in whatever it does: told at once, heard there and then, saved; the same command goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oracles_training import assert_same_run, last_checkpoint, make_data, metrics, run, steps_kept
from ramlet import cli
from ramlet.cli.progress import Progress
from ramlet.engines.torch import base_memory
from ramlet.errors import Interrupted
from ramlet.training import checkpoint, evaluate, loop
from ramlet.training.listener import Listener
from ramlet.training.signals import GaveUp, StopSignals

GO_ON = "interrupted; run the same command to resume\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("stopping"))


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    run(data, data.parent / "whole", sample_every=4)
    return data.parent / "whole"


@pytest.fixture(autouse=True)
def heard() -> Any:
    """A test run in the background has the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Told(Listener):
    """Presses Ctrl-C where it is told of something, and remembers what it was told then."""

    def __init__(self, at: Callable[[str, int], bool]) -> None:
        self._at = at
        self.lines: list[str] = []
        self._step = 0

    def _tell(self, what: str, number: int) -> None:
        self.lines.append(what)
        if self._at(what, number):
            os.kill(os.getpid(), signal.SIGINT)

    def stopping(self) -> None:
        self.lines.append("stopping")

    def stepped(self, step: int, *_: Any) -> None:
        self._step = step
        self._tell("stepped", step)

    def evaluating(self, name: str, done: int, total: int) -> None:
        self._tell("evaluating", self._step)

    def evaluated(self, step: int, *_: Any) -> None:
        self._tell("evaluated", step)

    def sampled(self, step: int, text: str) -> None:
        self._tell("sampled", step)

    def saved(self, step: int, path: Path) -> None:
        self._tell("saved", step)


def stopped(data: Path, out: Path, at: Callable[[str, int], bool], **changes: Any) -> list[str]:
    """Stops a run, and returns the last that it told."""
    listener = Told(at)
    with pytest.raises(Interrupted, match="and saved: run the same command to resume"):
        run(data, out, listener=listener, sample_every=4, **changes)
    return listener.lines[listener.lines.index("stopping") - 1 :]


def test_in_an_evaluation(data: Path, whole: Path, tmp_path: Path) -> None:
    """It is given up at once, the step before it is saved, and the evaluation is made when the run goes on."""
    told = stopped(data, tmp_path / "out", lambda what, step: (what, step) == ("evaluating", 4))
    assert told == ["evaluating", "stopping", "saved"]
    assert steps_kept(tmp_path / "out") == [3, 4]
    assert [line["step"] for line in metrics(tmp_path / "out") if "eval" in line] == []
    run(data, tmp_path / "out", sample_every=4)
    assert metrics(tmp_path / "out") == metrics(whole)
    assert_same_run(tmp_path / "out", whole)


def test_in_the_evaluation_behind_the_last_step(data: Path, whole: Path, tmp_path: Path) -> None:
    stopped(data, tmp_path / "out", lambda what, step: (what, step) == ("evaluating", 12))
    assert not (tmp_path / "out" / "stats.json").exists()
    # Again, in the same evaluation.
    stopped(data, tmp_path / "out", lambda what, _: what == "evaluating")
    run(data, tmp_path / "out", sample_every=4)
    assert_same_run(tmp_path / "out", whole)


def has_begun(folder: Path) -> bool:
    """Whether a run in it is planned, which takes a rehearsal of its evaluations and samples."""
    return any(folder.rglob("settings.yaml"))


def test_in_a_sample(data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramlet.generation import writer

    real, drawn = writer.Writing.__iter__, 0

    def pressed(self: Any) -> Any:
        nonlocal drawn
        for piece in real(self):
            drawn += has_begun(tmp_path)
            if drawn == 105:  # the first sample has a hundred tokens, this one is that of step 4
                os.kill(os.getpid(), signal.SIGINT)
            yield piece

    with monkeypatch.context() as patched:
        patched.setattr(writer.Writing, "__iter__", pressed)
        told = stopped(data, tmp_path / "out", lambda what, step: False)
    assert drawn == 105
    assert told[-2:] == ["stopping", "saved"]
    assert [line["step"] for line in metrics(tmp_path / "out") if "sample" in line] == [0]
    run(data, tmp_path / "out", sample_every=4)
    assert_same_run(tmp_path / "out", whole)


def test_while_a_checkpoint_is_written(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is finished, and no other step is made."""
    real, written = checkpoint.write_tensors, 0

    def pressed(*arguments: Any, **named: Any) -> Any:
        nonlocal written
        written += 1
        if written == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_tensors", pressed)
        told = stopped(data, tmp_path / "out", lambda what, step: False)
    assert told[-2:] == ["stopping", "saved"]
    assert written == 2
    assert steps_kept(tmp_path / "out") == [3]
    run(data, tmp_path / "out", sample_every=4)
    assert_same_run(tmp_path / "out", whole)


def test_before_the_first_step(data: Path, whole: Path, tmp_path: Path) -> None:
    """In the evaluation of a model to begin from there is nothing to save yet."""
    start = {"init_from": str(whole), "params": None, "seq_len": None}
    listener = Told(lambda what, step: what == "evaluating")
    with pytest.raises(Interrupted, match="before the first step, nothing to save"):
        run(data, tmp_path / "out", listener=listener, **start)
    assert listener.lines == ["evaluating", "stopping"]
    assert steps_kept(tmp_path / "out") == []
    assert run(data, tmp_path / "out", max_steps=2, **start).steps == 2


def test_a_second_one_in_an_evaluation_ends_at_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(checkpoint, "write_tensors", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "out", checkpoint_every=0, listener=Told(lambda what, _: what == "evaluating"))
    assert steps_kept(tmp_path / "out") == []


def test_what_swallows_it_only_delays_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of a garbage collector, say: it is heard when the evaluation is over, and its scores count."""
    real = loop.evaluate_model

    def deaf(*arguments: Any) -> Any:
        with suppress(GaveUp):
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(loop, "evaluate_model", deaf)
    with pytest.raises(Interrupted, match="at step 4 of 12, and saved"):
        run(data, tmp_path / "out")
    assert checkpoint.read_state(last_checkpoint(tmp_path / "out"))["progress"]["owed"] == []


def test_a_block_is_not_entered_once_it_was_heard() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.asked
        with pytest.raises(GaveUp), signals.giving_up():
            raise AssertionError("entered")


def test_the_line_on_the_screen(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, pressed = evaluate.EvalSet.batches, False

    def pressing(self: Any, *told: Any) -> Any:
        nonlocal pressed
        if not pressed and has_begun(tmp_path):
            pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *told)

    monkeypatch.setattr(evaluate.EvalSet, "batches", pressing)
    words = ["train", "--data", str(data), "-o", str(tmp_path / "out"), "--params", "40000", "--seq-len", "32"]
    words += ["--max-steps", "4", "--eval-every", "2", "--device", "cpu", "--threads", "1", "--sample-every", "0"]
    assert cli.main(words) == 130
    told = capsys.readouterr().err.splitlines()[-2:]
    assert told[0].startswith("stopping and saving a checkpoint (press Ctrl-C again")
    assert told[1] == "interrupted at step 2 of 4, and saved: run the same command to resume"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_line_that_is_being_written(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stream cannot be written to from within itself; the signal must not end in an error for that."""
    from ramlet.cli.train import _Printer

    class Busy:
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

        def flush(self) -> None: ...

    with Progress(silent=True) as bar:
        monkeypatch.setattr(sys, "stderr", Busy())
        _Printer(bar, quiet=quiet).stopping()
        monkeypatch.undo()
    assert ("stopping" in capfd.readouterr().err) == (not quiet)


# -- while torch is loaded


@pytest.mark.parametrize("what", [None, ImportError("numpy.core.multiarray failed to import"), SystemError("no")])
def test_while_torch_is_loaded(
    what: Exception | None,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where the code that loads it passes over the signal, or makes another error of it."""

    def pressed(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if what is not None:
                raise what from None

    monkeypatch.setattr(base_memory, "_skip_compiler", pressed)
    words = ["train", "--data", str(data), "-o", str(tmp_path / "out"), "--params", "40000", "--engine", "torch"]
    assert cli.main([*words, "--device", "cpu"]) == 130
    assert capsys.readouterr().err == GO_ON
    assert not (tmp_path / "out").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_errors_of_loading_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(base_memory, "_skip_compiler", broken)
    with pytest.raises(ImportError, match="libcudart"):
        base_memory.load_torch()
