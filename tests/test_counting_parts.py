"""Counting for a tokenizer in parts: a worker of another run adds nothing to the counts of this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ramlet import _native
from ramlet.errors import SettingsError
from ramlet.runtime.folder_lock import PARTS_LOCK, share
from ramlet.tokenizer.count_parts import plan_counting, run_parts, totals
from ramlet.tokenizer.settings import TrainSettings
from ramlet.tokenizer.train import Corpus

MEMORY = 8_000_000_000


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ramlet.runtime.folder_lock.PATIENCE", 0.0)
    (tmp_path / "text.txt").write_text("some words of a text, and 12345 numbers\n" * 50)
    return tmp_path / "work"


def plan(work: Path, pattern: str) -> dict[str, Any]:
    settings = TrainSettings(vocab_size=300, pattern=pattern)
    corpus = Corpus(settings, inputs=[work.parent / "text.txt"])
    files = corpus.files()
    assert files is not None
    return plan_counting(work, settings, files, corpus.signature, corpus.decoding)


def pieces(work: Path, pattern: str) -> int:
    tasks = plan(work, pattern)["tasks"]
    run_parts(str(work), "count", range(tasks), memory=MEMORY, threads=1)
    return int(totals(work, tasks)["pieces"])


def test_nobody_plans_again_while_parts_are_counted(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, counted = _native.count_task, []

    def counting(*given: Any, **more: Any) -> None:
        with pytest.raises(SettingsError, match="other processes are running parts of"):
            plan(work, "cl100k")
        counted.append(given)
        count(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(_native, "count_task", counting)
        found = pieces(work, "gpt2")
    assert counted
    assert pieces(work, "gpt2") == found
    # In each line it splits " 12345" into three: " ", "123" and "45".
    assert pieces(work, "cl100k") == found + 2 * 50


def test_nobody_counts_while_another_run_is_planned(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(work, "gpt2")
    rmtree, removed = shutil.rmtree, []

    def remove(path: Path, **more: Any) -> None:
        with pytest.raises(SettingsError, match="being begun or finished by another ramlet"):
            share(work / PARTS_LOCK)
        removed.append(path)
        rmtree(path, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    plan(work, "cl100k")
    assert work / "counts" in removed
    run_parts(str(work), "count", [0], memory=MEMORY, threads=1)


def test_where_nothing_is_planned(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SettingsError, match="nothing is planned in"):
            run_parts(str(tmp_path), "count", [0], memory=MEMORY, threads=1)
        (tmp_path / PARTS_LOCK).touch()
