"""A thread that makes the next items while the last one is used, and never more than a few.

    with closing(ReadAhead(items, 2)) as ahead:
        for item in ahead: ...

An error of the thread is raised where the item would have come. The thread ends with the items, with `close`, or when
no one holds the ReadAhead any more; it starts with the first item that is asked for.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread
from typing import Generic, TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")


class _Shelf(Generic[T]):
    """What the thread and the consumer share. It does not know the ReadAhead, which can so be forgotten."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = Condition()
        self.items: deque[T] = deque()
        self.error: BaseException | None = None
        self.ended = False
        self.closed = False

    def fill(self, source: Iterator[T]) -> None:
        error: BaseException | None = None
        try:
            while self._has_room():
                item = next(source)
                with self.changed:
                    self.items.append(item)
                    self.changed.notify_all()
                del item
        except StopIteration:
            pass
        except BaseException as caught:  # noqa: BLE001 - raised where the item would have come
            error = caught
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()

    def _has_room(self) -> bool:
        """Waits before the item is made, not behind it: else there would be one more than asked for."""
        with self.changed:
            while len(self.items) >= self.depth and not self.closed:
                self.changed.wait()
            return not self.closed

    def take(self, thread: Thread) -> T:
        with self.changed:
            while not self.items:
                if self.closed:
                    raise StopIteration
                if self.ended:
                    if self.error is not None:
                        error, self.error = self.error, None
                        raise error
                    raise StopIteration
                if not thread.is_alive():
                    raise RuntimeError("the thread that reads ahead did not survive a fork: begin the loop anew")
                self.changed.wait()
            item = self.items.popleft()
            self.changed.notify_all()
            return item

    def close(self, thread: Thread) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()
        if thread.ident is not None:
            thread.join()


class ReadAhead(Generic[T]):
    def __init__(self, items: Iterator[T], depth: int) -> None:
        """With depth 0 there is no thread: items are made when they are asked for."""
        self._items = items
        self._shelf: _Shelf[T] = _Shelf(depth)
        self._thread = Thread(target=self._shelf.fill, args=[items], name="ramlet-read-ahead", daemon=True)
        self._end = weakref.finalize(self, self._shelf.close, self._thread)

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        if self._shelf.closed:
            raise StopIteration
        if self._shelf.depth == 0:
            return next(self._items)
        if self._thread.ident is None:
            self._thread.start()
        return self._shelf.take(self._thread)

    def close(self) -> None:
        """Ends the thread, and waits for it."""
        self._end()
