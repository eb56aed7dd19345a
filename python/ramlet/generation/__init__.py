"""Text from a trained model.

entry.py       generate, stream: what users call
sampler.py     samples of a model in training
writer.py      a loaded model that writes, within a budget; an engine says which ids come next
prompt.py      text -> the first ids; text.py ids -> text as it can be shown
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
        """On demand: who wants only the settings, as the command's help does, pays for no tokenizer."""
        if name not in __all__:
            raise AttributeError(f"module 'ramlet.generation' has no attribute {name!r}")
        from importlib import import_module

        home = {"SampleSettings": "settings", "Sampler": "sampler"}.get(name, "entry")
        return getattr(import_module(f"ramlet.generation.{home}"), name)
