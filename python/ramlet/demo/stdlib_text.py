"""Real text that every machine has: the sources of the running Python's standard library, one document a file.

    gather(Path("demo/python.jsonl"), most=None)       # Gathered(files=598, size=11_100_000)

Tests, tables and packages installed beside it are left out. The order is that of the paths, so the same Python gives
the same file. One source is held at a time.
"""

from __future__ import annotations

import json
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ramlet.errors import SourceError
from ramlet.runtime.atomic_files import replacing

__all__ = ["Gathered", "gather"]

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3"}
TABLES = {"encodings", "pydoc_data"}
"""Folders whose files are lists of characters and texts, not code."""

LARGEST = 1_000_000
"""Bytes of a source: longer ones are tables, not code."""


@dataclass(frozen=True)
class Gathered:
    files: int
    size: int
    """Bytes of text."""


def gather(target: Path, most: int | None = None, root: Path | None = None) -> Gathered:
    """Writes the sources to `target`, a document a line; with `most`, up to so many bytes, spread over all of them.

    A file that is there stays as it is, so that what was made of it holds.
    """
    if target.exists():
        return _gathered(target)
    root = root or Path(sysconfig.get_paths()["stdlib"])
    sources = list(_sources(root))
    if not sources:
        raise SourceError(
            f"{root} holds no Python sources: install the standard library's .py files, or use a text of yours"
        )
    whole = sum(path.stat().st_size for path in sources)
    every = max(1, round(whole / most)) if most else 1
    files = size = 0
    with replacing(target) as written:
        for path in sources[::every]:
            text = _text(path)
            if text is None or not text.strip():
                continue
            written.write(json.dumps({"text": text, "path": path.relative_to(root).as_posix()}) + "\n")
            files += 1
            size += len(text.encode())
    return Gathered(files, size)


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in LEFT_OUT | TABLES)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and path.stat().st_size <= LARGEST:
                yield path


def _text(path: Path) -> str | None:
    """None for the few that are written to be wrong."""
    try:
        with tokenize.open(path) as source:
            return source.read()
    except (SyntaxError, UnicodeDecodeError):
        return None


def _gathered(target: Path) -> Gathered:
    files = size = 0
    with target.open(encoding="utf-8") as lines:
        for line in lines:
            files += 1
            size += len(json.loads(line)["text"].encode())
    return Gathered(files, size)
