"""How many threads there is work for, and room."""

from __future__ import annotations

import os
from collections.abc import Callable

from ramlet.budget import Budget
from ramlet.errors import SettingsError
from ramlet.memory import resident_memory

__all__ = ["available_threads", "fitting_threads"]


def available_threads() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fitting_threads(budget: Budget, threads: int | None, least: Callable[[int], int], what: str) -> int:
    """The threads to use: those asked for, or as many as there are processors and the budget has room for."""
    if threads is not None and threads < 1:
        raise SettingsError(f"{threads} threads do no work: give 1 or more")
    chosen = threads or available_threads()
    # Not available(), which is never below 0: how much is missing counts too.
    room = budget.total - resident_memory() - budget.reserve
    while threads is None and chosen > 1 and least(chosen) > room:
        chosen -= 1
    short = least(chosen) - room
    if short > 0:
        # Of every byte added to the budget a part goes to its reserve.
        budget.require(
            budget.total + short * 32 // 31 + 1,
            {
                "Python and what it has loaded": resident_memory(),
                f"{chosen} thread{'s' * (chosen > 1)} {what}": least(chosen),
                "what no one accounts for": budget.reserve + short // 31 + 1,
            },
        )
    return chosen
