"""The devices of a run as a mesh, and where its arrays are on it.

    placement = Placement.over(devices, processes=1)
    placement.of("layers.qkv", (6, 768, 256))       # divided among the devices of a process: 96 rows each of 8
    placement.batch                                 # sequences, divided among all devices

The mesh has two axes. `data` has one place per process: each has all weights and states, and its share of every batch,
as with any other engine's ranks. `shard` are the devices of one process, which divide weights, gradients and states
among them; a layer's weights are gathered when the layer runs. So a model may be larger than one device, and the first
process can evaluate, sample and save alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA, SHARD = "data", "shard"
ALIGNED = 64
"""Bytes."""


@dataclass(frozen=True)
class Placement:
    mesh: Any
    """(processes, devices of each)."""

    @classmethod
    def over(cls, devices: Sequence[Any], processes: int = 1) -> Placement:
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        return cls(Mesh(np.array(ordered).reshape(processes, -1), (DATA, SHARD)))

    @property
    def processes(self) -> int:
        return int(self.mesh.devices.shape[0])

    @property
    def shards(self) -> int:
        """The devices of a process."""
        return int(self.mesh.devices.shape[1])

    @property
    def divides(self) -> bool:
        """Whether there is more than one device."""
        return bool(self.mesh.devices.size > 1)

    @property
    def own(self) -> Placement:
        """The devices of this process alone."""
        if self.processes == 1:
            return self
        return Placement.over([each for each in self.mesh.devices.flat if each.process_index == jax.process_index()])

    # Where arrays are.

    def of(self, name: str, size: Sequence[int]) -> Any:
        """A weight, or a state of the same size: its rows are divided, else its columns; gains are everywhere."""
        return NamedSharding(self.mesh, self.spec(name, size))

    def spec(self, name: str, size: Sequence[int]) -> Any:
        axis = divided_axis(name, size, self.shards)
        return PartitionSpec(*(SHARD if number == axis else None for number in range(len(size))))

    @property
    def everywhere(self) -> Any:
        return NamedSharding(self.mesh, PartitionSpec())

    def batch(self, axis: int = 0) -> Any:
        """Sequences along this axis, divided among all devices."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, (DATA, SHARD)))

    def zeros(self, name: str, size: Sequence[int], dtype: Any) -> Any:
        return blank(size, dtype, self.of(name, size))

    # Within a jitted function.

    def hold(self, name: str, array: Any) -> Any:
        """A gradient or state, divided like its weight."""
        if not self.divides:
            return array
        return jax.lax.with_sharding_constraint(array, self.of(name, array.shape))

    def gathered(self, array: Any) -> Any:
        """The whole array on every device."""
        return jax.lax.with_sharding_constraint(array, self.everywhere) if self.divides else array

    def by_sequence(self, array: Any) -> Any:
        """Activations, (sequences, ...)."""
        return jax.lax.with_sharding_constraint(array, self.batch()) if self.divides else array

    # Between processes.

    def put(self, array: Any, axis: int = 0) -> Any:
        """This process's sequences, along an axis, as its part of an array over all processes."""
        if self.processes == 1:
            return jax.device_put(array, self.batch(axis)) if self.divides else jnp.asarray(array)
        return jax.make_array_from_process_local_data(self.batch(axis), array)

    def copied(self, array: Any) -> Any:
        """A small array that is the same in all processes."""
        if not self.divides:
            return jnp.asarray(array)
        return jax.make_array_from_callback(np.shape(array), self.everywhere, lambda index: np.asarray(array)[index])

    def own_part(self, name: str, array: Any) -> Any:
        """An array over all processes as one on this process's own devices, in the same memory."""
        if self.processes == 1:
            return array
        own = self.own
        pieces = [shard.data for shard in sorted(array.addressable_shards, key=lambda shard: shard.device.id)]
        return jax.make_array_from_single_device_arrays(array.shape, own.of(name, array.shape), pieces)


def blank(size: Sequence[int], dtype: Any, sharding: Any) -> Any:
    """Zeros, in memory of JAX's own, so that they can be donated and written into; nothing is compiled for them."""
    own = sharding.shard_shape(tuple(size))
    # On a CPU an array of JAX is the NumPy array itself if that is aligned to 64 bytes, whatever `may_alias` says.
    memory = np.zeros(math.prod(own) * np.dtype(dtype).itemsize + 2 * ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED + ALIGNED // 8
    part = memory[start : start + math.prod(own) * np.dtype(dtype).itemsize].view(dtype).reshape(own)
    pieces = [jax.device_put(part, device) for device in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(tuple(size), sharding, pieces)


def divided_axis(name: str, size: Sequence[int], shards: int) -> int | None:
    """Which axis is divided among so many devices: rows of matrices, else columns, if they divide evenly."""
    is_stack = name.startswith("layers.")
    axes = range(1 if is_stack else 0, len(size))
    if shards == 1 or len(axes) < 2:
        return None
    return next((axis for axis in axes if size[axis] % shards == 0), None)
