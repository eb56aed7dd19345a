r"""What a model wrote, set apart from what the command says.

    passage("def f():\n\tx = '\x1b'\n\n")      # ["  | def f():", "  |     x = '\\x1b'"]

An untrained model writes any bytes: what a terminal might obey is shown by its number.
"""

from __future__ import annotations

import shutil
import textwrap

__all__ = ["passage"]

MARGIN = "  | "


def passage(text: str, most: int | None = None) -> list[str]:
    """Lines with a margin, as wide as the terminal; with `most`, no more than so many of the text's."""
    wrapper = textwrap.TextWrapper(
        width=max(20, shutil.get_terminal_size((100, 24)).columns - len(MARGIN)),
        expand_tabs=False,
        replace_whitespace=False,
        drop_whitespace=False,
        break_on_hyphens=False,
    )
    shown = []
    for line in text.rstrip("\n").split("\n")[:most]:
        shown += [f"{MARGIN}{part}".rstrip() for part in wrapper.wrap(_printable(line.expandtabs(4))) or [""]]
    return shown


def _printable(line: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in line)
