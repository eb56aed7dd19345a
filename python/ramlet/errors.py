"""The errors ramlet raises, each one sentence with the cause and the way out.

    RamletError                      catch this one to catch them all
    ├── BudgetError      (ValueError)   a memory budget that cannot be read, or is too small to work in
    ├── SettingsError    (ValueError)   a setting, or two together, that make no sense
    ├── SourceError      (ValueError)   an input that is missing, unreadable or holds no text
    │   ├── SourceChanged               a file that shrank, vanished or was rewritten while it was read
    │   └── BrokenInput                 broken content: a JSON line, a compressed stream, a missing field
    ├── TokenizerError   (ValueError)   a tokenizer file that cannot be used, text it cannot encode
    ├── DatasetError     (ValueError)   a dataset that is missing, damaged, or does not fit another
    ├── ModelError       (ValueError)   a model or checkpoint that is missing, damaged, or not one that can be loaded
    ├── TrainingStopped                 a run whose loss is no number any more, or jumped
    ├── PipelineError                   a stage of a pipeline that failed, with its own sentence
    ├── DiskFull         (OSError)      no space left for spilled counts or for a result
    ├── InternalError                   a mistake in ramlet itself; please report it
    └── Interrupted                     Ctrl-C between two batches; what is on disk is whole

The commands print `str(error)` and exit with 1. In a program, the built-in parents let code that does
not know ramlet treat them as what they are.
"""

from __future__ import annotations

__all__ = [
    "BrokenInput",
    "BudgetError",
    "DatasetError",
    "DiskFull",
    "InternalError",
    "Interrupted",
    "ModelError",
    "PipelineError",
    "RamletError",
    "SettingsError",
    "SourceChanged",
    "SourceError",
    "TokenizerError",
    "TrainingStopped",
]


class RamletError(Exception):
    """The parent of every error that ramlet raises on purpose.

    try:
        ramlet.prepare("corpus/", "my-dataset", memory="1MB")
    except ramlet.RamletError as error:
        print(error)
    """


class BudgetError(RamletError, ValueError):
    """A memory budget that cannot be read, or is too small to work in."""


class SettingsError(RamletError, ValueError):
    """A setting, or two together, that make no sense."""


class SourceError(RamletError, ValueError):
    """An input that is missing, unreadable or holds no text."""


class SourceChanged(SourceError):
    """A file that shrank, vanished or was rewritten while it was read."""


class BrokenInput(SourceError):
    """Content that cannot be read: a broken JSON line, a truncated stream, a missing field."""


class TokenizerError(RamletError, ValueError):
    """A tokenizer file that cannot be used, or text that a tokenizer cannot encode."""


class DatasetError(RamletError, ValueError):
    """A dataset that is missing, damaged, or does not fit what is wanted of it."""


class ModelError(RamletError, ValueError):
    """A model or checkpoint that is missing, damaged, or not one that can be loaded."""


class TrainingStopped(RamletError):
    """A run that went wrong by itself; its last good checkpoint is whole."""


class PipelineError(RamletError):
    """A stage of a pipeline that failed; the stages before it are done, and the same call goes on from it."""

    code = 1
    """How the stage ended."""
    told = False
    """Whether the stage has said so itself."""


class DiskFull(RamletError, OSError):
    """No space left for spilled counts or for a result."""


class InternalError(RamletError):
    """A mistake in ramlet itself, with what it takes to report it; what is on disk is whole."""


class Interrupted(RamletError):
    """Ctrl-C between two batches; what is on disk is whole, and the same call goes on from it."""


for _name in __all__:
    globals()[_name].__module__ = "ramlet"  # where users have them from, and what a traceback should say
