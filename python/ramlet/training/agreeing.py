"""What the processes of a run must agree on before it starts: they take the same decisions only from the same facts."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict

from ramlet.engines import Ranks
from ramlet.errors import SettingsError, option
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.training.settings import RunSettings


def agreed_budget(
    ranks: Ranks,
    settings: RunSettings,
    evals: Mapping[str, str],
    budget: Budget,
    *,
    asked: Budget | str | int | None,
) -> Budget:
    """The budget of all ranks, the smallest of theirs; refuses ranks that were not started alike.

    `asked` is the setting that this rank's `budget` is from.
    """
    given = json.dumps([asdict(settings), dict(evals)], sort_keys=True).encode()
    if len(set(ranks.every(zlib.crc32(given)))) > 1:
        raise SettingsError("the processes have different settings: start all of them with the same command")
    totals = ranks.every(budget.total)
    if len(set(totals)) == 1:
        return budget
    if not _is_relative(asked):
        least, most = format_bytes(min(totals)), format_bytes(max(totals))
        raise SettingsError(
            f"the processes have different budgets ({least} and {most}): give all the same {option('memory')}"
        )
    return Budget(min(totals))


def _is_relative(memory: Budget | str | int | None) -> bool:
    """Whether a budget depends on what is free."""
    return memory is None or (isinstance(memory, str) and (memory.strip() == "auto" or memory.strip().endswith("%")))
