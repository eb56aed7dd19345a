"""One loop over batches at a time, and where it stands.

A loader that is read ahead of has two places: where reading is, and what was handed out. A checkpoint needs the second,
and only between two global batches: each batch comes with the place behind it, or None inside a global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ramlet.errors import SettingsError
from ramlet.loading.batch import Batch
from ramlet.loading.read_ahead import ReadAhead

__all__ = ["Loop"]

P = TypeVar("P")


class Loop(Generic[P]):
    def __init__(self, place: P, depth: int) -> None:
        if depth < 0:
            raise SettingsError(f"read_ahead is {depth}: it must be at least 0")
        self.place = place
        self.depth = depth
        self._reading: ReadAhead[tuple[Batch, P | None]] | None = None

    def start(self, batches: Iterator[tuple[Batch, P | None]]) -> Iterator[Batch]:
        """Hands out the batches, made `depth` ahead by a thread that starts with the first."""
        self.close()
        self._reading = ReadAhead(batches, self.depth)
        return self._noted(self._reading)

    def _noted(self, reading: ReadAhead[tuple[Batch, P | None]]) -> Iterator[Batch]:
        try:
            for batch, place in reading:
                if place is not None:
                    self.place = place
                yield batch
            if self._reading is not None and self._reading is not reading:
                raise SettingsError("a loader serves one loop at a time: make a second one for the other")
        finally:
            reading.close()

    def move(self, place: P) -> None:
        """The next loop begins there."""
        self.close()
        self.place = place

    def close(self) -> None:
        """Ends the loop and its thread; the next one begins at the place."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
