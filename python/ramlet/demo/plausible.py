"""How much of a text is Python: the share of its lines that are, or belong to, statements that Python's parser takes.

    plausible("x = 1\\nreturn x\\nfoo bar\\n")     # Plausible(lines=3, taken=2)

A statement is judged alone, as if it stood where it could: its indentation is taken away, a block's opening gets a
body, `else:`, `except X:` and their like get the block before them, a decorator gets its function, and `return`,
`yield` and `await` stand in a function, `break` and `continue` in a loop. Lines that are open within brackets or
strings are joined with those that follow, and count as many as they are. Where no statement begins, the line counts as
not taken. Not counted at all are lines that say nothing about the grammar: blank ones, comments, strings that stand
alone (docstrings), and statements of fewer than three of Python's tokens, which nearly always parse (`x`, `pass`).

It is an honest but modest measure: it sees statements, not whether a block is indented as it should be, and it says
whether a model has learned how Python is written, not whether what it writes would run. Real code measured beside a
model says how near to 100% the measure comes.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Plausible", "plausible"]

LEAST_TOKENS = 3
LONGEST = 200
"""Lines that are joined to one statement at most."""

SAYING_NOTHING = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
OPENED_BEFORE = {"elif": "if 1: pass", "else": "if 1: pass", "except": "try: pass", "finally": "try: pass"}


@dataclass(frozen=True)
class Plausible:
    """Lines that were judged, and those among them that are Python."""

    lines: int
    taken: int

    @property
    def share(self) -> float:
        return self.taken / self.lines if self.lines else 0.0


def plausible(texts: str | Iterable[str], *, cut: bool = False) -> Plausible:
    """Judges the lines of all texts; `cut` says that a text ends in the middle of its last line, which is left out."""
    judged = taken = 0
    for text in [texts] if isinstance(texts, str) else texts:
        lines = text.split("\n")[: -1 if cut else None]
        at = 0
        while at < len(lines):
            count, verdict = _statement(lines, at)
            judged += count if verdict is not None else 0
            taken += count if verdict else 0
            at += count
    return Plausible(judged, taken)


def _statement(lines: list[str], at: int) -> tuple[int, bool | None]:
    """How many lines the statement has that begins here, and whether it is one; None where it says nothing."""
    joined = lines[at].strip()
    if not joined:
        return 1, None
    for count in range(1, min(LONGEST, len(lines) - at) + 1):
        if count > 1:
            joined += "\n" + lines[at + count - 1]
        tokens, still_open = _tokens(joined)
        if still_open:
            continue
        if tokens is None:
            break
        if len(tokens) < LEAST_TOKENS or all(token.type == tokenize.STRING for token in tokens):
            # Too little to tell; but a closing bracket alone is what is left of a statement that was none.
            return count, None if not tokens or _parses(joined, tokens) else False
        return (count, True) if _parses(joined, tokens) else (1, False)
    return 1, False


def _tokens(text: str) -> tuple[list[tokenize.TokenInfo] | None, bool]:
    """Python's tokens, None where the text is not made of them; and whether brackets or strings are still open."""
    if text.endswith("\\"):
        return None, True
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text + "\n").readline))
    except tokenize.TokenError as error:
        return None, "multi-line" in str(error) or "triple-quoted" in str(error)
    except (SyntaxError, ValueError):
        return None, False
    return [token for token in found if token.type not in SAYING_NOTHING], False


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
    elif word in OPENED_BEFORE:
        body = f"{OPENED_BEFORE[word]}\n{body}"
    inside = textwrap.indent(body, "  ", lambda line: True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is no matter here
            ast.parse(f"async def f():\n while 1:\n{inside}")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
