"""What both loaders share: one loop over batches at a time, its position, resuming, and its share of the work.

A loader that reads ahead has two positions: how far it has read, and what it has yielded. A checkpoint needs the
second, and only between two global batches: the last batch of each comes with the position after it.

**Ranks and workers.** Each rank has its part of every global batch (division.py). The worker processes of a torch
DataLoader take turns: batch k of their rank is of worker k mod n, which is the order in which a DataLoader asks them.
So what it yields, and in which order, does not depend on the number of workers. The state of a worker, which torch's
StatefulDataLoader saves for each, also counts the batches of the rank since its last global batch began.

**torch.** A loader is an `IterableDataset` if torch is loaded or asked for, else an ordinary object: torch takes a
second to import, which a loop on NumPy arrays should not pay. So the class of an object is chosen when it is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ramlet.errors import DatasetError, RamletError, SettingsError
from ramlet.loading.batch import Batch
from ramlet.loading.division import Division, checked_seed, whole_number
from ramlet.loading.read_ahead import ReadAhead

if TYPE_CHECKING:
    from ramlet.engines.torch.datasets import BatchLoader, IterableDataset

    _Dataset = IterableDataset[Any]
else:
    _Dataset = object

L = TypeVar("L", bound="ResumableLoader")
Position = Any
"""The number of a sample in a Loader, a `_Position` in a StreamLoader."""


class Read(NamedTuple):
    """A batch, and its place."""

    batch: Batch
    before: Position
    """At which its global batch begins."""
    number: int
    """Among the batches of this rank in the global batch."""


class Passed(NamedTuple):
    """What was yielded after the position: of a worker, or of a loader of rows."""

    batches: int
    """Of this rank, up to the next one of this worker."""
    rows: int
    """Of that one."""
    workers: int


class ResumableLoader(_Dataset):
    seed: int
    epochs: int | None
    batch_size: int
    """Sequences in a global batch, over all ranks."""

    def __new__(cls: type[L], *given: Any, as_torch: bool = False, **settings: Any) -> L:
        kind = cls
        if as_torch or "torch" in sys.modules:
            from ramlet.engines.opening import require_torch

            require_torch("as_torch=True")
            from ramlet.engines.torch.datasets import dataset_class

            kind = dataset_class(cls)
        loader: L = object.__new__(kind)
        loader._made_by = (cls, given, {**settings, "as_torch": as_torch})
        return loader

    def __init__(
        self,
        start: Position,
        *,
        batch_size: int,
        rank: int | None,
        world: int | None,
        micro_batch: int | None,
        as_rows: bool,
        read_ahead: int,
    ) -> None:
        if whole_number("read_ahead", read_ahead) < 0:
            raise SettingsError(f"read_ahead must be at least 0, not {read_ahead}")
        if (rank is None) != (world is None):
            raise SettingsError("give both rank and world, or neither to take those of torch.distributed")
        self.batch_size = batch_size
        self.micro_batch = micro_batch
        self.as_rows = as_rows
        self.read_ahead = read_ahead
        self._place = None if rank is None or world is None else (rank, world)
        self._position = self._start = start
        self._passed: Passed | None = None
        self._reading: ReadAhead[Read] | None = None
        self._process = os.getpid()
        _ = self.division  # checks the numbers

    _later: ClassVar[Mapping[str, Any]] = {}
    """What older states do not have, and stands for."""

    _made_by: tuple[Callable[..., ResumableLoader], tuple[Any, ...], dict[str, Any]]

    @property
    def division(self) -> Division:
        """Of global batches. The rank is known when a loop begins: after torch.distributed was initialized."""
        rank, world = self._place or _in_torch("rank_and_world", (0, 1))
        return Division(batch_size=self.batch_size, rank=rank, world=world, micro_batch=self.micro_batch)

    def _batches(self, first: int, every: int) -> Iterator[Read]:
        """From the position on, of this rank: the batch with the number `first`, and each `every`-th after it.

        Must not refer to the loader: the thread that runs it would keep it alive.
        """
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

    def _end_pass(self) -> None:
        """A loop has come to its end: the next one begins with the next epoch."""
        raise NotImplementedError

    def _pass(self) -> int:
        """The number of the loop, counted from 0, in which the position lies."""
        raise NotImplementedError

    def _begin_pass(self, number: int) -> None:
        raise NotImplementedError

    def _separate(self) -> None:
        """Replaces what a thread of the process that forked this one may have locked."""
        raise NotImplementedError

    def _settings_again(self) -> dict[str, Any]:
        """Settings with which another process makes the same loader, besides those that were given."""
        return {}

    def __iter__(self) -> Iterator[Any]:
        """Continues after the last global batch that was yielded completely. One loop at a time.

        With `epochs`, a loop that came to its end is followed by one over the next `epochs`.
        """
        self.close()
        if self._process != os.getpid():
            self._separate()
            self._process = os.getpid()
        worker, workers = _in_torch("worker", (0, 1))
        passed = self._passed or Passed(worker, 0, workers)
        if passed.workers != workers:
            raise SettingsError(
                f"the state is that of a DataLoader with num_workers={passed.workers}, not {workers}: use the same, "
                "or start over"
            )
        self._reading = ReadAhead(self._batches(passed.batches, workers), self.read_ahead)
        return self._tracked(self._reading, passed)

    def _tracked(self, reading: ReadAhead[Read], passed: Passed) -> Iterator[Any]:
        try:
            for read in reading:
                if self.as_rows:
                    rows = range(passed.rows, len(read.batch.input_ids))
                    passed = passed._replace(rows=0)
                    for row in rows:
                        self._move_after(read, passed.workers, rows=row + 1)
                        yield read.batch.row(row)
                else:
                    self._move_after(read, passed.workers)
                    yield read.batch
            if self._reading is reading:
                self._end_pass()
                self._passed = None
            elif self._reading is not None:
                raise SettingsError("a loader runs one loop at a time: create a second loader for the other")
        finally:
            reading.close()

    def _move_after(self, read: Read, workers: int, rows: int | None = None) -> None:
        """Moves after a batch, or with `rows` after that many rows of it."""
        whole = rows is None or rows == len(read.batch.input_ids)
        if workers == 1 and (rows is None or (whole and read.batch.position_after is not None)):
            self._yielded(read.batch)
            return
        self._position = read.before
        self._passed = Passed(read.number + workers, 0, workers) if whole else Passed(read.number, rows or 0, workers)

    def _yielded(self, batch: Batch) -> None:
        """Moves after a batch that its user has, be it from a worker."""
        if batch.position_after is not None:
            self._position, self._passed = batch.position_after, None

    def dataloader(self, *, num_workers: int = 0, **settings: Any) -> BatchLoader:
        """A torch DataLoader of these batches, for frameworks that want one; its settings are torch's.

        Unlike `DataLoader(loader, batch_size=None)`, it yields `Batch` objects, and this loader's state and its epoch
        follow what was taken from it, with any number of workers. It has that state too.
        """
        if self.as_rows:
            raise SettingsError("a loader of rows has no batches: use torch's DataLoader(loader, batch_size=...)")
        from ramlet.engines.opening import require_torch

        require_torch("a DataLoader")
        from ramlet.engines.torch.datasets import BatchLoader

        return BatchLoader(self, num_workers=num_workers, **settings)

    def set_epoch(self, epoch: int) -> None:
        """The next loop is number `epoch`, counted from 0, as with torch's DistributedSampler.

        A position in that loop stays, so a state that was restored does too. Without `epochs` there is one loop only.
        """
        if self.epochs is not None and self._pass() != epoch:
            self.close()
            self._begin_pass(epoch)
            self._passed = None

    def state(self) -> dict[str, Any]:
        """The position after the last global batch that was yielded completely; small, and JSON.

        With `as_rows`, and in a worker of a DataLoader, after the last row or batch.
        """
        passed = {} if self._passed is None else {"passed": list(self._passed)}
        return {"seed": self.seed, **self._position_state(), **passed, **self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly from a state; ranks, micro-batches and the batch size may differ."""
        if not isinstance(state, Mapping):
            raise _damaged(f"it is a {type(state).__name__}")
        state = {**self._later, **state}
        for name, now in self._identity().items():
            if name in state and state[name] == now:
                continue
            if name == "data":
                raise self._changed_data()
            raise DatasetError(
                f"the state was saved with {name} {state.get(name)}, but now it is {now}: use the same, or start over"
            )
        try:
            seed, passed = checked_seed(state["seed"]), None
            if "passed" in state:
                batches, rows, workers = map(natural, state["passed"])
                passed = Passed(batches, rows, workers)
            self._move(self._position_from(state))
        except KeyError as error:
            raise _damaged(f"it has no {error.args[0]}") from None
        except (TypeError, ValueError) as error:
            raise _damaged(str(error)) from None
        self.seed, self._passed = seed, passed

    def state_dict(self) -> dict[str, Any]:
        """`state`, by the name that torch, accelerate and Lightning call."""
        return self.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """`restore`, by the name that torch, accelerate and Lightning call."""
        self.restore(state_dict)

    def rewind(self) -> None:
        """Back to the first sample."""
        self._move(self._start)

    def _move(self, position: Position) -> None:
        self.close()
        self._position, self._passed = position, None

    def close(self) -> None:
        """Ends the loop and its thread; the next loop continues from the state."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __bool__(self) -> bool:
        return True  # Python would ask for the length, which an endless loader does not have

    def __reduce__(self) -> Any:
        kind, given, settings = self._made_by
        place = self._place or _in_torch("rank_and_world", (0, 1))
        if place != (0, 1):  # a process that is spawned knows nothing of torch.distributed here
            settings = {**settings, "rank": place[0], "world": place[1]}
        return _made_again, (kind, given, {**settings, **self._settings_again()}, self.state())


def natural(value: Any) -> int:
    """A number of a state; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no position")
    return value


def _damaged(why: str) -> DatasetError:
    return DatasetError(
        f"this is not the state of a loader, or it is damaged ({why}): use another, or start over", damaged=why
    )


def _made_again(
    kind: Callable[..., ResumableLoader], given: tuple[Any, ...], settings: dict[str, Any], state: Mapping[str, Any]
) -> ResumableLoader:
    loader = kind(*given, **settings)
    loader.restore(state)
    return loader


def _in_torch(name: str, default: tuple[int, int]) -> tuple[int, int]:
    """What torch knows about this process; without torch, the default."""
    if "torch" not in sys.modules:
        return default
    from ramlet.engines.torch import datasets

    found: tuple[int, int] = getattr(datasets, name)()
    return found


ResumableLoader.__module__ = "ramlet"  # as its subclasses: help(ramlet.Loader) names no private module
