"""What a refused run leaves as it was, and what a finished one gets back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import RunRamlet
from oracles_training import assert_same_run, make_data, refused, run, sentences
from ramlet.errors import SettingsError, SourceError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("refusals"))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("resume", [None, False])
@pytest.mark.parametrize("text", ["debug: true\n", "- 1\n", "a: [\n"])
def test_a_folder_of_another_program_is_left_as_it_is(
    data: Path, tmp_path: Path, text: str, resume: bool | None
) -> None:
    """Many programs have a settings.yaml, and a config.json and checkpoints next to it."""
    out = tmp_path / "out"
    (out / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "report.html", "checkpoints/model.pt"):
        (out / name).write_text("precious")
    (out / "settings.yaml").write_text(text)
    before = files(out)
    refused(SettingsError, "settings.yaml", "choose another --out", data=data, out=out, resume=resume)
    assert files(out) == before


def test_a_stream_that_has_changed_changes_nothing(tmp_path: Path) -> None:
    """Of a run that should become longer, which is found out only where it would continue."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("a few words and some more\n" * 400)
    given: dict[str, Any] = {"data": None, "stream": str(text), "tokenizer": "byte", "out": out}
    assert run(**given, max_steps=4).steps == 4
    text.write_text("other words\n" * 400)
    before = files(out)
    refused(SettingsError, "unknown setting 'text_feild'", reading={"text_feild": "x"}, **given)
    refused(SourceError, "has changed since", **given, max_steps=8, resume=True)
    assert files(out) == before


def test_text_of_a_run_that_has_changed(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "book.txt").write_text(sentences(400))
    given = ("train", "--input", "book.txt", "--out", "run", "--params", "40k", "--seq-len", "16", "--max-steps", "1")
    assert ramlet(*given, "--threads", "1").returncode == 0
    (tmp_path / "book.txt").write_text(sentences(401))
    said = ramlet(*given, "--threads", "1").stderr.splitlines()[-1]
    assert said == "error: run was begun with other text, or the text has changed since: choose another --out"


def test_a_rank_that_is_left_from_something_else(tmp_path: Path, ramlet: RunRamlet) -> None:
    """In a job of a cluster without WORLD_SIZE: the process is alone, so it prepares its text, and prints."""
    (tmp_path / "book.txt").write_text(sentences(400))
    given = ("train", "--input", "book.txt", "--out", "run", "--params", "40k", "--seq-len", "16", "--max-steps", "1")
    done = ramlet(*given, "--threads", "1", env={**os.environ, "RANK": "3"}, timeout=60)
    assert done.stdout.startswith("1 step, ")


def test_a_dataset_whose_name_is_not_utf8(data: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/d\xff"
    shutil.copytree(os.fsencode(data), odd)
    refused(SettingsError, r"d\udcff' is not UTF-8", "rename", data=os.fsdecode(odd), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_finished_run_without_its_model_gets_it_back(data: Path, tmp_path: Path) -> None:
    """It is that of a checkpoint."""
    out = tmp_path / "out"
    run(data, out)
    shutil.copytree(out, tmp_path / "whole")
    (out / "model.safetensors").unlink()
    assert not run(data, out).already_done
    assert_same_run(out, tmp_path / "whole")
    assert run(data, out).already_done
