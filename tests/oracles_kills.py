"""Kills a process just before its n-th change on disk: a rename, link, removal, mkdir or fsync."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oracles_training import apart

CHANGES = ("rename", "replace", "link", "unlink", "remove", "rmdir", "mkdir", "fsync")


def _counted(work: Callable[..., None], arguments: tuple[Any, ...], kill_at: int | None, count_file: Path) -> None:
    calls = 0

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return called

    os.fsync = lambda file: None  # killing a process loses no unsynced data, and waiting for the disk is slow
    for name in CHANGES:
        setattr(os, name, before(getattr(os, name)))
    work(*arguments)
    count_file.write_text(str(calls))


def changes_of(count_file: Path, work: Callable[..., None], *arguments: Any) -> int:
    """How many changes the work makes if it is not killed."""
    assert apart(_counted, work, arguments, None, count_file) == 0
    return int(count_file.read_text())


def killed_at(change: int, work: Callable[..., None], *arguments: Any) -> None:
    """Runs the work in a separate process and kills it just before this change."""
    assert apart(_counted, work, arguments, change, Path(os.devnull)) == -signal.SIGKILL
