"""Ctrl-C and SIGTERM during training: the last whole step is saved; a second signal stops at once.

    with StopSignals(notify=listener.stopping) as signals:
        with signals.giving_up():       # an evaluation, a sample: it can be repeated
            ...
        if signals.asked: ...

What can be repeated is not waited for: inside `giving_up` the signal raises `GaveUp` immediately.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class GaveUp(BaseException):
    """Abandons a task because of a signal; not an Exception, so that nothing handles it as an error."""


class StopSignals:
    """Inside the `with` block, `asked` says whether the run should stop."""

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.asked = False
        self._notify = notify
        self._gives_up = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._notify()
        if self._gives_up:
            self._gives_up = False
            raise GaveUp

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """A block that a signal leaves at once with `GaveUp`; not even entered after a signal."""
        self._gives_up = True
        try:
            if self.asked:
                raise GaveUp
            yield
        finally:
            self._gives_up = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
