"""Whether a stage is due, and why.

    keep      its result exists, made from the same inputs and settings
    continue  its result is missing or unfinished: its command starts, or resumes
    extend    a run that should become longer: it resumes
    rebuild   its result was made from something else: the old one is moved aside first

A folder that no record mentions is left to the command, which resumes its own work and refuses anything else. What took
hours is never removed: old folders are moved aside, because a pipeline that stops at each change to ask would not be
one, and no setting says how long something took to make. A report takes a second, and is overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramlet.pipeline.record import Recorded
from ramlet.pipeline.stages import Stage
from ramlet.training.recipe import as_recorded_now

ENDS = ("max_steps", "epochs", "tokens")
MOST_SHOWN = 4
LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Decision:
    action: str
    why: str
    resumes: bool = False

    @property
    def due(self) -> bool:
        return self.action != "keep"


def decide(stage: Stage, recorded: Recorded | None, *, forced: bool = False) -> Decision:
    """What to do about a stage."""
    if forced:
        return Decision("rebuild", "forced")
    if recorded is None:
        return Decision("continue", "not made yet")
    if recorded.fingerprint == stage.fingerprint or _same_in_other_words(stage, recorded):
        if recorded.done and stage.finished:
            return Decision("keep", "nothing changed")
        why = "its result is missing" if recorded.done else "it was interrupted"
        return Decision("continue", why, recorded.resumes)
    why = _difference(stage, recorded)
    if not os.path.lexists(stage.out):
        return Decision("continue", why)
    if _is_longer(stage, recorded):
        return Decision("extend", why, resumes=True)
    return Decision("rebuild", why)


def _same_in_other_words(stage: Stage, recorded: Recorded) -> bool:
    """Whether an earlier version recorded the same run: it did not know all settings of this one."""
    if stage.name != "training" or stage.reads != recorded.reads:
        return False
    return as_recorded_now(recorded.settings) == stage.settings


def _is_longer(stage: Stage, recorded: Recorded) -> bool:
    """Whether a run differs only in a later end."""
    if stage.name != "training" or stage.reads != recorded.reads:
        return False
    now, before = dict(stage.settings), as_recorded_now(recorded.settings)
    later, earlier = ({name: each.pop(name, None) for name in ENDS} for each in (now, before))
    if now != before:
        return False
    later, earlier = _end(later), _end(earlier)
    name = next(iter(later))
    return list(later) == list(earlier) and bool(later[name] > earlier[name])


def _end(ends: Mapping[str, Any]) -> dict[str, Any]:
    """The one that is given; with none, a run makes one pass over its data."""
    return {name: value for name, value in ends.items() if value is not None} or {"epochs": 1.0}


def _difference(stage: Stage, recorded: Recorded) -> str:
    changed = [
        f"{name} {_short(recorded.settings.get(name))} -> {_short(value)}"
        for name, value in stage.settings.items()
        if recorded.settings.get(name) != value
    ]
    changed += [f"the {name} changed" for name, value in stage.reads.items() if recorded.reads.get(name) != value]
    more = len(changed) - MOST_SHOWN
    return ", ".join(changed[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "") or "ramlet's settings changed"


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
