"""The names of all that a run writes, and how a new run takes the place of an old one.

    RUN/.new/      a run that is to replace the one in RUN, until its first checkpoint is whole; without meaning
    RUN/.next/     the same from then on: it is RUN's run, and whole, while its files are put in their places

A new run is trained in RUN/.new, and the old one stays what it was: openable, resumable. With the first checkpoint one
rename makes `.new` the folder `.next`; from that moment on the new run is the one that counts, and whoever opens RUN
reads it there (`whole_run`). Then the old files go, those of `.next` get a second name in RUN, and one more rename, of
`.next` to `.new`, makes RUN what counts again. A kill at any moment leaves the old run or the new one, whole: the next
start repeats what was begun (`settle`), for nothing is taken out of `.next` before RUN has it.
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
WRITTEN = (
    *(STATISTICS, WEIGHTS, CHECKPOINTS, "report.html", "measures.json", METRICS, TENSORBOARD),
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
)
"""All that is of one run alone, but for its settings, which are there before all of it, and as long as any of it."""
NEW = ".new"


def clear(run: Path) -> None:
    """Removes all of a run but its settings, by which the folder is known for a run's."""
    for name in WRITTEN:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    sync_folder(run)


def move_in(run: Path) -> None:
    """Makes the run in `.new`, all of it on disk, the one of the folder."""
    sync_folder(run / NEW)
    os.rename(run / NEW, run / NEXT)
    sync_folder(run)
    settle(run)


def settle(run: Path) -> None:
    """Ends what a kill may have interrupted: a run that was moving in is, one that had no checkpoint is gone."""
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
    """The same file under another name, without a second copy of it where the file system can do that."""
    hidden = path.with_name(f".{path.name}.ramlet-tmp")
    hidden.unlink(missing_ok=True)
    try:
        os.link(file, hidden)
    except OSError:
        shutil.copyfile(file, hidden)
        with open(hidden, "rb") as copy:
            os.fsync(copy.fileno())
    os.replace(hidden, path)
    # Of two names of one file a rename leaves both.
    hidden.unlink(missing_ok=True)
    sync_folder(path.parent)
