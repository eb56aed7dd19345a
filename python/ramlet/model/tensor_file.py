"""Tensors in a file and back, in the safetensors format, through a buffer of fixed size.

    checksum = write_tensors("model.safetensors", {"head": head, "norm": norm}, {"format": "pt"})
    read_tensors_into("model.safetensors", {"head": head, "norm": norm})
    read_header("model.safetensors").tensors["head"].shape

The file:

    8 bytes        the header's length N, little-endian
    N bytes        JSON: {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...,
                   "__metadata__": {text: text}}, filled up with spaces to a multiple of 8
    the rest       the tensors' elements, little-endian, row by row, without a gap

No engine is needed to read or to copy a file. A tensor of an engine is anything that is `Stored`: it hands out its
bytes in pieces, and takes them back, so tensors may be views, on any device and of another type than the file's, and at
no time is more than 16 MiB of them held a second time.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import Any, Protocol

from ramlet.errors import ModelError
from ramlet.model.dtypes import DTYPES, convert
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import open_regular, parse_json

__all__ = [
    *("Entry", "Header", "Stored"),
    *("check_tensor", "copy_tensors", "read_header", "read_tensors_into", "write_tensors"),
]

BUFFER = 16 << 20
LONGEST_HEADER = 100_000_000
"""As in the library: a longer one is no header but another kind of file."""


class Stored(Protocol):
    """A tensor of an engine that can be written to a file and read from one."""

    @property
    def dtype(self) -> str:
        """A key of `DTYPES`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        """Its elements as `dtype`, row by row, in pieces of at most so many bytes, each valid until the next."""

    def places(self, dtype: str, most: int) -> Iterator[memoryview]:
        """The same to write into: what is put into a piece is taken over when the next is asked for."""

    def copied(self) -> Stored:
        """A copy in RAM, which no later step changes."""


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the file, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """From the beginning of the file, in bytes."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Entry]
    metadata: dict[str, str]


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Stored],
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: str | None = None,
) -> str:
    """Writes the tensors, whole or not at all, and returns the file's XXH64; `dtype` is for the floating ones."""
    listed = {name: (_stored(tensor.dtype, dtype), tensor.shape) for name, tensor in tensors.items()}
    return _write(path, listed, lambda name: tensors[name].pieces(listed[name][0], BUFFER), metadata)


def copy_tensors(
    sources: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: str | None = None,
) -> str:
    """Writes one file of tensors that are in others, each named with its file; they are never held whole."""
    headers = {source: read_header(source) for source in set(sources.values())}
    entries = {name: headers[source].tensors[name] for name, source in sources.items()}
    listed = {name: (_stored(entry.dtype, dtype), entry.shape) for name, entry in entries.items()}
    given, made = memoryview(bytearray(BUFFER)), memoryview(bytearray(BUFFER))

    def data(name: str) -> Iterator[memoryview]:
        entry, kind = entries[name], listed[name][0]
        item = DTYPES[entry.dtype].itemsize
        most = BUFFER // max(item, DTYPES[kind].itemsize) * item
        with _opened(sources[name]) as file:
            file.seek(entry.start)
            for start in range(0, entry.size, most):
                piece = given[: min(most, entry.size - start)]
                _fill(file, piece, sources[name])
                if entry.dtype != kind:
                    try:
                        piece = convert(piece, entry.dtype, kind, made)
                    except OverflowError:
                        raise ModelError(f"{name} has numbers too large for fp16: take bf16 or fp32") from None
                yield piece

    return _write(path, listed, data, metadata)


def _stored(given: str, wanted: str | None) -> str:
    return wanted if wanted is not None and DTYPES[given].floating else given


def _write(
    path: str | os.PathLike[str],
    listed: Mapping[str, tuple[str, tuple[int, ...]]],
    data: Callable[[str], Iterator[memoryview]],
    metadata: Mapping[str, str] | None,
) -> str:
    # The widest type first, or one behind an odd number of bytes would lie where no reader can view it.
    order = sorted(listed, key=lambda name: -DTYPES[listed[name][0]].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        dtype, shape = listed[name]
        start, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, binary=True) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for memory in data(name):
                file.write(memory)
        file.flush()
        return file_checksum(file.name)


def read_tensors_into(path: str | os.PathLike[str], tensors: Mapping[str, Stored], *, cast: bool = False) -> Header:
    """Fills the tensors from the file; one of another type is refused, or cast where that is wanted.

    The file may hold more than is asked for. After an error the tensors hold anything.
    """
    header = read_header(path)
    for name, tensor in tensors.items():
        check_tensor(path, header, name, tensor.shape)
        held, wanted = DTYPES[header.tensors[name].dtype].name, DTYPES[tensor.dtype].name
        if held != wanted and not cast:
            raise ModelError(f"{path} holds {name} as {held}, where {wanted} is wanted")
    with _opened(path) as file:
        for name in sorted(tensors, key=lambda name: header.tensors[name].start):
            entry = header.tensors[name]
            file.seek(entry.start)
            for place in tensors[name].places(entry.dtype, BUFFER):
                _fill(file, place, path)
    return header


def check_tensor(path: str | os.PathLike[str], header: Header, name: str, shape: tuple[int, ...]) -> None:
    """Whether the file has this tensor, in this size."""
    entry = header.tensors.get(name)
    if entry is None:
        raise ModelError(f"{path} holds no tensor {name}: it is not the file of this model")
    if entry.shape != shape:
        raise ModelError(
            f"{path} holds {name} as {_size(entry.shape)}, not {_size(shape)}: it is not the file of this model"
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
    entry = Entry(given["dtype"], shape, base + start)
    if end - start != entry.size:  # a KeyError where the type is unknown
        raise ValueError
    return entry


def _broken(path: str | os.PathLike[str], how: str) -> ModelError:
    return ModelError(f"{path} is no whole safetensors file: {how}; restore it, or take another")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _fill(file: FileIO, memory: memoryview, path: str | os.PathLike[str]) -> None:
    """`readinto` may give less than was asked for."""
    while memory:
        count = file.readinto(memory)
        if not count:
            raise ModelError(f"{path} shrank while it was read: leave it alone, and run the same again")
        memory = memory[count:]
