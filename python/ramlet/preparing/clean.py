"""Before a document is tokenised: it is made uniform, freed of bad lines, kept or dropped for a named reason.

    >>> clean_text("Cafe\\u0301 \\r\\n\\topen\\r\\n")
    Cleaned(text='Café\\n\\topen', rule=None, lines={})

The exact meaning of every step stands at the top of `rust/clean/mod.rs`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ramlet import _native
from ramlet.errors import BrokenInput, SettingsError

__all__ = ["DOCUMENT_RULES", "LINE_RULES", "CleanSettings", "Cleaned", "clean_text"]

DOCUMENT_RULES = ("empty", "too_short", "too_long", "symbols", "repeated_lines", "bad_encoding")
"""Why a document is dropped, in the order in which it is asked."""

LINE_RULES = ("line_too_short", "line_too_long", "line_symbols")
"""Why a line is dropped, in the order in which it is asked."""

_SHARES = ("max_symbols", "max_repeated", "max_invalid", "max_line_symbols")
_COUNTS = ("min_chars", "max_chars", "min_line_chars", "max_line_chars")
_LARGEST_COUNT = 2**53
"""Counts and shares are compared as floats, which are exact up to here."""


@dataclass(frozen=True, kw_only=True)
class CleanSettings:
    """How text is made uniform, and what is left out. Lengths are in characters."""

    normalise: bool = True
    """One kind of line end, no control characters, NFC, no blanks at line ends, at most two blank lines in a row."""

    collapse_blanks: bool = False
    """Also makes a run of blanks inside a line one space; indentation stays."""

    filter: bool = True
    """Applies the rules below. Without them only documents of nothing but white space are dropped."""

    min_chars: int = 1
    """Drops shorter documents (too_short)."""

    max_chars: int = 0
    """Drops longer documents (too_long); 0 is no limit."""

    max_symbols: float = 0.6
    """Drops documents with a larger share of characters that are neither letters, marks, numbers nor white space
    (symbols)."""

    max_repeated: float = 0.5
    """Drops documents of four lines or more with a larger share of their characters in lines that occurred before
    (repeated_lines)."""

    max_invalid: float = 0.02
    """Drops documents with a larger share of U+FFFD, which stands for bytes that were no text (bad_encoding)."""

    min_line_chars: int = 0
    """Leaves out shorter lines, blank ones excepted (line_too_short)."""

    max_line_chars: int = 100_000
    """Leaves out longer lines (line_too_long); 0 is no limit."""

    max_line_symbols: float = 1.0
    """Leaves out lines with a larger share of symbols (line_symbols); 1 leaves out none."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if not 0 <= getattr(self, name) <= _LARGEST_COUNT:
                raise SettingsError(f"{name} is a number of characters, 0 or more, not {getattr(self, name):,}")
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} is a share between 0 and 1, not {getattr(self, name)}")
        for least, most in (("min_chars", "max_chars"), ("min_line_chars", "max_line_chars")):
            if 0 < getattr(self, most) < getattr(self, least):
                raise SettingsError(
                    f"{least} {getattr(self, least):,} and {most} {getattr(self, most):,} leave nothing: "
                    f"lower {least} or raise {most} (0 is no limit)"
                )
        if self.collapse_blanks and not self.normalise:
            raise SettingsError("collapse_blanks is a part of normalise: switch both on, or leave it out")

    def native(self) -> dict[str, Any]:
        """As the native core takes them."""
        return asdict(self)


class Cleaned(NamedTuple):
    """What became of a document."""

    text: str | None
    """The cleaned text; None if the document is dropped."""

    rule: str | None
    """The rule that drops it, of `DOCUMENT_RULES`."""

    lines: dict[str, tuple[int, int]]
    """How many lines, and how many bytes with their line ends, each line rule took; only those that took any."""


def clean_text(text: str, settings: CleanSettings | None = None) -> Cleaned:
    """Cleans one text as every document of a dataset is cleaned."""
    try:
        kept, rule, taken = _native.clean_text(text, (settings or CleanSettings()).native())
    except UnicodeEncodeError as error:
        raise BrokenInput(f"a text holds a lone surrogate at character {error.start}: it has no bytes") from None
    return Cleaned(kept, rule, {name: (lines, size) for name, (lines, size) in taken.items() if lines})
