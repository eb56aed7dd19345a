"""Checkpoints on a GPU are written beside the steps that follow.

What is to be saved is copied to RAM, which takes a fraction of a second, and a thread writes it from there while the
GPU goes on. That takes RAM, three times the weights with AdamW: it is done only where the budget for RAM has it. On a
CPU a copy would be memory that training wants, and the thread a core of it: there the run waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ramlet.runtime.budget import Budget
from ramlet.training import checkpoint
from ramlet.training.checkpoint import Snapshot
from ramlet.training.run_folder import RunFolder

__all__ = ["Saver"]


class Saver:
    """Writes one checkpoint at a time; what goes wrong with one is raised by the next call."""

    def __init__(self, folder: RunFolder, keep: int, *, beside: bool, host: Budget | None) -> None:
        """`beside`: whether a thread may write, where `host` has room for a copy."""
        self._folder, self._keep = folder, keep
        self._beside, self._host = beside, host
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        """Saves, and removes what need not be kept; `saved` is told when it is done.

        With its first checkpoint a run replaces one that was there before: then all that it writes moves, and waits.
        """
        self.wait()
        beside = self._beside and not self._folder.replaces
        if not (beside and self._host is not None and self._host.available() > snapshot.bytes):
            self._write(snapshot, best, saved)
            return
        copied = snapshot.on_host()
        self._thread = threading.Thread(target=self._guarded, args=(copied, best, saved), name="ramlet-checkpoint")
        self._thread.start()

    def _write(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        path = checkpoint.save(self._folder.place, snapshot)
        if self._folder.replaces:
            self._folder.replace()
            path = checkpoint.path_of(self._folder.place, snapshot.step)
        checkpoint.prune(self._folder.place, self._keep, best)
        saved(snapshot.step, path)

    def _guarded(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        try:
            self._write(snapshot, best, saved)
        except BaseException as failure:  # noqa: BLE001 - raised again where it can be heard
            self._failure = failure

    def wait(self) -> None:
        """Until what was begun is on disk."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
