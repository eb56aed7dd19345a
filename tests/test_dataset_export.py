"""Exports, byte by byte, and as their readers open them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles_dataset import byte_tokenizer, checksums, write_dataset  # noqa: F401
from ramlet import Dataset, DatasetError, SettingsError
from ramlet.dataset.export import hf, llm_c, megatron
from ramlet.dataset.export.run import export
from test_dataset_reader import TRAIN, VAL, text_ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d", TRAIN, VAL)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "large", [*TRAIN, [69_999, 1]], tokenizer=byte_tokenizer(large=True))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "packed", TRAIN, VAL, pack=16)


def flat(documents: list[list[int]], end: int = 256) -> list[int]:
    return [one for document in documents for one in [*document, end]]


def rows(path: Path, split: str) -> list[list[int]]:
    """The sequences of a packed dataset."""
    dataset = Dataset(path)
    result: list[list[int]] = dataset.tokens(split).reshape(-1, dataset.sequence_length or 1).tolist()
    return result


class TestNanoGpt:
    def test_as_nanogpt_maps_it(self, path: Path, tmp_path: Path) -> None:
        done = export(path, "nanogpt", tmp_path / "out")
        assert (done.files, done.notes, done.tokens) == (["train.bin", "val.bin", "meta.pkl"], [], 337)
        assert sorted(os.listdir(tmp_path / "out")) == [".ramlet-export.json", "meta.pkl", "train.bin", "val.bin"]
        for split, documents in (("train", TRAIN), ("val", VAL)):
            assert np.memmap(tmp_path / f"out/{split}.bin", np.uint16, "r").tolist() == flat(documents)

    def test_a_large_vocabulary_is_told(self, large: Path, tmp_path: Path) -> None:
        done = export(large, "nanogpt", tmp_path / "out")
        assert done.files == ["train.bin", "meta.pkl"]
        assert "uint32" in done.notes[0]
        ids = np.fromfile(tmp_path / "out/train.bin", "<u4").tolist()
        assert ids == flat([*TRAIN, [69_999, 1]], 70_001)


class TestNpy:
    def test_as_numpy_loads_it(self, path: Path, large: Path, packed: Path, tmp_path: Path) -> None:
        export(path, "npy", tmp_path / "a", splits=["val"])
        assert sorted(os.listdir(tmp_path / "a")) == [".ramlet-export.json", "val.npy"]
        array = np.load(tmp_path / "a/val.npy", mmap_mode="r")
        assert (array.dtype, array.tolist()) == (np.uint16, flat(VAL))
        export(large, "npy", tmp_path / "b")
        assert np.load(tmp_path / "b/train.npy").dtype == np.uint32
        export(packed, "npy", tmp_path / "c")
        assert np.load(tmp_path / "c/train.npy").tolist() == rows(packed, "train")


def read_llm_c(path: Path) -> list[int]:
    """As the header says: 256 int32, of which the third counts the uint16 that follow."""
    data = path.read_bytes()
    header = struct.unpack("<256i", data[:1024])
    assert header[:2] == (20240520, 1)
    assert not any(header[3:])
    assert len(data) == 1024 + 2 * header[2]
    return list(struct.unpack(f"<{header[2]}H", data[1024:]))


class TestLlmC:
    @pytest.mark.parametrize("size", [10, 100, 331, 332, 333, 100_000_000])
    def test_byte_by_byte(self, path: Path, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llm_c, "FILE_TOKENS", size)
        done = export(path, "llm.c", tmp_path / "out", name="tiny")
        for split, documents in (("train", TRAIN), ("val", VAL)):
            names = [name for name in done.files if f"_{split}_" in name]
            assert names == [f"tiny_{split}_{number:06}.bin" for number in range(len(names))]
            parts = [read_llm_c(tmp_path / "out" / name) for name in names]
            expected = [one for document in documents for one in [256, *document]]
            assert [one for part in parts for one in part] == expected
            assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
            assert parts[-1]

    def test_documents_without_an_end_id_get_theirs(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", [[1, 2], [3], [4, 4]])
        shard = path / "train/shard_00000.bin"
        shard.write_bytes(struct.pack("<8H", 1, 2, 256, 3, 5, 4, 4, 256))
        export(path, "llm.c", tmp_path / "out")
        assert read_llm_c(tmp_path / "out/out_train_000000.bin") == [256, 1, 2, 256, 3, 5, 256, 4, 4]

    def test_what_it_cannot_hold(self, large: Path, packed: Path, tmp_path: Path) -> None:
        bare = write_dataset(tmp_path / "bare", TRAIN, end=False)
        for source, sentence in (
            (large, "llm.c reads uint16 ids, but the 70,002 tokens"),
            (packed, "is packed, but llm.c packs by itself"),
            (bare, "separates documents by an end id"),
        ):
            with pytest.raises(DatasetError, match=sentence):
                export(source, "llm.c", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / ".out.ramlet-tmp").exists()

    @pytest.mark.parametrize("name", ["../other", "a/b", "a\0b", "a" * 300])
    def test_names_that_are_no_beginning_of_a_file(self, tmp_path: Path, name: str) -> None:
        path = write_dataset(tmp_path / "d", TRAIN)
        with pytest.raises(SettingsError, match="give a short one without slashes"):
            export(path, "llm.c", tmp_path / "out", name=name)
        assert os.listdir(tmp_path) == ["d"]


def read_megatron(prefix: Path) -> list[list[int]]:
    """One field after another, as the layout is written down."""
    index, data = prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    at = 9 + 8 + 1 + 8 + 8
    sizes = struct.unpack_from(f"<{sequences}i", index, at)
    at += 4 * sequences
    places = struct.unpack_from(f"<{sequences}q", index, at)
    at += 8 * sequences
    firsts = struct.unpack_from(f"<{documents}q", index, at)
    assert at + 8 * documents == len(index)
    assert version == 1
    assert firsts == tuple(range(sequences + 1))
    letter = {8: "H", 4: "i"}[code]
    width = struct.calcsize(f"<{letter}")
    assert sum(sizes) * width == len(data)
    return [list(struct.unpack_from(f"<{size}{letter}", data, place)) for size, place in zip(sizes, places)]


class TestMegatron:
    @pytest.mark.parametrize("block", [2, 1 << 15])
    def test_byte_by_byte(
        self, path: Path, large: Path, packed: Path, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(megatron, "BLOCK_ENDS", block)
        done = export(path, "megatron", tmp_path / "a")
        assert done.files == ["train.bin", "train.idx", "val.bin", "val.idx"]
        assert read_megatron(tmp_path / "a/train") == [[*document, 256] for document in TRAIN]
        assert read_megatron(tmp_path / "a/val") == [[*document, 256] for document in VAL]
        export(large, "megatron", tmp_path / "b")
        assert read_megatron(tmp_path / "b/train")[-1] == [69_999, 1, 70_001]
        export(packed, "megatron", tmp_path / "c")
        assert read_megatron(tmp_path / "c/train") == rows(packed, "train")


class TestHf:
    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pyarrow", reason="the extra hf is not installed")
        monkeypatch.setattr(hf, "FILE_BYTES", 300)

    def arrow_rows(self, folder: Path) -> list[list[int]]:
        import pyarrow as pa

        found: list[list[int]] = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".arrow"):
                with pa.ipc.open_stream(folder / name) as stream:
                    found += stream.read_all()["input_ids"].to_pylist()
        return found

    def test_the_arrow_streams(self, path: Path, large: Path, packed: Path, tmp_path: Path) -> None:
        export(path, "hf", tmp_path / "a")
        assert self.arrow_rows(tmp_path / "a/train") == [[*document, 256] for document in TRAIN]
        assert "data-00000-of-00003.arrow" in os.listdir(tmp_path / "a/train")
        export(large, "hf", tmp_path / "b")
        assert self.arrow_rows(tmp_path / "b/train")[-1] == [69_999, 1, 70_001]
        export(packed, "hf", tmp_path / "c")
        assert self.arrow_rows(tmp_path / "c/train") == rows(packed, "train")

    def test_as_datasets_opens_it(self, path: Path, large: Path, packed: Path, tmp_path: Path) -> None:
        datasets: Any = pytest.importorskip("datasets", reason="datasets, which reads these folders, is not installed")
        export(path, "hf", tmp_path / "a")
        opened = datasets.load_from_disk(str(tmp_path / "a"))
        assert opened["train"]["input_ids"][:] == [[*document, 256] for document in TRAIN]
        assert opened["val"][1] == {"input_ids": [12, 256]}
        assert opened["train"].features["input_ids"].feature.dtype == "uint16"
        export(large, "hf", tmp_path / "b", splits=["train"])
        assert datasets.load_from_disk(str(tmp_path / "b"))["train"][-1] == {"input_ids": [69_999, 1, 70_001]}
        export(packed, "hf", tmp_path / "c")
        assert datasets.load_from_disk(str(tmp_path / "c"))["train"]["input_ids"][:] == rows(packed, "train")

    def test_without_pyarrow(self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

        monkeypatch.setattr(hf, "pa", None)
        with pytest.raises(SettingsError, match=r"needs pyarrow: pip install 'ramlet\[hf\]'"):
            export(path, "hf", tmp_path / "out")


class TestAll:
    def test_refusals(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        only_train = write_dataset(tmp_path / "e", TRAIN)
        nothing = write_dataset(tmp_path / "f", [])
        for source, to, out, splits, sentence in (
            (path, "gguf", "out", None, "unknown format 'gguf': use nanogpt, llm.c, megatron, npy, hf"),
            (path, "npy", "there", None, "there already exists"),
            (path, "npy", "out", ["test"], "unknown split 'test': use train or val"),
            (only_train, "npy", "out", ["val"], "has nothing in val"),
            (nothing, "npy", "out", None, "is empty: there is nothing to export"),
        ):
            with pytest.raises((DatasetError, SettingsError), match=sentence):
                export(source, to, tmp_path / out, splits=splits)

    @pytest.mark.parametrize("to", ["llm.c", "megatron", "hf"])
    def test_ids_that_no_document_has(self, path: Path, tmp_path: Path, to: str) -> None:
        text = (path / "dataset_metadata.json").read_text()
        (path / "dataset_metadata.json").write_text(text.replace('"documents": 3, "bytes"', '"documents": 2, "bytes"'))
        with pytest.raises(DatasetError, match=r"its documents end at 5, the shard at 66"):
            export(path, to, tmp_path / "out")

    @pytest.mark.parametrize("to", ["nanogpt", "llm.c", "megatron", "npy", "hf"])
    def test_progress_and_damage(self, tmp_path: Path, to: str) -> None:
        path = write_dataset(tmp_path / "d", text_ids(5, 50), VAL)
        seen: list[tuple[int, int]] = []
        export(path, to, tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1] > 0
        shard = path / "train/shard_00002.bin"
        shard.write_bytes(shard.read_bytes()[:-2])
        with pytest.raises(DatasetError, match="shorter than the manifest says"):
            export(path, to, tmp_path / "b")
        assert sorted(os.listdir(tmp_path)) == ["a", "d"]
