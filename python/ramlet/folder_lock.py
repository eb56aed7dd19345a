"""A folder that one process writes into at a time.

lock = hold(out / ".lock", out)       # SettingsError where another process holds it
lock.close()                          # or the process ends, by whatever means
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from ramlet.errors import SettingsError

__all__ = ["hold"]


def hold(lock: Path, folder: Path, *, by: str = "run", instead: str = "--out") -> IO[bytes]:
    """Makes the folders that the lock's file is in, and holds it until it is closed; `folder` is what errors name."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "wb")  # noqa: SIM115 - held until the caller closes it
    except OSError as error:
        raise SettingsError(f"cannot write into {folder}: {error.strerror}; choose another {instead}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingsError(f"{folder} is in use by another {by}: wait for it, or choose another {instead}") from None
    return file
