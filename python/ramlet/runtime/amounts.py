"""Amounts as people write them -> numbers: one parser for every option, key and argument.

    amount("1.5k", COUNTS)      1500            32k, 10M, 1.3B, 64Ki, 1,000, 1_000, 1e6
    amount("64KiB", SIZES)      65536           512MB, 2g, 2GiB: powers of 1000, or of 1024 with an i
    seconds("1h30m")            5400.0
    amount("ten", COUNTS)       None            the caller says what it should have been

In a count `b` is a billion, in a size a byte, so there are two tables of units. Commas must separate groups of three
digits, so `2,5GB` is refused instead of read as 25 GB. All arithmetic is on integers: with floats 1.005M would become
1004999.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
SIZES = {
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
_AMOUNT = re.compile(r"(\d{1,3}(?:,\d{3})+|\d[\d_]*|)(?:\.(\d*))?(?:e\+?(\d{1,2}))?\s*([a-z]*)", re.ASCII)
_PART = r"(\d+\.?\d*|\.\d+)\s*([a-z]+)"
LONGEST = 64
"""Characters; a longer number is a mistake, and slow to parse."""


def amount(text: str, units: Mapping[str, int]) -> int | None:
    """
    >>> amount("10M", COUNTS), amount("1,000", COUNTS), amount("1e6", COUNTS), amount("1.5", COUNTS)
    (10000000, 1000, 1000000, None)
    >>> amount("200MB", SIZES), amount("1.5KiB", SIZES), amount("2,5GB", SIZES)
    (200000000, 1536, None)
    """
    found = _AMOUNT.fullmatch(text.strip().lower()) if len(text) <= LONGEST else None
    if found is None or found[4] not in units:
        return None
    whole, part = re.sub("[,_]", "", found[1]), found[2] or ""
    if not whole + part:
        return None
    number, rest = divmod(int(whole + part) * units[found[4]] * 10 ** int(found[3] or 0), 10 ** len(part))
    # 1.23456789M may be rounded, 1.5 things may not.
    return number if not rest or found[4] else None


def seconds(text: str) -> float | None:
    """
    >>> seconds("1h"), seconds("90 min"), seconds("1.5d"), seconds("1h30m"), seconds("10"), seconds("0s")
    (3600.0, 5400.0, 129600.0, 5400.0, None, None)
    """
    plain = text.strip().lower()
    found = sum(float(number) * _TIMES.get(unit, math.nan) for number, unit in re.findall(_PART, plain))
    # Refused: no unit, an unknown unit (NaN), and a time of 0.
    return found if re.fullmatch(rf"(?:{_PART}\s*)+", plain) and 0 < found < math.inf else None
