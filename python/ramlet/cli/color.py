"""Color: the first word of errors, warnings and notes, headings in the help, the progress line.

    print(marked("error: no such file: a.txt", sys.stderr), file=sys.stderr)

Only on a terminal. NO_COLOR and TERM=dumb disable it; FORCE_COLOR or CLICOLOR_FORCE enable it, unless NO_COLOR is set.
The output of --json never has color. Plain escape codes: rich would cost 6 MB of RSS.
"""

from __future__ import annotations

import os
from typing import TextIO

_KINDS = {"error": "1;31", "problem": "1;31", "warning": "1;33", "note": "36"}


def colored(stream: TextIO) -> bool:
    """Whether to use color on this stream."""
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def marked(line: str, stream: TextIO) -> str:
    """The line, with `error:`, `warning:`, `note:` or `problem:` at its beginning in color."""
    kind, mark, rest = line.partition(":")
    if not mark or kind not in _KINDS or not colored(stream):
        return line
    return f"\x1b[{_KINDS[kind]}m{kind}:\x1b[0m{rest}"


def bold(text: str, stream: TextIO) -> str:
    return f"\x1b[1m{text}\x1b[0m" if text and colored(stream) else text


def warm(text: str, stream: TextIO) -> str:
    """In the color of warnings."""
    return f"\x1b[{_KINDS['warning']}m{text}\x1b[0m" if text and colored(stream) else text
