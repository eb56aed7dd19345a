"""What both loaders share: one loop over batches at a time, its position, and resuming.

A loader that reads ahead has two positions: how far it has read, and what it has yielded. A checkpoint needs the
second, and only between two global batches: each batch comes with the position after it, or None inside a global batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ramlet.errors import DatasetError, RamletError, SettingsError
from ramlet.loading.batch import Batch
from ramlet.loading.read_ahead import ReadAhead

L = TypeVar("L", bound="ResumableLoader")
Position = Any
"""The number of a sample in a Loader, a `_Position` in a StreamLoader."""


class ResumableLoader:
    seed: int

    def __init__(self, start: Position, read_ahead: int) -> None:
        if read_ahead < 0:
            raise SettingsError(f"read_ahead must be at least 0, not {read_ahead}")
        self.read_ahead = read_ahead
        self._start = self._position = start
        self._reading: ReadAhead[tuple[Batch, Position | None]] | None = None

    def _batches(self) -> Iterator[tuple[Batch, Position | None]]:
        """From the position on. Must not refer to the loader: the thread that runs it would keep it alive."""
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        """Everything that decides the order of samples, except the seed."""
        raise NotImplementedError

    def _position_state(self) -> dict[str, Any]:
        """The position as JSON."""
        raise NotImplementedError

    def _position_from(self, state: Mapping[str, Any]) -> Position:
        raise NotImplementedError

    def _changed_data(self) -> RamletError:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        """Continues after the last global batch that was yielded completely. One loop at a time."""
        self.close()
        self._reading = ReadAhead(self._batches(), self.read_ahead)
        return self._tracked(self._reading)

    def _tracked(self, reading: ReadAhead[tuple[Batch, Position | None]]) -> Iterator[Batch]:
        try:
            for batch, position in reading:
                if position is not None:
                    self._position = position
                yield batch
            if self._reading is not None and self._reading is not reading:
                raise SettingsError("a loader runs one loop at a time: create a second loader for the other")
        finally:
            reading.close()

    def state(self) -> dict[str, Any]:
        """The position after the last global batch that was yielded completely; small, and JSON."""
        return {"seed": self.seed, **self._position_state(), **self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly from a state; ranks, micro-batches and the batch size may differ."""
        for name, now in self._identity().items():
            if name in state and state[name] == now:
                continue
            if name == "data":
                raise self._changed_data()
            raise DatasetError(
                f"the state was saved with {name} {state.get(name)}, but now it is {now}: use the same, or start over"
            )
        self.seed = int(state["seed"])
        self._move(self._position_from(state))

    def rewind(self) -> None:
        """Back to the first sample."""
        self._move(self._start)

    def _move(self, position: Position) -> None:
        self.close()
        self._position = position

    def close(self) -> None:
        """Ends the loop and its thread; the next loop continues from the state."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


ResumableLoader.__module__ = "ramlet"  # as its subclasses: help(ramlet.Loader) names no private module
