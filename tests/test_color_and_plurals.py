"""One thing is one layer, one file, one step; and color is for people at a terminal, or who ask for it."""

from __future__ import annotations

import doctest
import io
import sys
from pathlib import Path

import pytest

import ramlet
from conftest import AMPLE
from ramlet import cli
from ramlet.cli import progress
from ramlet.cli.color import bold, colored, marked
from ramlet.cli.options import note
from ramlet.loading.stream_loader import StreamLoader
from ramlet.runtime import plurals


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_counts() -> None:
    for module in (plurals, progress):
        assert doctest.testmod(module).failed == 0


def test_one_layer(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--params", "300k", "--vocab-size", "4000", "--batch-size", "1", "--seq-len", "64", "--device", "cpu"]
    assert cli.main(["plan", *sizes, "--memory", AMPLE]) == 0
    said = capsys.readouterr().out
    assert "1 layer, width 64" in said
    assert "a step of 1 sequence of 64 tokens" in said
    assert "1 micro-batch" in said


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 50)
    with StreamLoader(str(tmp_path / "a.txt"), tokenizer="byte", seq_len=8, batch_size=1) as loader:
        assert "500 bytes in 1 file, tokenized on the fly" in loader.describe()


def test_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    ramlet.prepare(tmp_path / "a.txt", tmp_path / "d", tokenizer="byte", memory=AMPLE, threads=1)
    with pytest.raises(IndexError, match="has 1 document in train"):
        ramlet.Dataset(tmp_path / "d").document("train", 7)


def test_where_there_is_color(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, pipe = Terminal(), io.StringIO()
    assert colored(screen)
    assert not colored(pipe)
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
        assert colored(pipe)
        monkeypatch.setenv(name, "0")
        assert not colored(pipe)
        monkeypatch.setenv(name, "1")
        monkeypatch.setenv("NO_COLOR", "1")
        assert not colored(screen)
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "dumb")
    assert not colored(screen)


def test_what_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    assert marked("error: no", screen) == "\x1b[1;31merror:\x1b[0m no"
    assert marked("warning: hm: this", screen) == "\x1b[1;33mwarning:\x1b[0m hm: this"
    for line in ("step 5: val: loss 3", "nothing", "errors: two", ""):
        assert marked(line, screen) == line
    assert (bold("Options", screen), bold("", screen), bold("a", io.StringIO())) == ("\x1b[1mOptions\x1b[0m", "", "a")
    monkeypatch.setattr(sys, "stderr", screen)
    note("note: the prompt ends with a space")
    assert screen.getvalue() == "\x1b[36mnote:\x1b[0m the prompt ends with a space\n"


def test_headings_of_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "merge", "--help"]) == 0
    before = capsys.readouterr().out
    assert "\x1b" not in before
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.main(["data", "merge", "--help"]) == 0
    after = capsys.readouterr().out
    for heading in ("Usage:", "Examples", "Arguments", "General"):
        assert f"\x1b[1m{heading}\x1b[0m" in after
    assert after.replace("\x1b[1m", "").replace("\x1b[0m", "") == before


def test_json_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "a.txt").write_text("some text")
    words = ["prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "d"), "-T", "byte", "--memory", AMPLE, "--json"]
    assert cli.main(words) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Terminal()
    with progress.Progress(stream=screen) as bar:
        bar.update("training", 1, 1000, "steps")
    # Cut to the screen by what is seen, not by what is written.
    assert "\r\x1b[1mtraining\x1b[0m   1 of 1,0\x1b[K" in screen.getvalue()
