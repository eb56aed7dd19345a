"""Single values of a config file -> what they mean; a ValueError says what it should be instead.

YAML decides the type of what is not in quotes: `2048` is a number, `200MB` a string, `no` is false. So
amounts are taken either way, while a word that YAML made something else of is asked for in quotes.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ramlet.errors import BudgetError
from ramlet.runtime.budget import Budget

__all__ = ["count", "duration", "list_of_words", "real_number", "share_of_memory", "size", "switch", "word"]

_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZES = {
    "": 1,
    "b": 1,
    **{prefix + tail: 1000**power for power, prefix in enumerate("kmgt", 1) for tail in ("", "b")},
    **{prefix + tail: 1024**power for power, prefix in enumerate("kmgt", 1) for tail in ("i", "ib")},
}
_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}


def count(value: Any) -> int:
    """
    >>> count(2048), count("10M"), count("32k"), count("1,000"), count(1e6)
    (2048, 10000000, 32000, 1000, 1000000)
    """
    return _amount(value, _THOUSANDS, "is a number like 2048, 32k or 10M")


def size(value: Any) -> int:
    """
    >>> size(4096), size("200MB"), size("64KiB")
    (4096, 200000000, 65536)
    """
    return _amount(value, _SIZES, "is a size like 200MB or 64KiB")


def duration(value: Any) -> float:
    """Seconds.

    >>> duration("1h"), duration("90 min"), duration("1.5d"), duration("1h30m"), duration("10 minutes")
    (3600.0, 5400.0, 129600.0, 5400.0, 600.0)
    """
    part = r"(\d+\.?\d*|\.\d+)\s*([a-z]+)"
    text = value.strip().lower() if _is_text(value) else ""
    seconds = sum(float(number) * _TIMES.get(unit, math.nan) for number, unit in re.findall(part, text))
    # No unit, a unit that is none (NaN), and no time at all are refused alike.
    if not re.fullmatch(rf"(?:{part}\s*)+", text) or not 0 < seconds < math.inf:
        raise ValueError(f"is a time like 20min, 1h or 2d, not {_shown(value)}")
    return seconds


def _amount(value: Any, units: dict[str, int], should: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    match = re.fullmatch(r"(\d[\d,_]*(?:\.\d+)?|\.\d+)\s*([a-z]*)", value.strip().lower()) if _is_text(value) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{should}, not {_shown(value)}")
    number = re.sub("[,_]", "", match[1])
    amount = float(number) * units[match[2]] if "." in number else int(number) * units[match[2]]
    if amount != int(amount):
        raise ValueError(f"{should}, not {_shown(value)}")
    return int(amount)


def _shown(value: Any) -> str:
    """Lists and mappings by their kind alone: aliases can make a short file a very long list."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    return "nothing" if value is None else repr(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def real_number(value: Any) -> float:
    """YAML takes 1e-3 for a string, for it has no point."""
    if _is_text(value):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"is a number like 0.1, not {_shown(value)}") from None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"is a number like 0.1, not {_shown(value)}")
    return value


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is true or false, not {_shown(value)}")
    return value


def word(value: Any) -> str:
    if not _is_text(value):
        raise ValueError(f"is a string, not {_shown(value)}: put it in quotes if it is meant so")
    return str(value)


def list_of_words(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("is empty: name a file, a folder, a glob, an address or a name on the hub")
    for each in values:
        if not _is_text(each) or not each:
            raise ValueError(f"is a list of files, folders, globs or addresses, and {_shown(each)} is none")
    return [str(each) for each in values]


def share_of_memory(value: Any) -> str | int:
    """As it is written, once it is known to be readable: 50% is of what is free when the work begins."""
    if not _is_text(value) and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"is a size like 512MB, 2GB, 50% or auto, not {_shown(value)}")
    try:
        Budget.parse(value)
    except BudgetError as error:
        raise ValueError(f"is wrong: {error}") from None
    return value if isinstance(value, int) else str(value)
