"""Ctrl-C in the middle of the commands that other tests do not interrupt: 130, one line, nothing half-written.

`tokenizer train`, `prepare`, `train` and the dialogue of `generate` are interrupted in their own tests. Here the signal
comes at a known place in the middle of the work: the first, or a later, sign of progress.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracles_training import make_data, run
from ramlet import cli
from ramlet.cli import generate
from ramlet.cli.progress import Progress
from ramlet.reporting import doctor

GO_ON = "interrupted; run the same command to resume\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    data = make_data(folder)
    make_data(folder, "more", seed=1)
    run(data, folder / "run", max_steps=2)
    return folder


@pytest.fixture(autouse=True)
def heard() -> Any:
    """A test run in the background has the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(times: int, then: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function in whose last call of so many the user presses Ctrl-C."""
    left = times

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        return then(*arguments, **named) if then else None

    return called


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "command",
    [
        "data verify data",
        "data merge data more --out new",
        "data export data --to nanogpt --out new",
        "data export data --to npy --out new",
        "tokenizer encode --tokenizer byte data.txt --threads 1 --out new.bin",
    ],
)
def test_in_the_middle(
    bench: Path, command: str, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bench)
    before = sorted(bench.rglob("*"))
    if command.startswith("tokenizer"):
        times = 1  # a small file is told of once
    monkeypatch.setattr(Progress, "update", interrupting(times))
    assert cli.main(command.split()) == 130
    assert capsys.readouterr() == ("", GO_ON)
    assert sorted(bench.rglob("*")) == before


def test_evaluating(bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(bench)
    monkeypatch.setattr(Progress, "update", interrupting(1))
    assert cli.main(["eval", "run", "--data", "data", "--data", "more", "--device", "cpu", "--threads", "1"]) == 130
    assert capsys.readouterr() == ("", GO_ON)


def test_writing_a_text(bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was written stands, its line is ended."""
    monkeypatch.chdir(bench)
    monkeypatch.setattr(generate, "_displayed", interrupting(4, lambda text: "x"))
    assert cli.main(["generate", "run", "--prompt", "red", "--device", "cpu", "--threads", "1", "--seed", "1"]) == 130
    assert capsys.readouterr() == ("redxxx\n", GO_ON)


def test_exporting_a_model(bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ramlet.model import export

    monkeypatch.chdir(bench)
    before = sorted(bench.rglob("*"))
    monkeypatch.setattr(export, "copy_tensors", interrupting(1))
    assert cli.main(["export", "run", "new"]) == 130
    assert capsys.readouterr() == ("", GO_ON)
    assert sorted(bench.rglob("*")) == before


def test_looking_at_the_machine(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bench)
    before = sorted(bench.rglob("*"))
    monkeypatch.setattr(doctor.os, "fsync", interrupting(1))
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", GO_ON)
    assert sorted(bench.rglob("*")) == before


class PanicException(BaseException):
    """As the native core raises it."""


def test_inside_an_import_of_the_core(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def panic(*_: Any) -> None:
        raise PanicException("Failed to access NumPy array API capsule: PyErr { type: <class 'KeyboardInterrupt'> }")

    monkeypatch.setattr(doctor.os, "fsync", panic)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", GO_ON)


def test_inside_a_class_that_is_being_created(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 then raises a RuntimeError: `Error calling __set_name__ on 'Field' instance`."""

    def wrapped(*_: Any) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(doctor.os, "fsync", wrapped)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", GO_ON)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "how",
    ["runpy.run_module('ramlet', run_name='__main__')", "importlib.import_module('ramlet.__main__').run()"],
)
def test_while_the_command_is_being_loaded(how: str, wrapped: bool) -> None:
    """`python -m ramlet`, and the script."""
    # The first import of the command that is no part of the interpreter.
    pressed = (
        "import importlib, runpy, signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name != 'click': return\n"
        "        try: signal.raise_signal(signal.SIGINT)\n"
        f"        except KeyboardInterrupt as error: raise {'RuntimeError from error' if wrapped else ''}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Pressed())\n"
    )
    done = subprocess.run([sys.executable, "-c", pressed + how], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", GO_ON)


def test_right_after_the_command_line_is_imported() -> None:
    pressed = (
        "import signal, ramlet.__main__, ramlet.cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "ramlet.cli.main = lambda **_: signal.raise_signal(signal.SIGINT)\n"
        "ramlet.__main__.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", pressed], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", GO_ON)


def test_the_script_is_what_hears_it() -> None:
    """The script that is installed loads nothing of the command by itself."""
    described = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert '\nramlet = "ramlet.__main__:run"\n' in described


def test_encoding_loads_numpy_before_the_core_does() -> None:
    pressed = (
        "import sys, traceback, ramlet\n"
        "class Asked:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Asked())\n"
        "try: ramlet.Tokenizer.load('byte').encode_batch(['a'])\n"
        "except BaseException as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", pressed], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("KeyboardInterrupt\n", "")
