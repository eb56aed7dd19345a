"""Whether a stage is to be made, and why.

    keep      it is there, made from the same
    go on     it is not there, or not finished: its command begins, or goes on where it was
    extend    a run that is to become longer: it goes on from its last checkpoint
    anew      it was made from something else: what is there is moved aside first

A folder that no record knows is left to the command, which goes on with what is its own and refuses the rest. What
took hours is never removed: old folders are moved aside, for a pipeline that stops at each change to ask would not be
one, and how long something took to make is no matter of settings. A report takes a second, and is written over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramlet.pipeline.record import Noted
from ramlet.pipeline.stages import Stage

__all__ = ["Verdict", "judge"]

ENDS = ("max_steps", "epochs", "tokens")
MOST_SHOWN = 4
LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Verdict:
    what: str
    why: str
    resumes: bool = False

    @property
    def runs(self) -> bool:
        return self.what != "keep"


def judge(stage: Stage, noted: Noted | None, *, forced: bool = False) -> Verdict:
    """What is to become of a stage."""
    if forced:
        return Verdict("anew", "asked for with --force")
    if noted is None:
        return Verdict("go on", "not made yet")
    if noted.fingerprint == stage.fingerprint:
        if noted.done and stage.finished:
            return Verdict("keep", "nothing changed")
        why = "it is not there any more" if noted.done else "it was interrupted"
        return Verdict("go on", why, noted.resumes)
    why = _difference(stage, noted)
    if not os.path.lexists(stage.out):
        return Verdict("go on", why)
    if _is_longer(stage, noted):
        return Verdict("extend", why, resumes=True)
    return Verdict("anew", why)


def _is_longer(stage: Stage, noted: Noted) -> bool:
    """A run that differs in nothing but a later end."""
    if stage.name != "training" or stage.reads != noted.reads:
        return False
    now, before = dict(stage.settings), dict(noted.settings)
    later, earlier = ({name: each.pop(name, None) for name in ENDS} for each in (now, before))
    if now != before:
        return False
    later, earlier = _end(later), _end(earlier)
    name = next(iter(later))
    return list(later) == list(earlier) and bool(later[name] > earlier[name])


def _end(ends: Mapping[str, Any]) -> dict[str, Any]:
    """The one that is given; without any a run goes once through its data."""
    return {name: value for name, value in ends.items() if value is not None} or {"epochs": 1.0}


def _difference(stage: Stage, noted: Noted) -> str:
    changed = [
        f"{name} {_short(noted.settings.get(name))} -> {_short(value)}"
        for name, value in stage.settings.items()
        if noted.settings.get(name) != value
    ]
    changed += [f"the {name} changed" for name, value in stage.reads.items() if noted.reads.get(name) != value]
    more = len(changed) - MOST_SHOWN
    return ", ".join(changed[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "") or "ramlet's settings changed"


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
