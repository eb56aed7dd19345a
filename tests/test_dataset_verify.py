"""`verify` finds what is wrong, each thing that can be; `adopt` takes in what was moved in by hand."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracles_dataset import byte_tokenizer, checksums, write_dataset, xxh64  # noqa: F401
from ramlet import Dataset
from ramlet.dataset import adopt as adopt_module
from ramlet.dataset import shard_check
from ramlet.dataset.adopt import adopt
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.verify import verify
from ramlet.errors import DatasetError
from test_dataset_reader import TRAIN, VAL, text_ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d", TRAIN, VAL)


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads((path / "dataset_metadata.json").read_text())
    edit(record)
    (path / "dataset_metadata.json").write_text(json.dumps(record))


def patch(path: Path, name: str, at: int, data: bytes, *, resum: bool = True) -> None:
    """Other bytes in a file; with `resum` the manifest's checksum follows, so that only content tells."""
    file = path / name
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)
    if resum:
        text = (path / "dataset_metadata.json").read_text()
        record = json.loads(text)
        for split in record["splits"].values():
            for shard in split["shards"]:
                for key, checksum in (("file", "xxh64"), ("index", "index_xxh64")):
                    if shard[key] == name:
                        shard[checksum] = f"{xxh64(bytes(content)):016x}"
        (path / "dataset_metadata.json").write_text(json.dumps(record))


def lines(path: Path) -> list[str]:
    return [str(problem) for problem in verify(path).problems]


