"""Saves checkpoints, and the average of the weights; on a GPU in the background.

On a GPU the tensors are copied to RAM, which takes a fraction of a second, and a thread writes them while training
continues. The copy needs RAM, with AdamW three times that of the weights, so it is made only if the RAM budget allows.
On a CPU training needs that memory and the core: the run waits.

A checkpoint of a large model takes seconds to write. Where nobody said how often, writing takes at most `SHARE` of the
time; in between, what may be the best model is only copied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ramlet.model.tensor_file import Stored, stored_bytes
from ramlet.runtime.budget import Budget
from ramlet.training import average, checkpoint
from ramlet.training.average import Averaging
from ramlet.training.checkpoint import Snapshot
from ramlet.training.run_folder import RunFolder

Saved = Callable[[int, Path], None]

SHARE = 0.05
"""The most of a run's time in which a thread writes checkpoints that nobody asked for."""


class _Held(NamedTuple):
    """A copy that is not written unless it turns out to be the best, or the run ends."""

    snapshot: Snapshot
    best: int | None
    saved: Saved


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
        self._folder, self._keep, self._stable = folder, keep, stable
        self._written = resumed
        """The step of the last checkpoint that was read or written: its tensors need not be written again."""
        self._averaging = averaging
        self._background, self._host = background, host
        self._copies = 0
        """Bytes of the largest copy so far: its memory is kept for the next (`Stored.copied`)."""
        self._held: _Held | None = None
        self._next = 0.0
        """When the next checkpoint may be written that does not have to be."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, snapshot: Snapshot, best: int | None, saved: Saved, *, required: bool = True) -> None:
        """Saves, and removes old checkpoints; then calls `saved`.

        If it is not `required` and the last one was a short time ago, there is only a copy in RAM for now. It is
        written when a later one is not as good; otherwise the next one replaces it.
        """
        self._join()
        if self._held is not None and self._held.snapshot.step == best:
            self._write(self._held.snapshot, best, self._held.saved)
        self._held = None
        if not self._has_room(snapshot.bytes):
            self._write(snapshot, best, saved)
        elif required or time.monotonic() >= self._next:
            self._start(partial(self._write, snapshot.on_host(), best, saved))
        else:
            self._held = _Held(snapshot.on_host(), best, saved)

    def follow(self, snapshot: Snapshot) -> None:
        """On another rank of a run that divides its tensors: what it does while the first one saves."""
        path = checkpoint.path_of(self._folder.place, snapshot.step)
        if snapshot.step != self._written or not checkpoint.is_complete(path):
            snapshot.send()
        self._written = snapshot.step

    def average(self, step: int, weights: Mapping[str, Stored]) -> None:
        """Adds the weights to their average: before the checkpoint of the same step, which relies on it."""
        self._join()
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

    def _write(self, snapshot: Snapshot, best: int | None, saved: Saved) -> None:
        step, began = snapshot.step, time.monotonic()
        path = checkpoint.save(self._folder.place, snapshot, only_state=step == self._written)
        self._written = step
        if self._folder.replaces:
            self._folder.replace()
            path = checkpoint.path_of(self._folder.place, step)
        checkpoint.prune(self._folder.place, step, self._keep, best=best, stable=self._stable)
        self._prune_averages(step)
        self._next = began + (time.monotonic() - began) / SHARE
        saved(step, path)

    def _add(self, step: int, weights: Mapping[str, Stored]) -> None:
        assert self._averaging is not None
        self._averaging.add(self._folder.place, step, weights)
        self._prune_averages(step)

    def _prune_averages(self, step: int) -> None:
        place = self._folder.place
        average.prune(place, step, [at for at, _ in checkpoint.checkpoints(place)], self._averaging)

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
        self._join()
        held, self._held = self._held, None
        if held is not None:
            self._write(*held)

    def settle(self, good_until: int) -> None:
        """Of a run that diverged: as `wait`, but a copy of a later step is not written, in place of a good one."""
        self._join()
        if self._held is not None and self._held.snapshot.step > good_until:
            self._held = None
        self.wait()

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
