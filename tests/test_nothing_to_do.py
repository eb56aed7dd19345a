"""A command that is run again after it was done says so; where something else is there, it names the way out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from oracles_dataset import write_dataset
from ramlet.cli import main
from ramlet.dataset.export import FORMATS
from ramlet.dataset.export.run import export
from ramlet.dataset.merge import merge
from ramlet.errors import SettingsError

OTHER = "already exists and has something else in it: choose another folder, or remove it first"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [write_dataset(tmp_path / name, [[1, 2, 3], [4, at]], [[5]]) for at, name in enumerate("abc")]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_merged_again(parts: list[Path], tmp_path: Path) -> None:
    assert not merge(parts[:2], tmp_path / "m").already_done
    before = times(tmp_path)
    again = merge(parts[:2], tmp_path / "m")
    assert again.already_done
    assert again.manifest.splits["train"].documents == 4
    assert merge(parts[:2], tmp_path / "m", link=True).already_done  # the same bytes, copied or not
    for others in (parts[1::-1], parts, parts[1:]):
        with pytest.raises(SettingsError, match=OTHER):
            merge(others, tmp_path / "m")
    assert times(tmp_path) == before
    (tmp_path / "m/train/shard_00000.bin").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"shard_00000.bin is missing or incomplete.*remove .*m, and run the same"):
        merge(parts[:2], tmp_path / "m")


def test_merged_after_an_input_changed(parts: list[Path], tmp_path: Path) -> None:
    merge(parts[:2], tmp_path / "m")
    shutil.rmtree(parts[1])
    write_dataset(parts[1], [[9, 9]], run="another")
    with pytest.raises(SettingsError, match=OTHER):
        merge(parts[:2], tmp_path / "m")


@pytest.mark.parametrize("to", [name for name in FORMATS if name != "hf"])
def test_exported_again(parts: list[Path], tmp_path: Path, to: str) -> None:
    assert not export(parts[0], to, tmp_path / "x").already_done
    before = times(tmp_path / "x")
    assert export(parts[0], to, tmp_path / "x").already_done
    with pytest.raises(SettingsError, match=OTHER):
        export(parts[1], to, tmp_path / "x")
    with pytest.raises(SettingsError, match=OTHER):
        export(parts[0], to, tmp_path / "x", splits=["val"])
    with pytest.raises(SettingsError, match=OTHER):
        export(parts[0], "npy" if to != "npy" else "nanogpt", tmp_path / "x")
    assert times(tmp_path / "x") == before
    lost = next(path for path in (tmp_path / "x").iterdir() if path.suffix in (".bin", ".npy"))
    lost.unlink()
    with pytest.raises(
        SettingsError, match=f"{lost.name} is missing or incomplete.*remove .*x, and run the same again"
    ):
        export(parts[0], to, tmp_path / "x")


def test_a_moved_dataset_is_the_same(parts: list[Path], tmp_path: Path) -> None:
    export(parts[0], "npy", tmp_path / "x")
    parts[0].rename(tmp_path / "moved")
    assert export(tmp_path / "moved", "npy", tmp_path / "x").already_done


def test_the_commands_say_so(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("data merge a b --out m", "data export a --to npy --out x"):
        assert main(words.split()) == 0
        capsys.readouterr()
        assert main(words.split()) == 0
        assert capsys.readouterr().out.endswith(": nothing to do\n")
        assert main([*words.split(), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["already_done"]
    assert sorted(os.listdir()) == ["a", "b", "c", "m", "x"]
