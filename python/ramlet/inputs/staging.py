"""Inputs that are not local files -> local files, so that everything after this reads only files.

    paths = stage(["corpus/", "s3://bucket/*.jsonl.gz", "org/name:train", "-"], "OUT/.work/staged", reading=settings)

`corpus/` comes back as it is, the others as paths inside the folder:

    -                                     a copy of standard input
    s3://, gs://, https://, file://, ...  a copy of each file, with its suffixes; * and folders through fsspec
    org/name, org/name/subset,            part-00000.jsonl.gz, ... of the text column; each also with :split
      hf://datasets/org/name
    a folder of datasets' save_to_disk    the same
    jsonl or parquet files with their     the same
      own text column

A staged file gets its name only when it is complete, and is reused when the same command runs again: its modification
time is not a time but computed from what identifies the version of the source (etag, size, revision ...). So inputs
that are staged twice are the same inputs to `sources.survey` too.

Memory holds one chunk, and the listing of a remote folder. The libraries are loaded when an input needs them, and stay:
fsspec takes 15 MB (25 for the web), pyarrow, for saved datasets, 57 MB, datasets 148 MB. To keep them out of the
budget, `staging_process.stage_in_subprocess` does the same in a process that ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ramlet.inputs.columns import OwnColumn
from ramlet.inputs.named import Input, as_input, hub_dataset, looks_remote, needs_staging, saved_dataset
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import Progress, Staged, StagingFolder
from ramlet.inputs.standard_input import StandardInput

__all__ = ["Input", "looks_remote", "needs_staging", "stage"]


def stage(
    inputs: Iterable[str | os.PathLike[str] | Input],
    folder: str | os.PathLike[str],
    *,
    reading: ReadSettings,
    progress: Progress | None = None,
) -> list[str]:
    """The paths to read instead of the inputs, in the same order; local files as they are.

    `progress` is called with ("staging", bytes so far, total bytes or 0 if unknown).
    """
    plan = [_recognize(given, reading) for given in dict.fromkeys(map(as_input, inputs))]
    staging = StagingFolder(Path(folder), progress, [each.size for each in plan if not isinstance(each, str)])
    return [path for each in plan for path in ([each] if isinstance(each, str) else each.stage(staging))]


def _recognize(given: Input, reading: ReadSettings) -> str | Staged:
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
