"""Reference implementation of cleaning: slow and obvious, with Python's own Unicode tables.

Normalization, in this order: line ends (CR LF, CR, U+0085, U+2028, U+2029) become "\\n"; control characters (Cc except
tab and "\\n"), U+FEFF and noncharacters are removed; NFC; blanks (Zs, tab) at the end of a line are removed, and with
`collapse_blanks` a run of blanks after the indentation becomes one space; more than two consecutive blank lines become
two; blank lines at the start and all white space at the end of the document are removed.

Line rules drop a line that is not blank and has fewer characters than `min_line_chars`, more than `max_line_chars` (0:
no limit), or a fraction of symbols above `max_line_symbols`. Its "\\n" is dropped too. If a line is dropped and
normalization is on, blank lines are normalized again.

Document rules apply to the remaining text; the first that matches is reported: nothing but white space; fewer
characters than `min_chars`; more than `max_chars` (0: no limit); a fraction of symbols above `max_symbols`; at least
four nonblank lines, with a fraction of their characters above `max_repeated` in lines equal to an earlier one; a
fraction of U+FFFD above `max_invalid`.

A symbol is a character that is neither L, M, N nor White_Space. A fraction is above its limit if
`count > limit * total`. Without `filter` the only rule is "empty"; without `normalize` the text is not normalized.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ramlet import _native
from ramlet.preparing.settings import PrepareSettings

BLANKS = "\t" + "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Zs")
WHITE_SPACE = BLANKS + "\n\x0b\x0c\r\x85\u2028\u2029"


@cache
def known_characters() -> str:
    """The characters on which two versions of Unicode agree: assigned in both, or never to be assigned."""
    characters = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    # The pieces alternate between assigned and unassigned characters, starting with assigned ones.
    native = "".join(_native.split_pieces(characters, r"\P{Cn}+|\p{Cn}+")[::2])
    python = {one for one in characters if unicodedata.category(one) != "Cn"}
    return "".join(one for one in native if one in python) + "".join(filter(is_noncharacter, characters))


def is_noncharacter(character: str) -> bool:
    code = ord(character)
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFF in (0xFFFE, 0xFFFF)


def is_symbol(character: str) -> bool:
    return unicodedata.category(character)[0] not in "LMN" and character not in WHITE_SPACE


def is_removed(character: str) -> bool:
    control = unicodedata.category(character) == "Cc" and character not in "\t\n"
    return control or character == "\ufeff" or is_noncharacter(character)


def is_blank(line: str) -> bool:
    return not line.strip(WHITE_SPACE)


def is_above(limit: float, text: str, counted: Callable[[str], bool]) -> bool:
    return sum(map(counted, text)) > limit * len(text)


def normalise(text: str, collapse_blanks: bool = False) -> str:
    text = re.sub("\r\n|[\r\x85\u2028\u2029]", "\n", text)
    text = "".join(character for character in text if not is_removed(character))
    text = unicodedata.normalize("NFC", text)
    lines = [line.rstrip(BLANKS) for line in text.split("\n")]
    if collapse_blanks:
        lines = [re.sub(f"(?<=[^{BLANKS}])[{BLANKS}]+", " ", line) for line in lines]
    return arrange("\n".join(lines))


def arrange(text: str) -> str:
    return re.sub("\n{4,}", "\n\n\n", text.lstrip("\n")).rstrip(WHITE_SPACE)


def line_rule(line: str, settings: PrepareSettings) -> str | None:
    if is_blank(line):
        return None
    if len(line) < settings.min_line_chars:
        return "line_too_short"
    if 0 < settings.max_line_chars < len(line):
        return "line_too_long"
    return "line_symbols" if is_above(settings.max_line_symbols, line, is_symbol) else None


def drop_lines(text: str, settings: PrepareSettings) -> tuple[str, dict[str, tuple[int, int]]]:
    kept = []
    dropped: dict[str, tuple[int, int]] = {}
    for line in re.findall("[^\n]*\n|[^\n]+", text):
        rule = line_rule(line.removesuffix("\n"), settings)
        if rule is None:
            kept.append(line)
        else:
            lines, size = dropped.get(rule, (0, 0))
            dropped[rule] = lines + 1, size + len(line.encode())
    left = "".join(kept)
    return arrange(left) if dropped and settings.normalize else left, dropped


def document_rule(text: str, settings: PrepareSettings) -> str | None:
    if is_blank(text):
        return "empty"
    if not settings.filter:
        return None
    if len(text) < settings.min_chars:
        return "too_short"
    if 0 < settings.max_chars < len(text):
        return "too_long"
    if is_above(settings.max_symbols, text, is_symbol):
        return "symbols"
    lines = [line for line in text.split("\n") if not is_blank(line)]
    repeated = sum(len(line) for at, line in enumerate(lines) if line in lines[:at])
    if len(lines) >= 4 and repeated > settings.max_repeated * sum(map(len, lines)):
        return "repeated_lines"
    return "bad_encoding" if is_above(settings.max_invalid, text, "\ufffd".__eq__) else None


class Cleaned(NamedTuple):
    """The result of cleaning a document."""

    text: str | None
    rule: str | None
    lines: dict[str, tuple[int, int]]
    """For each line rule that dropped any: the number of lines, and of bytes including line ends."""


def native(text: str, settings: PrepareSettings | None = None) -> Cleaned:
    """Cleans with the native core."""
    kept, rule, lines = _native.clean_text(text, json.dumps((settings or PrepareSettings()).cleaning()))
    return Cleaned(kept, rule, {name: (count, size) for name, count, size in lines})


def clean(text: str, settings: PrepareSettings) -> Cleaned:
    if settings.normalize:
        text = normalise(text, settings.collapse_blanks)
    dropped: dict[str, tuple[int, int]] = {}
    if settings.filter:
        text, dropped = drop_lines(text, settings)
    rule = document_rule(text, settings)
    return Cleaned(None if rule else text, rule, dropped)
