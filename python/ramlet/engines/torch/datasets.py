"""Loaders as torch knows them: an `IterableDataset`, its share of the work in this process, and a DataLoader.

`ramlet.loading` uses these if torch is loaded or asked for; nothing here knows what a loader reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from torch import distributed
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import IterableDataset as IterableDataset  # for the types of loaders

from ramlet.errors import SettingsError

T = TypeVar("T", bound=type)


@cache
def dataset_class(kind: T) -> T:
    """A loader's class, as one of torch's datasets; under the same name."""

    class Made(kind, IterableDataset):  # type: ignore[misc, type-arg, valid-type]
        __doc__ = kind.__doc__

    Made.__name__, Made.__qualname__, Made.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Made  # type: ignore[return-value]


def rank_and_world() -> tuple[int, int]:
    """Those of torch.distributed.

    (0, 1) under accelerate, and so in transformers' Trainer: `prepare` divides what a DataLoader yields among the
    processes, and rows that were divided before would be lost.
    """
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.is_initialized():
        return 0, 1
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def worker() -> tuple[int, int]:
    """This worker of a DataLoader, and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class BatchLoader(DataLoader[Any]):
    """A DataLoader of batches as they are, with the state of its loader, which follows what was taken from it."""

    def __init__(self, loader: Any, **settings: Any) -> None:
        if settings.get("persistent_workers"):
            raise SettingsError(
                "workers that persist do not know what was taken from them, and so not where the loader is: create the "
                "dataloader without persistent_workers"
            )
        super().__init__(loader, batch_size=None, collate_fn=_as_it_is, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        loader: Any = self.dataset
        for batch in super().__iter__():
            loader._yielded(batch)
            yield batch
        if self.num_workers:  # otherwise the loader's own loop has ended
            loader._end_pass()

    def state_dict(self) -> dict[str, Any]:
        """After the last global batch that was taken completely."""
        found: dict[str, Any] = self.dataset.state_dict()  # type: ignore[attr-defined]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes exactly from a state."""
        self.dataset.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        """As that of the loader."""
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


def _as_it_is(batch: Any) -> Any:
    return batch
