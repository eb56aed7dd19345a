"""What went wrong, in the words of the command line: settings are flags here.

sentence_of(error)      choose a smaller --seq-len, or pass --on-error skip
"""

from __future__ import annotations

import errno

from ramlet.errors import RamletError

__all__ = ["as_flag", "sentence_of"]

FLAGS = {"kind": "--type", "documents": "--docs", "special_tokens": "--special-token", "output_format": "--format"}
"""Of settings that are called otherwise."""

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
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    return flag if value is None else f"{flag} {value}"


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
