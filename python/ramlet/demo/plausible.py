"""How much of a text is Python: the share of its lines in statements that Python's parser accepts.

    plausible("x = 1\\nreturn x\\nfoo bar\\n")     # Plausible(lines=3, taken=2)

A statement is judged by itself, in a place where it is allowed: its indentation is removed, the head of a block gets a
body, `else:`, `except X:` and the like get the block before them, a decorator gets its function, and everything is
inside a function and a loop, for `return`, `yield`, `await`, `break` and `continue`. Lines that end inside brackets or
strings are joined with the next ones, and each of them counts. If no statement starts at a line, the line is invalid.
Not counted are lines that say nothing about the grammar: blank ones, comments, strings by themselves (docstrings), and
statements of fewer than three Python tokens, which nearly always parse (`x`, `pass`).

It is an honest but modest measure: it sees statements, not whether a block is indented correctly, and it shows whether
a model has learned how Python is written, not whether its code would run. Real code, measured the same way, shows how
close to 100% the measure gets.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_TOKENS = 3
LONGEST = 200
"""The most lines that are joined into one statement."""

NO_CONTENT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
DOCSTRINGS = ('"""', "'''")
OPENED_BY = {"elif": "if 1: pass", "else": "if 1: pass", "except": "try: pass", "finally": "try: pass"}


@dataclass(frozen=True)
class Plausible:
    """Lines that were judged, and how many of them are Python."""

    lines: int
    taken: int

    @property
    def share(self) -> float:
        return self.taken / self.lines if self.lines else 0.0


def plausible(texts: str | Iterable[str], *, cut: bool = False) -> Plausible:
    """Judges the lines of all texts; `cut` says that each text ends in the middle of a line, which is skipped.

    A docstring that the end of such a text cuts is skipped too: its lines are no statements.
    """
    judged = taken = 0
    for text in [texts] if isinstance(texts, str) else texts:
        lines = text.split("\n")[: -1 if cut else None]
        at = 0
        while at < len(lines):
            count, parses = _statement(lines, at, cut)
            judged += count if parses is not None else 0
            taken += count if parses else 0
            at += count
    return Plausible(judged, taken)


def _statement(lines: list[str], at: int, cut: bool) -> tuple[int, bool | None]:
    """The number of lines of the statement at this line, and whether it is valid; None if it is not counted."""
    joined = lines[at].strip()
    if not joined:
        return 1, None
    for count in range(1, min(LONGEST, len(lines) - at) + 1):
        if count > 1:
            joined += "\n" + lines[at + count - 1]
        tokens, still_open = _tokens(joined)
        if still_open and cut and at + count == len(lines) and joined.lstrip("rRuU")[:3] in DOCSTRINGS:
            return count, None
        if still_open:
            continue
        if tokens is None:
            break
        if len(tokens) < LEAST_TOKENS or all(token.type == tokenize.STRING for token in tokens):
            # Too short to judge; but a closing bracket by itself is the rest of an invalid statement.
            return count, None if not tokens or _parses(joined, tokens) else False
        return (count, True) if _parses(joined, tokens) else (1, False)
    return 1, False


def _tokens(text: str) -> tuple[list[tokenize.TokenInfo] | None, bool]:
    """Python's tokens, or None if there are others; and whether brackets or strings are still open."""
    if text.endswith("\\"):
        return None, True
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text + "\n").readline))
    except tokenize.TokenError as error:
        return None, "multi-line" in str(error) or "triple-quoted" in str(error)
    except (SyntaxError, ValueError):
        return None, False
    return [token for token in found if token.type not in NO_CONTENT], False


def _parses(statement: str, tokens: list[tokenize.TokenInfo]) -> bool:
    word, opens = tokens[0].string, tokens[-1].string == ":"
    body = f"{statement}\n pass" if opens else statement
    if word == "@":
        body += "\ndef f(): pass"
    elif word == "try" and opens:
        body += "\nfinally: pass"
    elif word == "match" and opens:
        body = f"{statement}\n case _: pass"
    elif word == "case" and opens:
        body = "match 1:\n" + textwrap.indent(body, " ")
    elif word in OPENED_BY:
        body = f"{OPENED_BY[word]}\n{body}"
    inside = textwrap.indent(body, "  ", lambda line: True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string does not matter here
            ast.parse(f"async def f():\n while 1:\n{inside}")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
