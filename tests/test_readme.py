"""README.md says what is true: every command of it runs, and so does its Python, on little text and for few steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramlet
from documented import ROOT, blocks, commands, make_checkout, run_all

README = ROOT / "README.md"
ELSEWHERE = {"demo"}
"""Commands that take a minute, and have a test of their own."""

FEWER = {
    "max_steps=": '4, threads=1, device="cpu"',
    "seq_len=": "32",
    "vocab_size=": "300",
    "params=": '"40k"',
    "memory=": '"8GB"',
}
"""Of the Python, as SMALLER is of the commands."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [words for words in commands(README) if words[0] not in ELSEWHERE]
    assert {"tokenizer", "prepare", "data", "train", "generate"} <= {words[0] for words in found}
    run_all(found, capsys)


def test_every_target_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = [line.split()[1] for block in blocks(README) for line in block.splitlines() if line.startswith("make ")]
    assert named
    assert set(named) <= targets


def test_the_python(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(README, "python")
    for name, value in FEWER.items():
        block = re.sub(rf"\b{name}[^,)]+", f"{name}{value}", block)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["ids"] == [int(number) for number in re.findall(r"# \[([\d, ]+)\]", block)[0].split(",")]
    assert isinstance(names["result"], ramlet.TrainResult)
    assert names["batch"]["input_ids"].shape == (8, 32)  # type: ignore[index]
    assert len(capsys.readouterr().out.splitlines()) >= 3
