"""What this machine has: memory, cores, speed, a GPU, and the datasets that lie about.

    machine = look(open_engine("cpu"))
    machine.free, machine.threads, machine.flops, machine.gpu
    find_datasets(".")

The speed is that of matrix products as a step makes them, measured for about a second; times that follow from it are
estimates.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import Manifest
from ramlet.engines import Engine
from ramlet.errors import DatasetError
from ramlet.runtime.memory import free_memory
from ramlet.runtime.threads import available_threads

__all__ = ["Found", "Machine", "find_datasets", "look"]

EFFICIENCY = {"cpu": 0.5, "cuda": 0.45}
"""Of the speed of its products, how much a whole step reaches: attention, norms and the optimizer are the rest."""


@dataclass(frozen=True)
class Machine:
    device: str
    threads: int
    memory: int
    """Bytes that a run may count on: free in RAM or its cgroup; on a GPU, free on the device."""
    flops: float
    """Floating-point operations a second in products of the type below; 0 where it was not measured."""
    compute: str
    """The type of the products: bf16 where the hardware is faster with it."""
    gpu: str | None = None

    def seconds(self, flops: float) -> float | None:
        """About how long so many operations of training take."""
        return flops / (self.flops * EFFICIENCY[self.device]) if self.flops else None


@dataclass(frozen=True)
class Found:
    """A dataset, as its manifest tells it."""

    path: str
    tokens: int
    vocab_size: int


def look(engine: Engine | None = None, *, seconds: float = 1.0) -> Machine:
    """Looks at the machine; without an engine nothing is measured."""
    threads = available_threads()
    if engine is None:
        return Machine("cpu", threads, free_memory(), 0.0, "fp32")
    speeds = {kind: engine.flops(kind, seconds / 2) for kind in ("bf16", "fp32")}
    compute = max(speeds, key=lambda kind: speeds[kind])
    gpu = next((str(each["name"]) for each in engine.gpus()), None)
    return Machine(engine.kind, threads, engine.free(), speeds[compute], compute, gpu)


def find_datasets(folder: str | os.PathLike[str] = ".", depth: int = 2) -> list[Found]:
    """The prepared datasets in a folder and in the folders in it, largest first; what cannot be read is left out."""
    found = []
    patterns = ["/".join(["*"] * level + [MANIFEST]) for level in range(depth + 1)]
    for path in (path for pattern in patterns for path in sorted(Path(folder).glob(pattern))):
        try:
            manifest = Manifest.read(path.parent)
        except (OSError, DatasetError):
            continue
        tokens = manifest.splits["train"].tokens
        found.append(Found(os.path.relpath(path.parent, folder), tokens, manifest.vocab_size))
    return sorted(found, key=lambda one: -one.tokens)
