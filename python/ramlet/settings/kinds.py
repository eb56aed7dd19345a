"""Types of settings: how a value is parsed, wherever it was written, and which values are valid.

    kind = Count(least=1)
    kind.read("32k"), kind.read(2048), kind.read(1e6)       32000, 2048, 1000000
    kind.read(0)                                            ValueError: must be at least 1, not 0
    kind.metavar                                            N

A value is a string on the command line, an object in Python, or whatever type YAML gives it (`2048` is a number,
`200MB` a string, `no` is false, and 1e-3, which has no decimal point, is a string). All three are parsed the same way,
so a value is valid everywhere or nowhere. Whoever catches the ValueError puts the name of the setting before it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramlet.errors import BudgetError
from ramlet.runtime.amounts import COUNTS, SIZES, amount, seconds

LARGEST = (1 << 63) - 1
"""Counts that files of ours can have, and the native core can add."""


class NotANumber(ValueError):
    """A string that cannot be parsed as a number, which on the command line is a usage error."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    metavar: str = ""
    """Placeholder for the value in the help. If it lists choices (`file|line`), shells complete them."""

    def read(self, value: Any) -> Any:
        """The parsed value, or a ValueError: `must be true or false, not 'maybe'`."""
        raise NotImplementedError


def _not(value: Any) -> str:
    """Lists and mappings without their content: YAML aliases can turn a short file into a very long list."""
    if isinstance(value, (list, tuple, dict)):
        return "not a mapping" if isinstance(value, dict) else "not a list"
    return f"not {value!r}"


def _not_text(value: Any) -> str:
    """YAML reads an unquoted `no` as false and `2024` as a number."""
    return _not(value) + (": put it in quotes if you mean the text" if isinstance(value, (bool, int, float)) else "")


@dataclass(frozen=True, kw_only=True)
class Count(Kind):
    """A whole number: 2048, 32k, 10M, 1,000, 1e6."""

    least: int = 1
    most: int | None = None
    metavar: str = "N"
    units: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    like: str = "a number like 2048, 32k or 10M"

    def read(self, value: Any) -> int:
        found = amount(value, self.units) if isinstance(value, str) else _whole(value)
        if found is None and isinstance(value, (str, list, dict)):
            raise NotANumber(f"must be {self.like}, {_not(value)}")
        if found is None:
            raise ValueError(f"must be a whole number, {_not(value)}")
        if self.most is None and found > LARGEST:
            raise ValueError(f"must be at most {LARGEST:,}, not {found}")
        if found < self.least or (self.most is not None and found > self.most):
            bounds = f"at least {self.least:,}" if self.most is None else f"between {self.least:,} and {self.most:,}"
            raise ValueError(f"must be {bounds}, not {found}")
        return found


def _whole(value: Any) -> int | None:
    # In Python True is a number, but here it is a mistake.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, int) else int(value) if value.is_integer() else None


@dataclass(frozen=True, kw_only=True)
class Size(Count):
    """Bytes: 200MB, 64KiB."""

    least: int = 0
    metavar: str = "SIZE"
    units: Mapping[str, int] = field(default_factory=lambda: SIZES)
    like: str = "a size like 200MB or 64KiB"


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """Any finite number that is not negative, within bounds."""

    above: float | None = None
    most: float | None = None
    below: float | None = None
    metavar: str = "F"

    def read(self, value: Any) -> float:
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            raise NotANumber(f"must be a number like 0.1, {_not(value)}") from None
        low = found >= 0 if self.above is None else found > self.above
        high = (self.most is None or found <= self.most) and (self.below is None or found < self.below)
        if not (low and high and math.isfinite(found)):
            shown = _not(value) if isinstance(value, bool) else f"not {found:g}"
            raise ValueError(f"must be {self._bounds()}, {shown}")
        return found  # always a float: 1 and 1.0 are the same setting

    def _bounds(self) -> str:
        if self.above is not None:
            return f"above {self.above:g}" + ("" if self.most is None else f" and at most {self.most:g}")
        if self.most is not None:
            return f"between 0 and {self.most:g}"
        return "at least 0" if self.below is None else f"at least 0 and below {self.below:g}"


def share(*, below_one: bool = False) -> Number:
    """A fraction."""
    return Number(below=1) if below_one else Number(most=1)


@dataclass(frozen=True, kw_only=True)
class Switch(Kind):
    """On or off."""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, {_not(value)}")
        return value


@dataclass(frozen=True)
class Choice(Kind):
    """One of several strings."""

    among: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "metavar", "|".join(self.among))

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.among:
            raise ValueError(f"must be one of {', '.join(self.among)}, {_not_text(value)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Kind):
    """A string that is not blank."""

    what: str = "a string"
    metavar: str = "TEXT"
    spaces: bool = False
    """Whether a blank string is allowed."""
    empty: bool = False
    """Whether an empty string is allowed."""

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not (self.empty or (value if self.spaces else value.strip())):
            raise ValueError(f"must be {self.what}, {_not_text(value)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Place(Text):
    """A file or a folder, as a string or a path object."""

    def read(self, value: Any) -> str:
        return super().read(os.fspath(value) if isinstance(value, os.PathLike) else value)


@dataclass(frozen=True, kw_only=True)
class Strings(Text):
    """Several strings; a single one is a list of one."""

    def read(self, value: Any) -> Any:
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict))
        return tuple(map(super().read, value if several else (value,)))


@dataclass(frozen=True, kw_only=True)
class Places(Strings):
    """Several files or folders, as strings or path objects."""

    def read(self, value: Any) -> Any:
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        return super().read([os.fspath(each) if isinstance(each, os.PathLike) else each for each in several])


@dataclass(frozen=True, kw_only=True)
class Duration(Kind):
    """Seconds: 20min, 1h, 1h30m, 2d."""

    metavar: str = "T"

    def read(self, value: Any) -> float:
        found = seconds(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"must be a time like 20min, 1h or 2d, {_not(value)}")
        return found


@dataclass(frozen=True, kw_only=True)
class Memory(Kind):
    """A memory budget. Checked but not resolved: 50% is of the memory that is free when the work begins."""

    metavar: str = "SIZE"

    def read(self, value: Any) -> str | int:
        from ramlet.runtime.budget import Budget

        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise ValueError(f"must be a size like 512MB, 2GB, 50% or auto, {_not(value)}")
        try:
            Budget.parse(value)
        except BudgetError as error:
            raise ValueError(f"is not valid: {error}") from None
        return value
