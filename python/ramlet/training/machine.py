"""What this machine has: memory, cores, speed, a GPU, and the datasets that lie about.

    machine = look(device="cpu")
    machine.free, machine.threads, machine.flops, machine.gpu
    find_datasets(".")

The speed is that of matrix products as a step makes them, measured for about a second; times that follow from it are
estimates.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import Manifest
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


def look(device: str | None = None, *, torch: Any = None, seconds: float = 1.0) -> Machine:
    """Looks at the machine; without torch nothing is measured."""
    threads = available_threads()
    if torch is None:
        return Machine(device or "cpu", threads, free_memory(), 0.0, "fp32")
    gpu = torch.cuda.is_available() if device != "cpu" else False
    chosen = device or ("cuda" if gpu else "cpu")
    speeds = {kind: _speed(torch, chosen, kind, seconds / 2) for kind in ("bf16", "fp32")}
    compute = max(speeds, key=lambda kind: speeds[kind])
    memory = torch.cuda.mem_get_info()[0] if chosen == "cuda" else free_memory()
    name = torch.cuda.get_device_name() if chosen == "cuda" else None
    return Machine(chosen, threads, memory, speeds[compute], compute, name)


def _speed(torch: Any, device: str, kind: str, seconds: float) -> float:
    """Operations a second in the best of many products of the size that small models have."""
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[kind]
    tokens, width = (1024, 512) if device == "cpu" else (8192, 2048)
    x = torch.ones(tokens, width, dtype=dtype, device=device)
    weight = torch.ones(4 * width, width, dtype=dtype, device=device)
    out = torch.empty(tokens, 4 * width, dtype=dtype, device=device)
    best = 0.0
    end = time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        torch.mm(x, weight.t(), out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        best = max(best, 8.0 * tokens * width * width / (now - began))
        if now >= end:
            return best


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
