"""`ramlet data export`: writes a dataset into a new folder, in bounded blocks; the folder appears when it is complete.

Of a packed dataset the rows are its sequences, with their padding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy.typing as npt

from ramlet.dataset.export import load_format
from ramlet.dataset.manifest import SPLITS
from ramlet.dataset.new_folder import is_export, new_folder, note_export
from ramlet.dataset.reader import Dataset, Ids
from ramlet.dataset.unchanged import identity, refuse_changed
from ramlet.dataset.verify import Progress
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.runtime.folder_lock import LONGEST_NAME


@dataclass
class Export:
    """What is exported and, afterwards, the result."""

    dataset: Dataset
    folder: Path
    splits: tuple[str, ...]
    name: str
    progress: Progress | None = None
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tokens: int = 0
    already_done: bool = False
    """Nothing was written: the folder already had this result."""

    def counted(self, blocks: Iterator[Ids]) -> Iterator[Ids]:
        """The blocks; progress is reported as they are used."""
        width = self.dataset.manifest.id_bytes
        total = sum(self.dataset.splits[split].tokens for split in self.splits)
        for block in blocks:
            yield block
            self.tokens += len(block)
            if self.progress is not None:
                self.progress(self.tokens * width, total * width)

    def open(self, name: str) -> IO[bytes]:
        self.files.append(name)
        return open(self.folder / name, "wb")

    def copy_ids(self, split: str, file: IO[bytes], dtype: npt.DTypeLike | None = None) -> None:
        """All ids of the split, as another dtype if given."""
        for block in self.counted(self.dataset.blocks(split)):
            file.write(block.astype(dtype or block.dtype, copy=False).data)


def export(
    path: str | os.PathLike[str],
    to: str,
    out: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Export:
    """Writes a dataset into the new folder `out` in the format `to`; does nothing if the folder already has that.

    `splits` defaults to those that are not empty; `name` is the prefix of llm.c's files.
    """
    format_module = load_format(to)
    dataset = Dataset(path)
    chosen = _chosen(dataset, splits)
    prefix = (name or Path(out).resolve().name) if to == "llm.c" else ""
    if "/" in prefix or "\0" in prefix or len(os.fsencode(prefix)) > LONGEST_NAME:
        raise SettingsError(f"{option('name')} begins the names of files: give a short one without slashes")
    origin = {"dataset": identity(dataset.manifest), "to": to, "splits": list(chosen), "name": prefix}
    with new_folder(out, "data export", lambda: is_export(out, origin)) as folder:
        if folder is None:
            return Export(dataset, Path(out), chosen, prefix, already_done=True)
        job = Export(dataset, folder, chosen, prefix, progress)
        try:
            format_module.write(job)
        except (DatasetError, OSError):
            refuse_changed(dataset.path, dataset.manifest)
            raise
        refuse_changed(dataset.path, dataset.manifest)
        note_export(folder, origin)
    return job


def _chosen(dataset: Dataset, splits: Sequence[str] | None) -> tuple[str, ...]:
    for split in splits or ():
        if not dataset.shards(split):
            raise DatasetError(f"{dataset.path} has nothing in {split}")
    chosen = tuple(split for split in SPLITS if dataset.shards(split) and (not splits or split in splits))
    if not chosen:
        raise DatasetError(f"{dataset.path} is empty: there is nothing to export")
    return chosen