class TestVerify:
    @pytest.mark.parametrize("large", [False, True])
    @pytest.mark.parametrize("pack", [None, 1, 7, 64])
    @pytest.mark.parametrize("end", [False, True])
    @pytest.mark.parametrize("block", [5, 1 << 19])
    def test_sound_datasets(
        self, tmp_path: Path, large: bool, pack: int | None, end: bool, block: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shard_check, "BLOCK_IDS", block)
        monkeypatch.setattr(shard_check, "BLOCK_ENDS", block)
        tokenizer = byte_tokenizer(large=large)
        path = write_dataset(tmp_path / "d", TRAIN, VAL, tokenizer=tokenizer, end=end, pack=pack, tokens_per_shard=200)
        seen: list[tuple[int, int]] = []
        report = verify(path, progress=lambda done, total: seen.append((done, total)))
        assert report.problems == []
        assert report.notes == []
        assert report.sound
        assert seen[-1][0] == seen[-1][1] == report.bytes > 0

    def test_a_flipped_bit(self, path: Path) -> None:
        patch(path, "train/shard_00001.bin", 6, b"\x07", resum=False)
        assert lines(path) == [
            "train/shard_00001.bin: its checksum differs from the manifest: it was changed or damaged"
        ]

    def test_sizes_and_missing_files_all_at_once(self, path: Path) -> None:
        with open(path / "train/shard_00000.bin", "ab") as file:
            file.write(b"\0")
        (path / "val/shard_00000.idx").write_bytes(b"")
        (path / "train/shard_00002.bin").unlink()
        (path / "tokenizer.json").unlink()
        assert lines(path) == [
            "train/shard_00000.bin: 133 bytes instead of 132",
            "train/shard_00002.bin: missing",
            "val/shard_00000.idx: 0 bytes instead of 16",
            "tokenizer.json: missing",
        ]

    def test_ids_beyond_the_vocabulary(self, path: Path) -> None:
        patch(path, "train/shard_00000.bin", 8, struct.pack("<H", 300))
        assert lines(path) == [
            "train/shard_00000.bin: ids beyond the vocabulary of 257: 300 at position 4",
            # Position 4 is where the second document should end.
            "train/shard_00000.idx: documents without the end id 256: one ends at 5",
        ]

    @pytest.mark.parametrize(
        ("ends", "problem"),
        [
            ((2, 2, 66), "its ends are not increasing: 2 comes after 2"),
            ((0, 5, 66), "its ends are not increasing: 0 comes after 0"),
            ((2, 5, 67), "its ends go beyond the shard: 67 of 66 ids"),
            ((2, 5, 64), "documents without the end id 256: one ends at 64"),
        ],
    )
    def test_ends(self, path: Path, ends: tuple[int, ...], problem: str) -> None:
        patch(path, "train/shard_00000.idx", 0, struct.pack("<3Q", *ends))
        assert f"train/shard_00000.idx: {problem}" in lines(path)

    def test_the_last_end(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", [[1, 2], [3, 4, 5]], end=False)
        patch(path, "train/shard_00000.idx", 8, struct.pack("<Q", 4))
        assert lines(path) == ["train/shard_00000.idx: the last document ends at 4, but the shard has 5 ids"]

    def test_packed_rules(self, tmp_path: Path) -> None:
        documents = [[1, 2, 3], [4, 5], [6, 7]]  # with the end id: 4, 3 and 3 ids, a sequence of 5 each
        for number, (file, at, data, problem) in enumerate(
            [
                ("bin", 8, struct.pack("<H", 9), "bin: padding that is not the pad id 256: at position 4"),
                ("idx", 0, struct.pack("<3Q", 4, 12, 13), "idx: a piece crosses a sequence of 5: it ends at 12"),
                ("idx", 0, struct.pack("<3Q", 4, 5, 8), "idx: a sequence with nothing but padding"),
            ]
        ):
            path = write_dataset(tmp_path / f"{number}", documents, pack=5)
            patch(path, f"train/shard_00000.{file}", at, data)
            assert any(problem in line for line in lines(path)), lines(path)

    @pytest.mark.parametrize(
        ("edit", "problem"),
        [
            (lambda m: m["ledger"]["documents"].update(read=99), "ledger: 100 documents were read or cut"),
            (lambda m: m["ledger"]["bytes"].update(kept=1), "ledger: 337 bytes were read"),
            (lambda m: m["ledger"].update(characters=7), "ledger: it is not the sum of the runs"),
            (lambda m: m["runs"][0]["ledger"]["bytes"].update(read=0), "ledger of run 0: 0 bytes were read"),
            (lambda m: m["splits"]["train"].update(tokens=5), "manifest: train has 5 tokens, but its shards have 332"),
            (lambda m: m["splits"]["val"].update(documents=5), "manifest: val has 5 documents, but its shards have 2"),
            (lambda m: m.update(vocab_size=256), "manifest: end_id 256 is beyond the vocabulary of 256"),
            (lambda m: m.update(vocab_size=70_000), "manifest: ids of 70,000 tokens do not fit uint16"),
            (lambda m: m.update(lengths=[1]), "manifest: lengths has 1 document, but 9 were kept"),
            (lambda m: m["tokenizer"].update(fingerprint="ab"), "tokenizer.json: not the tokenizer that made"),
            (lambda m: m.update(tokens_per_shard=20), "manifest: train/shard_00000.bin has more than the 20 tokens"),
            (lambda m: m["splits"]["val"]["shards"][0].update(run=4), "manifest: val/shard_00000.bin is from run 4"),
            (lambda m: m["splits"]["train"]["shards"].pop(0), "manifest: shard 0 of train is named"),
        ],
    )
    def test_the_manifest(self, path: Path, edit: Callable[[dict[str, Any]], Any], problem: str) -> None:
        change(path, edit)
        assert any(line.startswith(problem) for line in lines(path)), lines(path)

    def test_packed_totals(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=16)
        change(path, lambda m: m["packed"].update(pieces=1, padding=2, sequences=3))
        assert sum("are listed, but the shards have" in line for line in lines(path)) == 3

    def test_files_that_no_one_knows(self, path: Path) -> None:
        (path / "train/shard_00009.bin").write_bytes(b"\0\0")
        (path / "train/notes.txt").write_text("")
        (path / "val/.shard_00001.bin.ramlet-tmp").write_text("")
        report = verify(path)
        assert [str(problem) for problem in report.problems] == ["train/shard_00009.bin: not in the manifest"]
        assert [problem.file for problem in report.problems] == report.adoptable
        assert report.adoptable == ["train/shard_00009.bin"]
        assert report.notes == [
            "train/notes.txt: not a file of the dataset",
            "val/.shard_00001.bin.ramlet-tmp: left by a write that was killed",
        ]

    def test_an_unreadable_tokenizer(self, path: Path) -> None:
        (path / "tokenizer.json").write_text("{")
        (problem,) = verify(path).problems
        assert problem.file == "tokenizer.json"


def ids_file(path: Path, ids: list[int], ends: list[int] | None = None) -> None:
    path.write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    if ends is not None:
        path.with_suffix(".idx").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))


