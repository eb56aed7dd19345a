"""The folder of staged files: which are there already, and how new ones get their names.

    FOLDER/<key>-<name>                        a file
    FOLDER/<key>-<name>/part-00000.jsonl.gz    rows, at most 256 MB of text in a part
    FOLDER/<key>-<name>/.staged.json           how far they have come: {"mark", "parts": [documents of each], "whole"}

The key is a hash of what the input is called, the mark one of what its source says of its state. A file's time of
change is made from its mark (`time_of`): so a name, a size and a time tell all that is to be known of it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

from ramlet.errors import SettingsError, SourceError
from ramlet.runtime.atomic_files import remove, replacing
from ramlet.runtime.digest import digest
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json_object

__all__ = ["PART_BYTES", "Progress", "Row", "Shelf", "Staged", "first_line", "key_of"]

PART_BYTES = 256_000_000
"""Text in a part: compressed files are not read from the middle, so this is what one thread works on."""

COMPRESSION_LEVEL = 1
"""As fast as the network; the files are read twice and removed."""

Progress = Callable[[str, int, int], None]
Row = tuple[str | None, bool]
"""A stretch of a document's text and whether the document ends with it; None for a row without a text."""


class Staged(Protocol):
    """An input on its way to local files."""

    @property
    def size(self) -> int | None:
        """Bytes to come, if they are known."""

    def stage(self, shelf: Shelf) -> list[str]:
        """The paths to read, once they are there."""


def key_of(*parts: str | None) -> str:
    """
    >>> len(key_of("s3://bucket/a.jsonl", None))
    12
    """
    return digest(iter([json.dumps(parts).encode()]))[:12]


def time_of(mark: str) -> int:
    """Seconds made from a mark; even ones, for some file systems keep no others."""
    return 1_000_000_000 + 2 * (int(digest(iter([mark.encode()]))[:7], 16))


def first_line(error: BaseException) -> str:
    """The reason in an error of another library, to stand inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


class Shelf:
    """Where staged files go, and who is told of the bytes."""

    def __init__(self, folder: Path, progress: Progress | None = None, sizes: Sequence[int | None] = ()) -> None:
        self.folder = folder
        self._progress = progress
        self._done = 0
        self._total = 0 if None in sizes else sum(size or 0 for size in sizes)

    def tell(self, count: int) -> None:
        """So many bytes more."""
        self._done += count
        if self._progress is not None:
            self._progress("staging", self._done, self._total)

    def place(self, key: str, name: str) -> Path:
        """The path for a name; its end stays as it is, for the suffixes say how to read the file."""
        safe = re.sub(r"[^\w.+-]", "_", name)[-100:].lstrip(".")
        return self.folder / f"{key}-{safe}"

    def holds(self, path: Path, mark: str, size: int | None = None) -> bool:
        """Whether this very file is there."""
        try:
            status = path.stat()
        except OSError:
            return False
        return int(status.st_mtime) == time_of(mark) and size in (None, status.st_size)

    @contextmanager
    def writing(self, path: Path, mark: str | Callable[[], str]) -> Iterator[IO[bytes]]:
        """A file that gets its name, and the time of its mark, when the block ends without an error."""
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
        """Parts made of the rows; what an earlier run has made of the same rows stays."""
        parts = self._parts(folder, mark)
        paths = [folder / f"part-{at:05}.jsonl.gz" for at in range(len(parts["parts"]))]
        if not parts["whole"]:
            for stale in sorted(folder.glob("part-*.jsonl.gz")):
                if stale not in paths:
                    stale.unlink()
            left = _behind(rows(), sum(parts["parts"]))
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
        """The note of an earlier run, if all that it speaks of is there; else a new one."""
        note = folder / ".staged.json"
        try:
            parts = read_json_object(note, SourceError, MANIFEST_BYTES)
            there = (self.holds(folder / f"part-{at:05}.jsonl.gz", f"{mark} {at}") for at in range(len(parts["parts"])))
            if parts["mark"] == mark and all(there):
                return parts
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if note.exists():
            remove(note)
        return {"mark": mark, "parts": [], "whole": False}

    def _fill(self, file: IO[bytes], field: str, rows: Iterator[Row]) -> tuple[int, bool]:
        """One part: how many documents it got, and whether there are more."""
        start = f"{{{json.dumps(field, ensure_ascii=False)}: "
        documents = size = told = 0
        inside = False
        # No name and no time: the same rows give the same bytes.
        with gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0) as packed:
            for text, ends in rows:
                line = start if not inside else ""
                if text is None:
                    line += '""}\n'  # a row without a text is an empty document, and counted as one
                else:
                    line += ("" if inside else '"') + json.dumps(text, ensure_ascii=False)[1:-1] + '"}\n' * ends
                encoded = line.encode("utf-8", "replace")
                packed.write(encoded)
                size += len(encoded)
                inside = not ends
                documents += ends
                if size - told >= 1 << 20 or (ends and size >= PART_BYTES):
                    self.tell(size - told)
                    told = size
                if ends and size >= PART_BYTES:
                    return documents, True
        self.tell(size - told)
        return documents, False


def _behind(rows: Iterable[Row], documents: int) -> Iterator[Row]:
    """The rows after so many documents."""
    left = iter(rows)
    while documents:
        ends = [ends for _, ends in islice(left, 1)]
        if not ends:
            break
        documents -= ends[0]
    return left
