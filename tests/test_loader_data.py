"""What `ramlet.Loader` reads: packed datasets, arrays, ten thousand shards; and what it says of damage."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from oracles_dataset import packed_shards, write_dataset
from oracles_loading import IGNORED, masked, windows
from ramlet.errors import DatasetError, SettingsError
from ramlet.loading.batch import training_names
from ramlet.loading.loader import Loader

END = 256


def documents(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(chance.randint(1, longest))] for _ in range(count)]


def rows(loader: Loader) -> list[tuple[list[int], ...]]:
    """All examples in order."""
    batches = [loader.examples[number] for number in range(len(loader.examples))]
    names = training_names(loader.document_mask)
    return [tuple(batch[name][0].tolist() for name in names) for batch in batches]


class TestPacked:
    def expected(self, given: list[list[int]], length: int, end: bool) -> list[tuple[list[int], list[int]]]:
        """From the places where pieces end, which is what says where padding begins."""
        whole = [[*document, *([END] if end else [])] for document in given]
        [(ids, ends)] = packed_shards(whole, 10**9, length, END if end else 0)
        examples = []
        for start in range(0, len(ids), length):
            text = max(at for at in ends if start < at <= start + length) - start
            row = ids[start : start + length]
            examples.append((row, [*row[1:text], *[IGNORED] * (length - text + 1)]))
        return examples

    @pytest.mark.parametrize("length", [2, 5, 16, 64])
    @pytest.mark.parametrize("end", [False, True])
    def test_labels_stay_inside_and_off_the_padding(self, tmp_path: Path, length: int, end: bool) -> None:
        # Many zeros: without an end id they are the padding too.
        given = [[one * (one % 3 > 0) for one in document] for document in documents(length, 60, 30)]
        path = write_dataset(tmp_path / "d", given, pack=length, tokens_per_shard=150, end=end)
        loader = Loader(path)
        assert loader.seq_len == length
        assert rows(loader) == self.expected(given, length, end)
        assert len(ramlet.Dataset(path).shards("train")) > 1

    def test_with_a_document_mask(self, tmp_path: Path) -> None:
        given = documents(4, 40, 20)
        loader = Loader(write_dataset(tmp_path / "d", given, pack=32, tokens_per_shard=150), document_mask=True)
        assert rows(loader) == [masked(example, END) for example in self.expected(given, 32, True)]

    def test_it_has_its_own_length(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", documents(4, 40), pack=32)
        assert Loader(path, seq_len=32).seq_len == 32
        with pytest.raises(SettingsError, match=r"packed in sequences of 32, not 64: choose seq_len=32, or prepare"):
            Loader(path, seq_len=64)
        with pytest.raises(SettingsError, match="do not give a stride"):
            Loader(path, stride=3)

    def test_mixed_with_one_that_is_not(self, tmp_path: Path) -> None:
        packed = write_dataset(tmp_path / "packed", documents(4, 40), pack=32)
        plain = write_dataset(tmp_path / "plain", documents(5, 40))
        loader = Loader([(plain, 1), (packed, 1)], shuffle=False)
        assert rows(loader) == rows(Loader(plain, seq_len=32)) + rows(Loader(packed))


class TestArrays:
    @pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"])
    def test_any_integers(self, tmp_path: Path, dtype: str) -> None:
        ids = np.random.default_rng(0).integers(0, 120, 1000).astype(dtype)
        np.save(tmp_path / "a.npy", ids)
        loader = Loader(tmp_path / "a.npy", seq_len=10)
        assert rows(loader) == windows(ids[:900].tolist(), 10)
        assert rows(Loader(tmp_path / "a.npy", split="val", seq_len=10)) == windows(ids[900:].tolist(), 10)
        assert loader.vocab_size == int(ids.max()) + 1
        assert (loader.end_id, loader.tokenizer_fingerprint, loader.tokenizer_file) == (None, None, None)
        assert loader.describe().splitlines() == [
            f"tokens in {tmp_path}/a.npy: 1,000",
            "train portion: 900 tokens (90.0%)",
            "sequences: 89 of 10 tokens",
        ]

    def test_the_portions(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(101, dtype=np.uint16))
        counts = {}
        for fraction in (0, 0.1, 0.25, 0.999):
            for split in ("train", "val"):
                try:
                    counts[fraction, split] = Loader(
                        tmp_path / "a.npy", split=split, seq_len=1, val_fraction=fraction
                    ).tokens
                except DatasetError as error:
                    counts[fraction, split] = str(error)[-80:]
        assert counts[0, "train"] == 101
        assert "val_fraction=0 leaves no tokens for it" in str(counts[0, "val"])
        assert (counts[0.1, "train"], counts[0.1, "val"]) == (91, 10)
        assert (counts[0.25, "train"], counts[0.25, "val"]) == (76, 25)
        assert counts[0.999, "val"] == 100
        with pytest.raises(SettingsError, match="val_fraction must be at least 0 and below 1, not 1"):
            Loader(tmp_path / "a.npy", val_fraction=1)

    def test_one_that_prepare_made_and_the_text_beside_it(self, tmp_path: Path) -> None:
        text = "The quick brown fox. " * 50
        (tmp_path / "a.txt").write_text(text)
        with pytest.raises(DatasetError, match='prepare it with output_format="npy"'):
            Loader(tmp_path / "a.txt")
        ramlet.prepare(tmp_path / "a.txt", tmp_path / "a.npy", tokenizer="char", output_format="npy")
        ids = np.load(tmp_path / "a.npy").tolist()
        for name in ("a.npy", "a.txt"):
            loader = Loader(tmp_path / name, seq_len=16, val_fraction=0.2)
            assert rows(loader) == windows(ids[: len(ids) - len(ids) // 5], 16)
            assert loader.tokenizer_file == str(tmp_path / "a.npy.tokenizer.json")
            tokenizer = ramlet.Tokenizer.load(loader.tokenizer_file)
            assert loader.tokenizer_fingerprint == tokenizer.fingerprint
            assert loader.vocab_size == tokenizer.vocab_size
            assert loader.end_id == ids[-1]
            assert next(iter(Loader(tmp_path / name, seq_len=16, document_mask=True))).position_ids is not None

    def test_a_state_knows_the_array(self, tmp_path: Path) -> None:
        ids = np.arange(100_000, dtype=np.uint16) % 1000
        np.save(tmp_path / "a.npy", ids)
        state = Loader(tmp_path / "a.npy", seq_len=16).state()
        shutil.copy(tmp_path / "a.npy", tmp_path / "copy.npy")
        Loader(tmp_path / "copy.npy", seq_len=16).restore(state)
        with pytest.raises(DatasetError, match="the data has changed since the state"):
            Loader(tmp_path / "a.npy", seq_len=16, val_fraction=0.1001).restore(state)
        ids[len(ids) // 3] += 1
        np.save(tmp_path / "a.npy", ids)
        with pytest.raises(DatasetError, match="the data has changed since the state"):
            Loader(tmp_path / "a.npy", seq_len=16).restore(state)

    @pytest.mark.parametrize(
        ("array", "sentence"),
        [
            (np.zeros((3, 4), np.uint16), r"has 2 dimensions, but ids need 1: save it with reshape\(-1\)"),
            (np.zeros(9, np.float32), "has the dtype float32, not ids: save integers"),
            (np.zeros(9, ">u2"), r"is big-endian: save it with astype\('<u2'\)"),
            (np.zeros(0, np.uint16), "has nothing in train"),
        ],
    )
    def test_arrays_of_something_else(self, tmp_path: Path, array: Any, sentence: str) -> None:
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(DatasetError, match=sentence):
            Loader(tmp_path / "a.npy")

    def test_files_that_are_no_arrays(self, tmp_path: Path) -> None:
        for content in (b"", b"hello", b"\x93NUMPY\x01\x00\xff\xff"):
            (tmp_path / "a.npy").write_bytes(content)
            with pytest.raises(DatasetError, match=r"is not a readable \.npy file"):
                Loader(tmp_path / "a.npy")
        for name in ("none.npy", "none"):
            with pytest.raises(DatasetError, match="no such file"):
                Loader(tmp_path / name)

    def test_a_note_that_is_damaged(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(99, np.uint16))
        note = tmp_path / "a.npy.json"
        for content in ("{", "[]", '{"format": "ramlet dataset", "vocab_size": "x"}'):
            note.write_text(content)
            with pytest.raises(DatasetError, match=r"a\.npy\.json .*; prepare .* again, or remove that file"):
                Loader(tmp_path / "a.npy")
        note.write_text('{"format": "of someone else"}')
        assert Loader(tmp_path / "a.npy", seq_len=4).vocab_size == 1

    def test_negative_ids(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.full(99, -5, np.int16))
        with pytest.raises(DatasetError, match=r"a\.npy has a negative id \(-5\)"):
            next(iter(Loader(tmp_path / "a.npy", seq_len=4)))

    def test_one_that_was_cut_off(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(99, np.uint16))
        os.truncate(tmp_path / "a.npy", 300)
        with pytest.raises(DatasetError, match=r"a\.npy is damaged: it has 300 bytes instead of 326"):
            Loader(tmp_path / "a.npy", seq_len=4)


class TestDamage:
    @pytest.fixture
    def dataset(self, tmp_path: Path) -> Path:
        return write_dataset(tmp_path / "d", documents(1, 60), documents(2, 5, 3))

    def test_at_the_start(self, dataset: Path) -> None:
        (dataset / "train/shard_00003.bin").write_bytes(b"\0\0")
        with pytest.raises(DatasetError, match=r"train/shard_00003\.bin is damaged: it has 2 bytes instead of"):
            Loader(dataset, seq_len=8)
        (dataset / "train/shard_00003.bin").unlink()
        with pytest.raises(DatasetError, match=r"train/shard_00003\.bin is missing: run `ramlet data verify`"):
            Loader(dataset, seq_len=8)

    @pytest.mark.parametrize("read_ahead", [0, 2])
    def test_while_reading(self, dataset: Path, read_ahead: int) -> None:
        loader = Loader(dataset, seq_len=8, epochs=1, read_ahead=read_ahead)
        shard = dataset / "train/shard_00007.bin"
        os.truncate(shard, 10)
        with pytest.raises(DatasetError, match=r"shard_00007\.bin is damaged: it is shorter than when"):
            list(loader)

    @pytest.mark.parametrize("read_ahead", [0, 2])
    def test_gone_while_reading(self, dataset: Path, read_ahead: int) -> None:
        loader = Loader(dataset, seq_len=8, epochs=1, read_ahead=read_ahead)
        (dataset / "train/shard_00007.bin").unlink()
        with pytest.raises(DatasetError, match=r"shard_00007\.bin is missing"):
            list(loader)

    def test_ids_beyond_the_vocabulary(self, dataset: Path) -> None:
        shard = dataset / "train/shard_00005.bin"
        ids = np.fromfile(shard, "<u2")
        ids[len(ids) // 2] = 257
        ids.tofile(shard)
        with pytest.raises(DatasetError, match=r"shard_00005\.bin has the id 257, outside the vocabulary of 257"):
            list(Loader(dataset, seq_len=8, epochs=1))
        ids[len(ids) // 2] = 256
        ids.tofile(shard)
        assert list(Loader(dataset, seq_len=8, epochs=1))

    def test_the_index_of_a_packed_one(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", [[1, 2, 0]], pack=8, end=False)
        (path / "train/shard_00000.idx").write_bytes(b"")
        with pytest.raises(DatasetError, match=r"shard_00000\.idx is damaged: no document ends in the sequence at 0"):
            list(Loader(path, epochs=1))
        (path / "train/shard_00000.idx").unlink()
        with pytest.raises(DatasetError, match=r"shard_00000\.idx is missing"):
            list(Loader(path, epochs=1))

    def test_nothing_in_a_split(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", documents(1, 60))
        with pytest.raises(DatasetError, match="has nothing in val: prepare it again with a larger val_fraction"):
            Loader(path, split="val")

    def test_folders_that_are_no_dataset(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="is not a dataset"):
            Loader(tmp_path)


def many_shards(folder: Path, count: int, each: int = 3) -> list[int]:
    """A dataset whose shards are all small; all of the manifest but the shards is another's."""
    write_dataset(folder, [[1] * each])
    manifest = json.loads((folder / "dataset_metadata.json").read_text())
    [first] = manifest["splits"]["train"]["shards"]
    ids = np.random.default_rng(1).integers(0, 256, count * each, dtype=np.uint16)
    shards = []
    for number in range(count):
        file = f"train/shard_{number:05}.bin"
        ids[number * each : (number + 1) * each].tofile(folder / file)
        index = f"train/shard_{number:05}.idx"
        shards.append({**first, "file": file, "index": index, "tokens": each, "bytes": 2 * each})
    manifest["splits"]["train"] = {"tokens": len(ids), "documents": count, "shards": shards}
    (folder / "dataset_metadata.json").write_text(json.dumps(manifest))
    return ids.tolist()


