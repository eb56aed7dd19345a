"""Inputs that are no local files -> local files, so that everything after reads files only.

    paths = stage(["corpus/", "s3://bucket/*.jsonl.gz", "org/name:train", "-"], "OUT/.work/staged", reading=settings)

`corpus/` comes back as it is, the others as paths inside the folder:

    -                                     a copy of standard input
    s3://, gs://, https://, file://, ...  a copy of each file, with its suffixes; * and folders through fsspec
    org/name, org/name/subset,            part-00000.jsonl.gz, ... of the text column; each also with :split
      hf://datasets/org/name
    a folder of datasets' save_to_disk    the same
    jsonl or parquet files with a text    the same
      column of their own

A staged file has its name only when it is whole, and is not made again when the same command runs again: its
time of change is no time but follows from what the source says of itself (etag, size, revision ...), and
tells whether it is still the same. So inputs staged twice are the same inputs to `sources.survey` too.

Held is one chunk, and the listing of a remote folder. The libraries it takes are loaded when an input needs
them, and stay: fsspec takes 15 MB (25 for the web), pyarrow, for saved datasets, 57 MB, datasets 148 MB. Under a
budget that has better use for them, `ramlet.inputs.apart.stage_apart` does the same in a process that ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ramlet.inputs.columns import OwnColumn
from ramlet.inputs.named import Input, as_input, hub_dataset, looks_remote, needs_staging, saved_dataset
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.shelf import Progress, Shelf, Staged
from ramlet.inputs.standard_input import StandardInput

__all__ = ["Input", "looks_remote", "needs_staging", "stage"]


def stage(
    inputs: Iterable[str | os.PathLike[str] | Input],
    folder: str | os.PathLike[str],
    *,
    reading: ReadSettings,
    progress: Progress | None = None,
) -> list[str]:
    """The paths to read in the place of the inputs, in their order; local ones as they are.

    `progress` is told ("staging", bytes so far, bytes in all or 0 where no one knows).
    """
    plan: list[str | Staged] = []
    recognised: dict[Input, str | Staged] = {}
    for given in map(as_input, inputs):
        if given not in recognised:
            recognised[given] = _recognise(given, reading)
            plan.append(recognised[given])
    shelf = Shelf(Path(folder), progress, [each.size for each in plan if not isinstance(each, str)])
    return [path for each in plan for path in ([each] if isinstance(each, str) else each.stage(shelf))]


def _recognise(given: Input, reading: ReadSettings) -> str | Staged:
    if given.path == "-":
        return StandardInput(reading)
    hub = hub_dataset(given)
    if hub is not None:
        from ramlet.inputs.hub import HubDataset

        return HubDataset(hub, reading)
    saved = saved_dataset(given)
    if saved is not None:
        from ramlet.inputs.saved import SavedDataset

        return SavedDataset(saved, reading)
    if looks_remote(given.path):
        from ramlet.inputs.remote_files import RemoteFiles

        return RemoteFiles(given, reading)
    return OwnColumn.of(given, reading) or given.path
