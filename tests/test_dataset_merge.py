"""Datasets put together are what their documents, one after another, would have been."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oracles_dataset import byte_tokenizer, checksums, write_dataset  # noqa: F401
from ramlet import Dataset, DatasetError, SettingsError, Tokenizer
from ramlet.dataset.merge import merge
from ramlet.dataset.verify import verify
from test_dataset_reader import TRAIN, VAL, text_ids


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("pack", [None, 16])
def test_three_into_one(tmp_path: Path, link: bool, pack: int | None) -> None:
    parts = [
        write_dataset(tmp_path / "a", TRAIN, VAL, pack=pack, run="aa"),
        write_dataset(tmp_path / "b", text_ids(2, 30), pack=pack, run="bb"),
        write_dataset(tmp_path / "c", [], text_ids(3, 9), pack=pack, tokens_per_shard=1000, run="cc"),
    ]
    seen: list[tuple[int, int]] = []
    merged = merge(parts, tmp_path / "m", link=link, progress=lambda done, total: seen.append((done, total))).manifest
    assert seen[-1][0] == seen[-1][1]
    result = Dataset(tmp_path / "m")
    assert result.manifest.splits == merged.splits
    for split in ("train", "val"):
        documents = [ids.tolist() for part in parts for ids in Dataset(part).documents(split)]
        assert [ids.tolist() for ids in result.documents(split)] == documents
    assert verify(tmp_path / "m").problems == []
    assert [run["id"] for run in result.manifest.runs] == ["aa", "bb", "cc"]
    assert [shard.run for shard in result.shards("val")] == [0, 2]
    assert merged.ledger["documents"]["dropped"]["too_short"] == 6
    assert merged.ledger["input"]["skipped_files"] == {"binary": 3}
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "m"]
    linked = (tmp_path / "m/train/shard_00000.bin").stat().st_nlink == 2
    assert linked == link


def test_a_merged_dataset_merges_again(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        write_dataset(tmp_path / name, text_ids(seed, 20), VAL)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    merge([tmp_path / "ab", tmp_path / "c"], tmp_path / "abc")
    assert verify(tmp_path / "abc").problems == []
    assert Dataset(tmp_path / "abc").document_count("train") == 60


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"tokenizer": Tokenizer.from_merges({i: bytes([255 - i]) for i in range(256)}, [], ["<|endoftext|>"])},
             "their tokenizer differs"),
            ({"tokenizer": byte_tokenizer(large=True)}, "their tokenizer differs"),
            ({"end": False}, r"their end id differs \(256 and none\)"),
            ({"pack": 8}, r"their packed sequence length differs \(none and 8\)"),
        ],
    )  # fmt: skip
    def test_different_datasets(self, tmp_path: Path, options: dict[str, object], words: str) -> None:
        first = write_dataset(tmp_path / "a", TRAIN)
        other = write_dataset(tmp_path / "b", TRAIN, **options)  # type: ignore[arg-type]
        with pytest.raises(DatasetError, match=f"a and .*b cannot be merged: {words}"):
            merge([first, other], tmp_path / "m")
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_a_result_that_exists_and_inputs_that_do_not(self, tmp_path: Path) -> None:
        first, other = (write_dataset(tmp_path / name, TRAIN) for name in "ab")
        with pytest.raises(SettingsError, match="b already exists and has something else in it: choose another folder"):
            merge([first, other], other)
        with pytest.raises(SettingsError, match="at least two datasets"):
            merge([first], tmp_path / "m")
        with pytest.raises(SettingsError, match="is given twice"):
            merge([first, other, tmp_path / "b/../a"], tmp_path / "m")
        with pytest.raises(DatasetError, match="no such folder"):
            merge([first, tmp_path / "none"], tmp_path / "m")

    def test_damage_leaves_nothing(self, tmp_path: Path) -> None:
        first, other = (write_dataset(tmp_path / name, TRAIN) for name in "ab")
        shard = other / "train/shard_00001.bin"
        shard.write_bytes(bytes(shard.stat().st_size))
        with pytest.raises(DatasetError, match=r"shard_00001\.bin is damaged: its checksum differs from the manifest"):
            merge([first, other], tmp_path / "m")
        shard.unlink()
        with pytest.raises(DatasetError, match=r"shard_00001\.bin is missing: run `ramlet data verify .*b`"):
            merge([first, other], tmp_path / "m")
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    @pytest.mark.parametrize("suffix", ["bin", "idx"])
    def test_a_file_that_is_far_too_large_is_not_copied(self, tmp_path: Path, suffix: str) -> None:
        first, other = (write_dataset(tmp_path / name, TRAIN) for name in "ab")
        os.truncate(other / f"train/shard_00001.{suffix}", 1 << 40)
        with pytest.raises(DatasetError, match=rf"shard_00001\.{suffix} is larger than"):
            merge([first, other], tmp_path / "m")
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]

    def test_what_a_killed_run_left_is_replaced(self, tmp_path: Path) -> None:
        first, other = (write_dataset(tmp_path / name, TRAIN) for name in "ab")
        (tmp_path / ".m.ramlet-tmp/train").mkdir(parents=True)
        (tmp_path / ".m.ramlet-tmp/train/shard_00099.bin").write_bytes(b"old")
        merge([first, other], tmp_path / "m")
        assert verify(tmp_path / "m").problems == []
        assert sorted(os.listdir(tmp_path)) == ["a", "b", "m"]
