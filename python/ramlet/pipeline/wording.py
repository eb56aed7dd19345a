"""The error of a stage, in the words of the pipeline's file: settings are keys there, in a section.

needs at least 438MB: ...; give more, or a shorter `seq_len` (under model); give `memory: 438MB` in pipeline.yaml
"""

from __future__ import annotations

import math

from ramlet.errors import RamletError, as_python, option
from ramlet.pipeline.file import SECTIONS
from ramlet.pipeline.stages import Stage

__all__ = ["in_words_of_the_file"]

_SECTIONS = {"tokenizer": ("tokenizer",), "data": ("data",), "training": ("model", "training")}
"""That have the settings of a stage."""


def in_words_of_the_file(stage: Stage, error: RamletError, file: str, *, own: str, given: bool) -> str:
    """`own` is what the process that waits takes; `given` says that the budget came from the caller, not the file."""

    def key(name: str, value: str | None) -> str:
        home = next((section for section in _SECTIONS.get(stage.name, ()) if name in SECTIONS[section]), None)
        written = f"`{name}`" if value is None else f"`{name}: {value}`"
        return as_python(name, value) if home is None else f"{written} (under {home})"

    sentence = error.render(key)
    if not (needed := error.facts.get("needed")):
        return sentence
    if stage.on_gpu:
        return f"{sentence}; and {own} of memory are for the process that waits"
    enough = f"{math.ceil(needed / 1e6)}MB"
    return f"{sentence}; give {option('memory', enough) if given else f'`memory: {enough}` in {file}'}"
