"""What to do about a stage that failed, in the words of the pipeline's file.

    advice(stage, "needs at least 438MB: ... a shorter --seq-len", "pipeline.yaml", own=32_000_000)
    "give `memory: 438MB` in pipeline.yaml, 32.0 MB of it for the process that waits; options are keys there: seq_len
    (under model)"

A stage speaks as the command that it is: of flags, which `ramlet run` does not have.
"""

from __future__ import annotations

import re
from dataclasses import fields

from ramlet.budget import format_bytes
from ramlet.config_file import OPTIONS
from ramlet.pipeline.sections import MODEL, RUN_ALSO, RUN_SWITCHES, TOKENIZER_ALSO
from ramlet.pipeline.stages import Stage
from ramlet.train_settings import TrainSettings
from ramlet.training.settings import RunSettings

__all__ = ["advice"]

_RUN = (*(each.name for each in fields(RunSettings)), *RUN_ALSO, *RUN_SWITCHES, "eval", "host_memory")
_TOKENIZER = (*(each.name for each in fields(TrainSettings)), *TOKENIZER_ALSO, "spill_dir")
_SECTIONS = {
    "tokenizer": {"tokenizer": _TOKENIZER},
    "data": {"data": OPTIONS},
    "training": {"model": (*MODEL, "untied"), "training": _RUN},
}
"""Of each stage: the sections that have its options."""


def advice(stage: Stage, sentence: str, file: str, *, own: int, flag: bool = False) -> str:
    """Nothing where the sentence is enough. `own` is what the process that waits takes of the budget, which came from
    `--memory` (`flag`) or from the file."""
    found = []
    least = re.match(r"needs at least ([\d.]+ ?[kMGT]?B)", sentence)
    if least is not None and stage.on_gpu:
        found.append(f"and {format_bytes(own)} of memory are for the process that waits")
    elif least is not None:
        given = f"--memory {least[1]}" if flag else f"`memory: {least[1]}` in {file}"
        found.append(f"give {given}, {format_bytes(own)} of it for the process that waits")
    keys = list(filter(None, (_key(stage, each) for each in re.findall(r"(?<!\S)\(?--([a-z][a-z0-9-]*)", sentence))))
    if keys:
        where = "there" if found and not flag and not stage.on_gpu else f"in {file}"
        found.append(f"options are keys {where}: {', '.join(dict.fromkeys(keys))}")
    return "; ".join(found)


def _key(stage: Stage, option: str) -> str | None:
    key = option.replace("-", "_")
    sections = _SECTIONS.get(stage.name, {})
    home = next((section for section, keys in sections.items() if key in keys), None)
    return None if home is None else f"{key} (under {home})"
