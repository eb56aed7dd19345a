"""Datasets, saved ones and those of the hub, become jsonl: the rows in order, and the same when it was interrupted."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramlet.errors import SettingsError, SourceError
from ramlet.inputs import staging_folder
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging import Input, needs_staging, stage
from staged_files import rows, state

READING = ReadSettings()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(folder: str, texts: list[str | None], *, files: int = 2, **state: Any) -> None:
    """As save_to_disk does, by hand: what it writes is checked in the test that has the library."""
    pa = pytest.importorskip("pyarrow", reason="saved datasets are read with pyarrow, of the extra hf")
    os.makedirs(folder)
    names = [f"data-{at:05}-of-{files:05}.arrow" for at in range(files)]
    for at, name in enumerate(names):
        part = texts[at * len(texts) // files : (at + 1) * len(texts) // files]
        table = pa.table({"id": pa.array(range(len(part))), "text": pa.array(part, pa.string())})
        with pa.OSFile(f"{folder}/{name}", "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    Path(folder, "dataset_info.json").write_text("{}")
    noted = {"_data_files": [{"filename": name} for name in names], "_fingerprint": folder, **state}
    Path(folder, "state.json").write_text(json.dumps(noted))


def test_saved_datasets(here: Path) -> None:
    texts: list[str | None] = ["one", None, "three\n", "fünf", "", "six"]
    save("saved", texts, _split="train")
    assert needs_staging("saved")
    assert rows(stage(["saved"], "staged", reading=READING)) == [text or "" for text in texts]
    os.makedirs("dict")
    Path("dict/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save("dict/train", ["a", "b"])
    save("dict/test", ["c", "d"])
    assert rows(stage(["dict"], "staged", reading=READING)) == ["a", "b"]
    assert rows(stage(["dict:test"], "staged", reading=READING)) == ["c", "d"]
    assert rows(stage([Input("dict", split="test")], "staged", reading=READING)) == ["c", "d"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Input("saved", split="test"), "saved holds the split 'train', not 'test'"),
        (Input("saved", text_field="body"), r"saved has no column 'body': set text_field to one of id, text"),
        (Input("saved", text_field="id"), "the column 'id' of saved holds int, not text"),
        (Input("saved", text_field="text.x"), "saved has no 'x' in its column"),
        (Input("dict", split="val"), "dict has no split 'val': it has train"),
        (Input("selected"), "saved with a row selection"),
        (Input("torn"), r"cannot read torn/data-00000-of-00002.arrow"),
        (Input("lost"), r"cannot read lost/data-00001-of-00002.arrow: No such file"),
    ],
)
def test_saved_datasets_that_cannot_be_read(here: Path, given: Input, words: str) -> None:
    save("saved", ["a", "b"], _split="train")
    save("selected", ["a", "b"], _indices_data_files=[{"filename": "indices.arrow"}])
    save("torn", ["a", "b"])
    Path("torn/data-00000-of-00002.arrow").write_bytes(b"nothing of the kind")
    save("lost", ["a", "b"])
    Path("lost/data-00001-of-00002.arrow").unlink()
    os.makedirs("dict")
    Path("dict/dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(SourceError, match=words):
        stage([given], "staged", reading=READING)


def test_datasets_are_no_text_files(here: Path) -> None:
    save("saved", ["a", "b"])
    with pytest.raises(SettingsError, match="a dataset, which cannot be read as text: remove format"):
        stage(["saved"], "staged", reading=ReadSettings(format="text"))


def test_a_saved_dataset_of_the_real_library(here: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the library itself, to check what it writes")
    texts = [f"document {n}\nwith ä {n * n}" for n in range(2500)]
    dataset = datasets.Dataset.from_dict({"text": texts, "id": list(range(2500))})
    dataset.save_to_disk("saved", num_shards=3)
    assert rows(stage(["saved"], "staged", reading=READING)) == [text or "" for text in texts]
    datasets.DatasetDict({"train": dataset, "odd": dataset.filter(lambda row: row["id"] % 2 == 1)}).save_to_disk("dict")
    assert rows(stage(["dict:odd"], "staged", reading=READING)) == texts[1::2]


class Hub:
    """A hub with one dataset of many rows, in the place of the libraries that ask the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.revision = "r1"
        self.texts: list[Any] = [f"text {n}" for n in range(50)]
        self.breaks_at: int | None = None
        self.asked: list[Any] = []
        self.yielded = 0
        datasets: Any = types.ModuleType("datasets")
        datasets.load_dataset = self.load
        datasets.disable_progress_bars = lambda: None
        client: Any = types.ModuleType("huggingface_hub")
        client.HfApi = lambda: types.SimpleNamespace(dataset_info=self.info)
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        monkeypatch.setitem(sys.modules, "huggingface_hub", client)
        monkeypatch.setattr("ramlet.inputs.hub.unreachable", lambda: "")

    def info(self, repository: str, revision: str | None) -> Any:
        if repository != "org/name":
            raise RuntimeError("404 Client Error.\nRepository Not Found")
        return types.SimpleNamespace(sha=self.revision)

    def load(self, repository: str, subset: str | None, *, split: str, revision: str, streaming: bool) -> Any:
        self.asked.append((repository, subset, split, revision, streaming))
        if split not in ("train", "test"):
            raise ValueError(f"Bad split: {split}. Available splits: ['train', 'test']")
        return self

    column_names = ("text", "id")

    def select_columns(self, names: list[str]) -> Hub:
        assert names == ["text"]
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for at, text in enumerate(self.texts):
            if at == self.breaks_at:
                raise TimeoutError("timed out")
            yield {"text": text}


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(staging_folder, "PART_BYTES", 200)
    return Hub(monkeypatch)


