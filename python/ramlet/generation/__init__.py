"""Generates text with a trained model.

entry.py       generate and stream, which users call
sampler.py     samples of a model during training
writer.py      a loaded model that generates within a budget; an engine chooses the next ids
prompt.py      the prompt as ids; text.py ids -> text
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramlet.generation.entry import generate, load, stream
    from ramlet.generation.sampler import Sampler
    from ramlet.generation.settings import SampleSettings

__all__ = ["SampleSettings", "Sampler", "generate", "load", "stream"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """On demand: importing only the settings, as for the command's help, loads no tokenizer."""
        if name not in __all__:
            raise AttributeError(f"module 'ramlet.generation' has no attribute {name!r}")
        from importlib import import_module

        home = {"SampleSettings": "settings", "Sampler": "sampler"}.get(name, "entry")
        return getattr(import_module(f"ramlet.generation.{home}"), name)
