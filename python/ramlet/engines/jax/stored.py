"""The arrays of a tree as `Stored` tensors, for `ramlet.model.tensor_file`.

    weights(shape, params)                      by the names of transformers: rows of the stacks
    states(shape, optimizer, trees, count)      by the names of a checkpoint: all weights of a group, flat

On a CPU a tensor is written from the memory of its array and read into it, whichever devices have its parts. Arrays of
other devices are copied piece by piece, and replaced by a copy with the piece that was read, in the same memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import States, counted, group_of, groups
from ramlet.engines.jax.optim.muon import row_places
from ramlet.engines.jax.weights import LAYERS, Part, Tree, parts
from ramlet.engines.native.tensors import StoredMemory
from ramlet.engines.torch.sizes import BLOCK, flat_elements, hidden_start
from ramlet.model.dtypes import DTYPES, convert
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored

NAMES = {"float32": "F32", "bfloat16": "BF16", "uint8": "U8", "int8": "I8"}
PIECE = 1 << 20
"""Bytes that are converted, or copied from a device, at once."""
MOST_PROGRAMS = 64
"""Of each kind that are kept, whatever models a process opens: one model has about 20."""


class Rows(NamedTuple):
    """Rows of one layer's array; of an array with one dimension, its elements."""

    tree: Tree
    name: str
    layer: int | None
    start: int
    rows: int
    placement: Placement

    @property
    def array(self) -> Any:
        return self.tree[self.name]

    @property
    def width(self) -> int:
        """Elements of a row."""
        size = self.array.shape[0 if self.layer is None else 1 :]
        return math.prod(size[1:])


class Gap(NamedTuple):
    """Elements of a file between two weights: zeros."""

    rows: int
    width: int = 1


Segment = Rows | Gap


def weights(shape: Shape, params: Tree, placement: Placement) -> dict[str, Stored]:
    made: dict[str, Stored] = {}
    for tensor in named_tensors(shape):
        name, layer = _leaf(tensor.fused)
        rows = Rows(params, name, layer, tensor.start, tensor.shape[0], placement)
        made[tensor.name] = _Segments([rows], _dtype(params[name]), tensor.shape)
    return made


def _leaf(fused: str) -> tuple[str, int | None]:
    """`layers.3.qkv` -> `layers.qkv`, 3."""
    if not fused.startswith(LAYERS):
        return fused, None
    _, number, name = fused.split(".")
    return LAYERS + name, int(number)


def states(shape: Shape, optimizer: str, trees: States, count: Count, placement: Placement) -> dict[str, Stored]:
    made: dict[str, Stored] = {}
    every = list(parts(shape))
    matrices, gains = flat_elements(shape)
    first = hidden_start(shape)
    limits = {"matrices": (0, matrices), "gains": (0, gains), "embeddings": (0, first), "hidden": (first, matrices)}
    for group in groups(optimizer):
        own = [part for part in every if group_of(part.name, optimizer) == group]
        for key, tree in trees.items():
            if key == "row_squares" and group == "hidden":
                rows = [Rows(tree, *place, placement) for place in row_places(shape)]
                made[f"{group}.{key}"] = _Segments(rows, "F32", (sum(each.rows for each in rows),))
            elif key != "row_squares" and own[0].name in tree:
                shared = BLOCK if key.endswith("scales") else 1
                made[f"{group}.{key}"] = _flat(own, tree, *limits[group], shared, placement)
        if group in counted(optimizer):
            made[f"{group}.step"] = count.stored("F32" if optimizer in ("adamw", "muon") else "I64")
    return made


