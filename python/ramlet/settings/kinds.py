"""Kinds of settings: how a value is read, wherever it was written, and what it may be, in words.

    kind = Count(least=1)
    kind.read("32k"), kind.read(2048), kind.read(1e6)       32000, 2048, 1000000
    kind.read(0)                                            ValueError: is a whole number of at least 1, not 0
    kind.metavar                                            N

A value comes as text from the command line, typed by YAML from a file (`2048` is a number there, `200MB` a string, `no`
is false, and 1e-3, without a point, a string again), or as Python has it. All three are read alike, so that no face
accepts what another refuses. Whoever catches the ValueError puts the name before it, as its reader knows it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramlet.errors import BudgetError
from ramlet.runtime.amounts import COUNTS, SIZES, amount, seconds

__all__ = [
    *("Choice", "Count", "Duration", "Kind", "Memory", "Number", "Place", "Size", "Switch", "Text", "Words", "share"),
]


@dataclass(frozen=True, kw_only=True)
class Kind:
    metavar: str = ""
    """What stands for a value in the help; it tells the choices, which shells complete."""

    def read(self, value: Any) -> Any:
        """The value as it is used, or a ValueError: `is true or false, not 'maybe'`."""
        raise NotImplementedError


def _not(value: Any) -> str:
    """Lists and mappings by their kind alone: aliases can make a short file a very long list."""
    if isinstance(value, (list, tuple, dict)):
        return "not a mapping" if isinstance(value, dict) else "not a list"
    return f"not {value!r}"


def _not_text(value: Any) -> str:
    """YAML makes something else of `no` and of `2024`."""
    return _not(value) + (": put it in quotes if it is meant so" if isinstance(value, (bool, int, float)) else "")


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
            raise ValueError(f"is {self.like}, {_not(value)}")
        if found is None or found < self.least or (self.most is not None and found > self.most):
            bounds = f"of at least {self.least:,}" if self.most is None else f"from {self.least:,} to {self.most:,}"
            raise ValueError(f"is a whole number {bounds}, {_not(value if found is None else found)}")
        return found


def _whole(value: Any) -> int | None:
    # True is a number to Python, and a mistake here.
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
    what: str = "a number"

    def read(self, value: Any) -> float:
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"is a number like 0.1, {_not(value)}") from None
        low = found >= 0 if self.above is None else found > self.above
        high = (self.most is None or found <= self.most) and (self.below is None or found < self.below)
        if not (low and high and math.isfinite(found)):
            told = _not(value) if isinstance(value, bool) else f"not {found:g}"
            raise ValueError(f"is {self.what} {self._bounds()}, {told}")
        return found  # a float in any case: 1 and 1.0 are the same setting

    def _bounds(self) -> str:
        if self.above is not None:
            return f"above {self.above:g}" + ("" if self.most is None else f" and at most {self.most:g}")
        if self.most is not None:
            return f"from 0 to {self.most:g}"
        return "of at least 0" if self.below is None else f"from 0 to below {self.below:g}"


def share(*, below_one: bool = False) -> Number:
    """A part of a whole."""
    return Number(what="a share", below=1) if below_one else Number(what="a share", most=1)


@dataclass(frozen=True, kw_only=True)
class Switch(Kind):
    """On or off."""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"is true or false, {_not(value)}")
        return value


@dataclass(frozen=True)
class Choice(Kind):
    """One of these words."""

    among: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "metavar", "|".join(self.among))

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.among:
            raise ValueError(f"is one of {', '.join(self.among)}, {_not_text(value)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Kind):
    """A string, of which something is left without the spaces around it."""

    what: str = "a string"
    metavar: str = "TEXT"
    spaces: bool = False
    """Whether spaces alone will do."""
    empty: bool = False
    """Whether nothing at all will do."""

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not (self.empty or (value if self.spaces else value.strip())):
            raise ValueError(f"is {self.what}, {_not_text(value)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Place(Text):
    """A file or a folder, as text or as a path."""

    def read(self, value: Any) -> str:
        return super().read(os.fspath(value) if isinstance(value, os.PathLike) else value)


@dataclass(frozen=True, kw_only=True)
class Words(Text):
    """Several strings; one alone is a list of one."""

    def read(self, value: Any) -> Any:
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict))
        return tuple(map(super().read, value if several else (value,)))


@dataclass(frozen=True, kw_only=True)
class Duration(Kind):
    """Seconds: 20min, 1h, 1h30m, 2d."""

    metavar: str = "T"

    def read(self, value: Any) -> float:
        found = seconds(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"is a time like 20min, 1h or 2d, {_not(value)}")
        return found


@dataclass(frozen=True, kw_only=True)
class Memory(Kind):
    """As it is written, once it is known to be readable: 50% is of what is free when the work begins."""

    metavar: str = "SIZE"

    def read(self, value: Any) -> str | int:
        from ramlet.runtime.budget import Budget

        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise ValueError(f"is a size like 512MB, 2GB, 50% or auto, {_not(value)}")
        try:
            Budget.parse(value)
        except BudgetError as error:
            raise ValueError(f"is wrong: {error}") from None
        return value
