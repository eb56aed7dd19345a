"""Files that are written completely or not at all: temp file, fsync, rename, fsync of the folder.

    with replacing("OUT/stats.json") as file:
        file.write(...)

A kill at any moment leaves the old file or the new one, and at worst a temp file that the next write of the same name
removes. Temp files have unique names, so two processes that write the same file never mix their output: the last one
wins. A temp file is locked while it is written; an unlocked one was left by a process that has ended.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ramlet.errors import DiskFull, RamletError
from ramlet.runtime.folder_lock import LOCK_SUFFIX, has_name, is_stream, lock_file, short_name

_SUFFIX = ".ramlet-tmp"
TRIES = 10


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temp file or a lock, not of a result."""
    return name.endswith((_SUFFIX, LOCK_SUFFIX))


@contextmanager
def replacing(path: str | os.PathLike[str], *, binary: bool = False, streams: bool = False) -> Iterator[IO[Any]]:
    """A file that replaces `path` when the block ends without an error; UTF-8 text, or bytes.

    A device is never replaced. With `streams`, for a path that the user gave (/dev/stdout), a device or a pipe is
    written to; without it, a pipe in the place of one of our files is replaced, because opening it would wait for a
    reader.
    """
    path = Path(path)
    if streams and is_stream(path):
        with _opened(path, "w", binary) as file:
            yield file
        return
    if _is_device(path):
        raise RamletError(f"{path} is a device, not a file: choose another path")
    if path.is_dir():  # noticed now, not when everything is written
        raise RamletError(f"{path} is a folder, not a file: choose another path")
    remove_leftovers(path)
    temporary, file = _new_temporary(path, binary)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # while it is locked, so that nobody removes it as a leftover
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left to write {path}: free some and run the same again") from None
        raise


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """A JSON file that people can read too: indented, non-ASCII characters as they are."""
    with replacing(path) as file:
        write_json_to(file, content)


def write_json_to(file: IO[Any], content: Any) -> None:
    """The same, to a file that is open."""
    file.writelines(map(in_utf8, json.JSONEncoder(ensure_ascii=False, indent=1).iterencode(content)))
    file.write("\n")


def in_utf8(text: str) -> str:
    """JSON as text that UTF-8 can encode: the bytes of a file's name that are not UTF-8 are lone surrogates to Python,
    and to JSON `\\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Removes temp files that writes of `path` left behind in processes that have ended."""
    path = Path(path)
    beginning = f".{short_name(path.name)}."
    with suppress(OSError), os.scandir(path.parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(beginning) and entry.name.endswith(_SUFFIX)]
        for one in left:
            _remove_if_left(one)


def remove_left(folder: str | os.PathLike[str]) -> None:
    """Removes temp files and folders, ours and the native core's, that processes which have ended left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    with suppress(OSError):
        is_folder = os.path.isdir(path)
        # A folder has a file that is locked while it is in use (rust/workdir.rs).
        locked = os.path.join(path, "lock") if is_folder else path
        handle = os.open(locked, os.O_RDWR | os.O_CLOEXEC)  # NFS locks only what is open for writing
        try:
            if lock_file(handle) and has_name(handle, locked):
                if is_folder:
                    _remove_others(path, locked)
                os.unlink(locked)
                if is_folder:
                    os.rmdir(path)
        finally:
            os.close(handle)


def _remove_others(folder: str, locked: str) -> None:
    """All files but the locked one, which goes last: whoever is killed in the middle leaves a folder that is found."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path != locked:
                os.unlink(entry.path)


def _new_temporary(path: Path, binary: bool) -> tuple[Path, IO[Any]]:
    for _ in range(TRIES):
        temporary = path.with_name(f".{short_name(path.name)}.{os.urandom(4).hex()}{_SUFFIX}")
        file = _opened(temporary, "x", binary)
        # Another process may have locked or removed the new file as a leftover.
        if lock_file(file.fileno()) is not False and has_name(file.fileno(), temporary):
            break
        file.close()
    return temporary, file


def _is_device(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _opened(path: Path, mode: str, binary: bool) -> IO[Any]:
    return open(path, f"{mode}b") if binary else open(path, mode, encoding="utf-8", newline="\n")


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file if it exists; the removal survives a power loss."""
    Path(path).unlink(missing_ok=True)
    sync_folder(Path(path).parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a rename or a removal in the folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
