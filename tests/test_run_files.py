"""A new run takes the place of an old one: killed at any moment, one of them is there, whole, never some of each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from conftest import alone
from oracles_kills import changes_of, killed_at
from ramlet.training.run_files import CHECKPOINTS, NEW, NEXT, SETTINGS, WRITTEN, whole_run
from ramlet.training.run_folder import RunFolder

NOTED = "settings: {}\ndata: []\njob: {}\nplan: {}\n# "
"""By which a settings.yaml is recognized as that of a run."""
FOLDERS = {CHECKPOINTS: ("step_000003",), "tensorboard": ("events",)}


def filled(place: Path, word: str, *, without: tuple[str, ...] = ()) -> None:
    """All files that a run may have, each with the word in it."""
    place.mkdir(parents=True, exist_ok=True)
    for name in (SETTINGS, *WRITTEN):
        if name in without:
            continue
        if name == CHECKPOINTS:
            for step in FOLDERS[name]:
                (place / name / step).mkdir(parents=True)
                for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
                    (place / name / step / file).write_text(word)
        elif name in FOLDERS:
            (place / name).mkdir()
            (place / name / "events").write_text(word)
        else:
            (place / name).write_text(NOTED + word if name == SETTINGS else word)


def content(run: Path) -> dict[str, str]:
    """What a reader sees."""
    place = whole_run(run)
    return {
        str(path.relative_to(place)): path.read_text().removeprefix(NOTED)
        for path in sorted(place.rglob("*"))
        if path.is_file() and not path.relative_to(place).parts[0].startswith(".")
    }


def replaced(run: Path) -> None:
    with RunFolder(run) as folder:
        folder.begin()
        assert folder.place == run / NEW
        filled(folder.place, "new", without=("stats.json", "model.safetensors", "report.html", "measures.json"))
        folder.replace()
        assert folder.place == run


def settled(run: Path) -> None:
    with RunFolder(run):
        pass


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    filled(tmp_path / "run", "old")
    return tmp_path / "run"


def test_the_new_one_is_all_that_is_left(old: Path) -> None:
    (old / "data").mkdir()
    (old / "data" / "mine.txt").write_text("kept")
    replaced(old)
    found = content(old)
    assert found.pop("data/mine.txt") == "kept"
    assert set(found.values()) == {"new"}
    assert len(found) == 3 + 1 + 7
    assert not {NEW, NEXT, ".lock"} & set(os.listdir(old))


def test_without_links_it_is_copied(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    replaced(old)
    assert set(content(old).values()) == {"new"}


@alone
def test_killed_at_every_change(tmp_path: Path) -> None:
    """What a reader sees is the whole old run or the whole new one, before and after the next start."""
    os.fsync = lambda file: None  # in the process of this test
    old = tmp_path / "run"
    filled(old, "old")
    shutil.copytree(old, tmp_path / "calm")
    whole = [content(old)]
    changes = changes_of(tmp_path / "told", replaced, tmp_path / "calm")
    whole.append(content(tmp_path / "calm"))
    seen = []
    for change in range(1, changes + 1):
        run = tmp_path / f"at-{change}"
        shutil.copytree(old, run)
        killed_at(change, replaced, run)
        seen.append(whole.index(content(run)))
        settled(run)
        assert content(run) == whole[seen[-1]], change
        assert not {NEW, NEXT} & set(os.listdir(run))
        shutil.rmtree(run)
    assert seen == sorted(seen)
    assert {*seen} == {0, 1}


@alone
def test_killed_again_while_it_is_ended(tmp_path: Path) -> None:
    """The start after a kill is killed as well, at every change that it makes."""
    os.fsync = lambda file: None  # in the process of this test
    first = tmp_path / "run"
    filled(first, "old")
    filled(first / NEXT, "new", without=("stats.json", "model.safetensors"))
    wanted = content(first)
    shutil.copytree(first, tmp_path / "calm")
    changes = changes_of(tmp_path / "told", settled, tmp_path / "calm")
    assert content(tmp_path / "calm") == wanted
    for change in range(1, changes + 1):
        run = tmp_path / f"at-{change}"
        shutil.copytree(first, run)
        killed_at(change, settled, run)
        assert content(run) == wanted, change
        settled(run)
        assert content(run) == wanted, change
        shutil.rmtree(run)


def test_what_never_became_a_model_is_replaced_in_place(tmp_path: Path) -> None:
    run = tmp_path / "run"
    filled(run, "old", without=("stats.json", "model.safetensors", CHECKPOINTS))
    with RunFolder(run) as folder:
        folder.begin()
        assert folder.place == run
        assert sorted(name for name in os.listdir(run) if name != ".lock") == [SETTINGS]


@pytest.mark.parametrize("left", ["stats.json", "model.safetensors", CHECKPOINTS])
def test_whatever_is_left_of_a_model_is_kept(tmp_path: Path, left: str) -> None:
    run = tmp_path / "run"
    filled(run, "old", without=tuple(name for name in WRITTEN if name != left))
    with RunFolder(run) as folder:
        before = content(run)
        folder.begin()
        (folder.place / SETTINGS).write_text("new")
        assert content(run) == before
    assert content(run) == before
    assert NEW not in os.listdir(run)
