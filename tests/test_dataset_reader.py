"""`ramlet.Dataset` and the manifest: what was written is what is read, and damage is one sentence."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramlet
from oracles_dataset import END, byte_tokenizer, checksums, packed_shards, write_dataset, xxh64  # noqa: F401
from ramlet.dataset import ledger as ledger_module
from ramlet.dataset import reader as reader_module
from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError, SettingsError

TRAIN = [[1], [2, 3], list(range(60)), [4] * 120, [5, 6, 7], [8] * 40, [9] * 99]
VAL = [[10, 11], [12]]


def text_ids(seed: int, count: int, longest: int = 50) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(chance.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", "ef46db3751d8e999"),
        (b"a", "d24ec4f1a98c6e5b"),
        (b"abc", "44bc2cf5ad770999"),
        # Over 32 bytes, where the four lanes come in: a value that xxHash's own documentation tests with.
        (b"Nobody inspects the spammish repetition", "fbcea83c8a378bf1"),
    ],
)
def test_the_oracles_checksum(data: bytes, value: str) -> None:
    assert f"{xxh64(data):016x}" == value


class TestDataset:
    @pytest.mark.parametrize("large", [False, True])
    @pytest.mark.parametrize("end", [False, True])
    def test_documents(self, tmp_path: Path, large: bool, end: bool) -> None:
        tokenizer = byte_tokenizer(large=large)
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", TRAIN, VAL, tokenizer=tokenizer, end=end))
        assert dataset.end_id == (tokenizer.end_of_text if end else None)
        assert dataset.dtype == (np.uint32 if large else np.uint16)
        assert len(dataset.shards("train")) > 3
        for split, documents in (("train", TRAIN), ("val", VAL)):
            ended = [[*document, dataset.end_id] if end else document for document in documents]
            assert [ids.tolist() for ids in dataset.documents(split)] == ended
            assert dataset.document_count(split) == len(documents)
            assert [dataset.document(split, number).tolist() for number in range(len(ended))] == ended
            flat = [one for document in ended for one in document]
            assert dataset.tokens(split).tolist() == flat
            assert [one for block in dataset.blocks(split, 7) for one in block.tolist()] == flat

    @given(st.integers(-300, 400), st.none() | st.integers(-300, 400))
    def test_tokens_slice_as_a_list_does(self, start: int, stop: int | None) -> None:
        flat = [one for document in TRAIN for one in [*document, 256]]
        assert self.shared().tokens("train", start, stop).tolist() == flat[start:stop]

    @classmethod
    def shared(cls) -> ramlet.Dataset:
        import tempfile

        if not hasattr(cls, "kept"):
            cls.folder = tempfile.TemporaryDirectory()
            cls.kept = ramlet.Dataset(write_dataset(Path(cls.folder.name) / "d", TRAIN, VAL))
        return cls.kept

    @pytest.mark.parametrize("length", [1, 3, 8, 64])
    def test_packed(self, tmp_path: Path, length: int) -> None:
        documents = text_ids(length, 40, 30)
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", documents, VAL, pack=length, tokens_per_shard=200))
        pieces = [
            [*document, 256][start : start + length]
            for document in documents
            for start in range(0, len(document) + 1, length)
        ]
        assert [ids.tolist() for ids in dataset.documents("train")] == pieces
        assert [dataset.document("train", at).tolist() for at in range(dataset.document_count("train"))] == pieces
        assert dataset.sequence_length == length
        assert dataset.splits["train"].tokens % length == 0

    def test_small_blocks_give_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", TRAIN, VAL, pack=16))
        whole = [ids.tolist() for ids in dataset.documents("train")]
        monkeypatch.setattr(reader_module, "BLOCK_ENDS", 3)
        for size in (1, 5, 100):
            parts = [
                ids[start:end].tolist()
                for ids, starts, ends in dataset.document_blocks("train", size)
                for start, end in zip(starts.tolist(), ends.tolist())
            ]
            assert parts == whole

    def test_an_empty_split(self, tmp_path: Path) -> None:
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", TRAIN))
        assert list(dataset.documents("val")) == []
        assert dataset.tokens("val").tolist() == []
        assert dataset.document_count("val") == 0

    def test_numbers_and_splits_that_are_not_there(self, tmp_path: Path) -> None:
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", TRAIN))
        for number in (-1, len(TRAIN)):
            with pytest.raises(IndexError, match=r"7 documents in train: number"):
                dataset.document("train", number)
        with pytest.raises(SettingsError, match="unknown split 'test': use train or val"):
            dataset.tokens("test")

    def test_it_holds_no_files_and_can_be_pickled(self, tmp_path: Path) -> None:
        dataset = ramlet.Dataset(write_dataset(tmp_path / "d", TRAIN, VAL))
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        copy = pickle.loads(pickle.dumps(dataset))
        assert copy.document("train", 3).tolist() == dataset.document("train", 3).tolist()
        assert len(os.listdir("/proc/self/fd")) == before if before else True
        assert dataset.tokenizer.decode(dataset.document("val", 0)) == "\n\x0b" + END

    def test_damage_is_told(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, VAL)
        dataset = ramlet.Dataset(path)
        (path / "train/shard_00000.bin").write_bytes(b"\0\0")
        (path / "train/shard_00001.idx").unlink()
        with pytest.raises(DatasetError, match=r"shard_00000\.bin is damaged: it is shorter"):
            dataset.document("train", 1)
        with pytest.raises(DatasetError, match=r"shard_00001\.idx is missing"):
            dataset.document("train", 3)


def test_the_oracle_packs_as_the_format_says() -> None:
    assert packed_shards([[1, 2, 3], [4], [5, 6], [7]], 100, 4, 0) == [([1, 2, 3, 4, 5, 6, 7, 0], [3, 4, 6, 7])]


class TestManifest:
    def broken(self, tmp_path: Path, **changes: Any) -> Path:
        path = write_dataset(tmp_path / "d", TRAIN, VAL)
        record = json.loads((path / "dataset_metadata.json").read_text())
        record.update(changes)
        (path / "dataset_metadata.json").write_text(json.dumps(record))
        return path

    def test_it_comes_back_as_it_was(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=16)
        before = json.loads((path / "dataset_metadata.json").read_text())
        Manifest.read(path).write(path)
        assert json.loads((path / "dataset_metadata.json").read_text()) == before

    def test_one_that_could_not_be_read_is_not_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, VAL)
        manifest, before = Manifest.read(path), sorted(path.iterdir())
        content = (path / "dataset_metadata.json").read_bytes()
        monkeypatch.setattr("ramlet.dataset.manifest.MANIFEST_BYTES", len(content) - 1)
        with pytest.raises(DatasetError, match=r"more than the .*tokens_per_shard"):
            manifest.write(path)
        assert sorted(path.iterdir()) == before
        assert (path / "dataset_metadata.json").read_bytes() == content

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"format": "other"}, "was not written by ramlet"),
            ({"version": 2}, "has version 2, but this ramlet reads 1: install a newer ramlet"),
            ({"dtype": "int8"}, "dtype is not uint16 or uint32"),
            ({"vocab_size": -1}, "vocab_size is not a count"),
            ({"end_id": "x"}, "end_id is not a count"),
            ({"tokenizer": None}, "tokenizer is not an object"),
            ({"splits": {"train": {"tokens": 1}}}, "splits.train.tokens|splits.train.documents is not a count"),
            ({"packed": {"sequence_length": 0}}, r"packed\.pad_id is not a count"),
            ({"runs": [3]}, r"runs\[0\] is not an object"),
            ({"lengths": 3}, "lengths is not a list"),
            ({"lengths": [-3]}, "lengths is not a list of at most 64 counts"),
            ({"ledger": {}}, r"ledger\.documents is not a count or an object of counts"),
            ({"examples": {"empty": [3]}}, r"examples\.empty is not a list of objects"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
        with pytest.raises(DatasetError, match=sentence):
            Manifest.read(self.broken(tmp_path, **changes))

    def test_no_file_outside_of_the_folder(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN)
        text = (path / "dataset_metadata.json").read_text()
        (path / "dataset_metadata.json").write_text(text.replace("train/shard_00000.bin", "train/../../secret.bin"))
        with pytest.raises(DatasetError, match=r"shards\[0\].file is not of the form train/shard_00000.bin"):
            Manifest.read(path)

    def test_folders_that_are_no_dataset(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no such folder"):
            Manifest.read(tmp_path / "none")
        with pytest.raises(DatasetError, match=r"is not a dataset: it has no dataset_metadata\.json"):
            Manifest.read(tmp_path)
        (tmp_path / ".work").mkdir()
        with pytest.raises(DatasetError, match="is not finished: run the same `ramlet prepare` again"):
            Manifest.read(tmp_path)
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetError, match="is a file: give the folder"):
            Manifest.read(tmp_path / "file")
        for content in (b"{", b"\xff\xfe", b"[]", b"[" * 100_000):
            (tmp_path / "dataset_metadata.json").write_bytes(content)
            with pytest.raises(DatasetError, match=r"damaged|not written by ramlet"):
                Manifest.read(tmp_path)


class TestLedger:
    def test_an_empty_one_adds_up(self) -> None:
        assert ledger_module.problems(ledger_module.empty()) == []
        assert ledger_module.read(ledger_module.empty(), ValueError) == ledger_module.empty()

    def test_what_does_not(self) -> None:
        wrong = ledger_module.empty()
        wrong["documents"]["read"] = 3
        wrong["bytes"]["normalised"] = -4
        assert ledger_module.problems(wrong) == [
            "3 documents were read or cut, but 0 were kept or dropped",
            "0 bytes were read, but -4 are accounted for",
        ]

    def test_what_is_no_ledger(self) -> None:
        wrong: Any = ledger_module.empty()
        wrong["characters"] = "many"
        with pytest.raises(ValueError, match="'characters', 'a count"):
            ledger_module.read(wrong, ValueError)
        del wrong["lines"]["dropped"]
        with pytest.raises(ValueError, match=r"'lines\.dropped', 'a count or an object of counts"):
            ledger_module.read(wrong, ValueError)
        with pytest.raises(ValueError, match="''"):
            ledger_module.read([], ValueError)
