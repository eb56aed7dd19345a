"""BLAKE2 hashes that identify content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def new_hash() -> Any:
    """A BLAKE2b hash of 16 bytes, to be updated."""
    # hashlib would load OpenSSL, 3.5 MB of RSS; Python's own BLAKE2 comes without it.
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(digest_size=16)


def digest(parts: Iterable[bytes]) -> str:
    """A hash of the parts and of where each one ends."""
    hashed = new_hash()
    for part in parts:
        hashed.update(b"%d:" % len(part) + part)
    return str(hashed.hexdigest())
