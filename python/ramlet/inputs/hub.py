"""Datasets on the hub -> jsonl, streamed row by row through `datasets`.

The revision is asked for first and held on to: an interrupted run goes on with the rows of the same state, and a
later one notices that there is another. Going on means reading past the rows that are there already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.inputs.named import HubName
from ramlet.inputs.saved import no_column, refuse_other_format, text_of
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.shelf import Row, Shelf, first_line, key_of
from ramlet.runtime.reachable import unreachable

__all__ = ["HubDataset"]


class HubDataset:
    """One split of one subset."""

    size = None

    def __init__(self, name: HubName, reading: ReadSettings) -> None:
        self._name = name
        self._column = name.text_field or reading.text_field
        self._field = reading.text_field
        refuse_other_format(name.shown, reading)
        try:
            import datasets  # noqa: F401 - told before any work
        except ImportError:
            raise SettingsError(
                f"{name.shown} is no file or folder here, and to read it from the hub takes pip install 'ramlet[hf]'"
            ) from None
        with _told(name.shown):
            self._revision = _revision(name.repository, name.revision)

    def stage(self, shelf: Shelf) -> list[str]:
        name = self._name
        key = key_of(name.repository, name.subset, name.split, self._column, self._field)
        folder = shelf.place(key, name.repository.replace("/", "-"))
        return shelf.rows(folder, self._revision, self._field, self._rows)

    def _rows(self) -> Iterator[Row]:
        top, _, rest = self._column.partition(".")
        with _told(self._name.shown):
            rows = self._open(top)
        while True:
            with _told(self._name.shown):
                row = next(rows, None)
            if row is None:
                return
            if top not in row:
                raise no_column(self._name.shown, self._column, list(row))
            yield text_of(row[top], rest, self._name.shown, self._column), True

    def _open(self, column: str) -> Iterator[dict[str, Any]]:
        import datasets

        name = self._name
        datasets.disable_progress_bars()
        dataset = datasets.load_dataset(
            name.repository, name.subset, split=name.split, revision=self._revision, streaming=True
        )
        # Where the columns are known, the others need not be read.
        if dataset.column_names is not None:
            if column not in dataset.column_names:
                raise no_column(name.shown, self._column, dataset.column_names)
            dataset = dataset.select_columns([column])
        return iter(dataset)


def _revision(repository: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    if offline := unreachable():
        raise SourceError(
            f"{repository} is no file or folder here, and the hub cannot be asked for it ({offline}): "
            "check the name and the network, then run the same again"
        )
    return str(HfApi().dataset_info(repository, revision=revision).sha)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever goes wrong out there, in one sentence."""
    try:
        yield
    except RamletError:
        raise
    except Exception as error:  # noqa: BLE001 - the library lets through the errors of whatever it is built on
        raise SourceError(
            f"{name} is no file or folder here, and cannot be read from the hub ({first_line(error)}): "
            "check the name and the network, then run the same again"
        ) from None
