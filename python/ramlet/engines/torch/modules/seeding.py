"""Random numbers of modules and loaders, as everywhere in ramlet: functions of the seed and a counter.

Before a micro-batch, and before a batch is read, all generators are seeded by the run's seed and the number of the
micro-batch or batch. So there is no random state to save, and a resumed run draws what an uninterrupted one draws.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ramlet.engines.hashing import scatter, seed_key

DATA, STEP, EVAL = 1, 2, 3
"""What random numbers are for, the first number after the seed."""


def seed_all(device: torch.device, seed: int, *numbers: int) -> None:
    """Seeds torch on the CPU and the device, NumPy if it is loaded, and Python."""
    key = key_of(seed, *numbers)
    # Not torch.manual_seed, which asks for every kind of device.
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(key)
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(key)


def key_of(seed: int, *numbers: int) -> int:
    key = seed_key(seed)
    for number in numbers:
        key = scatter(scatter(key + (number & 0xFFFFFFFF)) + (number >> 32))
    return key


@contextmanager
def restored_generators(device: torch.device) -> Iterator[None]:
    """The caller's generators are as before after the block."""
    on_cpu, plain = torch.get_rng_state(), random.getstate()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    numpy = sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(on_cpu)
        random.setstate(plain)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
        if numpy is not None:
            numpy.random.set_state(arrays)
