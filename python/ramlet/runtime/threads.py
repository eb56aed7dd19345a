"""How many threads to use: what the machine, its cgroups and the budget allow."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ramlet.errors import SettingsError, option
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import cgroup_folders
from ramlet.runtime.plurals import plural

NATIVE_CODE = 4 << 20
"""Code pages of the native core that become resident as it is used; about 2 of its 7 MB are resident before."""
THREAD_BYTES = 1 << 20
"""What a native thread takes besides its data: its stack, and what the allocator keeps for it."""


def available_threads(root: str | Path = "/") -> int:
    """The CPUs that this process may use: its affinity, or the CPU quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@cache
def cpu_quota(root: str | Path = "/") -> float | None:
    """The CPU quota of the cgroups above us, in CPUs, as Docker's `cpus` option sets it; None if there is none.

    With more threads than that, all of them would be paused for a part of every tenth of a second. `root` holds `proc`
    and `sys`; tests pass another.
    """
    quotas = []
    for folder in cgroup_folders(Path(root), "cpu"):
        try:
            if (folder / "cpu.max").exists():
                granted, period = (folder / "cpu.max").read_text().split()
            else:
                granted, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            # "max" in v2 and -1 in v1 mean no quota.
            if granted != "max" and int(granted) > 0:
                quotas.append(int(granted) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


MOST_THREADS = 4096
"""More than any machine has; the system refuses to start many more."""


def check_threads(threads: int | None) -> None:
    """Refuses an impossible number of threads; None lets the machine decide."""
    if threads is None:
        return
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise SettingsError(f"{option('threads')} must be at least 1, not {threads!r}")
    if threads > MOST_THREADS:
        raise SettingsError(f"{option('threads')} must be at most {MOST_THREADS}, not {threads}")


def fitting_threads(
    budget: Budget, threads: int | None, least: Callable[[int], int], what: str, *, peak: int = 0
) -> int:
    """The threads to use: the number given, or as many as there are CPUs and the budget has space for.

    `least` is the memory that a number of threads needs, `what` what they do, for the error. `peak` is the largest
    resident memory so far under this budget.
    """
    check_threads(threads)
    chosen = threads or available_threads()
    while threads is None and chosen > 1 and least(chosen) > budget.room():
        chosen -= 1
    budget.grant({f"{plural(chosen, 'thread')} {what}": least(chosen)}, peak=peak)
    return chosen
