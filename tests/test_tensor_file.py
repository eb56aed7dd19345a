"""Tensors in a file: against the safetensors library in both directions, and every way a file can be broken."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ramlet.engines.torch.stored import NAMES, _pieces, stored
from ramlet.errors import DiskFull, ModelError
from ramlet.model import tensor_file
from ramlet.model.dtypes import DTYPES
from ramlet.model.tensor_file import Header, read_header

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
]


def write_tensors(
    path: Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str] | None = None,
    dtype: torch.dtype | None = None,
) -> str:
    return tensor_file.write_tensors(path, stored(tensors), metadata, dtype=NAMES.get(dtype))  # type: ignore[arg-type]


def copy_tensors(
    sources: dict[str, Path], path: Path, metadata: dict[str, str] | None = None, dtype: torch.dtype | None = None
) -> str:
    return tensor_file.copy_tensors(sources, path, metadata, dtype=NAMES.get(dtype))  # type: ignore[arg-type]


def read_tensors_into(path: Path, tensors: dict[str, torch.Tensor], *, cast: bool = False) -> Header:
    return tensor_file.read_tensors_into(path, stored(tensors), cast=cast)


def some(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Any bits at all, where all bits are allowed."""
    count = torch.Size(shape).numel()
    most = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, most, (count * dtype.itemsize,), dtype=torch.uint8, generator=torch.manual_seed(seed))
    return raw.view(dtype).view(shape)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit by bit, so that NaN is itself."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    bits = [one.contiguous().view(-1).view(torch.uint8) for one in (left, right)]
    return torch.equal(*bits)


tensors_of_any_kind = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and name.isprintable()),
    st.builds(
        some,
        st.sampled_from(TYPES),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.integers(0, 1000),
    ),
    max_size=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensors")


