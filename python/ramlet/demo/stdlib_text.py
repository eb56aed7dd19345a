"""Real text that every machine has: the sources of the running Python's standard library, one document per file.

    gather(Path("demo/python.jsonl"), most=None)       # Gathered(files=598, size=11_100_000)

Tests, tables and installed packages are skipped. Files are in the order of their paths, so the same Python gives the
same text. One source is in memory at a time.
"""

from __future__ import annotations

import json
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ramlet.errors import SourceError, option
from ramlet.runtime.atomic_files import replacing

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3"}
TABLES = {"encodings", "pydoc_data"}
"""Folders whose files are mostly tables of characters and texts, not code."""

LARGEST = 1_000_000
"""Bytes per file: longer ones are tables, not code."""


@dataclass(frozen=True)
class Gathered:
    files: int
    size: int
    """Bytes of text."""


def gather(target: Path, most: int | None = None, root: Path | None = None) -> Gathered:
    """Writes the sources to `target`, one document per line; with `most`, about that many bytes, spread over all files.

    An existing file is not changed, so that what was made from it stays valid.
    """
    if target.exists():
        return _gathered(target)
    root = root or Path(sysconfig.get_paths()["stdlib"])
    sources = list(_sources(root))
    if not sources:
        raise SourceError(
            f"{root} has no Python sources: install the standard library's .py files, or use your own text"
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
        inner[:] = sorted(name for name in inner if name not in SKIPPED | TABLES)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and path.stat().st_size <= LARGEST:
                yield path


def _text(path: Path) -> str | None:
    """None for the few files that are invalid on purpose."""
    try:
        with tokenize.open(path) as source:
            return source.read()
    except (SyntaxError, UnicodeDecodeError):
        return None


def _gathered(target: Path) -> Gathered:
    files = size = 0
    try:
        with target.open(encoding="utf-8") as lines:
            for line in lines:
                files += 1
                size += len(json.loads(line)["text"].encode())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise SourceError(f"{target} is not the text of a demo: remove it, or choose another {option('out')}") from None
    return Gathered(files, size)
