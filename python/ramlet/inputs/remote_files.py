"""Files behind an address -> copies, chunk by chunk, through fsspec, which knows S3, GCS, HTTP and many more."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.inputs.columns import OwnColumn
from ramlet.inputs.named import Input
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.shelf import Shelf, first_line, key_of

__all__ = ["RemoteFiles"]

CHUNK = 1 << 20
SILENCE_SECONDS = 60

_TELLING = (
    *("etag", "ETag", "md5Hash", "content_md5", "checksum", "blob_id", "commit", "generation", "versionId"),
    *("mtime", "LastModified", "last_modified", "updated", "modified", "Last-Modified"),
)
"""What file systems of many kinds say of a file's state; most say one or two of it."""


@dataclass(frozen=True)
class _File:
    path: str
    below: str
    """Its path inside the folder that was named; for a file, its name."""
    size: int | None
    mark: str


class RemoteFiles:
    """What an address names: a file, the files of a folder, or those a pattern matches, by their paths."""

    def __init__(self, given: Input, reading: ReadSettings) -> None:
        self._name = given.path
        self._given = given
        self._reading = reading
        self._web = given.path.split(":", 1)[0].lower() in ("http", "https")
        try:
            import fsspec
        except ImportError:
            raise SettingsError(f"cannot read {self._name}: pip install 'ramlet[hf]', or download it first") from None
        with _told(self._name):
            self._system, path = fsspec.core.url_to_fs(self._name, **self._connection())
            self._folder = False
            self._files = sorted(self._list(path), key=lambda file: file.path)
        if not self._files:
            raise SourceError(f"nothing matches {self._name}: check the pattern")

    @property
    def size(self) -> int | None:
        sizes = [file.size for file in self._files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def _list(self, path: str) -> Iterator[_File]:
        if self._is_pattern(path):
            for found, info in self._system.glob(path, detail=True).items():
                if info.get("type") != "directory":
                    yield _described(found, posixpath.basename(found), info)
            return
        info = self._system.info(path)
        if info.get("type") != "directory":
            name = urlsplit(path).path if self._web else path
            yield _described(path, posixpath.basename(name.rstrip("/")) or "index", info)
            return
        self._folder = True
        for found, info in self._system.find(path, detail=True).items():
            below = posixpath.relpath(found, self._system._strip_protocol(path))
            # Hidden ones are passed over on disk too; what leads out of the folder has no business in it.
            if not any(part.startswith(".") for part in below.split("/")):
                yield _described(found, below, info)

    def _connection(self) -> dict[str, Any]:
        if not self._web:
            return {}
        from aiohttp import ClientTimeout

        # A large file takes longer than the five minutes that are the default; silence is what must end.
        return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE_SECONDS)}}

    def _is_pattern(self, path: str) -> bool:
        if self._web:
            return "*" in path  # a question mark begins the query
        return any(sign in path for sign in "*?[") and not self._system.exists(path)

    def stage(self, shelf: Shelf) -> list[str]:
        key = key_of(self._name)
        if not self._folder:
            paths = [
                self._copy(shelf, file, str(shelf.place(key_of(self._name, file.path), file.below)))
                for file in self._files
            ]
        else:
            folder = shelf.place(key, posixpath.basename(self._name.rstrip("/")))
            kept = {self._copy(shelf, file, os.path.join(folder, *file.below.split("/"))) for file in self._files}
            _remove_others(str(folder), kept)
            paths = [str(folder)]
        return [again for path in paths for again in self._column(shelf, path)]

    def _column(self, shelf: Shelf, path: str) -> list[str]:
        local = OwnColumn.of(Input(path, self._given.split, self._given.subset, self._given.text_field), self._reading)
        return [path] if local is None else local.stage(shelf)

    def _copy(self, shelf: Shelf, file: _File, target: str) -> str:
        path = Path(target)
        if shelf.holds(path, file.mark, file.size):
            shelf.tell(file.size or path.stat().st_size)
            return target
        copied = 0
        with shelf.writing(path, file.mark) as out:
            for chunk in self._chunks(file):
                out.write(chunk)
                copied += len(chunk)
                shelf.tell(len(chunk))
            if file.size not in (None, copied):
                raise SourceError(
                    f"{self._name} ended after {copied:,} of {file.size:,} bytes ({file.below}): run the same again"
                )
        return target

    def _chunks(self, file: _File) -> Iterator[bytes]:
        # The reading alone is guarded: an error in writing is one of this machine, and says so itself.
        with _told(self._name):
            # Of the web, from the start to the end in one request: many servers know no other.
            stream = self._system.open(file.path, "rb", **({"block_size": 0} if self._web else {}))
        with stream:
            while True:
                with _told(self._name):
                    chunk: bytes = stream.read(CHUNK)
                if not chunk:
                    return
                yield chunk


def _described(path: str, below: str, info: dict[str, Any]) -> _File:
    size = info.get("size")
    state = [f"{name}={info[name]}" for name in _TELLING if info.get(name) is not None]
    if not state and info.get("created") is not None:
        # The last resort: in some places it is the last change, in others the first.
        state = [f"created={info['created']}"]
    return _File(path, below, size, " ".join([f"size={size}", *state]))


def _remove_others(folder: str, kept: set[str]) -> None:
    """Files of an earlier run that are gone from the source."""
    for here, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(here, name)
            if path not in kept:
                os.unlink(path)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever goes wrong out there, in one sentence."""
    try:
        yield
    except RamletError:
        raise
    except FileNotFoundError:
        # The web's file system says so of a host that does not answer, too.
        raise SourceError(f"there is no {name}, or it cannot be reached: check the address") from None
    except PermissionError:
        raise SourceError(f"no permission to read {name}: check the credentials") from None
    except ImportError as error:
        raise SettingsError(f"cannot read {name} without another library ({first_line(error)})") from None
    except Exception as error:  # noqa: BLE001 - each kind of storage has errors of its own
        raise SourceError(
            f"cannot read {name} ({first_line(error)}): check the address and the network, then run the same again"
        ) from None
