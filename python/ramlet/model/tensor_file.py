"""Writes and reads tensors in the safetensors format, through a buffer of fixed size.

    checksum = write_tensors("model.safetensors", {"head": head, "norm": norm}, {"format": "pt"})
    read_tensors_into("model.safetensors", {"head": head, "norm": norm})
    read_header("model.safetensors").tensors["head"].shape

The file:

    8 bytes        the header's length N, little-endian
    N bytes        JSON: {name: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...,
                   "__metadata__": {text: text}}, filled up with spaces to a multiple of 8
    the rest       the tensors' elements, little-endian, row by row, without a gap

Reading or copying a file needs no engine. An engine's tensors are `Stored`: they provide and accept their bytes in
pieces, so they may be views, on any device, and have another dtype than the file; at most 16 MiB of them are ever in
memory twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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

BUFFER = 16 << 20
BLEND_BUFFER = 1 << 17
"""Smaller, because training has no memory set aside for it."""
LONGEST_HEADER = 100_000_000
"""As in the library: a longer one means another kind of file."""


class Stored(Protocol):
    """A tensor of an engine that can be written to a file and read from one."""

    @property
    def dtype(self) -> str:
        """A key of `DTYPES`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        """Its elements as `dtype`, row by row, in pieces of at most `most` bytes, each valid until the next."""

    def places(self, dtype: str, most: int) -> Iterator[memoryview | int]:
        """The same to write into: a piece is stored when the next one is requested. A number instead of a piece is
        that of bytes that belong to another process, and are skipped."""

    def copied(self) -> Stored:
        """A copy in RAM, which later steps do not change. The next copy may be made in the same memory."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset in the file in bytes."""

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
    """Writes the tensors atomically and returns the file's XXH64; `dtype` applies to floating-point tensors."""
    listed = {name: (_stored(tensor.dtype, dtype), tensor.shape) for name, tensor in tensors.items()}
    return _write(path, listed, lambda name: tensors[name].pieces(listed[name][0], BUFFER), metadata)


def send_tensors(tensors: Mapping[str, Stored], *, blended: bool = False) -> None:
    """Where another process writes tensors that are divided among processes: what this one does meanwhile.

    `blended` if the other one calls `blend_tensors`.
    """
    listed = {name: ("F32" if blended else tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    for name in _order(listed):
        for _ in tensors[name].pieces(listed[name][0], BLEND_BUFFER if blended else BUFFER):
            pass


def blend_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Stored],
    before: str | os.PathLike[str] | None,
    share: float,
    metadata: Mapping[str, str],
) -> None:
    """Writes `before + share * (tensors - before)` in fp32; without a file `before`, the tensors themselves."""
    import numpy as np

    entries = read_header(before).tensors if before is not None else {}

    def data(name: str) -> Iterator[memoryview]:
        pieces = tensors[name].pieces("F32", BLEND_BUFFER)
        if before is None:
            yield from pieces
            return
        given = memoryview(bytearray(BLEND_BUFFER))
        with _opened(before) as file:
            file.seek(entries[name].start)
            for piece in pieces:
                mean = given[: len(piece)]
                _fill(file, mean, before)
                numbers, new = np.frombuffer(mean, np.float32), np.frombuffer(piece, np.float32)
                change = new - numbers
                change *= np.float32(share)
                numbers += change
                yield mean

    if before is not None:
        header = Header(entries, {})
        for name, tensor in tensors.items():
            check_tensor(before, header, name, tensor.shape)
    _write(path, {name: ("F32", tensor.shape) for name, tensor in tensors.items()}, data, metadata)


