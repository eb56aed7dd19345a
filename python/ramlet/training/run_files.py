"""The files of a run, and how a new run replaces an old one.

    RUN/.new/      a new run that will replace the one in RUN, before its first checkpoint; ignored by readers
    RUN/.next/     the same from then on: it is RUN's current run while its files are moved into place

A new run is trained in RUN/.new, and the old one stays usable: it can be opened and resumed. With the first checkpoint
`.new` is renamed to `.next`; from then on the new run is the current one, and whoever opens RUN reads it there
(`whole_run`). Then the old files are removed, those of `.next` are linked into RUN, and `.next` is renamed to `.new`,
which makes RUN current again. A kill at any moment leaves the old run or the new one complete: the next start repeats
the interrupted part (`settle`), because nothing is removed from `.next` before RUN has it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ramlet.model.folder import NEXT, whole_run
from ramlet.runtime.atomic_files import sync_folder

__all__ = ["NEXT", "clear", "link", "move_in", "settle", "whole_run"]

SETTINGS = "settings.yaml"
STATISTICS = "stats.json"
METRICS = "metrics.jsonl"
WEIGHTS = "model.safetensors"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb_id.txt"
WRITTEN = (
    *(STATISTICS, WEIGHTS, CHECKPOINTS, "report.html", "measures.json", METRICS, TENSORBOARD, WANDB_ID),
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
)
"""Everything that belongs to one run, except its settings, which are written first and removed last."""
NEW = ".new"


def clear(run: Path) -> None:
    """Removes a run's files except its settings, which identify the folder as a run."""
    for name in WRITTEN:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    sync_folder(run)


def move_in(run: Path) -> None:
    """Makes the run in `.new`, which is synced to disk, the current one."""
    sync_folder(run / NEW)
    os.rename(run / NEW, run / NEXT)
    sync_folder(run)
    settle(run)


def settle(run: Path) -> None:
    """Completes what a kill may have interrupted: `.next` is moved into place, `.new` without a checkpoint removed."""
    if (run / NEXT).is_dir():
        shutil.rmtree(run / NEW, ignore_errors=True)
        clear(run)
        _link_all(run / NEXT, run)
        os.rename(run / NEXT, run / NEW)
        sync_folder(run)
    if (run / NEW).exists():
        shutil.rmtree(run / NEW)


def _link_all(source: Path, target: Path) -> None:
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            (target / entry.name).mkdir(exist_ok=True)
            _link_all(entry, target / entry.name)
        else:
            link(entry, target / entry.name)
    sync_folder(target)


def link(file: Path, path: Path) -> None:
    """A hard link, or a copy if the file system has no links."""
    hidden = path.with_name(f".{path.name}.ramlet-tmp")
    hidden.unlink(missing_ok=True)
    try:
        os.link(file, hidden)
    except OSError:
        shutil.copyfile(file, hidden)
        with open(hidden, "rb") as copy:
            os.fsync(copy.fileno())
    os.replace(hidden, path)
    # Renaming one link of a file to another keeps both.
    hidden.unlink(missing_ok=True)
    sync_folder(path.parent)
