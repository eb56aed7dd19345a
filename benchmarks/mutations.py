"""Ways to corrupt a file: by its bytes, by its content, or by putting something else in its place.

how = corrupt(path, random.Random(7))       # a short description of what was done
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["DEVICES", "corrupt"]

DEVICES = ("/dev/zero", "/dev/full", "/dev/null", "/dev/urandom")
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 1.5, 1e308, float("nan"), float("inf"), True, False, None),
    *("", "x", "x" * 100_000, "\0", "../../etc/passwd", "/dev/zero", "12", [], {}, [1], {"a": 1}, [[]], "\ud800"),
)
NUMBERS = ("0", "-1", "99999999999999999999", "1e999", "-0", "NaN", "0x10", "1" * 400, "true", '""')


def corrupt(path: Path, chance: Random, *, endless: bool = True) -> str:
    """Corrupts the file or replaces it by something else; with `endless` that can be a pipe without a writer, or a
    file of a terabyte."""
    place, by_bytes, by_content = chance.random() < 0.2, list(BYTES), _by_content(path)
    if place:
        return _another(path, chance, endless)
    content = path.read_bytes()
    for _ in range(8):
        way = chance.choice(by_content if by_content and chance.random() < 0.6 else by_bytes)
        try:
            corrupted = way(content, chance)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # this way does not apply to the file
        path.write_bytes(corrupted)
        return way.__name__.strip("_")
    path.write_bytes(b"")
    return "empty"


def _another(path: Path, chance: Random, endless: bool) -> str:
    path.unlink()
    ways = [*DEVICES, "folder", "pipe", "itself", "nowhere", "vast", "missing", "socket"]
    what = chance.choice([way for way in ways if endless or way not in ("pipe", "vast")])
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "itself":
        path.symlink_to(path.name)
    elif what == "nowhere":
        path.symlink_to("no-such-file")
    elif what == "vast":
        with open(path, "wb") as file:
            file.truncate(chance.choice([1 << 30, 1 << 40]))
    elif what == "socket":
        import socket

        here = os.getcwd()
        os.chdir(path.parent)  # its name may be too long otherwise
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    elif what != "missing":
        path.symlink_to(what)
    return what


# -- bytes


def _cut(content: bytes, chance: Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _empty(content: bytes, chance: Random) -> bytes:
    return b""


def _flipped(content: bytes, chance: Random) -> bytes:
    corrupted = bytearray(content)
    near = len(corrupted) if chance.random() < 0.5 else min(len(corrupted), 64)
    for _ in range(chance.choice([1, 1, 3, 30])):
        corrupted[chance.randrange(near)] ^= 1 << chance.randrange(8)
    return bytes(corrupted)


def _overwritten(content: bytes, chance: Random) -> bytes:
    at, length = chance.randrange(len(content)), chance.choice([1, 8, 100, 5000])
    return content[:at] + chance.choice([b"\0", b"\xff", b"9"]) * length + content[at + length :]


def _garbage(content: bytes, chance: Random) -> bytes:
    return chance.randbytes(chance.choice([1, 10, 1000, 100_000]))


def _inserted(content: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.choice([chance.randbytes(20), b"\n", b"\0" * 100, content[:100]]) + content[at:]


def _left_out(content: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + content[at + chance.choice([1, 2, 16, 1000]) :]


def _twice(content: bytes, chance: Random) -> bytes:
    return content * chance.choice([2, 2, 50])


def _followed(content: bytes, chance: Random) -> bytes:
    return content + chance.choice([b"x", b"\n{}", b"\n---\na: b\n", chance.randbytes(1000)])


def _another_number(content: bytes, chance: Random) -> bytes:
    spots = list(re.finditer(rb"(?<![\w.])\d+(?:\.\d+)?", content))
    spot = chance.choice(spots)
    return content[: spot.start()] + chance.choice(NUMBERS).encode() + content[spot.end() :]


def _another_length(content: bytes, chance: Random) -> bytes:
    """Changes the first or last eight bytes, which are often a length."""
    number = chance.choice([0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1, len(content)]).to_bytes(8, "little")
    return number + content[8:] if chance.random() < 0.7 else content[:-8] + number


BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_cut, _cut, _empty, _flipped, _flipped, _overwritten, _garbage, _inserted, _left_out, _twice, _followed),
    *(_another_number, _another_number, _another_length),
)


# -- content


def _by_content(path: Path) -> list[Callable[[bytes, Random], bytes]]:
    return {
        ".json": [_json, _json, _doubled_key, _deep],
        ".jsonl": [_json_line, _json_line, _deep],
        ".yaml": [_yaml, _yaml, _two_documents, _deep_yaml],
        ".safetensors": [_tensors, _tensors],
        ".npy": [_array],
    }.get(path.suffix, [])


def _json(content: bytes, chance: Random) -> bytes:
    return json.dumps(_changed(json.loads(content), chance)).encode()


def _json_line(content: bytes, chance: Random) -> bytes:
    lines = content.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = _json(lines[at], chance)
    return b"\n".join(lines) + b"\n"


def _yaml(content: bytes, chance: Random) -> bytes:
    import yaml

    return yaml.safe_dump(_changed(yaml.safe_load(content), chance), sort_keys=False).encode("utf-8", "replace")


def _two_documents(content: bytes, chance: Random) -> bytes:
    return content + b"\n---\n" + content


def _deep(content: bytes, chance: Random) -> bytes:
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    depth = chance.choice([200, 5_000, 100_000])
    return opening * depth + b"1" + closing * depth


def _deep_yaml(content: bytes, chance: Random) -> bytes:
    aliases = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefghi"
    )
    return chance.choice([aliases, b"a: " + b"[" * 3000, content + aliases])


def _doubled_key(content: bytes, chance: Random) -> bytes:
    key = chance.choice(list(json.loads(content))).encode()
    return content.replace(b"{", b'{"%s": %s, ' % (key, chance.choice([b"1", b"[]", b"null", b'"x"'])), 1)


def _tensors(content: bytes, chance: Random) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(_changed(json.loads(content[8 : 8 + length]), chance)).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _array(content: bytes, chance: Random) -> bytes:
    """The header of a .npy file is a Python dict literal."""
    ways = {
        b"(": [b"((", b"(-", b"(1e9,"],
        b"'<u2'": [b"'<f8'", b"'|O'", b"'>u2'", b"'<u8'", b"None", b"'<U9'"],
        b"False": [b"True", b"1", b"__import__('os')"],
    }
    old = chance.choice([each for each in ways if each in content[:128]])
    return content[:128].replace(old, chance.choice(ways[old]), 1) + content[128:]


def _changed(value: Any, chance: Random) -> Any:
    """Replaces, removes or adds one value, at any depth."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        way = chance.random()
        if way < 0.12:
            del value[key]
        elif way < 0.2 and isinstance(value, dict):
            value[chance.choice(["extra", "", "x" * 1000])] = chance.choice(VALUES)
        elif way < 0.3 and isinstance(value, list):
            value.extend([value[key]] * chance.choice([1, 10, 20_000]))
        else:
            value[key] = _changed(value[key], chance)
        return value
    return chance.choice(VALUES)
