"""Several processes that train one model: `jax.distributed` connects them, and a step is one program over all of them.

They are started as for any engine, by torchrun or by whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; on
TPU pods and under Slurm, JAX finds the others by itself once JAX_COORDINATOR_ADDRESS is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ramlet.engines import Ranks
from ramlet.engines.opening import several_processes


@dataclass(frozen=True)
class JaxRanks(Ranks):
    def sum(self, number: int) -> int:
        """Over all processes."""
        return number if self.world == 1 else int(_gathered(number).sum())

    def most(self, size: int) -> int:
        """The largest of all processes, of bytes, rounded up to KiB."""
        return size if self.world == 1 else int(_gathered(-(-size // 1024)).max()) << 10

    def any(self, flag: bool) -> bool:
        return flag if self.world == 1 else bool(_gathered(int(flag)).any())

    def wait(self) -> None:
        if self.world > 1:
            _gathered(0)


def _gathered(number: int) -> Any:
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.int32(number)))


@contextmanager
def joined() -> Iterator[JaxRanks]:
    """The processes of this run, or this one alone. Before JAX looks for devices."""
    if several_processes():
        address = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '29500')}"
        jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    elif os.environ.get("JAX_COORDINATOR_ADDRESS"):
        jax.distributed.initialize()
    else:
        yield JaxRanks()
        return
    try:
        yield JaxRanks(jax.process_index(), jax.process_count(), int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        jax.distributed.shutdown()
