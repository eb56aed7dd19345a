"""What tests of staging look at: the rows of staged files, and which files there are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def rows(paths: list[str], field: str = "text") -> list[Any]:
    return [json.loads(line)[field] for path in paths for line in gzip.open(path, "rt", encoding="utf-8")]


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Of every file: which one it is (a new one has another inode), its time, its bytes."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
