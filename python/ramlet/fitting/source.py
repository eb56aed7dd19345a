"""The batches of any loader, divided into micro-batches, from where a run stopped.

    source = Source(loader, subject, seed=1, accumulation=1)
    batch = source.largest()                # of the first ones, for the trial
    for piece in source.planned(plan): ...  # micro-batches, epoch after epoch
    source.state()                          # between two steps

A loader is ramlet's own, a DataLoader, which may read from one of ramlet's, or any iterable of batches. If it can save
its position, it does (`state_dict`/`load_state_dict` in JSON). Any other is read again up to where the run stopped: all
random generators are seeded by epoch and batch before each batch is read, so a shuffling DataLoader repeats its order.
ramlet's own go on to their next epoch, which has another order, by themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError, option
from ramlet.fitting.once import remaining, taken_from
from ramlet.loading.batch import Batch
from ramlet.loading.loader import Loader
from ramlet.loading.resumable import ResumableLoader
from ramlet.runtime.plurals import plural

if TYPE_CHECKING:
    from ramlet.engines.torch.modules.pieces import Piece
    from ramlet.engines.torch.modules.plan import ModulePlan
    from ramlet.engines.torch.modules.subject import Subject

LOOKED_AT = 8
"""Batches of which the largest is tried, if the loader can be read again."""


class Source:
    def __init__(self, loader: Any, subject: Subject, *, seed: int, accumulation: int = 1) -> None:
        check_loader(loader, "loader")
        self._loader, self._subject, self._seed, self._accumulation = loader, subject, seed, accumulation
        self._plan: ModulePlan | None = None
        self._once = taken_from(loader) if isinstance(loader, Iterator) else None
        """What was taken of an iterator, which can be read only once, by this run and those before."""
        self._inside = None if self._once else loader_inside(loader)
        self._iterator: Iterator[Any] | None = remaining(loader, self._once) if self._once else None
        self._epoch = self._samples = 0
        """The number of the epoch, samples read in all."""
        self._batches = self._once.batches if self._once else 0
        """Batches read of the epoch."""
        self._skips = 0
        """Batches of the epoch to read again, because the loader cannot continue where it was."""

    def steps(self, epochs: float) -> int:
        """Steps in this many epochs."""
        batches = length_of(self._loader)
        if batches is None:
            raise SettingsError(f"this loader has no known length: give {option('max_steps')}, the length of the run")
        if not batches:
            raise _empty()
        return max(1, math.ceil(epochs * batches / self._accumulation))

    def largest(self) -> Any:
        """The largest of the first batches that have targets; of an iterator, which cannot be read again, the first.

        A loader's workers stay until `close`, as they do while training.
        """
        before, first = _state_of(_with_state(self._loader)), self._batches
        if not self._once:
            self._begin()
        seen: list[Any] = []
        best: Any = None
        try:
            for batch in self._first_batches():
                if self._once:
                    seen.append(batch)
                if self._subject.rows(batch) and self._subject.count(batch):
                    best = batch if best is None else max(best, batch, key=self._subject.size)
                    if self._once:
                        break
            if self._once and not seen:
                raise self._ended()
        finally:
            self._batches = first
            if self._once:
                self._once.put_back(seen)
        if before is not None:
            _with_state(self._loader).load_state_dict(before)
        if best is None:
            raise SettingsError(
                "every target in the first batches of the loader is ignored: check the labels, or give a loader whose "
                "first batches have others"
            )
        return best

    def _first_batches(self) -> Iterator[Any]:
        for _ in range(LOOKED_AT):
            try:
                batch = self._read()
            except StopIteration:
                return
            self._batches += 1
            yield batch

    def planned(self, plan: ModulePlan) -> Source:
        """Divides batches by this plan from here on."""
        self._plan = plan
        return self

    def __iter__(self) -> Iterator[Piece]:
        """Micro-batches from the position on, epoch after epoch."""
        assert self._plan is not None
        if not self._once:
            self._begin()
        self._skip()
        of_step = 0
        while True:
            try:
                batch = self._read()
            except StopIteration:
                self._next_epoch()
                continue
            of_step = of_step % self._accumulation + 1
            number = self._samples
            self._batches += 1
            self._samples += self._subject.rows(batch)
            last = of_step == self._accumulation
            yield from self._subject.pieces(batch, self._plan, number=number, last_of_step=last)

    def _skip(self) -> None:
        """Reads again what the run has read of the epoch, if it could not continue there."""
        skips, self._skips = self._skips, 0
        self._batches -= skips
        for done in range(skips):
            try:
                self._read()
            except StopIteration:
                raise SettingsError(
                    f"the loader ended after {plural(done, 'batch', 'batches')}, but the run had read {skips:,} of its "
                    f"epoch: give the same loader as before, or choose another {option('out')}"
                ) from None
            self._batches += 1

    def _begin(self) -> None:
        self._subject.seed_loader(self._loader, self._seed, self._epoch)
        self._iterator = iter(self._loader)

    def _next_epoch(self) -> None:
        if self._once:
            raise self._ended()
        self._epoch, self._batches = self._epoch + 1, 0
        if not _moves(self._loader):
            self._set_epoch()
        self._begin()

    def _ended(self) -> SettingsError:
        return SettingsError(
            f"the loader ended after {plural(self._batches, 'batch', 'batches')}, and the run is longer: give one "
            f"that can be read again, or a smaller {option('max_steps')}"
        )

    def _set_epoch(self) -> None:
        if self._inside is not None:
            self._inside.set_epoch(self._epoch)

    def _read(self) -> Any:
        """The next batch of the epoch; StopIteration after the last."""
        assert self._iterator is not None
        self._subject.seed_data(self._seed, self._epoch, self._batches)
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self._batches:
                raise _empty() from None
            raise
        return self._subject.tensors(as_dict(batch))

    def state(self) -> dict[str, Any]:
        """The position between two steps, as JSON."""
        own = _state_of(_with_state(self._loader))
        return {"epoch": self._epoch, "batches": self._batches, "samples": self._samples, "loader": own}

    def restore(self, state: Mapping[str, Any]) -> None:
        places = [int(state[name]) for name in ("epoch", "batches", "samples")]
        if min(places) < 0:
            raise ValueError("a negative position")
        self._epoch, self._batches, self._samples = places
        if self._once:
            self._skips = self._batches - self._once.batches
            if self._skips < 0:
                raise SettingsError(
                    f"{plural(self._once.batches, 'batch was', 'batches were')} read from this iterator, and the run "
                    f"continues after {self._batches:,}: give a loader that can be read again, or a new iterator"
                )
            return
        saved = _with_state(self._loader)
        if saved is not None and state["loader"] is not None:
            saved.load_state_dict(state["loader"])
        else:
            self._set_epoch()
            self._skips = self._batches

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends a loader's workers; the next loop starts them again."""
        if not self._once:
            self._iterator = None
        if self._inside is not None:
            self._inside.close()


