"""`ramlet tokenizer decode`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, TextIO

from ramlet.cli.options import Json, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.tokenizer.options import Pattern, TokenizerName
from ramlet.errors import SettingsError, SourceError
from ramlet.runtime.small_files import open_regular

LONGEST_LINE = 1 << 16
"""Characters of a line of ids that are decoded at once: `encode` prints a document per line."""


def decode(
    tokenizer: TokenizerName,
    ids: Annotated[
        list[str] | None,
        Argument(metavar="[ID...|FILE.bin]", shown="standard input", help="Ids, or a file of ids."),
    ] = None,
    dtype: Annotated[
        str | None,
        Option("--dtype", metavar="uint16|uint32", shown="by vocabulary size", help="Data type of a .bin file."),
    ] = None,
    pattern: Pattern = None,
    json: Json = False,
) -> None:
    """Decode token ids to text.

    Ids are numbers on the command line or on standard input, separated by spaces or commas, or a file written by
    `encode --out`. The text is exactly the one that was encoded.

      ramlet tokenizer decode --tokenizer gpt2 15496 11 995
      ramlet tokenizer decode --tokenizer my-tokenizer ids.bin
    """
    from ramlet.tokenizer.tokenizer import Tokenizer

    if dtype not in (None, "uint16", "uint32"):
        raise SettingsError(f"--dtype must be uint16 or uint32, not {dtype!r}")
    loaded = Tokenizer.load(tokenizer, pattern=pattern)
    if ids and len(ids) == 1 and not re.fullmatch(r"[\d\s,\[\]]*", ids[0]):
        wide = loaded.vocab_size > 1 << 16 if dtype is None else dtype == "uint32"
        blocks = _from_file(Path(ids[0]), "<u4" if wide else "<u2")
        if loaded.kind == "hf":  # which puts spaces between tokens: no two blocks of them may be joined
            blocks = iter([[number for block in blocks for number in block]])
    else:
        blocks = _from_words(iter(ids) if ids else sys.stdin if loaded.kind == "hf" else _in_parts(sys.stdin))
    if json:
        print_json({"text": b"".join(map(loaded.decode_bytes, blocks)).decode("utf-8", "replace")})
        return
    for block in blocks:
        sys.stdout.buffer.write(loaded.decode_bytes(block))
    if sys.stdout.isatty():
        print()


def _in_parts(stream: TextIO) -> Iterator[str]:
    """Its lines, long ones in parts that end between two numbers."""
    rest = ""
    while part := stream.readline(LONGEST_LINE):
        part = rest + part
        cut = max(map(part.rfind, " \t\n,]")) + 1 or (len(part) if len(part) > LONGEST_LINE else 0)
        yield part[:cut]
        rest = part[cut:]
    yield rest


def _from_words(lines: Iterator[str]) -> Iterator[list[int]]:
    for line in lines:
        words = re.sub(r"[,\[\]]", " ", line).split()
        try:
            yield [int(word) for word in words]
        except ValueError:
            wrong = next((word for word in words if not word.isdecimal()), max(words, key=len))  # too long
            raise SettingsError(f"{wrong!r} is not a token id: give numbers, or one file of ids") from None


def _from_file(path: Path, dtype: str) -> Iterator[list[int]]:
    import numpy as np

    try:
        size = path.stat().st_size
        if size % np.dtype(dtype).itemsize:
            width, name = np.dtype(dtype).itemsize, np.dtype(dtype).name
            raise SourceError(
                f"{path} does not contain {name} ids: its size is not a multiple of {width}; try another --dtype"
            )
        with BufferedReader(open_regular(path, SourceError)) as file:
            while block := file.read(1 << 18):
                yield np.frombuffer(block, dtype).tolist()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None
