"""The kernels of a training step: everything except matrix products and attention, in three implementations.

`plain` is torch on any device, and the reference; `fused` is Triton on CUDA; `native` is Rust on the CPU. Each is a
module with the same functions:

    kernels = kernels_for(x.device)
    y = kernels.norm(x, gain, 1e-5)
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@cache
def kernels_for(device: torch.device | str) -> ModuleType:
    """The fastest kernels for a device."""
    kind = str(device).partition(":")[0]
    name = "native" if kind == "cpu" else "plain"
    if has_triton(kind):
        name = "fused"
    return import_module(f"ramlet.engines.torch.kernels.{name}")


def has_triton(kind: str) -> bool:
    """For a kind of device. Triton needs a C compiler for its launchers, and looks for it in these places."""
    found = kind == "cuda" and find_spec("triton")
    return bool(found) and bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))
