"""`ramlet train --input`: text that is prepared inside of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import RunRamlet
from oracles_training import sentences
from ramlet import Dataset

FEW = ("--params", "40k", "--seq-len", "16", "--max-steps", "1", "--threads", "1")


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    found = sentences(60).splitlines()
    (tmp_path / "lines.txt").write_text("\n".join(found))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in found))
    return found


@pytest.mark.parametrize("given", [("lines.txt", "--docs", "line"), ("rows.jsonl", "--text-field", "body")])
def test_how_it_is_read(given: tuple[str, ...], lines: list[str], tmp_path: Path, ramlet: RunRamlet) -> None:
    done = ramlet("train", "--out", "run", *FEW, "--input", *given)
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "run/data/dataset/stats.json").read_text())["ledger"]
    assert ledger["documents"]["read"] == len(lines)
    dataset = Dataset(tmp_path / "run/data/dataset")
    kept = {dataset.tokenizer.decode(ids) for split in dataset.splits for ids in dataset.documents(split)}
    assert {text.removesuffix("<|endoftext|>") for text in kept} == set(lines)


def test_a_text_without_words(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    said = ramlet("train", "--out", "run", *FEW, "--input", "blank.txt").stderr.splitlines()[-1]
    why = "every document was dropped: 1 as empty (only white space was left)"
    assert said == f"error: {why}: give other text to train on"


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (("train", "--out", "run", *FEW, "--input"), " (--on-error: an option of ramlet prepare)"),
        (("prepare", "--tokenizer", "byte", "--out", "data"), ""),
    ],
)
def test_an_option_that_only_other_commands_have(
    command: tuple[str, ...], note: str, lines: list[str], ramlet: RunRamlet
) -> None:
    said = ramlet(*command, "rows.jsonl").stderr.splitlines()[-1]
    remedy = "name the field that has the text with --text-field, or pass --on-error skip"
    assert said == f'error: rows.jsonl:1 has no field "text": {remedy}{note}'
