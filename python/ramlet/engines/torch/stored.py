"""Torch tensors as `Stored` ones, for `ramlet.model.tensor_file`.

    write_tensors("model.safetensors", stored({"head": head}))

The safetensors library needs whole tensors on the CPU and refuses those that share memory. Here tensors may be views,
on any device. Tensors on the CPU with the file's dtype are written from their own memory and read into it; all others
go through one buffer, allocated when the first of them needs it.

Copies of tensors on a GPU are made in page-locked memory, 50 times as fast as other memory: a GB in 20 ms. Locking it
takes half a second, so it is kept for the next copy.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ramlet.model.dtypes import DTYPES
from ramlet.model.tensor_file import Stored

TYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype.name) for name, dtype in DTYPES.items()}
NAMES = {dtype: name for name, dtype in TYPES.items()}


Copies = dict[str, Tensor]
"""In RAM, by the names of the tensors."""


def stored(tensors: Mapping[str, Tensor], copies: Copies | None = None) -> dict[str, Stored]:
    """The tensors themselves, to write or read into one after another, because they share a buffer.

    Copies are made in those of `copies` and added to them; without it, in new memory.
    """
    buffer = _Buffer()
    copies = {} if copies is None else copies
    return {name: _StoredTensor(tensor, buffer, name, copies) for name, tensor in tensors.items()}


class _StoredTensor:
    def __init__(self, tensor: Tensor, buffer: _Buffer, name: str, copies: Copies) -> None:
        self._tensor, self._buffer, self._name, self._copies = tensor.detach(), buffer, name, copies

    @property
    def dtype(self) -> str:
        return NAMES[self._tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        for piece, staged in self._staged(TYPES[dtype], most):
            if staged is not piece:
                staged.copy_(piece)
            yield memory_of(staged)

    def places(self, dtype: str, most: int) -> Iterator[memoryview | int]:
        for piece, staged in self._staged(TYPES[dtype], most):
            yield memory_of(staged)
            if staged is not piece:
                piece.copy_(staged)

    def copied(self) -> Stored:
        if self._name not in self._copies:
            self._copies[self._name] = _page_locked(self._tensor)
        copy = self._copies[self._name].copy_(self._tensor)
        return _StoredTensor(copy, self._buffer, self._name, self._copies)

    def _staged(self, dtype: torch.dtype, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Each piece, and where its bytes in the file's dtype are: in itself, or in the buffer."""
        for piece in _pieces(self._tensor, most // dtype.itemsize):
            in_place = piece.device.type == "cpu" and piece.dtype == dtype and piece.is_contiguous()
            yield piece, piece if in_place else self._buffer.of(dtype, piece.shape, most)


def _pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """Views of at most this many elements, which together are the tensor row by row."""
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
            # A row that is too long is split by its own rows.
            yield from _pieces(part[0] if len(part) == 1 else part, most)


def _page_locked(like: Tensor) -> Tensor:
    """In RAM; not through torch's own allocator, which rounds sizes up to powers of two."""
    made = torch.empty(like.shape, dtype=like.dtype)
    if like.device.type == "cuda" and made.nbytes:
        runtime = torch.cuda.cudart()
        if runtime.cudaHostRegister(made.data_ptr(), made.nbytes, 0) == runtime.cudaError.success:
            weakref.finalize(made, runtime.cudaHostUnregister, made.data_ptr())
    return made


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in RAM."""
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


class _Buffer:
    """Memory for one piece at a time."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, dtype: torch.dtype, shape: torch.Size, size: int) -> Tensor:
        """A tensor in the buffer, which grows to `size` bytes."""
        if len(self._bytes) < size:
            self._bytes = torch.empty(size, dtype=torch.uint8)
        return self._bytes[: shape.numel() * dtype.itemsize].view(dtype).view(shape)
