"""The checksum of a file as manifests record it: XXH64 with seed 0, 16 hex digits."""

from __future__ import annotations

import os

from ramlet import _native


def file_checksum(path: str | os.PathLike[str]) -> str:
    value, _ = _native.xxh64_file(os.fspath(path))
    return f"{value:016x}"