class TestAdopt:
    def test_nothing_to_adopt(self, path: Path) -> None:
        before = (path / "dataset_metadata.json").read_bytes()
        assert adopt(path).shards == ()
        assert (path / "dataset_metadata.json").read_bytes() == before

    def test_gaps_collisions_and_missing_indices(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adopt_module, "BLOCK_IDS", 2)
        count = len(Dataset(path).shards("train"))
        old = [ids.tolist() for ids in Dataset(path).documents("train")]
        # The names that 2, 3b and "copy" want are held by others, which want others' in turn.
        ids_file(path / "train/shard_00002 (1).bin", [1, 1, 256, 1, 256])
        ids_file(path / f"train/shard_{count:05}.bin", [2, 256], [2])
        ids_file(path / f"train/shard_{count + 2:05}.bin", [3, 3, 256, 3], [3, 4])
        ids_file(path / "train/shard_00077.bin", [4, 256])
        ids_file(path / "train/shard_copy.bin", [5, 5])
        ids_file(path / "val/shard_7.bin", [6, 256])
        adopted = adopt(path)
        assert dict(adopted.renamed)["train/shard_00077.bin"] == f"train/shard_{count + 3:05}.bin"
        report = verify(path)
        assert report.problems == []
        dataset = Dataset(path)
        assert [ids.tolist() for ids in dataset.documents("train")] == [
            *old, [1, 1, 256], [1, 256], [2, 256], [3, 3, 256], [3], [4, 256], [5, 5],
        ]  # fmt: skip
        assert [ids.tolist() for ids in dataset.documents("val")][-1] == [6, 256]
        assert dataset.manifest.runs[-1]["id"] == "adopted"
        assert (adopted.tokens, adopted.documents) == (17, 8)
        assert sorted(os.listdir(path)) == sorted(
            ["dataset_metadata.json", "tokenizer.json", "stats.json", "train", "val"]
        )
        assert adopt(path).shards == ()

    def test_documents_of_only_the_end_id(self, path: Path) -> None:
        ids_file(path / "train/shard_x.bin", [256, 1, 256, 256])
        assert adopt(path).documents == 3
        assert verify(path).problems == []

    def test_packed(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, VAL, pack=4)
        new = path / "val/shard_00044.bin"
        ids_file(new, [1, 2, 256, 256, 3, 3, 3, 256], [3, 8])
        adopt(path)
        assert verify(path).problems == []
        assert [ids.tolist() for ids in Dataset(path).documents("val")][-2:] == [[1, 2, 256], [3, 3, 3, 256]]
        ids_file(path / "val/shard_9.bin", [1, 2, 3, 256])
        with pytest.raises(DatasetError, match=r"the dataset is packed, so it needs shard_9\.idx"):
            adopt(path)

    @pytest.mark.parametrize(
        ("ids", "ends", "sentence"),
        [
            ([], None, "its 0 bytes are not uint16 ids"),
            ([1, 257], None, r"shard_x\.bin: ids beyond the vocabulary of 257: 257 at position 1; nothing was changed"),
            ([1, 2], [1], r"the last document ends at 1, but the shard has 2 ids"),
            ([1, 2], [2, 1], "its ends are not increasing"),
            ([1, 2], [], "its 0 bytes are not uint64 ends"),
        ],
    )
    def test_what_is_refused_changes_nothing(
        self, path: Path, ids: list[int], ends: list[int] | None, sentence: str
    ) -> None:
        ids_file(path / "train/shard_a.bin", [3, 256])
        ids_file(path / "train/shard_x.bin", ids, ends)
        before = {name: (path / name).read_bytes() for name in self.files(path)}
        with pytest.raises(DatasetError, match=sentence):
            adopt(path)
        assert {name: (path / name).read_bytes() for name in self.files(path)} == before

    def test_no_end_id_to_cut_at(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "d", TRAIN, end=False)
        ids_file(path / "train/shard_x.bin", [1, 2])
        with pytest.raises(DatasetError, match="split into documents at the end id, but this dataset has none"):
            adopt(path)

    @pytest.mark.parametrize("stop_at", range(12))
    def test_killed_at_any_rename(self, path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The old state or the new; the same command finishes, and no .idx loses its .bin."""
        count = len(Dataset(path).shards("train"))
        new = text_ids(1, 5, 9)
        for number, document in zip([1, count, count + 1, count + 3, 90], new):
            stem = f"shard_{number:05}" + ("b" if number == 1 else "")
            # Cut in two where no end id is: only the .idx knows.
            ids_file(path / f"train/{stem}.bin", [*document, 7], [len(document), len(document) + 1])
        before = [ids.tolist() for ids in Dataset(path).documents("train")]
        left = stop_at
        rename, replace = Path.rename, os.replace

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def one(*arguments: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1
                return call(*arguments)

            return one

        monkeypatch.setattr(Path, "rename", counted(rename))
        monkeypatch.setattr(os, "replace", counted(replace))
        try:
            adopt(path)
        except KeyboardInterrupt:
            assert [ids.tolist() for ids in Dataset(path).documents("train")] == before
        monkeypatch.setattr(Path, "rename", rename)
        monkeypatch.setattr(os, "replace", replace)
        adopt(path)
        assert verify(path).problems == []
        expected = [part for document in new for part in (document, [7])]
        assert [ids.tolist() for ids in Dataset(path).documents("train")] == before + expected

    @staticmethod
    def files(path: Path) -> list[str]:
        return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())

    def test_the_manifest_is_still_valid(self, path: Path) -> None:
        ids_file(path / "train/shard_x.bin", [1] * 1024 + [256])
        adopt(path)
        manifest = Manifest.read(path)
        assert manifest.lengths[10] == 1
        assert sum(manifest.lengths) == 10
