"""A result folder that appears only when it is complete: filled under a temporary name next to it, then renamed.

    with new_folder(out, "data export", lambda: is_export(out, origin)) as folder:
        if folder is not None:                # None: `out` already has this result, there is nothing to do
            ...
            note_export(folder, origin)

An export has no manifest, so a hidden file in it says what it was made from:

    OUT/.ramlet-export.json    {"origin": {...}, "files": {"train.bin": 123, ...}}    sizes in bytes
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramlet.errors import DatasetError, DiskFull, SettingsError
from ramlet.runtime.atomic_files import replacing, sync_folder
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.small_files import MANIFEST, open_regular, read_json

EXPORT_NOTE = ".ramlet-export.json"


@contextmanager
def new_folder(out: str | os.PathLike[str], command: str, is_there: Callable[[], bool]) -> Iterator[Path | None]:
    """The folder to fill; it becomes `out` when the block ends without an error.

    None if `out` exists and `is_there` says that it has this result; anything else there is an error. `out` is locked
    meanwhile. What a killed run left under the temporary name is removed by the next one.
    """
    out = Path(out)
    with hold(out, command):
        if os.path.lexists(out):
            if not is_there():
                raise SettingsError(
                    f"{out} already exists and has something else in it: choose another folder, or remove it first"
                )
            yield None
            return
        building = out.with_name(f".{out.name}.ramlet-tmp")
        try:
            if building.exists():
                shutil.rmtree(building)
            building.mkdir()
        except OSError as error:
            raise SettingsError(f"cannot write {out}: {error.strerror}; choose another folder") from None
        try:
            yield building
            for path in (*building.rglob("*"), building):
                sync_folder(path)  # files as well
            building.rename(out)
            sync_folder(out.parent)
        except BaseException as error:
            shutil.rmtree(building, ignore_errors=True)
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if isinstance(error, DiskFull) or full:
                raise DiskFull(f"no space left to write {out}: free some and run the same again") from None
            raise


def note_export(folder: Path, origin: dict[str, Any]) -> None:
    """Records what the folder was made from."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    with replacing(folder / EXPORT_NOTE) as file:
        json.dump({"origin": origin, "files": sizes}, file, indent=1)
        file.write("\n")


def is_export(out: str | os.PathLike[str], origin: dict[str, Any]) -> bool:
    """Whether a folder was made from this; a missing or truncated file in it is an error."""
    out = Path(out)
    try:
        noted = read_json(out / EXPORT_NOTE, DatasetError, MANIFEST)
        if noted["origin"] != origin:
            return False
        sizes = {out / name: int(size) for name, size in noted["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    refuse_unless_whole(out, sizes)
    return True


def refuse_unless_whole(out: Path, sizes: dict[Path, int]) -> None:
    """Stops if a file of a finished result is missing or has another size."""
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            raise SettingsError(
                f"{path} is missing or incomplete, although {out} was finished: remove {out}, and run the same again"
            )


def copy_file(source: Path, target: Path, most: float = math.inf) -> None:
    """In blocks, by the kernel if it can; a file of more than `most` bytes is an error."""
    open_regular(source, DatasetError, most).close()  # copying a device would never end
    shutil.copyfile(source, target)
