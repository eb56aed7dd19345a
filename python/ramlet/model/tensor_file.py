"""Tensors in a file and back, in the safetensors format, through a buffer of fixed size.

    checksum = write_tensors("model.safetensors", {"head": head, "norm": norm}, {"format": "pt"})
    read_tensors_into("model.safetensors", {"head": head, "norm": norm})
    read_header("model.safetensors").tensors["head"].shape

The file:

    8 bytes        the header's length N, little-endian
    N bytes        JSON: {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...,
                   "__metadata__": {text: text}}, filled up with spaces to a multiple of 8
    the rest       the tensors' elements, little-endian, row by row, without a gap

The safetensors library makes a file out of whole tensors on the CPU and refuses those that share memory. Here
tensors may be views, on any device and of another type than the file's, and at no time is more than 16 MiB of them held
a second time. A tensor on the CPU that has the file's type goes straight from its memory to the file and back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import Any

import torch
from torch import Tensor

from ramlet.errors import ModelError
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import open_regular, parse_json

__all__ = ["Entry", "Header", "check_tensor", "copy_tensors", "read_header", "read_tensors_into", "write_tensors"]

BUFFER = 16 << 20
LONGEST_HEADER = 100_000_000
"""As in the library: a longer one is no header but another kind of file."""

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the file, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """From the beginning of the file, in bytes."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Entry]
    metadata: dict[str, str]


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> str:
    """Writes the tensors, whole or not at all, and returns the file's XXH64; `dtype` is for the floating ones."""
    listed = {name: (_stored(tensor.dtype, dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    buffer = _Buffer()

    def data(name: str) -> Iterator[memoryview]:
        kind = listed[name][0]
        for piece in _pieces(tensors[name].detach(), BUFFER // kind.itemsize):
            staged = piece
            if not _in_place(piece, kind):
                staged = buffer.of(kind, piece.shape)
                staged.copy_(piece)
            yield _memory(staged)

    return _write(path, listed, data, metadata)


def copy_tensors(
    sources: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> str:
    """Writes one file of tensors that are in others, each named with its file; they are never held whole."""
    headers = {source: read_header(source) for source in set(sources.values())}
    entries = {name: headers[source].tensors[name] for name, source in sources.items()}
    listed = {name: (_stored(entry.dtype, dtype), entry.shape) for name, entry in entries.items()}
    given, made = _Buffer(), _Buffer()

    def data(name: str) -> Iterator[memoryview]:
        entry, kind = entries[name], listed[name][0]
        most = BUFFER // max(entry.dtype.itemsize, kind.itemsize)
        count = math.prod(entry.shape)
        with _opened(sources[name]) as file:
            file.seek(entry.start)
            for start in range(0, count, most):
                piece = given.of(entry.dtype, torch.Size([min(most, count - start)]))
                _fill(file, _memory(piece), sources[name])
                if entry.dtype != kind:
                    wide = piece
                    piece = made.of(kind, wide.shape)
                    piece.copy_(wide)
                    if kind == torch.float16 and not torch.equal(piece.isfinite(), wide.isfinite()):
                        raise ModelError(f"{name} has numbers too large for fp16: take bf16 or fp32")
                yield _memory(piece)

    return _write(path, listed, data, metadata)


def _stored(given: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and given.is_floating_point else given


def _write(
    path: str | os.PathLike[str],
    listed: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    data: Callable[[str], Iterator[memoryview]],
    metadata: Mapping[str, str] | None,
) -> str:
    # The widest type first, or one behind an odd number of bytes would lie where no reader can view it.
    order = sorted(listed, key=lambda name: -listed[name][0].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        dtype, shape = listed[name]
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, binary=True) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for memory in data(name):
                file.write(memory)
        file.flush()
        return file_checksum(file.name)


def read_tensors_into(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], *, cast: bool = False) -> Header:
    """Fills the tensors from the file; one of another type is refused, or cast where that is wanted.

    The file may hold more than is asked for. After an error the tensors hold anything.
    """
    header = read_header(path)
    for name, tensor in tensors.items():
        check_tensor(path, header, name, tensor)
        entry = header.tensors[name]
        if entry.dtype != tensor.dtype and not cast:
            raise ModelError(f"{path} holds {name} as {_name(entry.dtype)}, where {_name(tensor.dtype)} is wanted")
    buffer = _Buffer()
    with _opened(path) as file:
        for name in sorted(tensors, key=lambda name: header.tensors[name].start):
            entry = header.tensors[name]
            file.seek(entry.start)
            for piece in _pieces(tensors[name].detach(), BUFFER // entry.dtype.itemsize):
                straight = _in_place(piece, entry.dtype)
                staged = piece if straight else buffer.of(entry.dtype, piece.shape)
                _fill(file, _memory(staged), path)
                if not straight:
                    piece.copy_(staged)
    return header


def check_tensor(path: str | os.PathLike[str], header: Header, name: str, like: Tensor) -> None:
    """Whether the file has this tensor, in this size."""
    entry = header.tensors.get(name)
    if entry is None:
        raise ModelError(f"{path} holds no tensor {name}: it is not the file of this model")
    if entry.shape != tuple(like.shape):
        raise ModelError(
            f"{path} holds {name} as {_size(entry.shape)}, not {_size(like.shape)}: it is not the file of this model"
        )


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    try:
        with open_regular(path, ModelError) as file:
            yield file
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def read_header(path: str | os.PathLike[str]) -> Header:
    """What the file says of itself, checked against its size."""
    try:
        with open_regular(path, ModelError) as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or not 2 <= length <= LONGEST_HEADER:
                raise _broken(path, "it does not begin like one")
            if 8 + length > size:
                raise _broken(path, "it is cut short")
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    try:
        listed = parse_json(text.decode())
        metadata = listed.pop("__metadata__", None) or {}
        entries = {name: _entry(given, 8 + length) for name, given in listed.items()}
        named = {key: value for key, value in metadata.items() if isinstance(value, str)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _broken(path, "its header cannot be read") from None
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
        if entry.start != end:
            raise _broken(path, f"{name} does not begin where the tensor before it ends")
        end += entry.size
    if end > size:
        raise _broken(path, f"it is cut short, {size:,} of {end:,} bytes")
    if end < size:
        raise _broken(path, f"it goes on for {plural(size - end, 'byte')} behind its last tensor")
    return Header(entries, named)


def _entry(given: Mapping[str, Any], base: int) -> Entry:
    start, end = given["data_offsets"]
    shape = tuple(given["shape"])
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise ValueError
    entry = Entry(_TYPES[given["dtype"]], shape, base + start)
    if end - start != entry.size:
        raise ValueError
    return entry


def _broken(path: str | os.PathLike[str], how: str) -> ModelError:
    return ModelError(f"{path} is no whole safetensors file: {how}; restore it, or take another")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """Views of at most so many elements that, one after another, are the tensor row by row."""
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        for start in range(0, flat.numel(), most):
            yield flat[start : start + most]
    elif tensor.numel() <= most:
        yield tensor
    else:
        rows = max(1, most // math.prod(tensor.shape[1:]))
        for start in range(0, tensor.shape[0], rows):
            part = tensor[start : start + rows]
            # One row that is too long goes by its own rows.
            yield from _pieces(part[0] if len(part) == 1 else part, most)


def _in_place(piece: Tensor, dtype: torch.dtype) -> bool:
    """Whether the piece's memory is what stands in the file."""
    return piece.device.type == "cpu" and piece.dtype == dtype and piece.is_contiguous()


def _memory(tensor: Tensor) -> memoryview:
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


class _Buffer:
    """Memory for one piece, taken when the first piece needs it."""

    def __init__(self) -> None:
        self._bytes: Tensor | None = None

    def of(self, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        if self._bytes is None:
            self._bytes = torch.empty(BUFFER, dtype=torch.uint8)
        return self._bytes[: shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _fill(file: FileIO, memory: memoryview, path: str | os.PathLike[str]) -> None:
    """`readinto` may give less than was asked for."""
    while memory:
        count = file.readinto(memory)
        if not count:
            raise ModelError(f"{path} shrank while it was read: leave it alone, and run the same again")
        memory = memory[count:]
