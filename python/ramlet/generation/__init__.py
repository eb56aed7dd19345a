"""Text from a trained model.

entry.py       generate, stream: what users call
sampler.py     samples of a model in training
writer.py      a loaded model that writes, within a budget; an engine says which ids come next
prompt.py      text -> the first ids; text.py ids -> text as it can be shown
"""

from __future__ import annotations

from ramlet.generation.entry import generate, load, stream
from ramlet.generation.sampler import Sampler
from ramlet.generation.settings import SampleSettings

__all__ = ["SampleSettings", "Sampler", "generate", "load", "stream"]
