"""Whatever is done to the files, the answer is a list of problems or one sentence, never a traceback."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles_dataset import checksums, write_dataset  # noqa: F401
from ramlet import Dataset, RamletError
from ramlet.cli.data import inspect as inspect_command
from ramlet.dataset.adopt import adopt
from ramlet.dataset.inspect import figures, samples
from ramlet.dataset.merge import merge
from ramlet.dataset.verify import verify
from test_dataset_reader import TRAIN, VAL

STRANGE: list[Any] = [None, -1, 0, 3, 1 << 70, 0.5, "", "x", [], [3], {}, {"a": 1}, True]


@pytest.mark.parametrize("pack", [None, 16])
def test_any_byte_of_any_shard(tmp_path: Path, pack: int | None) -> None:
    path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=pack)
    chance = random.Random(1)
    files = [file for file in sorted(path.rglob("shard_*")) if file.stat().st_size]
    for _ in range(60):
        file = chance.choice(files)
        before = file.read_bytes()
        changed = bytearray(before)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        assert verify(path).problems
        file.write_bytes(before)
    assert verify(path).problems == []


@pytest.mark.parametrize("pack", [None, 16])
def test_ends_that_are_garbage(tmp_path: Path, pack: int | None) -> None:
    """Readers do not verify checksums, but say that something is wrong, whatever an index contains."""
    path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=pack)
    index = next(path.glob("train/*.idx"))
    chance = random.Random(2)
    for _ in range(50):
        index.write_bytes(chance.randbytes(index.stat().st_size))
        with pytest.raises(RamletError, match="is damaged"):
            list(Dataset(path).documents("train"))


@pytest.mark.parametrize("pack", [None, 16])
def test_one_end_that_is_not_in_its_place(tmp_path: Path, pack: int | None) -> None:
    """Between others that are right: a reader of many documents at once must see it."""
    path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=pack)
    index = max(path.glob("train/*.idx"), key=lambda file: file.stat().st_size)
    whole = np.fromfile(index, "<u8")
    for at, value in ((0, 1 << 49), (len(whole) // 2, 1 << 49), (len(whole) // 2, 0), (len(whole) - 1, 1 << 49)):
        ends = whole.copy()
        ends[at] = value
        ends.tofile(index)
        for read in (
            Dataset(path).documents,
            Dataset(path).document_parts,
            lambda split: [Dataset(path).longest(split)],
        ):
            with pytest.raises(RamletError, match="is damaged"):
                list(read("train"))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON document."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:2]):
            yield from places(inner, (*path, at))


@pytest.mark.parametrize("pack", [None, 16])
def test_any_value_of_the_manifest(
    tmp_path: Path, pack: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_dataset(tmp_path / "d", TRAIN[:3], VAL, pack=pack)
    other = write_dataset(tmp_path / "e", VAL, VAL, pack=pack)
    original = json.loads((path / "dataset_metadata.json").read_text())
    chance = random.Random(2)
    for way in places(original):
        record = copy.deepcopy(original)
        inner = record
        for key in way[:-1]:
            inner = inner[key]
        if chance.random() < 0.2 and isinstance(inner, dict):
            del inner[way[-1]]
        else:
            inner[way[-1]] = chance.choice(STRANGE)
        (path / "dataset_metadata.json").write_text(json.dumps(record))
        for act in (verify, adopt, show, lambda folder: merge([other, folder], Path(tempfile.mkdtemp()) / "m")):
            try:
                act(path)
            except RamletError:
                continue
            except Exception as error:
                raise AssertionError(f"{way} as {inner.get(way[-1]) if isinstance(inner, dict) else inner}") from error


def show(path: Path) -> None:
    dataset = Dataset(path)
    inspect_command._show_dropped(told := figures(dataset))
    inspect_command._show_statistics(told)
    inspect_command._show_lengths(told)
    samples(dataset, "train", 2, 0, 10)
