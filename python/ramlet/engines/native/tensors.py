"""Tensors in the memory of the native core as `Stored` ones, for `ramlet.model.tensor_file`.

A tensor of the file's dtype is written from its own memory and read into it. Others are converted piece by piece, in a
buffer of 128 KiB: training has no memory set aside for more. Converting takes three times as much.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from ramlet.model.dtypes import DTYPES, convert
from ramlet.model.names import NamedTensor
from ramlet.model.tensor_file import Stored

PIECE = 1 << 17
WRITABLE = 0x200
"""PyBUF_WRITE."""

_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.argtypes, _memory_at.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object


class Tensor(NamedTuple):
    """As the native core lists them."""

    name: str
    dtype: str
    """A key of `DTYPES`."""
    shape: tuple[int, ...]
    memory: tuple[int, int]
    """Address and bytes."""


def stored(tensors: list[Tensor], owner: Any) -> dict[str, Stored]:
    """The tensors themselves, in the memory of the owner, which is kept alive."""
    return {each.name: StoredMemory(_memory(each), each.dtype, tuple(each.shape), owner) for each in tensors}


def stored_parts(tensors: list[Tensor], parts: Iterator[NamedTensor], owner: Any) -> dict[str, Stored]:
    """Rows of the tensors by other names: the fused matrices as a file has them."""
    by_name = {each.name: each for each in tensors}
    made: dict[str, Stored] = {}
    for part in parts:
        whole = by_name[part.fused]
        memory = _memory(whole)
        row = len(memory) // whole.shape[0]
        rows = memory[part.start * row : (part.start + part.shape[0]) * row]
        made[part.name] = StoredMemory(rows, whole.dtype, part.shape, owner)
    return made


def clear(tensors: list[Tensor]) -> None:
    for each in tensors:
        address, size = each.memory
        ctypes.memset(address, 0, size)


def _memory(tensor: Tensor) -> memoryview:
    memory: memoryview = _memory_at(*tensor.memory, WRITABLE)
    return memory


class StoredMemory:
    def __init__(self, memory: memoryview, dtype: str, shape: tuple[int, ...], owner: Any = None) -> None:
        self._memory, self._owner = memory, owner
        self.dtype, self.shape = dtype, shape

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        if dtype == self.dtype:
            yield from _slices(self._memory, most)
            return
        for own, buffer in self._with_buffer(dtype, most):
            yield convert(own, self.dtype, dtype, buffer)

    def places(self, dtype: str, most: int) -> Iterator[memoryview]:
        if dtype == self.dtype:
            yield from _slices(self._memory, most)
            return
        for own, buffer in self._with_buffer(dtype, most):
            yield buffer
            convert(buffer, dtype, self.dtype, own)

    def copied(self) -> Stored:
        return StoredMemory(memoryview(bytearray(self._memory)), self.dtype, self.shape)

    def _with_buffer(self, dtype: str, most: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Pieces of the memory, each with as much of a buffer as its elements take as `dtype`."""
        item, other = DTYPES[self.dtype].itemsize, DTYPES[dtype].itemsize
        buffer = memoryview(bytearray(min(most, PIECE, len(self._memory) // item * other)))
        for own in _slices(self._memory, max(1, len(buffer) // other) * item):
            yield own, buffer[: len(own) // item * other]


def _slices(memory: memoryview, most: int) -> Iterator[memoryview]:
    return (memory[start : start + most] for start in range(0, len(memory), most))
