"""One writer per result (a file or a folder), whichever command writes it.

    with hold("my-dataset", "prepare"):        # SettingsError with the pid if another process is writing it
        ...

The lock is a hidden file next to the result, `.my-dataset.ramlet-lock`, that names its holder; if that folder is not
writable, the file is inside the result. What counts is `flock`, which ends with the process however it ends: a file
left by a killed process blocks nobody. The file is removed on release, so after `flock` a process checks that the file
it locked still has the name; if not, it locked the previous holder's file and tries again.

On a file system without `flock` (some NFS and Lustre mounts) the file itself is the lock. There nobody can tell whether
the holder still runs, so a file left by a killed process must be removed by hand; the message names it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramlet.errors import DiskFull, SettingsError, option

LOCK_SUFFIX = ".ramlet-lock"
PARTS_LOCK = f"parts{LOCK_SUFFIX}"
"""In the folder of a job whose parts several processes run: `share` while one runs some, `alone` to begin or end it."""
LONGEST_NAME = 180
"""Bytes of a file's name that the names of its lock and temp files repeat: those are limited to 255."""

TRIES = 5
PAUSE = 0.02
"""Seconds between tries: another process may only be checking (`writer_of`), or about to write its name."""
RACES = 100
"""Tries to create the file in a folder that other processes may be removing."""
PATIENCE = 20.0
"""Seconds to wait for the last parts of a killed run, which its cluster is about to end."""

_STREAMS = {"/dev", "/dev/fd", "/proc/self/fd"}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class Lock:
    """A result that only this process writes, until it is released or the process ends."""

    def __init__(self, path: Path, handle: int, created: list[Path]) -> None:
        self._path = path
        self._handle = handle
        self._created = created
        """Folders that were created for it, innermost first."""

    def release(self) -> None:
        """Removes the lock, and the folders that were created for the result if they are empty."""
        if self._handle < 0:
            return
        with suppress(OSError):
            self._path.unlink()
        os.close(self._handle)
        self._handle = -1
        for folder in self._created:
            with suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def hold(
    target: str | os.PathLike[str], command: str, *, instead: str = option("out"), makes_folder: bool = True
) -> Lock:
    """Locks the target for `command`, the name shown to others; creates its parent folder if `makes_folder`.

    `instead` is what the error suggests to change. A device or a pipe is not locked.
    """
    if is_stream(Path(target)):
        return Lock(Path(target), -1, [])
    last = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        try:
            path, handle, is_new, created = _open(Path(target), makes_folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space left to write {target}: free some and run the same again") from None
            reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
            raise SettingsError(f"cannot write into {target}: {reason}; choose another {instead}") from None
        locked = lock_file(handle)
        if locked is None and not is_new:
            who = _holder(handle)
            os.close(handle)
            raise SettingsError(
                f"{target} is being written by another ramlet{who}, or one was killed: this file system cannot tell; "
                f"wait for it, or remove {path} if it no longer runs"
            )
        if locked is not False and has_name(handle, path):
            _write_holder(handle, command)
            return Lock(path, handle, created)
        if locked is False:
            last = _holder(handle)
        os.close(handle)
    raise SettingsError(f"{target} is being written by another ramlet{last}: wait for it, or choose another {instead}")


def share(path: Path) -> Lock:
    """A lock that any number of processes hold at once, on a file that stays: each runs other parts of one job.

    FileNotFoundError if there is no such job: only `alone` creates the file, because one that is created in a folder
    that is being removed would keep the folder. Without `flock` it locks nothing: parts do not disturb each other, only
    whoever removes the job under them would.
    """
    handle = _lock_patiently(path, os.O_RDWR, shared=True)
    if handle is None:
        raise SettingsError(f"{path.parent} is being begun or finished by another ramlet: wait for it")
    return _Staying(path, handle, [])


def alone(path: Path, result: Path) -> Lock:
    """The same lock while nobody shares it, and held so that nobody begins to; refuses if others do not end soon."""
    handle = _lock_patiently(path, os.O_RDWR | os.O_CREAT, shared=False)
    if handle is None:
        raise SettingsError(f"other processes are running parts of {result}: wait for them")
    return _Staying(path, handle, [])


class _Staying(Lock):
    def release(self) -> None:
        """The file stays: others may have locked it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _lock_patiently(path: Path, flags: int, *, shared: bool) -> int | None:
    """The open file, locked as far as the file system can; None if others do not unlock it within PATIENCE."""
    until = time.monotonic() + PATIENCE
    while True:
        handle = os.open(path, flags | os.O_CLOEXEC, 0o644)
        locked = lock_file(handle, shared=shared)
        # A file that was removed meanwhile locks nothing any more.
        if locked is None or (locked and has_name(handle, path)):
            return handle
        os.close(handle)
        if not locked and time.monotonic() >= until:
            return None
        time.sleep(PAUSE)


def writer_of(target: str | os.PathLike[str]) -> str | None:
    """Who is writing the target now: `prepare, pid 1234, since 14:02`."""
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
    """Locks an open file; False if another process has locked it, None if the file system has no locks."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _UNSUPPORTED else False
    return True


def has_name(handle: int, path: str | os.PathLike[str]) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def is_stream(path: Path) -> bool:
    """Whether this is a device or a pipe, which is written to, never replaced."""
    return os.fspath(path.parent) in _STREAMS or (path.exists() and not path.is_file() and not path.is_dir())


def short_name(name: str) -> str:
    """The name, cut so that a prefix and a suffix still fit."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= LONGEST_NAME else os.fsdecode(encoded[:LONGEST_NAME])


def _places(target: Path) -> list[Path]:
    """Where the lock may be: next to the target's real path, or inside the target."""
    real = Path(os.path.realpath(target if target.is_dir() else target.parent))
    if target.is_dir() and real.name:
        return [real.with_name(f".{short_name(real.name)}{LOCK_SUFFIX}"), real / LOCK_SUFFIX]
    # The root of the file system has no name.
    return [real / (f".{short_name(target.name)}{LOCK_SUFFIX}" if target.name else LOCK_SUFFIX)]


def _open(target: Path, makes_folder: bool) -> tuple[Path, int, bool, list[Path]]:
    """The lock file's path and handle, whether it is new, and the folders created for it."""
    parent = target.parent
    created = [path for path in (parent, *parent.parents) if not path.exists()]
    tries = 0
    while True:
        tries += 1
        if makes_folder:
            parent.mkdir(parents=True, exist_ok=True)
        refused: OSError | None = None
        for path in _places(target):
            try:
                return (path, *_opened(path), created)
            except FileNotFoundError:
                # Another process has just finished and removed the empty folder; or, as in /proc, no file can be there.
                if not makes_folder or tries == RACES:
                    raise
                refused = None
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
    host, now = os.uname().nodename, int(time.time())
    holder = {"pid": os.getpid(), "command": f"ramlet {command}", "host": host, "since": now}
    with suppress(OSError):  # a full disk: the lock works, it only does not say whose it is
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)


def _holder(handle: int) -> str:
    """` (prepare, pid 1234, since 14:02)`, or nothing if the file does not say."""
    try:
        holder: dict[str, Any] = json.loads(os.pread(handle, 4096, 0))
        command = str(holder["command"]).removeprefix("ramlet ")
        host = "" if holder["host"] == os.uname().nodename else f" on {holder['host']}"
        since = time.localtime(holder["since"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""
    today = time.strftime("%F", since) == time.strftime("%F")
    return f" ({command}, pid {holder['pid']}{host}, since {time.strftime('%H:%M' if today else '%F %H:%M', since)})"
