r"""Text and tokens of a model on a terminal.

    passage("def f():\n\tx = '\x1b'\n\n")      # ["  | def f():", "  |     x = '\\x1b'"]

An untrained model writes any bytes: control characters, which a terminal would obey, are shown as escapes.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

from ramlet.cli.color import colored

MARGIN = "  | "
BAR = 40
COLORS = (153, 223, 157, 217, 189, 229)
"""Light ones of the terminal's 256, for black text."""


def passage(text: str, most: int | None = None) -> list[str]:
    """Lines with a margin, wrapped to the terminal; at most `most` lines of the text."""
    wrapper = textwrap.TextWrapper(
        width=max(20, shutil.get_terminal_size((100, 24)).columns - len(MARGIN)),
        expand_tabs=False,
        replace_whitespace=False,
        drop_whitespace=False,
        break_on_hyphens=False,
    )
    lines = []
    for line in text.rstrip("\n").split("\n")[:most]:
        lines += [f"{MARGIN}{part}".rstrip() for part in wrapper.wrap(_printable(line.expandtabs(4))) or [""]]
    return lines


def token_text(token: bytes) -> str:
    """The token on one line; invalid UTF-8 and unprintable characters are escaped.

    >>> token_text(" naïve".encode()), token_text(b"\\n"), token_text("語".encode()[:2])
    (' naïve', '\\\\n', '\\\\xe8\\\\xaa')
    """
    return _printable(token.decode("utf-8", "backslashreplace"))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def write_tokens(tokens: Iterable[bytes]) -> None:
    """The tokens side by side, in alternating colors, or in brackets without color."""
    in_color = colored(sys.stdout)
    for index, token in enumerate(tokens):
        # A line break is shown as \n, and also breaks the line.
        end = "\n" if token.endswith(b"\n") else ""
        if in_color:
            sys.stdout.write(f"\x1b[30;48;5;{COLORS[index % len(COLORS)]}m{token_text(token)}\x1b[0m{end}")
        else:
            sys.stdout.write(f"[{token_text(token)}]{end}")


def bar(count: int, most: int) -> str:
    """The bar of a histogram; `most` has the longest."""
    return "█" * max(1, round(BAR * count / most)) if count else ""
