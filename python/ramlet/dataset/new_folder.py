"""A result folder that is there whole or not at all: filled under another name beside it, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramlet.atomic_files import sync_folder
from ramlet.errors import DatasetError, DiskFull, SettingsError
from ramlet.small_files import open_regular

__all__ = ["copy_file", "new_folder", "sync_file"]


@contextmanager
def new_folder(out: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder to fill; it becomes `out` when the block ends without an error.

    What a killed run left under the other name is removed by the next one.
    """
    out = Path(out)
    if os.path.lexists(out):
        raise SettingsError(f"{out} exists already: choose another folder, or remove it first")
    building = out.with_name(f".{out.name}.ramlet-tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if building.exists():
            shutil.rmtree(building)
        building.mkdir()
    except OSError as error:
        raise SettingsError(f"cannot write {out}: {error.strerror}; choose another folder") from None
    try:
        yield building
        for folder, _, _ in os.walk(building):
            sync_folder(folder)
        building.rename(out)
        sync_folder(out.parent)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            raise DiskFull(f"no space left to write {out}: free some and run the same again") from None
        raise


def copy_file(source: Path, target: Path) -> None:
    """In blocks, by the kernel where it can."""
    open_regular(source, DatasetError).close()  # a device has no end to be copied to
    shutil.copyfile(source, target)
    sync_file(target)


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
