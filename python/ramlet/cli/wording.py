"""What went wrong, in the words of the command line: settings are flags here.

sentence_of(error)      choose a smaller --seq-len, or pass --on-error skip
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramlet.errors import RamletError

if TYPE_CHECKING:
    from ramlet.settings.declared import Setting

__all__ = ["as_flag", "sentence_of", "speak_of"]

LONGEST = 1500

_WAYS_OUT = {
    errno.ENOSPC: "make room and run the same again",
    errno.EDQUOT: "make room and run the same again",
    errno.EFBIG: "a limit on the size of files is in the way: raise it (ulimit -f) and run the same again",
    errno.EMFILE: "raise the limit on open files (ulimit -n) and run the same again",
    errno.ENFILE: "close other programs and run the same again",
}


def as_flag(name: str, value: str | None) -> str:
    """A setting as it is typed.

    >>> as_flag("seq_len", None), as_flag("on_error", "skip")
    ('--seq-len', '--on-error skip')
    """
    from ramlet.settings.declared import declared, flag
    from ramlet.settings.owners import owners

    each = _spoken.get(name) or next((declared(cls)[name] for cls in owners() if name in declared(cls)), None)
    written = flag(name) if each is None else each.flags[0]
    return written if value is None else f"{written} {value}"


_spoken: dict[str, Setting] = {}


def speak_of(settings: Mapping[str, Setting]) -> None:
    """The settings of the command that runs: two commands may have different options for one name."""
    _spoken.clear()
    _spoken.update(settings)


def sentence_of(error: BaseException) -> str:
    """One sentence, also for what no one was there to catch; a name in it may be of any length."""
    sentence = _sentence(error)
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"


def _sentence(error: BaseException) -> str:
    if isinstance(error, RamletError):
        return error.told(as_flag)
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        way_out = _WAYS_OUT.get(error.errno or 0)
        return f"{what}; {way_out}" if way_out else what
    if isinstance(error, MemoryError):
        return "the machine is out of memory: give a smaller --memory, or free some"
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"{reason}; this is a defect of ramlet, run it again with --debug to see where"
