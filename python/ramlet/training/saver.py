"""Saves checkpoints, and the average of the weights; on a GPU in the background.

On a GPU the tensors are copied to RAM, which takes a fraction of a second, and a thread writes them while training
continues. The copy needs RAM, with AdamW three times that of the weights, so it is made only if the RAM budget allows.
On a CPU training needs that memory and the core: the run waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ramlet.model.tensor_file import Stored, stored_bytes
from ramlet.runtime.budget import Budget
from ramlet.training import average, checkpoint
from ramlet.training.average import Averaging
from ramlet.training.checkpoint import Snapshot
from ramlet.training.run_folder import RunFolder


class Saver:
    """Writes one thing at a time; an error in the background is raised by the next call."""

    def __init__(
        self,
        folder: RunFolder,
        keep: int,
        *,
        resumed: int = 0,
        stable: int | None = None,
        averaging: Averaging | None = None,
        background: bool,
        host: Budget | None,
    ) -> None:
        """`resumed` is the step that the run resumed from, `stable` the last one before the learning rate decays.

        `background`: whether a thread may write, if the budget `host` has memory for a copy.
        """
        self._folder, self._keep, self._resumed, self._stable = folder, keep, resumed, stable
        self._averaging = averaging
        self._background, self._host = background, host
        self._copies = 0
        """Bytes of the largest copy so far: its memory is kept for the next (`Stored.copied`)."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        """Saves, and removes old checkpoints; then calls `saved`."""
        self.wait()
        if self._has_room(snapshot.bytes):
            self._start(partial(self._write, snapshot.on_host(), best, saved))
        else:
            self._write(snapshot, best, saved)

    def average(self, step: int, weights: Mapping[str, Stored]) -> None:
        """Adds the weights to their average: before the checkpoint of the same step, which relies on it."""
        self.wait()
        if self._has_room(stored_bytes(weights)):
            copied = {name: tensor.copied() for name, tensor in weights.items()}
            self._start(partial(self._add, step, copied))
        else:
            self._add(step, weights)

    def _has_room(self, size: int) -> bool:
        """For a copy to write in the background.

        Not if the run has still to replace an old one, which moves all of its files.
        """
        if not self._background or self._folder.replaces or self._host is None:
            return False
        has_room = self._host.available() > size - self._copies
        self._copies = max(self._copies, size if has_room else 0)
        return has_room

    def _write(self, snapshot: Snapshot, best: int | None, saved: Callable[[int, Path], None]) -> None:
        step = snapshot.step
        path = checkpoint.save(self._folder.place, snapshot, only_state=step == self._resumed)
        if self._folder.replaces:
            self._folder.replace()
            path = checkpoint.path_of(self._folder.place, step)
        checkpoint.prune(self._folder.place, step, self._keep, best=best, stable=self._stable)
        self._prune_averages(step)
        saved(step, path)

    def _add(self, step: int, weights: Mapping[str, Stored]) -> None:
        assert self._averaging is not None
        self._averaging.add(self._folder.place, step, weights)
        self._prune_averages(step)

    def _prune_averages(self, step: int) -> None:
        place = self._folder.place
        average.prune(place, step, [at for at, _ in checkpoint.checkpoints(place)])

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._guarded, args=(work,), name="ramlet-checkpoint")
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
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
