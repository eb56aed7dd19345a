"""A dataset that is read for a while is the one that it was at the start.

Shards never change under a manifest that lists them, and `prepare --append` replaces the manifest last: a reader that
keeps to the manifest it began with sees one dataset. Only where the folder was made anew meanwhile do its files belong
to another; then the manifest is another one too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError
from ramlet.runtime.digest import digest
from ramlet.runtime.folder_lock import writer_of

__all__ = ["identity", "refuse_changed"]


def identity(manifest: Manifest) -> str:
    """What tells a dataset from every other: a hash of all that its manifest says."""
    return digest(iter([json.dumps(replace(manifest, created_by="").as_json(), sort_keys=True).encode()]))


def refuse_changed(folder: Path, manifest: Manifest) -> None:
    """Stops where the shards of the manifest, as it was read, are no longer those of the folder."""
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
    raise DatasetError(f"{folder} {what} while it was read: run the same again when nothing writes it")