def _flat(own: Sequence[Part], tree: Tree, start: int, end: int, shared: int, placement: Placement) -> Stored:
    """All arrays of a group in one flat tensor, of which a number stands for `shared` elements."""
    segments: list[Segment] = []
    place = start
    for part in own:
        if part.start > place:
            segments.append(Gap((part.start - place) // shared))
        elements = math.prod(part.size)
        rows = -(-elements // shared) if shared > 1 else part.size[0]
        segments.append(Rows(tree, part.name, part.layer, 0, rows, placement))
        place = part.start + -(-elements // shared) * shared
    total = -(-(end - start) // shared)
    return _Segments([each for each in segments if each.rows], _dtype(tree[own[0].name]), (total,))


def _dtype(array: Any) -> str:
    return NAMES[array.dtype.name]


class Count:
    """The number of steps so far: each group of a checkpoint has it."""

    def __init__(self) -> None:
        self.steps = 0

    def stored(self, dtype: str) -> Stored:
        return _StoredCount(self, dtype)


class _StoredCount:
    shape: tuple[int, ...] = ()

    def __init__(self, count: Count, dtype: str) -> None:
        self._count, self.dtype = count, dtype

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        yield _memory(np.array([self._count.steps], DTYPES[dtype].name))

    def places(self, dtype: str, most: int) -> Iterator[memoryview]:
        number = np.zeros(1, DTYPES[dtype].name)
        yield _memory(number)
        self._count.steps = int(number[0])

    def copied(self) -> Stored:
        return StoredMemory(next(self.pieces(self.dtype, 8)), self.dtype, ())


class _Segments:
    def __init__(self, segments: Sequence[Segment], dtype: str, shape: tuple[int, ...]) -> None:
        self._segments, self.dtype, self.shape = segments, dtype, shape

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        for segment, first, count in self._divided(dtype, most):
            own = self._own(segment, count) if isinstance(segment, Gap) else read(segment, first, count)
            if dtype == self.dtype:
                yield _memory(own)
            else:
                yield self._converted(_memory(own), self.dtype, dtype)

    def places(self, dtype: str, most: int) -> Iterator[memoryview]:
        for segment, first, count in self._divided(dtype, most):
            own = self._own(segment, count)
            if dtype == self.dtype:
                yield _memory(own)
            else:
                given = memoryview(bytearray(own.size * DTYPES[dtype].itemsize))
                yield given
                convert(given, dtype, self.dtype, _memory(own))
            if isinstance(segment, Rows):
                write(segment, first, own)

    def copied(self) -> Stored:
        whole = b"".join(self.pieces(self.dtype, PIECE))
        return StoredMemory(memoryview(bytearray(whole)), self.dtype, self.shape)

    def _divided(self, dtype: str, most: int) -> Iterator[tuple[Segment, int, int]]:
        """Pieces of the segments: their first row and their rows."""
        item = max(DTYPES[dtype].itemsize, DTYPES[self.dtype].itemsize)
        for segment in self._segments:
            rows = max(1, min(most, PIECE) // (segment.width * item))
            for first in range(0, segment.rows, rows):
                yield segment, first, min(rows, segment.rows - first)

    def _own(self, segment: Segment, count: int) -> Any:
        return np.zeros((count, segment.width), _raw(DTYPES[self.dtype].itemsize))

    def _converted(self, memory: memoryview, given: str, wanted: str) -> memoryview:
        count = len(memory) // DTYPES[given].itemsize
        return convert(memory, given, wanted, memoryview(bytearray(count * DTYPES[wanted].itemsize)))


def _raw(itemsize: int) -> str:
    """Bits, because NumPy has no bfloat16 of its own."""
    return f"uint{8 * itemsize}"


def _memory(array: Any) -> memoryview:
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def read(rows: Rows, first: int, count: int) -> Any:
    """Some of the rows, as bits, (count, width)."""
    array, start = rows.array, rows.start + first
    if not _is_in_ram(array):
        own = rows.placement.own
        piece = _sliced(rows.placement.own_part(rows.name, array), rows.layer, start, count, own)
        return np.asarray(piece).reshape(count, -1).view(_raw(array.dtype.itemsize))
    made = np.empty((count, rows.width), _raw(array.dtype.itemsize))
    for place, part in _parts_in_ram(rows, start, count):
        made[place] = part
    return made


def write(rows: Rows, first: int, numbers: Any) -> None:
    """The opposite of `read`."""
    array, start = rows.array, rows.start + first
    if _is_in_ram(array):
        for place, part in _parts_in_ram(rows, start, len(numbers)):
            part[:] = numbers[place]
        return
    size = (len(numbers), *array.shape[1 if rows.layer is None else 2 :])
    rows.tree[rows.name] = _updated(array, numbers.view(array.dtype).reshape(size), rows.layer, start)


def _is_in_ram(array: Any) -> bool:
    return bool(next(iter(array.sharding.device_set)).platform == "cpu")


def _parts_in_ram(rows: Rows, start: int, count: int) -> Iterator[tuple[Any, Any]]:
    """For each of this process's devices: a part of (count, width) numbers, and its memory."""
    array = jax.block_until_ready(rows.array)
    for shard in array.addressable_shards:
        data = shard.data
        kind = ctypes.c_uint8 * data.nbytes
        memory = np.frombuffer(kind.from_address(data.unsafe_buffer_pointer()), _raw(data.dtype.itemsize))
        index = [_bounds(each, size) for each, size in zip(shard.index, array.shape)]
        view = memory.reshape(data.shape)
        if rows.layer is not None:
            view, index = view[rows.layer], index[1:]  # layers are never divided
        view = view.reshape(view.shape[0], -1)
        low, high = max(start, index[0][0]), min(start + count, index[0][1])
        columns = slice(*index[1]) if len(index) > 1 else slice(None)
        if low < high:
            yield (slice(low - start, high - start), columns), view[low - index[0][0] : high - index[0][0]]


def _bounds(index: slice, size: int) -> tuple[int, int]:
    start, end, _ = index.indices(size)
    return start, end


@lru_cache(MOST_PROGRAMS)
def _slicer(count: int, stacked: bool, everywhere: Any) -> Any:
    def take(array: Any, layer: Any, start: Any) -> Any:
        own = lax.dynamic_index_in_dim(array, layer, keepdims=False) if stacked else array
        return lax.dynamic_slice_in_dim(own, start, count)

    return jax.jit(take, out_shardings=everywhere)


def _sliced(array: Any, layer: int | None, start: int, count: int, placement: Placement) -> Any:
    return _slicer(count, layer is not None, placement.everywhere)(array, layer or 0, start)


@lru_cache(MOST_PROGRAMS)
def _updater(stacked: bool, sharding: Any) -> Any:
    def update(array: Any, piece: Any, layer: Any, start: Any) -> Any:
        rest = [0] * (piece.ndim - 1)
        if not stacked:
            return lax.dynamic_update_slice(array, piece, (start, *rest))
        return lax.dynamic_update_slice(array, piece[None], (layer, start, *rest))

    return jax.jit(update, donate_argnums=0, out_shardings=sharding)


def _updated(array: Any, piece: Any, layer: int | None, start: int) -> Any:
    return _updater(layer is not None, array.sharding)(array, piece, layer or 0, start)
