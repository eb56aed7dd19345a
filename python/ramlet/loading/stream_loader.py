"""`ramlet.StreamLoader`: batches straight from text, tokenised on the way; nothing is stored.

    with ramlet.StreamLoader(["corpus/", "more.jsonl.gz"], tokenizer="gpt2", seq_len=1024, batch_size=32) as loader:
        for batch in loader: ...

The source is anything that `ramlet prepare` takes. Its documents, an end id behind each, are one stream of ids, cut as
`ramlet.Loader` cuts it, and read again from the start in every epoch.

**Order.** Sequences are shuffled in blocks: the next `shuffle_buffer` of them are read, and handed out in an order that
follows from (seed, epoch, block). Unlike a buffer that is refilled at random places, a block can be read again: so a
state is a place in the files and a place in the block, a few hundred bytes, and resuming is exact. The price is that
a sequence moves no farther than its block. Where that is too little, `ramlet prepare` and `ramlet.Loader` shuffle
over everything.

**Ranks** each read all of the source and take their share, so that the global batches are the same for any number.

**Memory** is a few blocks and batches, the text of one read and the tokenizer's cache, whatever the source: `memory`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramlet import _native
from ramlet.errors import DatasetError, SettingsError, SourceChanged, SourceError, option
from ramlet.inputs.settings import ReadSettings
from ramlet.loading.batch import Batch, batches_memory, make_batch, row_arrays
from ramlet.loading.division import Division, check_counts
from ramlet.loading.loop import Loop
from ramlet.loading.stream_blocks import Block, Blocks
from ramlet.loading.text_tokens import BLOCK_BYTES, TextFiles, token_chunks
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import free_memory
from ramlet.runtime.plurals import plural
from ramlet.runtime.threads import check_threads
from ramlet.tokenizer.tokenizer import CACHE_BYTES, Tokenizer

__all__ = ["StreamLoader"]

Inputs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

STREAM = 2
"""Its keys differ from those of the Loader's orders."""
LEAST_CACHE = 1 << 20
LARGEST_WINDOW = 128 << 20
LEAST_WINDOW = 8 << 20
TEXT_COPIES = 12
"""Bytes for each byte of text that is being encoded; see `ramlet.tokenizer.encode`."""
GROWTH = 8
"""A block of text in which there is no place to cut grows to so many times its size."""
LAST_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Behind `position` samples of a block."""

    epoch: int = 0
    block: int = 0
    cursor: str | None = None
    skip: int = 0
    position: int = 0
    samples: int = 0
    """From the beginning, through all epochs."""


class StreamLoader:
    """Batches straight from text, tokenised on the way; nothing is stored.

    with ramlet.StreamLoader("corpus/", tokenizer="gpt2", seq_len=1024, batch_size=32) as loader:
        batch = next(iter(loader))
    """

    def __init__(
        self,
        source: Inputs,
        *,
        tokenizer: Tokenizer | str | os.PathLike[str] | Any,
        seq_len: int = 1024,
        batch_size: int = 8,
        seed: int = 1,
        shuffle_buffer: int = 1000,
        stride: int | None = None,
        max_examples: int | None = None,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
        micro_batch: int | None = None,
        as_torch: bool = False,
        document_mask: bool = False,
        documents: str = "file",
        doc_separator: str | None = None,
        text_field: str = "text",
        format: str | None = None,  # noqa: A002 - the word users know it by
        on_error: str = "stop",
        memory: Budget | str | int | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        threads: int = 1,
        read_ahead: int = 2,
        streaming: bool = True,
    ) -> None:
        """Lists the files; what is no local file is made one first, in `work_dir` (or a folder that goes again).

        `shuffle_buffer` counts sequences; with 1 they come in the order of the text. `documents` and the four settings
        behind it are those of `ramlet.Tokenizer.train`. `memory` bounds what the loader holds: it limits the
        tokenizer's cache, and never changes a batch. `max_examples` ends every epoch there.
        `streaming` is there for loaders that can also hold everything, which this one never does.
        """
        if not streaming:
            raise SettingsError("a StreamLoader holds a batch at a time: for ids on disk, shuffled, take ramlet.Loader")
        self.division = Division(batch_size=batch_size, rank=rank, world=world, micro_batch=micro_batch)
        self.stride = seq_len if stride is None else stride
        check_counts(seq_len=seq_len, stride=stride, shuffle_buffer=shuffle_buffer, epochs=epochs)
        check_counts(max_examples=max_examples)
        check_threads(threads)
        if not 0 <= seed <= LAST_SEED:
            raise SettingsError(f"seed is {seed}: it must be from 0 to {LAST_SEED}")
        self.seq_len = seq_len
        self.seed = seed
        self.epochs = epochs
        self.as_torch = as_torch
        self.document_mask = document_mask
        self.read_ahead = read_ahead
        self._loop: Loop[_Place] = Loop(_Place(), read_ahead)
        self._blocks = Blocks(seq_len, self.stride, shuffle_buffer, max_examples)
        self._threads = threads

        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
        if memory is not None:
            self.tokenizer = Tokenizer.load(self.tokenizer)  # with a cache of its own, to be limited
        if document_mask and self.end_id is None:
            raise SettingsError(
                "the tokenizer has no token that ends a document, which a document mask needs: give it a special token "
                "<|endoftext|>, or train without a document mask"
            )
        self._scratch = TemporaryDirectory(prefix="ramlet-stream-") if work_dir is None else None
        folder = Path(work_dir or self._scratch.name)  # type: ignore[union-attr]
        reading = ReadSettings(
            documents=documents, doc_separator=doc_separator, text_field=text_field, format=format, on_error=on_error
        )
        inputs = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        self._name = ", ".join(os.fspath(each) for each in inputs)
        budget = None if memory is None else Budget.parse(memory)
        window = LARGEST_WINDOW if budget is None else min(max(LEAST_WINDOW, budget.total // 4), LARGEST_WINDOW)
        self._files = TextFiles(inputs, reading, folder, window)
        self._cache_bytes = CACHE_BYTES
        if budget is not None:
            self._cache_bytes = self._limit_cache(budget)
        elif self.memory() > free_memory():
            Budget(free_memory()).require(self.memory(), "the blocks, the batches and the text that is being encoded")

    def _limit_cache(self, budget: Budget) -> int:
        """The tokenizer's cache, from what the rest of the loader leaves of its memory."""
        self._cache_bytes = LEAST_CACHE
        least = self.memory()
        budget.require(least, "the blocks, the batches and the text that is being encoded")
        cache = min(LEAST_CACHE + (budget.total - least) * 3 // 4, CACHE_BYTES)
        self.tokenizer.limit_cache(cache)
        return cache

    # -- what is known

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return self.tokenizer.vocab_size

    @property
    def end_id(self) -> int | None:
        """The id behind every document; None where the tokenizer has none."""
        return self.tokenizer.end_of_text

    @property
    def tokenizer_fingerprint(self) -> str:
        """Of the tokenizer that makes the ids."""
        return self.tokenizer.fingerprint

    def describe(self) -> str:
        """A few plain lines for people."""
        lines = [
            f"text in {self._name}: {plural(self._files.bytes, 'byte')} in {plural(self._files.files, 'file')}, "
            "tokenised on the way",
            f"sequences: of {self.seq_len:,} tokens, shuffled in blocks of {self._blocks.size:,}",
        ]
        if self._blocks.max_examples is not None:
            lines.append(f"of an epoch at most {plural(self._blocks.max_examples, 'sequence')}")
        return "\n".join(lines)

    def memory(self, *, micro_batch: int | None = None) -> int:
        """Bytes that it holds at most, the batch in use and the tokenizer's cache included."""
        width = 2 if self.vocab_size <= 1 << 16 else 4
        rows = micro_batch or self.division.rows
        batches = batches_memory(rows, self.seq_len, self.read_ahead, self.document_mask)
        block = (self._blocks.size * self.stride + self.seq_len + 1) * width
        step = self.division.batch_size * (self.seq_len + 1) * width
        text = TEXT_COPIES * GROWTH * BLOCK_BYTES + (self._files.window_bytes if self._files.windowed else 0)
        return batches + 3 * block + 2 * step + text + self._cache_bytes

    # -- batches

    def __iter__(self) -> Iterator[Batch]:
        """Goes on behind the last global batch that was handed out whole. One loop at a time."""
        samples = _Samples(
            self._files, self.tokenizer, self.end_id, self._blocks, self.seed, self.epochs, self._threads, self._name
        )
        rows = samples.after(self._loop.place)
        return self._loop.start(
            _batches(rows, self.division, self.seq_len, self.end_id, self.document_mask, self.as_torch)
        )

    def count_examples(self) -> int:
        """Sequences in an epoch. No one knows them before: all of the text is read and tokenized for it."""
        ids = self._blocks.ids_wanted()
        found = 0
        for chunk in token_chunks(self._files, self.tokenizer, self.end_id, None, self._threads):
            found += len(chunk.ids)
            if ids is not None and found >= ids:
                break
        return self._blocks.count(found)

    @property
    def samples(self) -> int:
        """Sequences handed out so far, in whole global batches and over all ranks."""
        return self._loop.place.samples

    def state(self) -> dict[str, Any]:
        """Where the loader stands, behind the last global batch that was handed out whole; small, and JSON."""
        return {"seed": self.seed, **asdict(self._loop.place), **self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state as if it had never stopped; ranks, micro-batches and the batch size may be others.

        The block that it stopped in is read again.
        """
        for name, mine in self._identity().items():
            if name not in state or state[name] != mine:
                raise self._not_resumable(name, state.get(name), mine)
        self.seed = int(state["seed"])
        self._loop.move(_Place(**{name: state[name] for name in asdict(_Place())}))

    def rewind(self) -> None:
        """Back to the first sample."""
        self._loop.move(_Place())

    def close(self) -> None:
        """Ends the reading; the next loop goes on from the state."""
        self._loop.close()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _identity(self) -> dict[str, Any]:
        """All that the order of samples follows from, the seed aside."""
        return {
            "seq_len": self.seq_len,
            "stride": self.stride,
            "shuffle_buffer": self._blocks.size,
            "max_examples": self._blocks.max_examples,
            "tokenizer": self.tokenizer_fingerprint,
            "data": self._files.fingerprint,
        }

    def _not_resumable(self, name: str, noted: Any, mine: Any) -> Exception:
        if name == "data":
            return SourceChanged(
                f"{self._name} is not what it was when the state was noted, or is read in another way: give the same "
                "files and settings, or start anew"
            )
        return DatasetError(
            f"the state was noted with {name} {noted}, and now it is {mine}: give the same, or start anew"
        )

    def __repr__(self) -> str:
        return f"<ramlet.StreamLoader {self._name}: sequences of {self.seq_len:,}>"


@dataclass(frozen=True)
class _Samples:
    """All samples in their order. Knows no loader: the thread that runs it must not keep one alive."""

    files: TextFiles
    tokenizer: Tokenizer
    end_id: int | None
    blocks: Blocks
    seed: int
    epochs: int | None
    threads: int
    name: str

    def after(self, place: _Place) -> Iterator[tuple[Any, _Place]]:
        """The ids of each sample, and the place behind it."""
        while self.epochs is None or place.epoch < self.epochs:
            if self.files.changed():
                raise SourceChanged(f"{self.name} changed since it was opened: leave the files alone, and start anew")
            any_block = False
            for block in self._epoch(place):
                any_block = True
                yield from self._block(block, place)
                place = replace(place, position=0, samples=place.samples + block.count - place.position)
            if not any_block:
                raise SourceError(
                    f"{self.name} has less than one sequence of {self.blocks.seq_len:,} tokens: choose a smaller "
                    f"{option('seq_len')}, or give it more text"
                )
            place = _Place(epoch=place.epoch + 1, samples=place.samples)

    def _epoch(self, place: _Place) -> Iterator[Block]:
        chunks = token_chunks(self.files, self.tokenizer, self.end_id, place.cursor, self.threads)
        return self.blocks.cut(chunks, place.block, place.skip)

    def _block(self, block: Block, place: _Place) -> Iterator[tuple[Any, _Place]]:
        order = _native.shuffled(block.count, [self.seed, STREAM, place.epoch, block.number]).tolist()
        for position in range(place.position, block.count):
            behind = _Place(
                epoch=place.epoch,
                block=block.number,
                cursor=block.cursor,
                skip=block.skip,
                position=position + 1,
                samples=place.samples + position + 1 - place.position,
            )
            yield self.blocks.row(block, order[position]), behind


def _batches(
    samples: Iterator[tuple[Any, _Place]],
    division: Division,
    seq_len: int,
    end_id: int | None,
    documents: bool,
    as_torch: bool,
) -> Iterator[tuple[Batch, _Place | None]]:
    while True:
        mine, place, size = [], _Place(), 0
        for number, (ids, behind) in enumerate(islice(samples, division.batch_size)):
            if number % division.world == division.rank:
                mine.append(ids)
            place, size = behind, number + 1
        if not size:
            return
        done = 0
        for piece in division.step(place.samples - size, size):
            arrays = row_arrays(mine[done : done + piece.count], seq_len, end_id if documents else None)
            done += piece.count
            yield make_batch(arrays, piece, as_torch), place if piece.last_of_step else None