def stored_bytes(*groups: Mapping[str, Stored]) -> int:
    """The memory that copies of the tensors need."""
    tensors = [tensor for group in groups for tensor in group.values()]
    return sum(math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def copy_tensors(
    sources: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Writes one file with tensors from others (name -> file), in pieces; `progress` gets the bytes read, and all."""
    headers = {source: read_header(source) for source in set(sources.values())}
    entries = {name: headers[source].tensors[name] for name, source in sources.items()}
    listed = {name: (_stored(entry.dtype, dtype), entry.shape) for name, entry in entries.items()}
    given, made = memoryview(bytearray(BUFFER)), memoryview(bytearray(BUFFER))
    done, total = 0, sum(entry.size for entry in entries.values())

    def data(name: str) -> Iterator[memoryview]:
        nonlocal done
        entry, kind = entries[name], listed[name][0]
        item = DTYPES[entry.dtype].itemsize
        most = BUFFER // max(item, DTYPES[kind].itemsize) * item
        with _opened(sources[name]) as file:
            file.seek(entry.start)
            for start in range(0, entry.size, most):
                piece = given[: min(most, entry.size - start)]
                _fill(file, piece, sources[name])
                done += len(piece)
                if progress is not None:
                    progress(done, total)
                if entry.dtype != kind:
                    try:
                        piece = convert(piece, entry.dtype, kind, made)
                    except OverflowError:
                        raise ModelError(f"{name} has numbers too large for fp16: use bf16 or fp32") from None
                yield piece

    return _write(path, listed, data, metadata)


def read_rows(path: str | os.PathLike[str], entry: Entry, order: Sequence[int], at_once: int) -> Iterator[memoryview]:
    """The given rows of a tensor, so many at a time; each piece is valid until the next."""
    size = entry.size // entry.shape[0]
    memory = memoryview(bytearray(min(at_once, len(order)) * size))
    with _opened(path) as file:
        for start in range(0, len(order), at_once):
            some = order[start : start + at_once]
            piece = memory[: len(some) * size]
            # One read if the rows follow each other.
            for place, count in ((0, len(some)),) if isinstance(some, range) else ((at, 1) for at in range(len(some))):
                file.seek(entry.start + some[place] * size)
                _fill(file, piece[place * size :][: count * size], path)
            yield piece


def _stored(given: str, wanted: str | None) -> str:
    return wanted if wanted is not None and DTYPES[given].floating else given


def _order(listed: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """The widest dtype first, so that every tensor is aligned and readers can use it in place."""
    return sorted(listed, key=lambda name: -DTYPES[listed[name][0]].itemsize)


def _write(
    path: str | os.PathLike[str],
    listed: Mapping[str, tuple[str, tuple[int, ...]]],
    data: Callable[[str], Iterator[memoryview]],
    metadata: Mapping[str, str] | None,
) -> str:
    order = _order(listed)
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
    """Reads the tensors from the file; another dtype is refused, or converted with `cast`.

    The file may have other tensors too. After an error the contents of the tensors are undefined.
    """
    header = read_header(path)
    for name, tensor in tensors.items():
        check_tensor(path, header, name, tensor.shape)
        held, wanted = DTYPES[header.tensors[name].dtype].name, DTYPES[tensor.dtype].name
        if held != wanted and not cast:
            raise ModelError(f"{path} has {name} as {held}, not {wanted}")
    with _opened(path) as file:
        for name in sorted(tensors, key=lambda name: header.tensors[name].start):
            entry = header.tensors[name]
            file.seek(entry.start)
            for place in tensors[name].places(entry.dtype, BUFFER):
                if isinstance(place, int):
                    file.seek(place, os.SEEK_CUR)
                else:
                    _fill(file, place, path)
    return header


def check_tensor(path: str | os.PathLike[str], header: Header, name: str, shape: tuple[int, ...]) -> None:
    """Refuses a file that does not have this tensor in this shape."""
    entry = header.tensors.get(name)
    if entry is None:
        raise ModelError(f"{path} has no tensor {name}: it does not belong to this model")
    if entry.shape != shape:
        raise ModelError(
            f"{path} has {name} as {_size(entry.shape)}, not {_size(shape)}: it does not belong to this model"
        )


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    try:
        with open_regular(path, ModelError) as file:
            yield file
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def read_header(path: str | os.PathLike[str]) -> Header:
    """A file's header, checked against its size."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or not 2 <= length <= LONGEST_HEADER:
            raise _broken(path, "it does not start like one")
        if 8 + length > size:
            raise _broken(path, "it is truncated")
        text = file.read(length)
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
            raise _broken(path, f"{name} does not start where the tensor before it ends")
        end += entry.size
    if end > size:
        raise _broken(path, f"it is truncated, {size:,} of {end:,} bytes")
    if end < size:
        raise _broken(path, f"it has {plural(size - end, 'byte')} after its last tensor")
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
    return ModelError(f"{path} is not a valid safetensors file: {how}; restore it, or use another")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _fill(file: FileIO, memory: memoryview, path: str | os.PathLike[str]) -> None:
    """`readinto` may read less than requested."""
    while memory:
        count = file.readinto(memory)
        if not count:
            raise ModelError(f"{path} shrank while it was read: do not change it, and run the same command again")
        memory = memory[count:]
