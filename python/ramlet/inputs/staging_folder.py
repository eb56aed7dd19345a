"""The folder of staged files: which exist already, and how new ones are written.

    FOLDER/<key>-<name>                        a file
    FOLDER/<key>-<name>/part-00000.jsonl.gz    rows, at most 256 MB of text per part
    FOLDER/<key>-<name>/.staged.json           progress: {"mark", "parts": [documents of each], "whole"}

The key is a hash of the input's name, the mark identifies the version of its source. A file's modification time is
computed from its mark (`time_of`), so name, size and time identify its content.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from ramlet.errors import SettingsError, SourceError
from ramlet.runtime.atomic_files import remove, replacing
from ramlet.runtime.digest import digest
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json_object

PART_BYTES = 256_000_000
"""Text in a part: compressed files cannot be read from the middle, so one thread reads a whole part."""

COMPRESSION_LEVEL = 1
"""As fast as the network; the files are read twice, then removed."""

Progress = Callable[[str, int, int], None]
Row = tuple[str | None, bool]
"""A piece of a document's text, and whether the document ends there; None for a row without text."""


class Staged(Protocol):
    """An input that becomes local files."""

    @property
    def size(self) -> int | None:
        """Bytes to copy, if known."""

    def stage(self, folder: StagingFolder) -> list[str]:
        """Writes the files and returns the paths to read."""


def key_of(*parts: str | None) -> str:
    """
    >>> len(key_of("s3://bucket/a.jsonl", None))
    12
    """
    return digest(iter([json.dumps(parts).encode()]))[:12]


def time_of(mark: str) -> int:
    """A modification time from a mark, in even seconds because some file systems store no others."""
    return 1_000_000_000 + 2 * (int(digest(iter([mark.encode()]))[:7], 16))


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to put into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


class StagingFolder:
    """Where staged files go; reports progress in bytes."""

    def __init__(self, path: Path, progress: Progress | None = None, sizes: Sequence[int | None] = ()) -> None:
        self.path = path
        self._progress = progress
        self._done = 0
        self._total = 0 if None in sizes else sum(size or 0 for size in sizes)

    def report(self, count: int) -> None:
        """Adds this many bytes to the progress."""
        self._done += count
        if self._progress is not None:
            self._progress("staging", self._done, self._total)

    def place(self, key: str, name: str) -> Path:
        """The path for a name; its end is kept, because the suffixes say how to read the file."""
        safe = re.sub(r"[^\w.+-]", "_", name)[-100:].lstrip(".")
        return self.path / f"{key}-{safe}"

    def has(self, path: Path, mark: str, size: int | None = None) -> bool:
        """Whether this version of the file exists."""
        try:
            status = path.stat()
        except OSError:
            return False
        return int(status.st_mtime) == time_of(mark) and size in (None, status.st_size)

    @contextmanager
    def writing(self, path: Path, mark: str | Callable[[], str]) -> Iterator[IO[bytes]]:
        """A file that gets its name, and the time of its mark, if the block ends without an error."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"cannot write into {path.parent}: {error.strerror}") from None
        with replacing(path, binary=True) as file:
            yield file
            file.flush()
            seconds = time_of(mark if isinstance(mark, str) else mark())
            os.utime(file.fileno(), (seconds, seconds))

    def rows(self, folder: Path, mark: str, field: str, rows: Callable[[], Iterable[Row]]) -> list[str]:
        """The rows written as parts; those that an earlier run wrote of the same rows are kept."""
        parts = self._parts(folder, mark)
        paths = [folder / f"part-{at:05}.jsonl.gz" for at in range(len(parts["parts"]))]
        if not parts["whole"]:
            for stale in sorted(folder.glob("part-*.jsonl.gz")):
                if stale not in paths:
                    stale.unlink()
            left = _after(rows(), sum(parts["parts"]))
            while not parts["whole"]:
                path = folder / f"part-{len(paths):05}.jsonl.gz"
                with self.writing(path, f"{mark} {len(paths)}") as file:
                    documents, more = self._fill(file, field, left)
                parts["parts"].append(documents)
                parts["whole"] = not more
                paths.append(path)
                with replacing(folder / ".staged.json") as note:
                    json.dump(parts, note)
        return [str(path) for path in paths]

    def _parts(self, folder: Path, mark: str) -> dict[str, Any]:
        """The progress of an earlier run, if all its parts exist; else a new one."""
        note = folder / ".staged.json"
        try:
            parts = read_json_object(note, SourceError, MANIFEST_BYTES)
            there = (self.has(folder / f"part-{at:05}.jsonl.gz", f"{mark} {at}") for at in range(len(parts["parts"])))
            if parts["mark"] == mark and all(there):
                return parts
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if note.exists():
            remove(note)
        return {"mark": mark, "parts": [], "whole": False}

    def _fill(self, file: IO[bytes], field: str, rows: Iterator[Row]) -> tuple[int, bool]:
        """Writes one part: the number of its documents, and whether there are more."""
        import gzip

        start = f"{{{json.dumps(field, ensure_ascii=False)}: "
        documents = size = reported = 0
        inside = False
        # No name and no time: the same rows give the same bytes.
        with gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0) as packed:
            for text, ends in rows:
                line = start if not inside else ""
                if text is None:
                    line += '""}\n'  # a row without text counts as an empty document
                else:
                    line += ("" if inside else '"') + json.dumps(text, ensure_ascii=False)[1:-1] + '"}\n' * ends
                encoded = line.encode("utf-8", "replace")
                packed.write(encoded)
                size += len(encoded)
                inside = not ends
                documents += ends
                if size - reported >= 1 << 20 or (ends and size >= PART_BYTES):
                    self.report(size - reported)
                    reported = size
                if ends and size >= PART_BYTES:
                    return documents, True
        self.report(size - reported)
        return documents, False


def _after(rows: Iterable[Row], documents: int) -> Iterator[Row]:
    """The rows after this many documents."""
    left = iter(rows)
    while documents and (row := next(left, None)):
        documents -= row[1]
    return left
