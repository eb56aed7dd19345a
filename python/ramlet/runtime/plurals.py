"""Counts in sentences.

>>> plural(1, "layer"), plural(2000, "file"), plural(0, "match", "matches"), noun(1, "shard")
('1 layer', '2,000 files', '0 matches', 'shard')
"""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """The count and what is counted."""
    return f"{count:,} {noun(count, one, many)}"


def noun(count: float, one: str, many: str | None = None) -> str:
    """What is counted, without the count."""
    return one if count == 1 else many or one + "s"
