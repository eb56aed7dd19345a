"""The commands to reproduce a run, a dataset or a tokenizer, from the settings that were written down.

    commands(lineage)     the lines `ramlet tokenizer train ...`, `ramlet prepare ...` and `ramlet train ...`

Only settings that differ from the defaults are included. What no stage records is a placeholder in capitals: the
inputs, of which datasets and tokenizers keep only a fingerprint, and a stream's tokenizer.
"""

from __future__ import annotations

import shlex
from typing import Any

from ramlet.reporting.found import Run, number_at, value_at
from ramlet.reporting.lineage import Lineage
from ramlet.settings.declared import differing
from ramlet.settings.owners import command_line, owner

INPUT = "INPUT..."


def commands(lineage: Lineage) -> list[str]:
    """In the order in which they are to be run."""
    lines = []
    for tokenizer in lineage.tokenizers:
        given = value_at(tokenizer.statistics, "settings")
        budget = number_at(tokenizer.statistics, "memory", "budget")
        lines.append(_line("tokenizer train", INPUT, given=given, memory=_size(budget), out=tokenizer.path))
    for dataset in lineage.datasets:
        runs = dataset.manifest.runs
        given = value_at(runs[-1], "settings") if runs else None
        budget = number_at(dataset.statistics, "memory", "budget")
        lines.append(_line("prepare", INPUT, given=given, append=len(runs) > 1, memory=_size(budget), out=dataset.path))
    return lines if lineage.run is None else [*lines, _train(lineage.run)]


def _train(run: Run) -> str:
    recorded = value_at(run.settings, "data")
    data = [each for each in recorded if isinstance(each, dict)] if isinstance(recorded, list) else []
    streams = [each["stream"] for each in data if "stream" in each]
    datasets = [
        f"{each.get('path')}={each['weight']:g}"
        if len(data) > 1 and number_at(each, "weight") is not None
        else str(each.get("path"))
        for each in data
        if "stream" not in each
    ]
    evals = [f"{name}={path}" for name, path in (value_at(run.settings, "evals") or {}).items()]
    budget = number_at(run.settings, "plan", "budget")
    if budget is not None:
        budget += number_at(run.settings, "plan", "held") or 0
    return _line(
        "train",
        given=value_at(run.settings, "all_settings"),
        before={"data": datasets, "stream": streams, "tokenizer": "TOKENIZER" if streams else None},
        eval=evals,
        memory=_size(budget),
        out=run.path,
    )


def _line(command: str, *inputs: str, given: Any = None, before: dict[str, Any] | None = None, **options: Any) -> str:
    """`given` are settings as they were recorded, of which only those that are not the default are typed."""
    changed = differing(owner(command), given) if isinstance(given, dict) else {}
    return shlex.join(["ramlet", *command_line(command, *inputs, **(before or {}), **changed, **options)])


def _size(budget: float | None) -> str | None:
    return None if budget is None else f"{-(-int(budget) // 1_000_000)}MB"
