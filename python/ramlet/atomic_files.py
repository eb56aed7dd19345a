"""Files that are there whole or not at all: temp file, fsync, rename, fsync of the folder.

    with replacing("OUT/stats.json") as file:
        file.write(...)

A kill at any moment leaves the old file or the new one, and at worst a temp file that the next write
of the same name takes the place of.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ramlet.errors import DiskFull

__all__ = ["is_temporary", "remove", "replacing", "sync_folder"]

_SUFFIX = ".ramlet-tmp"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is left over from a write that was killed."""
    return name.endswith(_SUFFIX)


@contextmanager
def replacing(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file that takes the place of `path` when the block ends without an error; UTF-8 text, or bytes."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}{_SUFFIX}")
    try:
        with open(temporary, "wb") if binary else open(temporary, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left to write {path}: free some and run the same again") from None
        raise


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, if it is there, for good."""
    Path(path).unlink(missing_ok=True)
    sync_folder(Path(path).parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a rename or a removal in the folder outlast a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
