"""One writer for each result, whether it is a file or a folder, and whichever command writes it.

    with hold("my-dataset", "prepare"):        # SettingsError where another process writes it, with its pid
        ...

The lock is a hidden file beside the result, `.my-dataset.ramlet-lock`, with the name of its holder in it; where that
folder cannot be written it is inside the result. What counts is `flock`, which ends with the process, by whatever
means: a file that a killed process left behind holds no one up. It is removed at the end, so after `flock` a process
looks whether the file that it has locked still has the name; else it was the last holder's, and it tries again.

On a file system without `flock` (some NFS and Lustre mounts) the file itself is the lock. Nobody can tell there whether
the holder is gone, so a file left by a killed process must be removed by hand: the message names it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ramlet.errors import DiskFull, SettingsError, option

__all__ = ["LOCK_SUFFIX", "Lock", "has_name", "hold", "is_stream", "lock_file", "short_name", "writer_of"]

LOCK_SUFFIX = ".ramlet-lock"
LONGEST_NAME = 180
"""Bytes of a file's name that its lock and temporary files repeat: theirs must not be longer than 255."""

TRIES = 5
PAUSE = 0.02
"""Seconds between tries: someone may only be looking (`writer_of`), or about to write down its name."""

_STREAMS = {"/dev", "/dev/fd", "/proc/self/fd"}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class Lock:
    """A result that this process alone writes, until it is released or the process ends."""

    def __init__(self, path: Path, handle: int, made: list[Path]) -> None:
        self._path = path
        self._handle = handle
        self._made = made
        """Folders that were made for it, innermost first."""

    def release(self) -> None:
        """Lets go, and leaves nothing behind; folders that were made for the result go if they are empty."""
        if self._handle < 0:
            return
        with suppress(OSError):
            self._path.unlink()
        os.close(self._handle)
        self._handle = -1
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def hold(
    target: str | os.PathLike[str], command: str, *, instead: str = option("out"), makes_folder: bool = True
) -> Lock:
    """Takes the target for `command`, as others are told; the folder that it is in is made, or must be there.

    A device or a pipe is no one's result, and not held.
    """
    if is_stream(Path(target)):
        return Lock(Path(target), -1, [])
    last = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        try:
            path, handle, created, made = _open(Path(target), makes_folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space left to write {target}: free some and run the same again") from None
            reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
            raise SettingsError(f"cannot write into {target}: {reason}; choose another {instead}") from None
        locked = lock_file(handle)
        if locked is None and not created:
            who = _holder(handle)
            os.close(handle)
            raise SettingsError(
                f"{target} is being written by another ramlet{who}, or one was killed: this file system cannot tell; "
                f"wait for it, or remove {path} when it is gone"
            )
        if locked is not False and has_name(handle, path):
            _write_holder(handle, command)
            return Lock(path, handle, made)
        if locked is False:
            last = _holder(handle)
        os.close(handle)
    raise SettingsError(f"{target} is being written by another ramlet{last}: wait for it, or choose another {instead}")


def writer_of(target: str | os.PathLike[str]) -> str | None:
    """Who writes the target at this moment, in words: `prepare, pid 1234, since 14:02`."""
    for path in _places(Path(target)):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if lock_file(handle, shared=True) is False:
                return _holder(handle).strip(" ()") or "another process"
        finally:
            os.close(handle)
    return None


def lock_file(handle: int, *, shared: bool = False) -> bool | None:
    """Locks an open file; False where another has it, None where the file system has no locks."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _UNSUPPORTED else False
    return True


def has_name(handle: int, path: str | os.PathLike[str]) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def is_stream(path: Path) -> bool:
    """Whether this is a device or a pipe, which is written to and never replaced."""
    return os.fspath(path.parent) in _STREAMS or (path.exists() and not path.is_file() and not path.is_dir())


def short_name(name: str) -> str:
    """The name, or as much of its beginning as leaves room for what is added."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= LONGEST_NAME else os.fsdecode(encoded[:LONGEST_NAME])


def _places(target: Path) -> list[Path]:
    """Where the lock may be: beside the target, whatever path leads to it, or inside it."""
    real = Path(os.path.realpath(target if target.is_dir() else target.parent))
    if target.is_dir():
        return [real.with_name(f".{short_name(real.name)}{LOCK_SUFFIX}"), real / LOCK_SUFFIX]
    return [real / f".{short_name(target.name)}{LOCK_SUFFIX}"]


def _open(target: Path, makes_folder: bool) -> tuple[Path, int, bool, list[Path]]:
    """The lock's file, open; whether it is new; the folders that were made for it."""
    parent = target.parent
    made = [path for path in (parent, *parent.parents) if not path.exists()]
    while True:
        if makes_folder:
            parent.mkdir(parents=True, exist_ok=True)
        refused: OSError | None = None
        for path in _places(target):
            try:
                return (path, *_opened(path), made)
            except FileNotFoundError:
                if not makes_folder:
                    raise
                refused = None  # another process, done, has just removed the empty folder
                break
            except OSError as error:
                refused = refused or error
                if error.errno not in _NOT_WRITABLE:
                    break
        if refused is not None:
            raise refused


def _opened(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with suppress(FileExistsError):
        return os.open(path, flags | os.O_EXCL, 0o644), True
    return os.open(path, flags, 0o644), False


def _write_holder(handle: int, command: str) -> None:
    told = {"pid": os.getpid(), "command": f"ramlet {command}", "host": os.uname().nodename, "since": int(time.time())}
    with suppress(OSError):  # a full disk: the lock holds, only no one is told whose it is
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(told).encode(), 0)


def _holder(handle: int) -> str:
    """` (prepare, pid 1234, since 14:02)`, or nothing where it has not said."""
    try:
        told: dict[str, Any] = json.loads(os.pread(handle, 4096, 0))
        command = str(told["command"]).removeprefix("ramlet ")
        host = "" if told["host"] == os.uname().nodename else f" on {told['host']}"
        since = time.localtime(told["since"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""
    today = time.strftime("%F", since) == time.strftime("%F")
    return f" ({command}, pid {told['pid']}{host}, since {time.strftime('%H:%M' if today else '%F %H:%M', since)})"
