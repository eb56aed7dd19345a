"""A stage's error in terms of the pipeline's file: settings are keys there, in a section.

needs at least 438MB: ...; give more, or a shorter `seq_len` (under model); give `memory: 438MB` in pipeline.yaml
"""

from __future__ import annotations

import math

from ramlet.errors import RamletError, as_python, option
from ramlet.pipeline.file import SECTIONS
from ramlet.pipeline.stages import Stage

_SECTIONS = {"tokenizer": ("tokenizer",), "data": ("data",), "training": ("model", "training")}
"""Where the settings of each stage are."""


def with_keys(stage: Stage, error: RamletError, file: str, *, own: str, given: bool) -> str:
    """`own` is the memory of the waiting process; `given` says that the budget came from the caller, not the file."""

    def key(name: str, value: str | None) -> str:
        section = next((section for section in _SECTIONS.get(stage.name, ()) if name in SECTIONS[section]), None)
        written = f"`{name}`" if value is None else f"`{name}: {value}`"
        return as_python(name, value) if section is None else f"{written} (under {section})"

    sentence = error.render(key)
    if not (needed := error.facts.get("needed")):
        return sentence
    if stage.on_gpu:
        return f"{sentence}; {own} of memory is for the process that waits"
    enough = f"{math.ceil(needed / 1e6)}MB"
    return f"{sentence}; give {option('memory', enough) if given else f'`memory: {enough}` in {file}'}"
