"""Commands whose standard streams are closed or cannot be written: nothing is read or written in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = "a b c d e f g h " * 20


def shell(folder: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.txt").write_text(TEXT)
    command = f'"{sys.executable}" -m ramlet {arguments}'
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        # It trained on the text of its own lock, which had the number of standard input.
        ("tokenizer train - -v 300 --out t", "the input has no text: there is nothing to train on"),
        ("tokenizer encode -T byte --out ids", "no text to encode: every input is empty"),
        ("prepare - -T byte --out d", "no text to prepare: every input is empty"),
    ],
)
def test_closed_input_is_empty(tmp_path: Path, arguments: str, why: str) -> None:
    done = shell(tmp_path, f"{arguments} <&-")
    assert (done.returncode, done.stderr) == (1, f"error: {why}\n")


def test_nothing_is_decoded_from_closed_input(tmp_path: Path) -> None:
    done = shell(tmp_path, "tokenizer decode -T byte <&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_output(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, f"tokenizer train a.txt -v 260 --out t -t 1 {closed}")
    assert (done.returncode, done.stderr if "2>&-" in closed else "") == (0, "")
    assert json.loads((tmp_path / "t/tokenizer.json").read_text())["model"]["merges"]
    assert shell(tmp_path, f"tokenizer train missing.txt -v 260 --out u {closed}").returncode == 1


@pytest.mark.parametrize("arguments", ["--help", "doctor --help", "tokenizer show byte --json", "tokenizer show byte"])
def test_output_that_cannot_be_written(tmp_path: Path, arguments: str) -> None:
    done = shell(tmp_path, f"{arguments} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device; free some space and run the same command again\n"


def in_encoding(folder: Path, encoding: str, arguments: list[str | bytes]) -> subprocess.CompletedProcess[bytes]:
    if not (folder / "a.txt").exists():
        (folder / "a.txt").write_text(TEXT)
    command = [sys.executable, "-m", "ramlet", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=240, env=environment)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_the_output_lacks(tmp_path: Path, encoding: str) -> None:
    done = in_encoding(tmp_path, encoding, ["tokenizer", "show", "byte"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert "bytes per token\n     1       256  ???" in done.stdout.decode(encoding)


def test_a_name_that_is_not_valid_utf8(tmp_path: Path) -> None:
    name = b"t\xff"
    for option in ("--quiet", "--json"):
        words = ["tokenizer", "train", "a.txt", "-v", "260", "--out", name, option]
        done = in_encoding(tmp_path, "utf-8:strict", words)
        assert (done.returncode, done.stderr) == (0, b"")
        # JSON is UTF-8: a parser would refuse the byte itself.
        shown = os.fsencode(json.loads(done.stdout)["path"]) if option == "--json" else done.stdout
        assert name in shown
