"""The errors that ramlet raises. Each message is one sentence: the cause, and what to do about it.

    RamletError                      catch this one to catch them all
    ├── BudgetError      (ValueError)   a memory budget that is not valid, or too small
    ├── SettingsError    (ValueError)   a setting that is not valid, or settings that contradict each other
    ├── SourceError      (ValueError)   an input that is missing, unreadable or has no text
    │   ├── SourceChanged               a file that was truncated, removed or rewritten while being read
    │   └── BrokenInput                 broken content: a JSON line, a compressed stream, a missing field
    ├── TokenizerError   (ValueError)   a tokenizer file that cannot be used, or text it cannot encode
    ├── DatasetError     (ValueError)   a dataset that is missing, damaged, or does not match another
    ├── ModelError       (ValueError)   a model or checkpoint that is missing, damaged or not supported
    ├── TrainingStopped                 a run whose loss became NaN or infinite, or jumped
    ├── PipelineError                   a stage of a pipeline that failed, with the message of the stage
    ├── DiskFull         (OSError)      no disk space left for temporary files or for the result
    ├── InternalError                   a bug in ramlet; please report it
    └── Interrupted                     Ctrl-C between two batches; files on disk are complete

The built-in parents let code that does not know ramlet handle them as usual.

A message may name settings, which are spelled differently in Python (`seq_len`), on the command line (`--seq-len`) and
in a YAML file. So whoever raises an error marks them, and whoever shows it chooses the spelling:

    raise SettingsError(f"choose a smaller {option('seq_len')}, or {option('on_error', 'skip')}", context=256)

    str(error)               choose a smaller seq_len, or on_error="skip"
    error.render(as_flag)    choose a smaller --seq-len, or --on-error skip
    error.settings           ["seq_len", "on_error"]
    error.facts              {"context": 256}, for programs, which should not have to parse the message
"""

from __future__ import annotations

import re

# Type checkers treat this name as true. Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Spelling = Callable[[str, str | None], str]
    """(name, value or None) -> the setting as it is written in Python, on the command line or in YAML."""

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

# Characters that no message and hardly any path contains.
_OPENS, _BEFORE_VALUE, _CLOSES = "\x02", "\x1f", "\x03"
_MARKED = re.compile(f"{_OPENS}(\\w+)(?:{_BEFORE_VALUE}([^{_CLOSES}]*))?{_CLOSES}")


def option(name: str, value: object = None) -> str:
    """Marks a setting, or a setting with a value to give it, in the message of an error."""
    return f"{_OPENS}{name}{_CLOSES}" if value is None else f"{_OPENS}{name}{_BEFORE_VALUE}{value}{_CLOSES}"


def as_python(name: str, value: str | None) -> str:
    """A setting as written in Python."""
    if value is None:
        return name
    return f"{name}={value}" if re.fullmatch(r"[\d.]+|True|False|None", value) else f'{name}="{value}"'


class RamletError(Exception):
    """The base class of every error that ramlet raises on purpose.

    try:
        ramlet.prepare("corpus/", "my-dataset", memory="1MB")
    except ramlet.RamletError as error:
        print(error)
    """

    def __init__(self, sentence: str = "", **facts: Any) -> None:
        super().__init__(sentence)
        self.facts = facts

    def render(self, spelling: Spelling) -> str:
        """The message, with its settings in the given spelling."""
        return _MARKED.sub(lambda found: spelling(found[1], found[2]), self.sentence)

    def __str__(self) -> str:
        return self.render(as_python)

    @property
    def sentence(self) -> str:
        """The message with its settings marked."""
        return str(self.args[0]) if self.args else ""

    @property
    def settings(self) -> list[str]:
        """The settings that the message names, in order."""
        return [name for name, _ in _MARKED.findall(self.sentence)]

    def as_json(self) -> dict[str, Any]:
        """For another process, which restores the error with `from_json`."""
        return {"type": type(self).__name__, "sentence": self.sentence, "facts": self.facts}


class BudgetError(RamletError, ValueError):
    """A memory budget that is not valid, or too small.

    If it is too small, `facts` has the bytes: `needed`, `budget`, and `parts`, what needs how much.
    """


class SettingsError(RamletError, ValueError):
    """A setting that is not valid, or settings that contradict each other."""


class SourceError(RamletError, ValueError):
    """An input that is missing, unreadable or has no text."""


class SourceChanged(SourceError):
    """A file that was truncated, removed or rewritten while being read."""


class BrokenInput(SourceError):
    """Broken content: a JSON line, a truncated stream, a missing field."""


class TokenizerError(RamletError, ValueError):
    """A tokenizer file that cannot be used, or text it cannot encode."""


class DatasetError(RamletError, ValueError):
    """A dataset that is missing, damaged, or does not match another."""


class ModelError(RamletError, ValueError):
    """A model or checkpoint that is missing, damaged or not supported."""


class TrainingStopped(RamletError):
    """A run whose loss became NaN or infinite, or jumped; its last good checkpoint is complete."""


class PipelineError(RamletError):
    """A stage of a pipeline that failed; the earlier stages are done, and the same call resumes from here."""

    code = 1
    """Exit code of the stage."""


class DiskFull(RamletError, OSError):
    """No disk space left for temporary files or for the result."""


class InternalError(RamletError):
    """A bug in ramlet, with what is needed to report it; files on disk are complete."""


class Interrupted(RamletError):
    """Ctrl-C between two batches; files on disk are complete, and the same call resumes."""


def from_json(error: Mapping[str, Any]) -> RamletError:
    """An error of another process, from its `as_json`."""
    kind = globals()[error["type"]] if error.get("type") in __all__ else RamletError
    return kind(error["sentence"], **error.get("facts", {}))


for _name in __all__:
    globals()[_name].__module__ = "ramlet"  # where users import them from, as tracebacks should show
