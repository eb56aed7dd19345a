"""Local jsonl and parquet files with the text in a different column than the other inputs.

All files of a run are read with one `text_field`. If a config names another for some of them, those are rewritten with
the text under the common name. Documents without text, and broken lines that are skipped, are lost there: the ledger
of the run does not count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ramlet import _native
from ramlet.errors import SettingsError
from ramlet.inputs import sources
from ramlet.inputs.named import Input
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import Row, StagingFolder, key_of

BLOCK = 1 << 20


class OwnColumn:
    """Files to rewrite."""

    size = None

    def __init__(self, given: Input, column: str, reading: ReadSettings) -> None:
        self._given = given
        self._column = column
        self._reading = reading

    @classmethod
    def of(cls, given: Input, reading: ReadSettings) -> OwnColumn | None:
        """None if the files can be read as they are."""
        if given.split not in (None, "train") or given.subset:
            what = f"subset {given.subset!r}" if given.subset else f"split {given.split!r}"
            raise SettingsError(f"{given.path} is not a hub dataset and has no {what}: remove it, or give its files")
        column = given.text_field
        if column is None or column == reading.text_field:
            return None
        files = sources.expand(given.path, format=reading.format)
        return cls(given, column, reading) if any(file.format != "text" for file in files) else None

    def stage(self, folder: StagingFolder) -> list[str]:
        path = self._given.path
        mark = sources.survey(path, format=self._reading.format).fingerprint
        place = folder.place(key_of(path, self._column, self._reading.text_field), "columns")
        return folder.rows(place, mark, self._reading.text_field, lambda: self._rows(folder.path))

    def _rows(self, scratch: Path) -> Iterator[Row]:
        scratch.mkdir(parents=True, exist_ok=True)
        reader = _native.Reader(
            (source.spec() for source in sources.expand(self._given.path, format=self._reading.format)),
            {**self._reading.reading(), "text_field": self._column},
            encoder=None,
            block_bytes=BLOCK,
            window_bytes=8 * BLOCK,
            spill_dir=str(scratch),
        )
        while (batch := reader.next_batch()) is not None:
            yield from batch