def loader_inside(loader: Any) -> ResumableLoader | None:
    """The loader of ramlet's own that this one is, or that a DataLoader reads from; its position moves with it."""
    for each in (loader, getattr(loader, "dataset", None)):
        if isinstance(each, ResumableLoader):
            return each
    return None


def check_loader(loader: Any, name: str) -> None:
    """Refuses what is no iterable of batches."""
    if isinstance(loader, (str, bytes, Mapping)) or not isinstance(loader, Iterable):
        raise SettingsError(
            f"{option(name)} must be an iterable of batches, such as a ramlet.Loader or a DataLoader, "
            f"not {type(loader).__name__}"
        )
    if loader_inside(loader) is not None and getattr(loader, "persistent_workers", False):
        raise SettingsError(
            f"{option(name)} has persistent workers, which cannot begin again where a ramlet loader is: create it "
            "without persistent_workers"
        )


def length_of(loader: Any) -> int | None:
    """Batches of an epoch, if they are known."""
    try:
        return len(loader)
    except TypeError:
        pass
    inside = loader_inside(loader)
    if isinstance(inside, Loader) and not inside.as_rows:
        return inside.division.count_pieces(len(inside.examples))
    return None


def is_endless(loader: Any) -> bool:
    """Whether it is known to have no end, and no length."""
    inside: Any = loader_inside(loader)
    return inside is not None and inside.epochs is None and length_of(loader) is None


def as_dict(batch: Any) -> Any:
    """A batch of ramlet's own loader as a dict, with `targets` besides what transformers needs."""
    if not isinstance(batch, Batch):
        return batch
    if not (batch.first_of_step and batch.last_of_step):
        raise SettingsError(
            f"this loader divides its batches already: create it without micro_batch, and give {option('micro_batch')} "
            "to fit, or let it find one"
        )
    own = {name: batch[name] for name in batch}
    others = {name: getattr(batch, name) for name in ("targets", "document_ids")}
    return {**own, **{name: value for name, value in others.items() if value is not None}}


def _moves(loader: Any) -> bool:
    """Whether a loader of ramlet's inside moves with the batches that are taken, and on to its next epoch.

    The workers of a DataLoader have copies, which move instead of it; ramlet's own DataLoader has a `set_epoch`, and
    moves the loader by what was taken.
    """
    return hasattr(loader, "set_epoch") or not getattr(loader, "num_workers", 0)


def _with_state(loader: Any) -> Any:
    """What has the position of a loader: itself, or the loader inside; None if nothing has."""
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    return loader_inside(loader) if _moves(loader) else None


def _state_of(loader: Any) -> Any:
    """Its position as JSON, a copy; None if it has none."""
    if loader is None:
        return None
    state = loader.state_dict()
    try:
        copied = json.loads(json.dumps(state))
        return copied if copied == state else None
    except (TypeError, ValueError):
        return None


def _empty() -> SettingsError:
    return SettingsError("the loader has no batches: give one that has")
