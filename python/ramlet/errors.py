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

In a program, the built-in parents let code that does not know ramlet treat them as what they are.

A sentence names settings, and each reader spells them differently: `seq_len` in Python, `--seq-len` on the command
line, a key in a file. So whoever raises an error marks them, and whoever tells it decides:

    raise SettingsError(f"choose a smaller {option('seq_len')}, or {option('on_error', 'skip')}", context=256)

    str(error)             choose a smaller seq_len, or on_error="skip"
    error.told(as_flags)   choose a smaller --seq-len, or --on-error skip
    error.settings         ["seq_len", "on_error"]
    error.facts            {"context": 256}: what a program would otherwise have to search the sentence for
"""

from __future__ import annotations

import re

# Type checkers take this name for true; importing typing would take most of the time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Spelling = Callable[[str, str | None], str]
    """A setting's name, and a value to give it or None -> how the reader of the sentence writes that."""

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

# Characters that no sentence and hardly any path has.
_OPENS, _BEFORE_VALUE, _CLOSES = "\x02", "\x1f", "\x03"
_MARKED = re.compile(f"{_OPENS}(\\w+)(?:{_BEFORE_VALUE}([^{_CLOSES}]*))?{_CLOSES}")


def option(name: str, value: object = None) -> str:
    """A setting in the sentence of an error, and the value it could be given."""
    return f"{_OPENS}{name}{_CLOSES}" if value is None else f"{_OPENS}{name}{_BEFORE_VALUE}{value}{_CLOSES}"


def as_python(name: str, value: str | None) -> str:
    """How a setting is written in a program."""
    if value is None:
        return name
    return f"{name}={value}" if re.fullmatch(r"[\d.]+|True|False|None", value) else f'{name}="{value}"'


class RamletError(Exception):
    """The parent of every error that ramlet raises on purpose.

    try:
        ramlet.prepare("corpus/", "my-dataset", memory="1MB")
    except ramlet.RamletError as error:
        print(error)
    """

    def __init__(self, sentence: str = "", **facts: Any) -> None:
        super().__init__(sentence)
        self.facts = facts

    def told(self, spelling: Spelling) -> str:
        """The sentence, its settings written as its reader writes them."""
        return told(self.sentence, spelling)

    def __str__(self) -> str:
        return self.told(as_python)

    @property
    def sentence(self) -> str:
        """With its settings marked."""
        return str(self.args[0]) if self.args else ""

    @property
    def settings(self) -> list[str]:
        """The settings that the sentence names, in its order."""
        return [name for name, _ in _MARKED.findall(self.sentence)]

    def as_json(self) -> dict[str, Any]:
        """For another process, which makes the same error of it with `from_json`."""
        return {"type": type(self).__name__, "sentence": self.sentence, "facts": self.facts}


class BudgetError(RamletError, ValueError):
    """A memory budget that cannot be read, or is too small to work in.

    Where it is too small, `facts` has the bytes: `needed`, `budget`, and `parts`, by what takes them.
    """


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


class DiskFull(RamletError, OSError):
    """No space left for spilled counts or for a result."""


class InternalError(RamletError):
    """A mistake in ramlet itself, with what it takes to report it; what is on disk is whole."""


class Interrupted(RamletError):
    """Ctrl-C between two batches; what is on disk is whole, and the same call goes on from it."""


def told(sentence: str, spelling: Spelling) -> str:
    """A sentence with marked settings, as its reader writes them."""
    return _MARKED.sub(lambda found: spelling(found[1], found[2]), sentence)


def from_json(told: Mapping[str, Any]) -> RamletError:
    """An error that another process has told of itself."""
    kind = globals()[told["type"]] if told.get("type") in __all__ else RamletError
    return kind(told["sentence"], **told.get("facts", {}))


for _name in __all__:
    globals()[_name].__module__ = "ramlet"  # where users have them from, and what a traceback should say