def test_ten_thousand_shards(tmp_path: Path) -> None:
    ids = many_shards(tmp_path / "d", 10_000)
    loader = Loader(tmp_path / "d", seq_len=50, batch_size=16, epochs=1, read_ahead=0)
    wanted = windows(ids, 50)
    assert len(loader.examples) == len(wanted) == 599
    seen: list[Any] = []
    most = 0
    for batch in loader:
        seen += zip(batch.input_ids.tolist(), batch.targets.tolist())
        if os.path.isdir("/proc/self/fd"):
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert sorted(seen) == sorted(wanted)
    assert most < 200
    assert loader.memory() < 10_000 * 100 + 2 * 16 * 50 * 16 + (2 << 20)
    (tmp_path / "d/train/shard_09876.bin").unlink()
    with pytest.raises(DatasetError, match=r"shard_09876\.bin is missing"):
        Loader(tmp_path / "d", seq_len=50)


def test_few_files_may_be_open(tmp_path: Path) -> None:
    """Where the process may have fewer than the loader would like."""
    resource = pytest.importorskip("resource")
    ids = many_shards(tmp_path / "d", 300)
    loader = Loader(tmp_path / "d", seq_len=50, epochs=1, shuffle=False, read_ahead=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, hard))
    try:
        seen = [row for batch in loader for row in zip(batch.input_ids.tolist(), batch.targets.tolist())]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == windows(ids, 50)


def test_memory_is_told_in_advance(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "d", documents(1, 60))
    loader = Loader(path, seq_len=32, batch_size=16, micro_batch=4, read_ahead=3)
    assert loader.memory() - Loader(path, seq_len=32, batch_size=16, micro_batch=2, read_ahead=3).memory() == (
        (5 * 2 + 2) * 2 * 32 * 8
    )
    assert loader.memory(micro_batch=8) - loader.memory() == (5 * 2 + 2) * 4 * 32 * 8
    masks = Loader(path, seq_len=32, batch_size=16, micro_batch=4, read_ahead=3, document_mask=True)
    assert masks.memory() - loader.memory() == 5 * 2 * 4 * 32 * 8
    assert sum(1 for _ in itertools.islice(loader, 9)) == 9
