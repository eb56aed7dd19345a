"""The machine's memory, cores, speed and GPU, and the datasets in a folder.

    machine = look(open_engine("cpu"))
    machine.free, machine.threads, machine.flops, machine.gpu
    find_datasets(".")

The speed is that of matrix products as in a training step, measured for about a second; times are estimates.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import Manifest
from ramlet.engines import Engine
from ramlet.errors import DatasetError
from ramlet.runtime.threads import available_threads

EFFICIENCY = {"cpu": 0.5, "cuda": 0.45, "tpu": 0.45}
"""The fraction of that speed that a whole step reaches, with attention, norms and the optimizer."""


@dataclass(frozen=True)
class Machine:
    device: str
    threads: int
    memory: int
    """Free bytes: in RAM or the cgroup; on a GPU, on the device."""
    flops: float
    """Floating-point operations per second in matrix products."""
    compute: str
    """Precision of the products: bf16 if the hardware is faster with it."""
    gpu: str | None = None

    def seconds(self, flops: float) -> float:
        """The approximate time of this many operations in training."""
        return flops / (self.flops * EFFICIENCY[self.device])


@dataclass(frozen=True)
class Found:
    """A dataset, from its manifest."""

    path: str
    tokens: int
    vocab_size: int


def look(engine: Engine, *, seconds: float = 1.0) -> Machine:
    """Inspects the machine and measures its speed."""
    threads = available_threads()
    speeds = {kind: engine.flops(kind, seconds / 2) for kind in ("bf16", "fp32")}
    compute = max(speeds, key=lambda kind: speeds[kind])
    gpu = next((str(each["name"]) for each in engine.gpus()), None)
    return Machine(engine.kind, threads, engine.free(), speeds[compute], compute, gpu)


def find_datasets(folder: str | os.PathLike[str] = ".", depth: int = 2) -> list[Found]:
    """The prepared datasets in a folder and its subfolders, largest first; unreadable ones are skipped."""
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
