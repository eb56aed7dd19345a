"""Files -> ids, a bounded batch at a time.

    for ids, ends in encode_files(tokenizer, ["corpus/"], ReadSettings(documents="line"), Path("scratch")):
        ...

`ids` are those of a stretch of the input, `ends` where documents end in it: a document that is longer than a
block comes in several stretches, cut where its pieces are cut anyway, so that joined they are the ids
of the whole. What is held is a block of text, its ids, and the tokenizer's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet import _native, sources
from ramlet.engines import NativeEngine
from ramlet.read_settings import ReadSettings
from ramlet.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ramlet.engines import Arrays

__all__ = ["encode_files"]

Batch = list[tuple[str, bool]]


def encode_files(
    tokenizer: Tokenizer,
    inputs: str | PathLike[str] | Iterable[str | PathLike[str]],
    settings: ReadSettings,
    scratch: Path,
    *,
    threads: int | None = None,
    allowed_special: Collection[str] | str = (),
    block_bytes: int = 4 << 20,
    counters: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[Arrays]:
    """The ids of all documents of the inputs, in order.

    `scratch` is a folder for compressed parquet files, which are unpacked to be read. `counters`
    is told after every batch, and once more at the end, what was read so far.
    """
    files = (source.spec() for source in sources.expand(inputs, format=settings.format))
    engine = tokenizer.engine
    reader = _native.Reader(
        files,
        settings.reading(),
        encoder=engine.encoder if isinstance(engine, NativeEngine) else None,
        block_bytes=block_bytes,
        window_bytes=max(8 << 20, 4 * block_bytes),
        spill_dir=str(scratch),
    )

    def batches() -> Iterator[Batch]:
        while (batch := reader.next_batch()) is not None:
            yield batch
            if counters is not None:
                counters(reader.counters())

    if not isinstance(engine, NativeEngine):
        yield from _whole_documents(tokenizer, batches(), threads, allowed_special)
    elif allowed_special:
        yield from _streamed(tokenizer, batches(), allowed_special)
    else:
        for batch in batches():
            yield _marked(tokenizer.encode_batch([text for text, _ in batch], threads), batch)
    if counters is not None:
        counters(reader.counters())


def _marked(encoded: Arrays, batch: Batch) -> Arrays:
    ids, ends = encoded
    return ids, ends[[ends_document for _, ends_document in batch]]


def _streamed(tokenizer: Tokenizer, batches: Iterator[Batch], allowed: Collection[str] | str) -> Iterator[Arrays]:
    """Special tokens may lie across a cut, so a document goes through a stream; one thread."""
    import numpy as np

    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    stream = tokenizer.stream(allowed)
    for batch in batches:
        ids: list[int] = []
        ends = []
        for text, ends_document in batch:
            ids += stream.push(text)
            if ends_document:
                ids += stream.finish()
                ends.append(len(ids))
        yield np.asarray(ids, dtype), np.asarray(ends, np.uint64)


def _whole_documents(
    tokenizer: Tokenizer, batches: Iterator[Batch], threads: int | None, allowed: Collection[str] | str
) -> Iterator[Arrays]:
    """Where no one knows a place to cut, a document is put together first."""
    held: list[str] = []
    for batch in batches:
        documents = []
        for text, ends_document in batch:
            held.append(text)
            if ends_document:
                documents.append("".join(held))
                held.clear()
        if documents:
            yield tokenizer.encode_batch(documents, threads, allowed)
