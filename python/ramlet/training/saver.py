"""Saves checkpoints; on a GPU in the background.

On a GPU the tensors are copied to RAM, which takes a fraction of a second, and a thread writes them while training
continues. The copy needs RAM, with AdamW three times that of the weights, so it is made only if the RAM budget allows.
On a CPU training needs that memory and the core: the run waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ramlet.runtime.budget import Budget
from ramlet.training import checkpoint
from ramlet.training.checkpoint import Snapshot
from ramlet.training.run_folder import RunFolder


class Saver:
    """Writes one checkpoint at a time; an error in the background is raised by the next call."""

    def __init__(self, folder: RunFolder, keep: int, *, background: bool, host: Budget | None) -> None:
        """`background`: whether a thread may write, if the budget `host` has memory for a copy."""
        self._folder, self._keep = folder, keep
        self._background, self._host = background, host
        self._copies = False
        """Whether there is memory for copies; it is kept from one to the next."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        """Saves, and removes old checkpoints; then calls `saved`.

        Not in the background if this checkpoint makes the run replace an old one, which moves all of its files.
        """
        self.wait()
        background = self._background and not self._folder.replaces
        if background and not self._copies:
            self._copies = self._host is not None and self._host.available() > snapshot.bytes
        if not (background and self._copies):
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
        except BaseException as failure:  # noqa: BLE001 - raised again in the main thread
            self._failure = failure

    def wait(self) -> None:
        """Waits until everything is on disk."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
