"""Error messages as the command line shows them: settings are written as options.

sentence_of(error)      choose a smaller --seq-len, or pass --on-error skip
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramlet.errors import RamletError

if TYPE_CHECKING:
    from ramlet.settings.declared import Setting

LONGEST = 1500
NO_SETTINGS: Mapping[str, Setting] = MappingProxyType({})

_REMEDIES = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EFBIG: "raise the limit on file size (ulimit -f) and run the same command again",
    errno.EMFILE: "raise the limit on open files (ulimit -n) and run the same command again",
    errno.ENFILE: "close other programs and run the same command again",
}


def as_flag(name: str, value: str | None, settings: Mapping[str, Setting] = NO_SETTINGS) -> str:
    """A setting as an option. `settings` are those of the command: two commands may use one flag for different things.

    >>> as_flag("seq_len", None), as_flag("on_error", "skip"), as_flag("tied", "False"), as_flag("resume", "False")
    ('--seq-len', '--on-error skip', '--untied', '--no-resume')
    """
    from ramlet.settings.declared import declared, flag
    from ramlet.settings.owners import owners

    each = settings.get(name) or next((declared(cls)[name] for cls in owners() if name in declared(cls)), None)
    written = flag(name) if each is None else each.flags[0]
    if value == "False":
        return flag((each and each.opposite) or f"no_{name}")
    return written if value in (None, "True") else f"{written} {value}"


def sentence_of(error: BaseException, settings: Mapping[str, Setting] = NO_SETTINGS) -> str:
    """The message of any error as one sentence, shortened if it is very long."""
    sentence = _sentence(error, settings)
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"


def _sentence(error: BaseException, settings: Mapping[str, Setting]) -> str:
    if isinstance(error, RamletError):
        return error.render(partial(as_flag, settings=settings)) + _elsewhere(error, settings)
    if isinstance(error, FileNotFoundError) and not error.filename and _is_homeless():
        return "the current folder was removed: change to another one and run the same command again"
    if isinstance(error, OSError) and error.strerror:
        problem = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        remedy = _REMEDIES.get(error.errno or 0)
        return f"{problem}; {remedy}" if remedy else problem
    if isinstance(error, MemoryError):
        return "the machine is out of memory: use a smaller --memory, or close other programs"
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"{reason}; this is a bug in ramlet, run the same command with --debug to see where"


def _elsewhere(error: RamletError, settings: Mapping[str, Setting]) -> str:
    """Whose options those about reading are, for commands that read text without having them, like train and init."""
    from ramlet.inputs.settings import ReadSettings
    from ramlet.settings.declared import declared

    known = declared(ReadSettings)
    flags = [known[name].flags[0] for name in error.settings if name in known and name not in settings]
    if not flags:
        return ""
    return f" ({' and '.join(flags)}: {'an option' if len(flags) == 1 else 'options'} of ramlet prepare)"


def _is_homeless() -> bool:
    """Whether the current folder was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
