"""Files -> ids, in batches of bounded size.

    for ids, ends in encode_files(tokenizer, ["corpus/"], ReadSettings(documents="line"), Path("scratch")):
        ...

`ids` are the next ids of the input, and `ends` the positions in them at which documents end. A document longer than a
block comes in several batches, split where the pattern splits it anyway, so that together they are exactly the ids of
the whole document; only a piece longer than a megabyte is cut there, whatever the size of the blocks. In memory are a
block of text, its ids, and the tokenizer's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet import _native
from ramlet.errors import BudgetError, option
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.plurals import plural
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES, available_threads, check_threads
from ramlet.tokenizer.engines import HfEngine, NativeEngine
from ramlet.tokenizer.tokenizer import CACHE_BYTES, Tokenizer

if TYPE_CHECKING:
    from ramlet.tokenizer.engines import Arrays

Batch = list[tuple[str, bool]]

LARGEST_BLOCK = 4 << 20
LONGEST_PART = LARGEST_BLOCK
"""A document in which the tokenizer finds no place to cut is cut after this many bytes. Not less than the largest
block, so that the place does not depend on the budget."""
SMALLEST_BLOCK = 1 << 16
SMALLEST_CACHE = 1 << 20
STREAMED_CHARACTERS = 1 << 16
"""How much of a text goes into a stream at a time."""
FRONT_BYTES = 1 << 19
"""Memory of one thread: its front of the cache, its buffers."""
TOKEN_BYTES = 250
"""Memory of the engine per token of the vocabulary: its bytes, its merge, its entries in the hash tables."""

BLOCK_COPIES = 12
"""Bytes per byte of a block: the block and the text after it, the texts as Python strings, the ids per thread and
concatenated; in the worst case, one id per byte."""

LONG_RUN = 14 << 20
"""Text that cannot be split before a megabyte, and as much that was read after it, with its ids and what merging it
takes."""
LONG_RUN_AS_NUMBERS = 40 << 20
"""Its ids as Python ints of 40 bytes each: what a stream returns, which is used to find special tokens."""

WHOLE_CHARACTER = HfEngine.MEMORY_PER_CHARACTER + 10
"""Of a document that is encoded as a whole: also its text, in parts and joined."""


def divide_memory(
    budget: Budget,
    vocab_size: int,
    threads: int,
    decoding: int = 0,
    *,
    streamed: bool = False,
    whole: bool = False,
    peak: int = 0,
) -> tuple[int, int]:
    """Bytes for the word cache and for a block of text, once the tokenizer is loaded.

    A budget too small for the minimum of both is refused. `decoding` is the minimum that decompressing an input takes,
    `streamed` whether special tokens are searched for, `whole` whether HF's library encodes whole documents (what they
    may take is then the first number), `peak` the peak memory of loading the tokenizer.
    """
    import numpy  # noqa: F401 - ids are arrays: its memory must be counted

    engine = vocab_size * TOKEN_BYTES
    run = LONG_RUN + (LONG_RUN_AS_NUMBERS if streamed else 0)
    if whole:
        run += WHOLE_CHARACTER * HfEngine.BATCH_CHARACTERS
    own = NATIVE_CODE + run + decoding + threads * (FRONT_BYTES + THREAD_BYTES)
    least = SMALLEST_CACHE + own + BLOCK_COPIES * SMALLEST_BLOCK
    granted = budget.grant(
        {"the encoder": engine, f"the cache and the blocks of {plural(threads, 'thread')}": least},
        "Python, NumPy and the vocabulary",
        peak=peak,
    )
    left = granted - engine
    spare = left - own - SMALLEST_CACHE
    block = min(max(min(left // 3, spare) // BLOCK_COPIES, SMALLEST_BLOCK), LARGEST_BLOCK)
    if whole:
        return WHOLE_CHARACTER * HfEngine.BATCH_CHARACTERS + max(0, left - own - block * BLOCK_COPIES), block
    # Not all of it: the allocator keeps some of the memory that blocks of changing size have freed.
    cache = (left - own - block * BLOCK_COPIES) * 3 // 4
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
    whole_bytes: int | None = None,
    counters: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[Arrays]:
    """The ids of all documents of the inputs, in order.

    `scratch` is a folder in which compressed Parquet files are unpacked. `whole_bytes` is the memory for a document
    that HF's library encodes as a whole; without it any is encoded. `counters` is called after every batch, and
    once more at the end, with what was read so far.
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
        longest_part=LONGEST_PART,
    )

    def batches() -> Iterator[Batch]:
        while (batch := reader.next_batch()) is not None:
            yield batch
            if counters is not None:
                counters(reader.counters())

    check_threads(threads)
    if not isinstance(engine, NativeEngine):
        yield from _whole_documents(tokenizer, batches(), threads, allowed_special, whole_bytes)
    elif allowed_special:
        yield from _streamed(tokenizer, batches(), allowed_special)
    else:
        for batch in batches():
            ids, ends = engine.encode_parts([text for text, _ in batch], threads or available_threads())
            yield ids, ends[[ends_document for _, ends_document in batch]]
    if counters is not None:
        counters(reader.counters())


def _streamed(tokenizer: Tokenizer, batches: Iterator[Batch], allowed: Collection[str] | str) -> Iterator[Arrays]:
    """A special token may cross a split, so each document goes through a stream, on one thread."""
    import numpy as np

    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    stream = tokenizer.stream(allowed)
    for batch in batches:
        arrays = []
        count = 0
        ids: list[int] = []  # few of them at a time: an int takes 40 bytes
        ends = []
        for text, ends_document in batch:
            for start in range(0, len(text), STREAMED_CHARACTERS):
                ids += stream.push(text[start : start + STREAMED_CHARACTERS])
                if len(ids) >= STREAMED_CHARACTERS:
                    arrays.append(np.asarray(ids, dtype))
                    count += len(ids)
                    ids = []
            if ends_document:
                ids += stream.finish()
                ends.append(count + len(ids))
        yield np.concatenate([*arrays, np.asarray(ids, dtype)]), np.asarray(ends, np.uint64)


def _whole_documents(
    tokenizer: Tokenizer,
    batches: Iterator[Batch],
    threads: int | None,
    allowed: Collection[str] | str,
    memory: int | None,
) -> Iterator[Arrays]:
    """Where it is unknown where text may be split, each document is joined first."""
    most = None if memory is None else memory // WHOLE_CHARACTER
    parts: list[str] = []
    characters = 0
    for batch in batches:
        documents = []
        for text, ends_document in batch:
            parts.append(text)
            characters += len(text)
            if most is not None and characters > most:
                raise BudgetError(
                    f"a document has more than {most:,} characters, and HF's library, which encodes it as a whole, may "
                    f"take {HfEngine.MEMORY_PER_CHARACTER} bytes for each: give more {option('memory')}, or "
                    f"{option('documents', 'line')} if each line is a document"
                )
            if ends_document:
                documents.append("".join(parts))
                parts.clear()
                characters = 0
        if documents:
            yield tokenizer.encode_batch(documents, threads, allowed)
