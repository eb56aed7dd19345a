"""Datasets on the hub -> jsonl, streamed row by row through `datasets`.

The revision is looked up first and kept: an interrupted run resumes with the rows of the same revision, and a later run
notices a new one. Resuming means reading past the rows that are staged already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.inputs.named import HubName
from ramlet.inputs.saved import no_column, refuse_other_format, text_of
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import Row, StagingFolder, first_line, key_of
from ramlet.runtime.reachable import unreachable


class HubDataset:
    """One split of one subset."""

    size = None

    def __init__(self, name: HubName, reading: ReadSettings) -> None:
        self._name = name
        self._column = name.text_field or reading.text_field
        self._field = reading.text_field
        refuse_other_format(name.shown, reading)
        try:
            import datasets  # noqa: F401 - reported before any work
        except ImportError:
            raise SettingsError(
                f"no file or folder {name.shown} here, and reading it from the hub needs pip install 'ramlet[hf]'"
            ) from None
        with _explained(name.shown):
            self._revision = _revision(name.repository, name.revision)

    def stage(self, folder: StagingFolder) -> list[str]:
        name = self._name
        key = key_of(name.repository, name.subset, name.split, self._column, self._field)
        place = folder.place(key, name.repository.replace("/", "-"))
        return folder.rows(place, self._revision, self._field, self._rows)

    def _rows(self) -> Iterator[Row]:
        top, _, rest = self._column.partition(".")
        with _explained(self._name.shown):
            rows = self._open(top)
        while True:
            with _explained(self._name.shown):
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
        # If the columns are known, the others need not be read.
        if dataset.column_names is not None:
            if column not in dataset.column_names:
                raise no_column(name.shown, self._column, dataset.column_names)
            dataset = dataset.select_columns([column])
        return iter(dataset)


def _revision(repository: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    if offline := unreachable():
        raise ConnectionError(offline)
    return str(HfApi().dataset_info(repository, revision=revision).sha)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns any error of the library into one sentence."""
    try:
        yield
    except RamletError:
        raise
    except Exception as error:  # noqa: BLE001 - the library passes on the errors of everything it is built on
        raise SourceError(
            f"no file or folder {name} here, and it cannot be read from the hub ({first_line(error)}): "
            "check the name and the network, then run the same command again"
        ) from None
