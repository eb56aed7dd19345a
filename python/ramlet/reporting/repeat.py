"""The commands that a story stands for, made from the settings that were written down.

    commands(story)     ['ramlet prepare INPUT... --tokenizer tok --out data', 'ramlet train --data data ...']

Only what differs from the defaults is said. What no stage notes stands as a word in capitals: the inputs, of which
datasets and tokenizers keep a fingerprint alone, and a stream's tokenizer.
"""

from __future__ import annotations

import shlex
from typing import Any

from ramlet.reporting.found import DatasetFound, Run, TokenizerFound, figure, look
from ramlet.reporting.story import Story
from ramlet.settings.declared import argv, differing

__all__ = ["commands"]

INPUT = "INPUT..."


def commands(story: Story) -> list[str]:
    """In the order in which they are to be given."""
    told = [_tokenizer(each) for each in story.tokenizers]
    told += [_prepare(each) for each in story.datasets]
    if story.run is not None:
        told.append(_train(story.run))
    return told


def _tokenizer(found: TokenizerFound) -> str:
    from ramlet.tokenizer.settings import TrainSettings

    given = _flags(TrainSettings, look(found.statistics, "settings"))
    return _joined("ramlet tokenizer train", INPUT, *given, *_memory(found.statistics), "--out", _quoted(found.path))


def _prepare(found: DatasetFound) -> str:
    from ramlet.preparing.settings import PrepareSettings

    runs = found.manifest.runs
    given = _flags(PrepareSettings, look(runs[-1], "settings") if runs else None)
    if len(runs) > 1:
        given.append("--append")
    return _joined("ramlet prepare", INPUT, *given, *_memory(found.statistics), "--out", _quoted(found.path))


def _train(run: Run) -> str:
    from ramlet.training.settings import RunSettings

    data = []
    named = look(run.settings, "data")
    mixed = isinstance(named, list) and len(named) > 1
    for each in named if isinstance(named, list) else []:
        if isinstance(each, dict) and "stream" in each:
            data += ["--stream", _quoted(each["stream"])]
        elif isinstance(each, dict):
            weight = f"={each.get('weight'):g}" if mixed and figure(each, "weight") is not None else ""
            data += ["--data", _quoted(f"{each.get('path')}{weight}")]
    if "--stream" in data:
        data += ["--tokenizer", "TOKENIZER"]
    given = _flags(RunSettings, look(run.settings, "all_settings"))
    folders = look(run.settings, "evals")
    evals = [f"--eval {_quoted(f'{name}={path}')}" for name, path in (folders or {}).items()]
    budget = figure(run.settings, "plan", "budget")
    held = figure(run.settings, "plan", "held") or 0
    memory = [] if budget is None else ["--memory", _size(budget + held)]
    return _joined("ramlet train", *data, *given, *evals, *memory, "--out", _quoted(run.path))


def _flags(settings: type[Any], given: Any) -> list[str]:
    """What was said otherwise than the defaults of this class of settings."""
    return [_quoted(word) for word in argv(settings, differing(settings, given))] if isinstance(given, dict) else []


def _memory(statistics: Any) -> list[str]:
    budget = figure(statistics, "memory", "budget")
    return [] if budget is None else ["--memory", _size(budget)]


def _size(budget: float) -> str:
    whole, rest = divmod(int(budget), 1_000_000)
    return f"{whole + bool(rest)}MB"


def _quoted(value: Any) -> str:
    return shlex.quote(f"{value:g}" if isinstance(value, float) else str(value))


def _joined(*words: str) -> str:
    return " ".join(words)
