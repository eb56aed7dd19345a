"""A dataset in the file format of another trainer. A new format is a module here and a line in FORMATS.

A module has `write(job)`, which gets an `Export` (run.py). If it loads the tokenizer it also has
`tokens_loaded(manifest)`: how many tokens the budget has to count for that. If it writes documents as a whole it has
`row_bytes(dataset)`: the memory of the largest.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ramlet.errors import SettingsError

__all__ = ["FORMATS", "load_format"]

FORMATS = {
    "nanogpt": "train.bin, val.bin and meta.pkl",
    "llm.c": "files with a header, and the EOS id before each document",
    "megatron": ".bin and .idx",
    "npy": "NumPy arrays",
    "hf": "a folder for datasets.load_from_disk",
}
"""What each one writes, as the help says it."""


def load_format(name: str) -> ModuleType:
    if name not in FORMATS:
        raise SettingsError(f"unknown format {name!r}: use {', '.join(FORMATS)}")
    return import_module(f"ramlet.dataset.export.{name.replace('.', '_')}")
