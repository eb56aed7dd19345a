"""A thread that prepares the next few items while the current one is used.

    with closing(ReadAhead(items, 2)) as ahead:
        for item in ahead: ...

An error in the thread is raised in place of the item. The thread starts when the first item is requested, and ends with
the items, with `close`, or when the ReadAhead is garbage-collected.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class _Queue(Generic[T]):
    """Shared by the thread and the consumer. It does not refer to the ReadAhead, which can so be garbage-collected."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.process = os.getpid()
        self.changed = Condition()
        self.items: deque[T] = deque()
        self.error: BaseException | None = None
        self.ended = False
        self.closed = False

    def fill(self, source: Iterator[T]) -> None:
        error: BaseException | None = None
        try:
            while self._wait_for_space():
                item = next(source)
                with self.changed:
                    self.items.append(item)
                    self.changed.notify_all()
                del item
        except StopIteration:
            pass
        except BaseException as caught:  # noqa: BLE001 - raised in place of the item
            error = caught
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()

    def _wait_for_space(self) -> bool:
        """Waits before the next item is made, not after: otherwise there would be one more than `depth`."""
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
                    raise RuntimeError("the thread that reads ahead did not survive a fork: start the loop again")
                self.changed.wait()
            item = self.items.popleft()
            self.changed.notify_all()
            return item

    def close(self, thread: Thread) -> None:
        if self.process != os.getpid():
            return  # forked: the thread is not here, and may have locked the queue
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()
        if thread.ident is not None:
            thread.join()


class ReadAhead(Generic[T]):
    def __init__(self, items: Iterator[T], depth: int) -> None:
        """With depth 0 there is no thread: items are made on demand."""
        self._items = items
        self._queue: _Queue[T] = _Queue(depth)
        self._thread = Thread(target=self._queue.fill, args=[items], name="ramlet-read-ahead", daemon=True)
        self._end = weakref.finalize(self, self._queue.close, self._thread)

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        if self._queue.closed:
            raise StopIteration
        if self._queue.depth == 0:
            return next(self._items)
        if self._thread.ident is None:
            self._thread.start()
        return self._queue.take(self._thread)

    def close(self) -> None:
        """Ends the thread, and waits for it."""
        self._end()
