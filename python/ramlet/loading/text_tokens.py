"""Text files -> chunks of ids while they are read, each with a position from which it can be read again.

    files = TextFiles(["corpus/"], ReadSettings(), scratch)
    for chunk in token_chunks(files, tokenizer, cursor=None): ...

In memory are one block of text and its ids. A longer document continues in the next chunk, with the ids that it has as
a whole. Only the tokenizer families of HF's library, where the end of a text can change the ids of its beginning, get
it in parts of a million characters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramlet import _native
from ramlet.errors import SourceError
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.runtime.digest import digest
from ramlet.tokenizer.engines import HfEngine, NativeEngine
from ramlet.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[Any]

BLOCK_BYTES = 1 << 17
"""Of text. Fixed: where long documents are split must not depend on the budget."""
PART_CHARACTERS = 1_000_000
"""Of a document for HF's library. Smaller parts would change the ids of documents that are whole now."""


class TextFiles:
    """Inputs as files that can be read repeatedly."""

    def __init__(
        self, inputs: Iterable[str | os.PathLike[str]], reading: ReadSettings, folder: Path, window_bytes: int
    ) -> None:
        self.reading = reading
        self.folder = folder
        self.window_bytes = window_bytes
        self._local = stage_in_subprocess(inputs, folder / "staged", reading=reading)
        self.files = self.bytes = 0
        self.windowed = False
        """Whether some have a compression that takes up to `window_bytes`."""
        self.compressed = False
        """Whether some may have more text than bytes."""
        self.fingerprint = self._survey()
        self.decoding = max(
            (each.decoding(reading.text_field) for each in self._sources() if each.format == "parquet"), default=0
        )
        """What reading a Parquet file takes: the size of its pages is its writer's choice."""

    def _sources(self) -> Iterator[sources.Source]:
        for source in sources.expand(self._local, format=self.reading.format):
            if source.size is None:
                raise SourceError(
                    f"{source.path} can be read only once, but every epoch reads it again: pipe it in, with - as its "
                    "name"
                )
            yield source

    def _survey(self) -> str:
        """Counts the files; returns a hash that changes with them and with the settings for reading them."""
        settings = {each.name: getattr(self.reading, each.name) for each in fields(ReadSettings)}
        self.files = self.bytes = 0

        def parts() -> Iterator[bytes]:
            yield b"ramlet text 1" + json.dumps(settings, sort_keys=True).encode()
            staged = os.path.abspath(self.folder) + os.sep
            for source in self._sources():
                self.files += 1
                self.bytes += source.size or 0
                self.windowed = self.windowed or source.compression in ("zst", "xz")
                self.compressed = self.compressed or bool(source.compression) or source.format == "parquet"
                # Staged files are the same in whatever folder they are.
                path = os.path.abspath(source.path).removeprefix(staged)
                yield os.fsencode(path) + f"\0{source.compression} {source.size} {source.modified}".encode()

        return digest(parts())

    def changed(self) -> bool:
        return self._survey() != self.fingerprint

    def reader(self, encoder: _native.Encoder | None, cursor: str | None) -> _native.Reader:
        return _native.Reader(
            (source.spec() for source in self._sources()),
            self.reading.reading(),
            encoder=encoder,
            block_bytes=BLOCK_BYTES,
            window_bytes=self.window_bytes,
            spill_dir=os.fspath(self.folder),
            position=cursor,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ids, and their position: after the first `before` ids of the text at `cursor` (None: the beginning)."""

    cursor: str | None
    before: int
    ids: Ids


def token_chunks(files: TextFiles, tokenizer: Tokenizer, cursor: str | None, threads: int = 1) -> Iterator[Chunk]:
    """All ids from the cursor of a chunk on, with the tokenizer's end id after every document."""
    engine = tokenizer.engine
    if not isinstance(engine, NativeEngine):
        yield from _by_document(files, tokenizer, cursor, threads)
        return
    reader = files.reader(engine.encoder, cursor)
    while True:
        here = reader.position()
        batch = reader.next_batch()
        if batch is None:
            return
        ids, ends = tokenizer.encode_batch([text for text, _ in batch], threads)
        yield Chunk(here, 0, _with_ends(ids, ends[[ended for _, ended in batch]], tokenizer.end_of_text))


def whole_text_memory(files: TextFiles, tokenizer: Tokenizer) -> int:
    """What encoding takes besides blocks: of tokenizers that need a document, or a part of it, as a whole."""
    if tokenizer.kind != "hf":
        return 0
    most = max(PART_CHARACTERS, HfEngine.BATCH_CHARACTERS)
    return HfEngine.MEMORY_PER_CHARACTER * (most if files.compressed else min(most, files.bytes))


def _by_document(files: TextFiles, tokenizer: Tokenizer, cursor: str | None, threads: int) -> Iterator[Chunk]:
    reader = files.reader(None, cursor)
    # Where the last document began: only from there are its parts split the same way again.
    here, before, rest = cursor, 0, ""
    while (batch := reader.next_batch()) is not None:
        parts: list[tuple[str, bool]] = []
        for text, ended in batch:
            rest += text
            while len(rest) > PART_CHARACTERS:
                part, rest = _cut(rest)
                parts.append((part, False))
            if ended:
                parts.append((rest, True))
                rest = ""
        if parts:
            ids, ends = tokenizer.encode_batch([text for text, _ in parts], threads)
            ids = _with_ends(ids, ends[[ended for _, ended in parts]], tokenizer.end_of_text)
            yield Chunk(here, before, ids)
            before += len(ids)
        if batch and batch[-1][1]:
            here, before = reader.position(), 0


def _cut(text: str) -> tuple[str, str]:
    """At the last newline, or else the last space, in the second half of a part, else at its end."""
    half = PART_CHARACTERS // 2
    at = max(text.rfind("\n", half, PART_CHARACTERS), 0) or max(text.rfind(" ", half, PART_CHARACTERS), 0)
    at = at + 1 if at else PART_CHARACTERS
    return text[:at], text[at:]


def _with_ends(ids: Ids, ends: Ids, end_id: int | None) -> Ids:
    if end_id is None or not len(ends):
        return ids
    return np.insert(ids, ends.astype(np.int64), end_id)
