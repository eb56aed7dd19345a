"""How many threads there is work for, and room."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ramlet.errors import SettingsError
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import cgroup_folders
from ramlet.runtime.plurals import plural

__all__ = ["NATIVE_CODE", "THREAD_BYTES", "available_threads", "check_threads", "cpu_quota", "fitting_threads"]

NATIVE_CODE = 4 << 20
"""Pages of the native core's code, which become resident as it is used; of 7 MB in all some 2 are there before."""
THREAD_BYTES = 1 << 20
"""What a native thread has besides its data: its stack, and what the allocator keeps for it."""


def available_threads(root: str | Path = "/") -> int:
    """The processors that this process may use: those it is bound to, or what a container grants of their time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@cache
def cpu_quota(root: str | Path = "/") -> float | None:
    """How many processors' time the cgroups above us grant, as `docker run --cpus 1.5` sets it; None: all there is.

    More threads than that would be stopped for a part of every tenth of a second, all of them. `root` holds `proc` and
    `sys`; tests give another.
    """
    quotas = []
    for folder in cgroup_folders(Path(root), "cpu"):
        try:
            if (folder / "cpu.max").exists():
                granted, period = (folder / "cpu.max").read_text().split()
            else:
                granted, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            # "max" in v2 and -1 in v1 are no quota.
            if granted != "max" and int(granted) > 0:
                quotas.append(int(granted) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


MOST_THREADS = 4096
"""More than any machine has; a system refuses to start many more."""


def check_threads(threads: int | None) -> None:
    """Refuses a number of threads that no work can be done with; None lets the machine decide."""
    if threads is None:
        return
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise SettingsError(f"{threads!r} is no number of threads: give 1 or more")
    if threads < 1:
        raise SettingsError(f"{threads} threads do no work: give 1 or more")
    if threads > MOST_THREADS:
        raise SettingsError(f"{threads} threads are more than any machine has: give at most {MOST_THREADS}")


def fitting_threads(
    budget: Budget, threads: int | None, least: Callable[[int], int], what: str, *, peak: int = 0
) -> int:
    """The threads to use: those asked for, or as many as there are processors and the budget has room for.

    `peak` is the most that was resident on the way here, under this very budget.
    """
    check_threads(threads)
    chosen = threads or available_threads()
    while threads is None and chosen > 1 and least(chosen) > budget.room():
        chosen -= 1
    budget.grant({f"{plural(chosen, 'thread')} {what}": least(chosen)}, peak=peak)
    return chosen
