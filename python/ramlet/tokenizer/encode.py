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

from ramlet import _native
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.plurals import plural
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES
from ramlet.tokenizer.engines import NativeEngine
from ramlet.tokenizer.tokenizer import CACHE_BYTES, Tokenizer

if TYPE_CHECKING:
    from ramlet.tokenizer.engines import Arrays

__all__ = ["divide_memory", "encode_files"]

Batch = list[tuple[str, bool]]

LARGEST_BLOCK = 4 << 20
SMALLEST_BLOCK = 1 << 16
SMALLEST_CACHE = 1 << 20
FRONT_BYTES = 1 << 19
"""What a thread has to itself: the front of the cache, its buffers."""
TOKEN_BYTES = 250
"""What the engine takes for a token of the vocabulary: its bytes, its merge, its place in the hash tables."""

BLOCK_COPIES = 12
"""Bytes for each byte of a block: the block and what lies behind it, the texts as Python has them, the ids
of the threads and of all together; with an id for every byte, the worst."""


LONG_RUN = 10 << 20
"""A stretch of text without a place to cut, of a megabyte at the most, its ids, and what merging it takes."""
LONG_RUN_AS_NUMBERS = 40 << 20
"""Its ids where they come as Python's numbers, each of 40 bytes: from a stream, which looks for special tokens."""


def divide_memory(
    budget: Budget, vocab_size: int, threads: int, decoding: int = 0, *, streamed: bool = False, peak: int = 0
) -> tuple[int, int]:
    """Bytes for the word cache and for a block of text, once the tokenizer is loaded.

    A budget too small for the least of both is refused. `decoding` is what the decoder of an input takes at least;
    `streamed` says whether special tokens are looked for, `peak` what loading the tokenizer has taken.
    """
    import numpy  # noqa: F401 - ids are arrays: what it takes must be counted

    engine = vocab_size * TOKEN_BYTES
    run = LONG_RUN + (LONG_RUN_AS_NUMBERS if streamed else 0)
    own = NATIVE_CODE + run + decoding + threads * (FRONT_BYTES + THREAD_BYTES)
    least = SMALLEST_CACHE + own + BLOCK_COPIES * SMALLEST_BLOCK
    granted = budget.grant(
        {"the encoder": engine, f"the cache and the blocks of {plural(threads, 'thread')}": least},
        "Python, NumPy and the vocabulary",
        peak=peak,
    )
    room = granted - engine
    block = min(max(room // 3 // BLOCK_COPIES, SMALLEST_BLOCK), LARGEST_BLOCK)
    # Not all of it: allocators keep some of what blocks of changing size gave back.
    cache = (room - own - block * BLOCK_COPIES) * 3 // 4
    return max(min(cache, CACHE_BYTES), SMALLEST_CACHE), block


def encode_files(
    tokenizer: Tokenizer,
    inputs: str | PathLike[str] | Iterable[str | PathLike[str]],
    settings: ReadSettings,
    scratch: Path,
    *,
    threads: int | None = None,
    allowed_special: Collection[str] | str = (),
    block_bytes: int = LARGEST_BLOCK,
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
