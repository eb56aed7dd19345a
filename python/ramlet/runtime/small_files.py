"""Files that are read as a whole: regular files, no larger than a file of their kind can be.

    text = read_text(run / "settings.yaml", ModelError, most=SMALL)
    record = read_json(run / "state.json", ModelError)

Everything that ramlet reads back (manifests, checkpoints, tokenizers, configs) comes through here, because a name
proves nothing: a device has no end, a pipe may have no writer, and a file of gigabytes would exceed the budget before
its first line is parsed. The caller explains a missing file (FileNotFoundError, NotADirectoryError); any other problem
is raised as one sentence.
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

SMALL = 1_000_000
"""Settings, states, statistics: some kilobytes each."""
CHARACTERS = 8_000_000
"""Files with the set of characters of a text: all of Unicode takes 4.5 MB."""
YAML = 64_000
"""Parsed, each byte takes hundreds; the settings of a run are about 3 KB."""
MANIFEST = 64_000_000
"""Up to 270 bytes per shard: 200,000 shards (rust/prepare/layout.rs), and 10 MB for the rest."""
TOKENIZER = 256_000_000
"""The largest published ones are about 35 MB."""
LARGE = 100_000_000
"""The limit of the safetensors format for its header; also for the index file."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""As JSON escapes it. Two form a character; a string with a lone one cannot be encoded."""

_MANY_DIGITS = re.compile(r"\d{19}")
LARGEST_INTEGER = (1 << 64) - 1
"""In files of ours. Python reads any, but cannot convert them to what numbers are used as."""

UNCHECKED = 16_000_000
"""Every budget has space for files that take less."""


def read_bytes(path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL) -> bytes:
    """The whole file, if it fits into the current budget."""
    with open_regular(path, error, most) as file:
        size = os.fstat(file.fileno()).st_size
        _require(path, 2 * size)
        # Kernel files report a size of 0, and some files grow: so what is read decides.
        try:
            content = _up_to(file, most + 1, size + 1 if size else 1 << 16)
        except OSError as reason:
            raise error(f"cannot read {path}: {reason.strerror}") from None
    if len(content) > most:
        raise _too_large(path, error, len(content), most)
    return content


def open_regular(path: str | os.PathLike[str], error: type[RamletError], most: float = math.inf) -> FileIO:
    """The file, open for unbuffered reading, if it is a regular one of at most `most` bytes."""
    try:
        # A pipe must not make us wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except ValueError:
        raise error(f"{os.fspath(path)!r} is not a path: it contains a NUL character") from None
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
        raise error(f"{path} is a folder, not a file: give another path, or move it away")
    raise error(f"{path} is a device or a pipe, not a regular file: give another path, or remove it")


def _up_to(file: FileIO, most: int, at_once: int) -> bytes:
    parts, left = [], most
    while left and (part := file.read(min(left, at_once))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(path: str | os.PathLike[str], error: type[RamletError], size: int, most: float) -> RamletError:
    return error(
        f"{path} is larger than {most / 1e6:g} MB, the limit for this kind of file ({size / 1e6:,.1f} MB): "
        "it is damaged, or a different file"
    )


def _require(path: str | os.PathLike[str], need: int) -> None:
    if need < UNCHECKED:
        return
    from ramlet.runtime.budget import current_budget
    from ramlet.runtime.memory import resident_memory

    budget = current_budget()
    if budget is not None:
        parts = {"what is in memory already": resident_memory(), f"reading {path}": need}
        budget.require(sum(parts.values()), parts)


def read_text(path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL) -> str:
    """The whole file, as UTF-8."""
    try:
        return read_bytes(path, error, most).decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{path} is damaged: it is not UTF-8") from None


def parsed_bytes(text: str) -> int:
    """About how much the parsed JSON takes: measured 4 times the text for a manifest, 8 times for a vocabulary,
    28 times for nothing but empty lists."""
    copies = 3 if text.isascii() else 6
    return copies * len(text) + 60 * sum(map(text.count, ",[{"))


def read_json(
    path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL, *, lone_surrogates: bool = False
) -> Any:
    """The content of a JSON file; `lone_surrogates` allows strings that cannot be encoded."""
    text = read_text(path, error, most)
    _require(path, parsed_bytes(text))
    try:
        return _loads(text) if lone_surrogates else parse_json(text)
    except (ValueError, RecursionError) as reason:
        raise error(f"{path} is damaged: it is not JSON ({reason})") from None


def parse_json(text: str) -> Any:
    """The parsed JSON; ValueError if it is not JSON, or has a lone surrogate or an absurdly large integer."""
    value = _loads(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has a lone surrogate") from None
    return value


def _loads(text: str) -> Any:
    return json.loads(text, parse_int=_integer if _MANY_DIGITS.search(text) else None)


def _integer(digits: str) -> int:
    if len(digits) > len(str(LARGEST_INTEGER)) or abs(int(digits)) > LARGEST_INTEGER:
        raise ValueError("a number is too large")
    return int(digits)


def parse_yaml(text: str) -> Any:
    """The parsed YAML; yaml.YAMLError if it is not YAML, ValueError if it has an absurdly large integer."""
    import yaml

    value = yaml.safe_load(text)
    if _MANY_DIGITS.search(text) and _has_large_integer(value):
        raise ValueError("a number is too large")
    return value


def _has_large_integer(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_large_integer, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set)):
        return any(map(_has_large_integer, value))
    return isinstance(value, int) and abs(value) > LARGEST_INTEGER


def read_json_object(
    path: str | os.PathLike[str], error: type[RamletError], most: int = SMALL, *, lone_surrogates: bool = False
) -> dict[str, Any]:
    """The content of a JSON file with one object."""
    found = read_json(path, error, most, lone_surrogates=lone_surrogates)
    if not isinstance(found, dict):
        raise error(f"{path} is damaged: it is not a JSON object")
    return found
