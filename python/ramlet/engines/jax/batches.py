"""Batches as arrays of JAX, for `Loader(..., as_jax=True)`: int32, and on their devices when they are read ahead."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ramlet.errors import SettingsError


def arrays(where: Any, *given: Any) -> tuple[Any, ...]:
    """NumPy arrays (sequences, tokens) on devices; None stays None.

    `where` is True, for all devices of this process, a mesh, or a sharding. Sequences are divided among the devices of
    a mesh; of several processes, each has its own. A last batch that cannot be divided is whole on every device.
    """
    sharding = _sharding(where)
    return tuple(None if array is None else _put(array.astype(np.int32), sharding) for array in given)


def _sharding(where: Any) -> Any:
    mesh = Mesh(np.array(jax.local_devices()), ("data",)) if where is True else where
    if isinstance(mesh, Mesh):
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if not isinstance(mesh, jax.sharding.Sharding):
        raise SettingsError(f"as_jax is True, a mesh or a sharding, not {type(where).__name__}")
    return mesh


def _put(array: Any, sharding: Any) -> Any:
    if not sharding.is_fully_addressable:
        return jax.make_array_from_process_local_data(sharding, array)
    try:
        sharding.shard_shape(array.shape)
    except ValueError:  # it cannot be divided evenly
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.device_put(array, sharding)
