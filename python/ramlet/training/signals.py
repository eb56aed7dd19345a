"""Ctrl-C and SIGTERM while training: told at once, then the step in hand is finished and saved; a second one ends now.

    with StopSignals(told=listener.stopping) as signals:
        with signals.giving_up():       # an evaluation, a sample: nothing is lost where it ends
            ...
        if signals.asked: ...

What can be made again is not waited for: within `giving_up` the signal raises `GaveUp` wherever the program is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["GaveUp", "StopSignals"]


class GaveUp(BaseException):
    """Leaves what is given up for a signal; no error, so that nothing takes it for one."""


class StopSignals:
    """While the block lasts, `asked` says whether someone wants the run to end."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.asked = False
        self._told = told
        self._gives_up = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._told()
        if self._gives_up:
            self._gives_up = False
            raise GaveUp

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """A block that a signal leaves at once, with `GaveUp`; not even entered where one has been heard."""
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
