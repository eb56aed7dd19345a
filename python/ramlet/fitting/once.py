"""Iterators as loaders: whoever continues with one gets the batches that nobody has had yet.

    taken = taken_from(iterator)
    for batch in remaining(iterator, taken): ...
    taken.put_back([batch])                 # it was only looked at

What was taken of an iterator is known as long as it exists, also to the next run with the same one: a trial looks at
batches that the run after it trains on, and a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary


@dataclass
class Taken:
    """What was read of an iterator."""

    batches: int = 0
    """Those that were given to a run."""
    ahead: deque[Any] = field(default_factory=deque)
    """Read, and not given to any."""

    def put_back(self, batches: Sequence[Any]) -> None:
        """The last ones that were given."""
        self.ahead.extendleft(reversed(batches))
        self.batches -= len(batches)


_known: WeakKeyDictionary[Iterator[Any], Taken] = WeakKeyDictionary()
_last: list[tuple[Iterator[Any], Taken]] = []
"""The last of those that cannot be known weakly, such as `iter([...])` and `map`."""


def taken_from(iterator: Iterator[Any]) -> Taken:
    """The same for the same iterator."""
    try:
        return _known.setdefault(iterator, Taken())
    except TypeError:
        if not _last or _last[0][0] is not iterator:
            _last[:] = [(iterator, Taken())]
        return _last[0][1]


def remaining(iterator: Iterator[Any], taken: Taken) -> Iterator[Any]:
    """The batches from here on; each is noted as it is given."""
    while True:
        if not taken.ahead:
            try:
                taken.ahead.append(next(iterator))
            except StopIteration:
                return
        taken.batches += 1
        yield taken.ahead.popleft()