def test_datasets_of_the_hub(hub: Hub) -> None:
    paths = stage(["org/name"], "staged", reading=READING)
    assert rows(paths) == hub.texts
    assert len(paths) > 3
    assert hub.asked == [("org/name", None, "train", "r1", True)]
    before = state(Path("staged"))
    assert stage(["org/name"], "staged", reading=READING) == paths
    assert (state(Path("staged")), len(hub.asked)) == (before, 1)
    stage(["org/name/some:test", "hf://datasets/org/name:test"], "staged", reading=READING)
    assert hub.asked[1:] == [("org/name", "some", "test", "r1", True), ("org/name", None, "test", "r1", True)]


@pytest.mark.parametrize("at", [0, 1, 17, 49])
def test_an_interrupted_one_goes_on_and_is_the_same(hub: Hub, at: int) -> None:
    whole = stage(["org/name"], "whole", reading=READING)
    hub.breaks_at = at
    with pytest.raises(SourceError, match=r"cannot be read from the hub \(timed out\)"):
        stage(["org/name"], "staged", reading=READING)
    before = {path: kept for path, kept in state(Path("staged")).items() if path.endswith(".gz")}
    hub.breaks_at = None
    paths = stage(["org/name"], "staged", reading=READING)
    assert before.items() <= state(Path("staged")).items()
    assert [Path(path).read_bytes() for path in paths] == [Path(path).read_bytes() for path in whole]
    assert [Path(path).stat().st_mtime for path in paths] == [Path(path).stat().st_mtime for path in whole]


def test_another_revision_is_staged_anew(hub: Hub) -> None:
    stage(["org/name"], "staged", reading=READING)
    hub.revision, hub.texts = "r2", ["only one", None]
    paths = stage(["org/name"], "staged", reading=READING)
    assert rows(paths) == ["only one", ""]
    assert sorted(str(path) for path in Path("staged").rglob("part-*")) == paths


def test_a_part_that_was_lost_is_staged_anew(hub: Hub) -> None:
    paths = stage(["org/name"], "staged", reading=READING)
    Path(paths[1]).unlink()
    assert stage(["org/name"], "staged", reading=READING) == paths
    assert rows(paths) == hub.texts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/other", r"no file or folder org/other here, and it cannot be read from the hub \(404 Client Error\)"),
        ("org/name:val", "Bad split: val"),
    ],
)
def test_names_that_are_not_there(hub: Hub, name: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        stage([name], "staged", reading=READING)


def test_columns_that_are_not_there(hub: Hub) -> None:
    with pytest.raises(SourceError, match="org/name has no column 'body': set text_field to one of text, id"):
        stage([Input("org/name", text_field="body")], "staged", reading=READING)
    hub.texts = [7]
    with pytest.raises(SourceError, match="holds int, not text"):
        stage(["org/name"], "staged", reading=READING)
    with pytest.raises(SettingsError, match="names the split 'test', but split is 'train'"):
        stage([Input("org/name:test", split="train")], "staged", reading=READING)


def test_the_real_library_streams_as_the_hub_of_these_tests(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the library itself, on files that are here")
    from ramlet.inputs import hub as hub_module

    monkeypatch.setattr(hub_module, "_revision", lambda *_: "r1")
    loaded = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, *rest, **options: loaded(str(here / "files"), *rest, **options)
    )
    Path("files").mkdir()
    Path("files/train.jsonl").write_text("".join(f'{{"id": {n}, "text": "t{n}"}}\n' for n in range(300)))
    assert rows(stage(["org/name"], "staged", reading=READING)) == [f"t{n}" for n in range(300)]
    with pytest.raises(SourceError, match="no column 'body': set text_field to one of id, text"):
        stage([Input("org/name", text_field="body")], "staged", reading=READING)
