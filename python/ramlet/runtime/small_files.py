"""Files that are read as a whole: regular ones, of no more bytes than a file of their kind can have.

    text = read_text(run / "settings.yaml", ModelError, most=SMALL)
    record = read_json(run / "state.json", ModelError)

Whatever ramlet reads back (manifests, checkpoints, tokenizers, configs) comes through here, for a name proves nothing:
a device has no end, a pipe no writer, and a file of gigabytes would be gone beyond the budget before its first line is
looked at. A missing file is the caller's to explain (FileNotFoundError, NotADirectoryError); all else is one sentence.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from io import FileIO
from typing import Any

from ramlet.errors import RamletError

__all__ = [
    "CHARACTERS",
    "LARGE",
    "MANIFEST",
    "SMALL",
    "TOKENIZER",
    "YAML",
    "open_regular",
    "parse_json",
    "parsed_bytes",
    "read_bytes",
    "read_json",
    "read_json_object",
    "read_text",
]

SMALL = 1_000_000
"""Settings, states, statistics: some kilobytes each."""
CHARACTERS = 8_000_000
"""What has the characters of a text in it: all of Unicode are 4.5 MB."""
YAML = 64_000
"""Its nodes take hundreds of bytes for each of them; a run's settings are some 3 KB."""
MANIFEST = 64_000_000
"""Some 250 bytes a shard: 250,000 of them."""
TOKENIZER = 256_000_000
"""The largest published ones have some 35 MB."""
LARGE = 100_000_000
"""What the header of a safetensors file may have by its format, and its index with it."""

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes a surrogate: two make a character, and one alone is a string that nothing can be written to."""

NOTICED = 16_000_000
"""Files that take less are within what every command has room for."""


def read_bytes(path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL) -> bytes:
    """All of the file, if it fits in the budget that is in force."""
    with open_regular(path, error, most) as file:
        size = os.fstat(file.fileno()).st_size
        _require(path, 2 * size)
        # Files of the kernel say that they have no bytes, and some grow: so what comes decides.
        try:
            content = _up_to(file, most + 1, size + 1 if size else 1 << 16)
        except OSError as reason:
            raise error(f"cannot read {path}: {reason.strerror}") from None
    if len(content) > most:
        raise _too_large(path, error, len(content), most)
    return content


def open_regular(path: str | os.PathLike[str], error: type[RamletError], most: float = math.inf) -> FileIO:
    """The file, open for reading and without a buffer, if it is an ordinary one, and of no more than `most` bytes."""
    try:
        # A pipe must not make us wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except ValueError:
        raise error(f"{os.fspath(path)!r} is no path: it has a NUL in it") from None
    except OSError as reason:
        raise error(f"cannot read {path}: {reason.strerror}") from None
    status = os.fstat(descriptor)
    mode = status.st_mode
    if stat.S_ISREG(mode) and status.st_size <= most:
        return FileIO(descriptor)
    os.close(descriptor)
    if stat.S_ISREG(mode):
        raise _too_large(path, error, status.st_size, most)
    if stat.S_ISDIR(mode):
        raise error(f"{path} is a folder, and a file is wanted: move it away")
    raise error(f"{path} is no ordinary file but a device or a pipe: name another, or remove it")


def _up_to(file: FileIO, most: int, at_once: int) -> bytes:
    parts, left = [], most
    while left and (part := file.read(min(left, at_once))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(path: str | os.PathLike[str], error: type[RamletError], size: int, most: float) -> RamletError:
    return error(
        f"{path} is larger than {most / 1e6:g} MB ({size / 1e6:,.1f}), which no file of its kind is: "
        "it is damaged, or another file"
    )


def _require(path: str | os.PathLike[str], need: int) -> None:
    if need < NOTICED:
        return
    from ramlet.runtime.budget import budget_in_force
    from ramlet.runtime.memory import resident_memory

    budget = budget_in_force()
    if budget is not None:
        parts = {"what is there already": resident_memory(), f"reading {path}": need}
        budget.require(sum(parts.values()), parts)


def read_text(path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL) -> str:
    """All of a file of UTF-8."""
    try:
        return read_bytes(path, error, most).decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{path} is damaged: it is not UTF-8") from None


def parsed_bytes(text: str) -> int:
    """About what the objects take that JSON is read into: measured 4 times the text of a manifest, 8 times that of a
    vocabulary, and 28 times where it is nothing but empty lists."""
    copies = 3 if text.isascii() else 6
    return copies * len(text) + 60 * sum(map(text.count, ",[{"))


def read_json(
    path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL, *, halves: bool = False
) -> Any:
    """What a file of JSON holds; with `halves` also strings with half a character in them."""
    text = read_text(path, error, most)
    _require(path, parsed_bytes(text))
    try:
        return json.loads(text) if halves else parse_json(text)
    except (ValueError, RecursionError) as reason:
        raise error(f"{path} is damaged: it is no JSON ({reason})") from None


def parse_json(text: str) -> Any:
    """What JSON says; a ValueError where it is none, or has half a character in it."""
    value = json.loads(text)
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half a character, a surrogate, is in it") from None
    return value


def read_json_object(
    path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL, *, halves: bool = False
) -> dict[str, Any]:
    """A file of JSON that holds one object."""
    found = read_json(path, error, most, halves=halves)
    if not isinstance(found, dict):
        raise error(f"{path} is damaged: it is no JSON object")
    return found
