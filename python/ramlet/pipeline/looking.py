"""Examines text: how much there is and of what kind, from a few megabytes of it.

    found = look_at_text(["corpus/", "more.jsonl.gz"])
    found.files, found.text_bytes, found.bytes_per_token(8000), found.text_field

Files are listed once; at most 128 of them, evenly spread, are remembered, and at most 4 MB of text is read. The amount
of text in compressed and columnar files is an estimate, by the factors below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from tempfile import TemporaryDirectory

from ramlet import _native
from ramlet.errors import SourceError
from ramlet.inputs import sources
from ramlet.inputs.formats import FORMATS
from ramlet.inputs.named import Input, needs_staging
from ramlet.inputs.settings import ReadSettings
from ramlet.preparing.settings import WHOLE_FILE_BYTES

MOST_FILES = 128
SAMPLE_BYTES = 4_000_000
BLOCK = 1 << 17
LONGEST_LINE = 1 << 24
MOST_ENTRIES = 50

COMPRESSED = 3.5
"""Bytes of text per byte on disk, typical of web text."""

OPENED_BY = {"gz": "gzip", "xz": "lzma", "bz2": "bz2"}
"""Modules of the standard library, by compression."""


@dataclass(frozen=True)
class TextFound:
    inputs: tuple[str, ...]
    files: int
    disk_bytes: int
    text_bytes: int
    """Approximately; 0 if unknown, because none of it is on this disk."""
    parts: int
    """The least number of documents, if text files are split at 64 KiB."""
    formats: tuple[str, ...]
    text_field: str = "text"
    sample: tuple[str, ...] = field(default=(), repr=False)

    def bytes_per_token(self, vocab_size: int) -> float:
        """Of a tokenizer trained on one half of the sample, measured on the other."""
        from ramlet.tokenizer.tokenizer import Tokenizer

        training, measured = self.sample[::2], self.sample[1::2] or self.sample
        size = sum(len(each.encode("utf-8", "replace")) for each in measured)
        if not size:
            return 3.5
        tokenizer = Tokenizer.train(texts=iter(training), vocab_size=vocab_size, threads=1)
        ids, _ = tokenizer.encode_batch(list(measured))
        return size / max(1, len(ids))


def text_in(folder: str, without: Sequence[str] = ()) -> list[str]:
    """The entries of a folder that hold text: for a folder that will also hold the results."""
    found: dict[str, None] = {}
    for source in sources.expand(folder, without=[os.path.realpath(each) for each in without]):
        name = os.path.relpath(source.path, folder).split("/")[0]
        found[name if folder == "." else os.path.join(folder, name)] = None
        if len(found) > MOST_ENTRIES:
            raise SourceError(f"{folder} has more than {MOST_ENTRIES} entries: put the text into a folder of its own")
    return list(found)


def look_at_text(inputs: Sequence[str]) -> TextFound:
    """Lists the files, and reads a little of them."""
    local = [each for each in inputs if not needs_staging(Input(each))]
    files = disk = parts = 0
    text = 0.0
    formats: dict[str, None] = {}
    kept: list[sources.Source] = []
    stride = 1
    for source in sources.expand(local) if local else ():
        size = source.size or 0
        if files % stride == 0:
            kept.append(source)
            if len(kept) == MOST_FILES:
                kept, stride = kept[::2], stride * 2
        files += 1
        disk += size
        text += size * FORMATS[source.format].text_per_byte * (COMPRESSED if source.compression else 1)
        parts += -(-size // WHOLE_FILE_BYTES)
        formats[source.format] = None
    if not text and len(local) == len(inputs):
        raise SourceError(f"there is no text in {', '.join(inputs)}, every file is empty: give files that have some")
    column = _column(kept)
    sample = tuple(_sample(kept, column))
    return TextFound(tuple(inputs), files, disk, int(text), parts, tuple(formats), column, sample)


def _sample(files: list[sources.Source], column: str) -> Iterator[str]:
    """Blocks of text, the same amount from each file."""
    share = SAMPLE_BYTES // max(1, len(files))
    reading = ReadSettings(text_field=column, on_error="skip").reading()
    with TemporaryDirectory() as scratch:
        for source in files:
            reader = _native.Reader(
                iter([source.spec()]),
                reading,
                encoder=None,
                block_bytes=min(BLOCK, max(4096, share)),
                window_bytes=1 << 23,
                spill_dir=scratch,
            )
            read = 0
            while read < share and (batch := reader.next_batch()) is not None:
                for text, _ in batch:
                    # In pieces of a few kilobytes, so that both halves of the sample contain some of everything.
                    yield from (text[at : at + 4000] for at in range(0, len(text), 4000))
                    read += len(text)


def _column(files: list[sources.Source]) -> str:
    """`text`, or without it the field with the longest text, in the first line of a jsonl file."""
    readable = (each for each in files if each.format == "jsonl" and each.compression in ("", *OPENED_BY))
    first = next(readable, None)
    if first is None:
        return "text"
    import lzma
    import zlib

    try:
        opener = import_module(OPENED_BY[first.compression]).open if first.compression else open
        with opener(first.path, "rb") as file:
            row = json.loads(file.readline(LONGEST_LINE))
    except (OSError, ValueError, EOFError, RecursionError, lzma.LZMAError, zlib.error):
        return "text"
    lengths = (
        {name: len(value) for name, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    )
    return "text" if "text" in lengths or not lengths else str(max(lengths, key=lambda name: lengths[name]))
