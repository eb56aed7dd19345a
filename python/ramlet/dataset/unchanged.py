"""Detects a dataset that changes while it is read.

Shards never change while a manifest lists them, and an appending `ramlet prepare` replaces the manifest last: a reader
that keeps the manifest it started with sees one dataset. Only if the folder was prepared again do its files belong to
another dataset, and then the manifest differs as well.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError
from ramlet.runtime.digest import digest
from ramlet.runtime.folder_lock import writer_of


def identity(manifest: Manifest) -> str:
    """Identifies a dataset: a hash of its whole manifest."""
    return digest(iter([json.dumps(replace(manifest, created_by="").as_json(), sort_keys=True).encode()]))


def refuse_changed(folder: Path, manifest: Manifest) -> None:
    """Stops if the shards of the manifest are no longer those of the folder."""
    try:
        now = Manifest.read(folder)
    except DatasetError:
        now = None
    if now is not None and all(
        split.shards == now.splits[name].shards[: len(split.shards)] for name, split in manifest.splits.items()
    ):
        return
    writer = writer_of(folder)
    what = f"is being written ({writer})" if writer else "was changed"
    raise DatasetError(f"{folder} {what} while it was read: run the same again when nothing writes to it")
