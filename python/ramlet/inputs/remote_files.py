"""Files at a URL -> local copies, chunk by chunk, through fsspec, which supports S3, GCS, HTTP and many more."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.inputs.columns import OwnColumn
from ramlet.inputs.named import Input
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_folder import StagingFolder, first_line, key_of

CHUNK = 1 << 20
READ_TIMEOUT = 60

_VERSION_FIELDS = (
    *("etag", "ETag", "md5Hash", "content_md5", "checksum", "blob_id", "commit", "generation", "versionId"),
    *("mtime", "LastModified", "last_modified", "updated", "modified", "Last-Modified"),
)
"""What identifies the version of a file, in file systems of many kinds; most have one or two of these."""


@dataclass(frozen=True)
class _File:
    path: str
    below: str
    """Its path inside the given folder; for a single file, its name."""
    size: int | None
    mark: str


class RemoteFiles:
    """The files at a URL: one file, those of a folder, or those that a pattern matches, sorted by path."""

    def __init__(self, given: Input, reading: ReadSettings) -> None:
        self._name = given.path
        self._given = given
        self._reading = reading
        self._web = given.path.split(":", 1)[0].lower() in ("http", "https")
        try:
            import fsspec
        except ImportError:
            raise SettingsError(f"cannot read {self._name}: pip install 'ramlet[hf]', or download it first") from None
        with _explained(self._name):
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
            # Hidden files are skipped on disk too; this also refuses paths that lead out of the folder.
            if not any(part.startswith(".") for part in below.split("/")):
                yield _described(found, below, info)

    def _connection(self) -> dict[str, Any]:
        if not self._web:
            return {}
        from aiohttp import ClientTimeout

        # The default of five minutes in total is too short for a large file: only a silent connection times out.
        return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=READ_TIMEOUT)}}

    def _is_pattern(self, path: str) -> bool:
        if self._web:
            return "*" in path  # a question mark begins the query
        return any(sign in path for sign in "*?[") and not self._system.exists(path)

    def stage(self, folder: StagingFolder) -> list[str]:
        if self._folder:
            place = folder.place(key_of(self._name), posixpath.basename(self._name.rstrip("/")))
            _remove_others(place, {self._copy(folder, file, place / file.below) for file in self._files})
            paths = [place]
        else:
            paths = [
                self._copy(folder, file, folder.place(key_of(self._name, file.path), file.below))
                for file in self._files
            ]
        return [staged for path in paths for staged in self._with_common_column(folder, path)]

    def _with_common_column(self, folder: StagingFolder, path: Path) -> list[str]:
        own = OwnColumn.of(replace(self._given, path=str(path)), self._reading)
        return [str(path)] if own is None else own.stage(folder)

    def _copy(self, folder: StagingFolder, file: _File, path: Path) -> Path:
        if folder.has(path, file.mark, file.size):
            folder.report(file.size or path.stat().st_size)
            return path
        copied = 0
        with folder.writing(path, file.mark) as out:
            for chunk in self._chunks(file):
                out.write(chunk)
                copied += len(chunk)
                folder.report(len(chunk))
            if file.size not in (None, copied):
                raise SourceError(
                    f"{self._name} ended after {copied:,} of {file.size:,} bytes ({file.below}): "
                    "run the same command again"
                )
        return path

    def _chunks(self, file: _File) -> Iterator[bytes]:
        # Only reading is explained: an error in writing is one of this machine.
        with _explained(self._name):
            # From the web in one request, from start to end: many servers support nothing else.
            stream = self._system.open(file.path, "rb", **({"block_size": 0} if self._web else {}))
        with stream:
            while True:
                with _explained(self._name):
                    chunk: bytes = stream.read(CHUNK)
                if not chunk:
                    return
                yield chunk


def _described(path: str, below: str, info: dict[str, Any]) -> _File:
    size = info.get("size")
    state = [f"{name}={info[name]}" for name in _VERSION_FIELDS if info.get(name) is not None]
    if not state and info.get("created") is not None:
        # The last resort: some file systems store the last change here, others the first.
        state = [f"created={info['created']}"]
    return _File(path, below, size, " ".join([f"size={size}", *state]))


def _remove_others(folder: Path, kept: set[Path]) -> None:
    """Removes files of an earlier run that no longer exist at the source."""
    for path in folder.rglob("*"):
        if path not in kept and not path.is_dir():
            path.unlink()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns any error of the library into one sentence."""
    try:
        yield
    except RamletError:
        raise
    except FileNotFoundError:
        # HTTP raises this also if the host does not answer.
        raise SourceError(f"{name} does not exist, or cannot be reached: check the URL") from None
    except PermissionError:
        raise SourceError(f"no permission to read {name}: check the credentials") from None
    except ImportError as error:
        raise SettingsError(f"reading {name} needs another library ({first_line(error)})") from None
    except Exception as error:  # noqa: BLE001 - every kind of storage has its own errors
        raise SourceError(
            f"cannot read {name} ({first_line(error)}): check the URL and the network, then run the same command again"
        ) from None
