"""How many threads there is work for."""

from __future__ import annotations

import os

__all__ = ["available_threads"]


def available_threads() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
