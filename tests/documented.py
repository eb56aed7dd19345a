"""Commands read from the pages of the documentation, made smaller, and run in this process.

found = commands(ROOT / "README.md")     # [["tokenizer", "train", "rust/", ...], ["tokenizer", "show", ...], ...]
said = run_all(found, capsys)            # each must end with 0; what the last one printed
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from oracles_training import sentences
from ramlet.cli import main

ROOT = Path(__file__).resolve().parents[1]

SMALLER = {
    "--vocab-size": "300",
    "--params": "40k",
    "--seq-len": "32",
    "--batch-size": "4",
    "--max-steps": "4",
    "--memory": "8GB",
    "--val-fraction": "0.2",
}
"""Amounts that a test makes smaller; the budget larger, for torch and the tests are in this process already."""

ALWAYS = {
    "init": ["--params", "40k", "--time", "5s", "--threads", "1", "--quiet"],
    "run": ["--memory", "8GB", "--threads", "1", "--quiet"],
    "tokenizer": [],
    "tokenizer train": ["--threads", "1", "--quiet"],
    "tokenizer encode": ["--threads", "1"],
    "prepare": ["--threads", "1", "--docs", "line", "--quiet"],
    "data": [],
    "plan": ["--threads", "1", "--device", "cpu"],
    "train": ["--threads", "1", "--device", "cpu", "--precision", "fp32", "--eval-tokens", "400", "--quiet"],
    "eval": ["--threads", "1", "--device", "cpu", "--quiet"],
    "generate": ["--threads", "1", "--device", "cpu", "--max-tokens", "8", "--seed", "1", "--quiet"],
    "export": [],
}
"""What is added to a command: one thread, little output, nothing that looks at the whole machine."""


def blocks(page: Path, language: str | None = None) -> list[str]:
    """What stands between fences: all of it, or that of one language."""
    # All are found before some are chosen, or the end of one that is passed over would be the start of another.
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [block for named, block in found if language is None or named == language]


def commands(page: Path) -> list[list[str]]:
    """All lines of its blocks that are commands of ramlet, as words, in their order; blocks of text are output."""
    lines = [
        line.removeprefix("$ ").removeprefix(".venv/bin/") for block in blocks(page, "") for line in block.splitlines()
    ]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("ramlet ")]


def smaller(words: list[str]) -> list[str]:
    """The same command for a test."""
    made, words = [], list(words)
    while words:
        word = words.pop(0)
        made.append(word)
        if word in SMALLER:
            words.pop(0)
            made.append(SMALLER[word])
    if made[0] == "train" and "--seq-len" not in made and "--init-from" not in made:
        made += ["--seq-len", SMALLER["--seq-len"]]
    return made + ALWAYS.get(" ".join(made[:2]), ALWAYS.get(made[0], []))


def run_all(found: list[list[str]], capsys: pytest.CaptureFixture[str]) -> str:
    """What the last one printed."""
    for words in found:
        code = main(smaller(words))
        said = capsys.readouterr()
        assert code == 0, (words, said.err)
    return said.out


def make_checkout(folder: Path) -> None:
    """A folder that looks like the one that the pages speak of, with little in it."""
    for number, name in enumerate(("rust", "python", "docs")):
        (folder / name).mkdir()
        text = sentences(300, seed=number) + '\nthe line below\ndef house(): return "a tree"\n'
        (folder / name / "text.txt").write_text(text, encoding="utf-8")
