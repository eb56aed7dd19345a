"""What the processor can do."""

from __future__ import annotations

import os
from pathlib import Path


def flags(root: str | os.PathLike[str] = "/") -> frozenset[str]:
    """Its instruction sets, as Linux names them: avx2, avx512_bf16; empty on other systems. `root` is for tests."""
    return frozenset(described(root).get("flags", described(root).get("Features", "")).split())


def has_amx() -> bool:
    """Units for products of small matrices. Processors with them have slow vectors of bf16.

    RAMLET_VECTORS, which limits the instructions of a run, excludes them.
    """
    return "amx_bf16" in flags() and "RAMLET_VECTORS" not in os.environ


def described(root: str | os.PathLike[str] = "/") -> dict[str, str]:
    """The first processor of /proc/cpuinfo, by the names there."""
    try:
        with open(Path(root) / "proc/cpuinfo", errors="replace") as file:
            first = file.read(1 << 16).partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
