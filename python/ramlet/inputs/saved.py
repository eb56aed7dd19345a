"""Folders written by save_to_disk of `datasets` -> jsonl, read with pyarrow.

Not with `datasets` itself: it maps the files, and mapped pages count as resident. Read as a stream, one batch of rows
is in memory, a thousand unless it was saved with another number.

    FOLDER/dataset_dict.json   {"splits": ["train", "test"]}, each a folder as below; only if there are splits
    FOLDER/state.json          {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_fingerprint": ...}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.named import Input
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import Row, StagingFolder, first_line, key_of
from ramlet.runtime.small_files import read_json_object


class SavedDataset:
    """One split of a saved dataset."""

    size = None  # the size of the files includes all columns

    def __init__(self, given: Input, reading: ReadSettings) -> None:
        self._name = given.path
        refuse_other_format(self._name, reading)
        try:
            import pyarrow  # noqa: F401 - reported before any work
        except ImportError:
            raise SettingsError(f"cannot read the dataset {self._name}: pip install 'ramlet[hf]'") from None
        self._folder = Path(given.path, *self._split(given))
        self._column = given.text_field or reading.text_field
        self._field = reading.text_field
        state = self._json(self._folder / "state.json")
        if state.get("_indices_data_files"):
            raise SourceError(f"{self._name} was saved with a row selection: load it, flatten_indices() and save again")
        try:
            self._files = [self._folder / each["filename"] for each in state["_data_files"]]
            sizes = [path.stat().st_size for path in self._files]
        except (KeyError, TypeError):
            raise SourceError(f"{self._folder / 'state.json'} lists no data files: save the dataset again") from None
        except OSError as error:
            raise SourceError(f"cannot read {error.filename}: {error.strerror}, save the dataset again") from None
        self._mark = json.dumps([state.get("_fingerprint"), sizes])

    def _split(self, given: Input) -> list[str]:
        if not os.path.isfile(os.path.join(given.path, "dataset_dict.json")):
            own = self._json(Path(given.path, "state.json")).get("_split")
            if given.split is not None and own is not None and str(own) != given.split:
                raise SourceError(f"{given.path} holds the split {own!r}, not {given.split!r}: do not give a split")
            return []
        splits = self._json(Path(given.path, "dataset_dict.json")).get("splits")
        split = given.split or "train"
        if not isinstance(splits, list) or split not in splits:
            raise SourceError(f"{given.path} has no split {split!r}: it has {', '.join(map(str, splits or ['none']))}")
        return [split]

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            return read_json_object(path, SourceError)
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot read {path} ({first_line(error)}): save the dataset again") from None

    def stage(self, folder: StagingFolder) -> list[str]:
        key = key_of(str(self._folder), self._column, self._field)
        return folder.rows(folder.place(key, self._folder.name), self._mark, self._field, self._rows)

    def _rows(self) -> Iterator[Row]:
        import pyarrow as pa

        for path in self._files:
            try:
                with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
                    top, _, rest = self._column.partition(".")
                    if top not in stream.schema.names:
                        raise no_column(self._name, self._column, stream.schema.names)
                    for batch in stream:
                        for value in batch.column(top):
                            yield text_of(value.as_py(), rest, self._name, self._column), True
            except (pa.ArrowInvalid, OSError) as error:
                raise SourceError(f"cannot read {path} ({first_line(error)}): save the dataset again") from None


def refuse_other_format(name: str, reading: ReadSettings) -> None:
    """Rows are staged as jsonl, which would be misread as another format."""
    if reading.format not in (None, "jsonl"):
        raise SettingsError(f"{name} is a dataset, which cannot be read as {reading.format}: remove {option('format')}")


def no_column(name: str, column: str, there: list[str]) -> SourceError:
    return SourceError(f"{name} has no column {column!r}: set {option('text_field')} to one of {', '.join(there)}")


def text_of(value: Any, rest: str, name: str, column: str) -> str | None:
    """The text, inside nested fields by the rest of a dotted name; None if there is none."""
    for part in rest.split(".") if rest else ():
        if value is None:
            return None
        if not isinstance(value, dict) or part not in value:
            raise SourceError(f"{name} has no {part!r} in its column {column!r}: change {option('text_field')}")
        value = value[part]
    if value is not None and not isinstance(value, str):
        raise SourceError(
            f"the column {column!r} of {name} holds {type(value).__name__}, not text: change {option('text_field')}"
        )
    return value