class TestAgainstTheLibrary:
    @given(tensors_of_any_kind)
    def test_it_reads_what_we_write(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        path = folder / "ours.safetensors"
        write_tensors(path, tensors, {"format": "pt"})
        read = safetensors.torch.load_file(path)
        assert read.keys() == tensors.keys()
        assert all(same(read[name], tensors[name]) for name in tensors)
        with safetensors.safe_open(path, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}

    @given(tensors_of_any_kind)
    def test_we_read_what_it_writes(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        path = folder / "theirs.safetensors"
        safetensors.torch.save_file(tensors, path, {"who": "them"})
        empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        header = read_tensors_into(path, empty)
        assert all(same(empty[name], tensors[name]) for name in tensors)
        assert header.metadata == {"who": "them"}
        assert header.tensors.keys() == tensors.keys()

    def test_a_model_of_another_library(self, tmp_path: Path) -> None:
        wide = torch.randn(300, 7)
        safetensors.torch.save_file({"a": wide.half(), "b": torch.tensor(3.5)}, tmp_path / "x")
        into = {"a": torch.zeros(300, 7), "b": torch.zeros((), dtype=torch.float64)}
        read_tensors_into(tmp_path / "x", into, cast=True)
        assert same(into["a"], wide.half().float())
        assert into["b"].item() == 3.5


class TestPieces:
    """The same with a buffer so small that every tensor takes many."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_file, "BUFFER", 64)

    @pytest.mark.parametrize(
        "view",
        [
            torch.arange(1000).float().view(10, 100),
            torch.arange(1000).float().view(10, 100).t(),
            torch.arange(1000).float().view(10, 10, 10).transpose(0, 2)[::2],
            torch.arange(1000).float()[::3],
            torch.arange(10).float()[:, None].expand(10, 90),
            torch.arange(1000).float().view(1, 10, 100).transpose(1, 2),
            torch.zeros(3, 0, 5),
            torch.tensor(4.0),
        ],
        ids=lambda view: f"{tuple(view.shape)}-{view.stride()}",
    )
    def test_views_of_any_kind(self, tmp_path: Path, view: torch.Tensor) -> None:
        path = tmp_path / "views"
        write_tensors(path, {"it": view, "same memory": view})
        read = safetensors.torch.load_file(path)
        assert same(read["it"], view)
        assert same(read["same memory"], view)
        into = torch.empty_strided(view.shape, view.stride()) if 0 not in view.stride() else torch.empty(view.shape)
        read_tensors_into(path, {"it": into})
        assert same(into, view)

    def test_a_part_of_a_tensor_and_no_other(self, tmp_path: Path) -> None:
        whole = torch.zeros(8, 50)
        write_tensors(tmp_path / "rows", {"it": torch.ones(3, 50)})
        read_tensors_into(tmp_path / "rows", {"it": whole[2:5]})
        assert whole.sum(1).tolist() == [0, 0, 50, 50, 50, 0, 0, 0]

    def test_cast_both_ways(self, tmp_path: Path) -> None:
        exact, count = torch.randn(77, 5), torch.arange(99)
        write_tensors(tmp_path / "cast", {"exact": exact, "count": count}, dtype=torch.bfloat16)
        read = safetensors.torch.load_file(tmp_path / "cast")
        assert same(read["exact"], exact.bfloat16())
        assert same(read["count"], count)
        into = torch.zeros(77, 5)
        read_tensors_into(tmp_path / "cast", {"exact": into}, cast=True)
        assert same(into, exact.bfloat16().float())

    def test_pieces_are_never_larger_than_the_buffer(self) -> None:
        for tensor in (torch.zeros(40, 25), torch.zeros(25, 40).t(), torch.zeros(1, 30, 9).transpose(1, 2)):
            pieces = list(_pieces(tensor, 16))
            assert max(piece.numel() for piece in pieces) <= 16
            assert all(piece.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for piece in pieces)


def test_every_tensor_lies_where_it_can_be_viewed(tmp_path: Path) -> None:
    mixed = {"odd": torch.ones(3, dtype=torch.uint8), "half": torch.ones(3).half(), "wide": torch.ones(3).double()}
    write_tensors(tmp_path / "x", mixed)
    for entry in read_header(tmp_path / "x").tensors.values():
        assert entry.start % DTYPES[entry.dtype].itemsize == 0


class TestCopy:
    @pytest.mark.parametrize("buffer", [64, 1 << 20])
    @pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float64])
    def test_of_several_files_into_one(
        self, tmp_path: Path, dtype: torch.dtype | None, buffer: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tensor_file, "BUFFER", buffer)
        tensors = {"a": torch.randn(40, 7), "b": torch.arange(99), "c": torch.randn(()), "d": torch.zeros(0, 3)}
        write_tensors(tmp_path / "one", {name: tensors[name] for name in "ab"})
        write_tensors(tmp_path / "two", {name: tensors[name] for name in "cd"})
        sources = {"a": tmp_path / "one", "b": tmp_path / "one", "c": tmp_path / "two", "d": tmp_path / "two"}
        checksum = copy_tensors(sources, tmp_path / "both", {"format": "pt"}, dtype=dtype)
        assert checksum == write_tensors(tmp_path / "straight", tensors, {"format": "pt"}, dtype=dtype)

    def test_numbers_too_large_are_told(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", {"a": torch.tensor([1.0, torch.inf, torch.nan]), "b": torch.tensor([7e4])})
        copy_tensors({"a": tmp_path / "x"}, tmp_path / "y", dtype=torch.float16)
        with pytest.raises(ModelError, match="b has numbers too large for fp16: use bf16 or fp32"):
            copy_tensors({"b": tmp_path / "x"}, tmp_path / "z", dtype=torch.float16)
        assert not (tmp_path / "z").exists()


@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_converted_as_torch_does_it(tmp_path: Path, given: torch.dtype, wanted: torch.dtype) -> None:
    numbers = some(given, (70_000,))
    if wanted == torch.float16:
        numbers = numbers.where(~(numbers.isfinite() & ~numbers.half().isfinite()), 0)
    write_tensors(tmp_path / "x", {"a": numbers})
    copy_tensors({"a": tmp_path / "x"}, tmp_path / "y", dtype=wanted)
    read = safetensors.torch.load_file(tmp_path / "y")["a"]
    assert read.dtype == wanted
    finite = ~numbers.isnan()
    assert same(read[finite], numbers.to(wanted)[finite])
    assert bool(read[~finite].isnan().all())


def test_weights_that_learn_are_written_and_read(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(5, 5))
    write_tensors(tmp_path / "w", {"w": weight})
    again = torch.nn.Parameter(torch.zeros(5, 5))
    read_tensors_into(tmp_path / "w", {"w": again})
    assert torch.equal(weight, again)


def test_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    told = write_tensors(tmp_path / "x", {"a": torch.randn(1000)})
    assert told == xxhash.xxh64((tmp_path / "x").read_bytes()).hexdigest()


def test_nothing_is_lost_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    write_tensors(path, {"a": torch.ones(3)})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="no space left to write"):
        write_tensors(path, {"a": torch.zeros(3)})
    assert os.listdir(tmp_path) == ["model"]
    assert torch.equal(safetensors.torch.load_file(path)["a"], torch.ones(3))


def file_with(tmp_path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "broken"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def listed(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


class TestBroken:
    @pytest.mark.parametrize(
        ("header", "how"),
        [
            (b"", "does not start like one"),
            (b"{", "does not start like one"),
            (b"not json", "header cannot be read"),
            (b"\xff\xfe{}", "header cannot be read"),
            (b"[" * 100_000, "header cannot be read"),
            ([1], "header cannot be read"),
            ({"a": 3}, "header cannot be read"),
            ({"a": {"dtype": "F32"}}, "header cannot be read"),
            ({"a": listed(dtype="F31")}, "header cannot be read"),
            ({"a": listed(shape=[3])}, "header cannot be read"),
            ({"a": listed(shape=[-2])}, "header cannot be read"),
            ({"a": listed(shape=[True, 2])}, "header cannot be read"),
            ({"a": listed(offsets=[8, 0])}, "header cannot be read"),
            ({"a": listed(offsets=[-8, 0])}, "header cannot be read"),
            ({"a": listed(offsets=[0.0, 8.0])}, "header cannot be read"),
            ({"a": listed(offsets=[8, 16])}, "a does not start where"),
            ({"a": listed(), "b": listed()}, "b does not start where"),
            ({"a": listed(), "b": listed(offsets=[8, 16])}, "truncated, "),
            ({}, "has 8 bytes after"),
        ],
    )
    def test_one_sentence(self, tmp_path: Path, header: object, how: str) -> None:
        path = file_with(tmp_path, header, bytes(8))
        with pytest.raises(ModelError, match=f"{path} is not a valid safetensors file: .*{how}"):
            read_header(path)

    def test_cut_anywhere(self, tmp_path: Path) -> None:
        path = tmp_path / "whole"
        write_tensors(path, {"a": torch.ones(5), "b": torch.ones(3, dtype=torch.uint8)})
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(ModelError, match="is not a valid safetensors file"):
                read_tensors_into(path, {})

    def test_another_kind_of_file(self, tmp_path: Path) -> None:
        path = tmp_path / "model.bin"
        torch.save({"a": torch.ones(5)}, path)
        with pytest.raises(ModelError, match="does not start like one"):
            read_header(path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"cannot read .*nowhere: No such file"):
            read_header(tmp_path / "nowhere")

    def test_a_file_that_shrinks_while_it_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "x"
        write_tensors(path, {"a": torch.ones(500)})
        header = read_header(path)
        os.truncate(path, 1000)
        monkeypatch.setattr(tensor_file, "read_header", lambda path: header)
        with pytest.raises(ModelError, match="shrank while it was read"):
            read_tensors_into(path, {"a": torch.ones(500)})

    @pytest.mark.parametrize(
        ("wanted", "how"),
        [
            ({"z": torch.ones(5)}, "has no tensor z"),
            ({"a": torch.ones(5, 1)}, "has a as 5, not 5 x 1"),
            ({"a": torch.ones(())}, "has a as 5, not one number"),
            ({"a": torch.ones(5).half()}, "has a as float32, not float16"),
        ],
    )
    def test_not_what_is_wanted(self, tmp_path: Path, wanted: dict[str, torch.Tensor], how: str) -> None:
        write_tensors(tmp_path / "x", {"a": torch.ones(5)})
        with pytest.raises(ModelError, match=how):
            read_tensors_into(tmp_path / "x", wanted)
