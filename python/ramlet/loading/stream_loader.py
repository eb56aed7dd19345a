"""`ramlet.StreamLoader`: batches straight from text, tokenized on the fly; nothing is stored.

    with ramlet.StreamLoader(["corpus/", "more.jsonl.gz"], tokenizer="gpt2", seq_len=1024, batch_size=32) as loader:
        for batch in loader: ...

The source is anything that `ramlet prepare` reads. Its documents, each followed by an end id, are one stream of ids,
split into examples as in `ramlet.Loader`, and read again from the start in every epoch.

**Order.** Sequences are shuffled in blocks: the next `shuffle_buffer` of them are read, and yielded in an order
computed from (seed, epoch, block). Unlike a buffer that is refilled at random positions, a block can be read again: so
a state is a position in the files and a position in the block, a few hundred bytes, and resuming is exact; it reads the
current block again. The price is that a sequence stays within its block. If that is not enough, `ramlet prepare` and
`ramlet.Loader` shuffle over everything.

**Ranks** each read all of the source and use their share, so the global batches do not depend on the number of ranks.

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
from ramlet.errors import SettingsError, SourceChanged, SourceError, option
from ramlet.inputs.paths import paths_of
from ramlet.inputs.settings import ReadSettings
from ramlet.loading.batch import Kind, batches_memory, make_batch, row_arrays
from ramlet.loading.division import Division, check_counts, checked_seed, whole_number
from ramlet.loading.resumable import Read, ResumableLoader, natural
from ramlet.loading.stream_blocks import Block, Blocks
from ramlet.loading.text_tokens import BLOCK_BYTES, TextFiles, token_chunks, whole_text_memory
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import free_memory
from ramlet.runtime.plurals import plural
from ramlet.runtime.threads import check_threads
from ramlet.tokenizer.encode import BLOCK_COPIES, SMALLEST_CACHE
from ramlet.tokenizer.tokenizer import CACHE_BYTES, Tokenizer

Inputs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

STREAM = 2
"""Part of the shuffle key: the orders of a Loader have another number."""
LARGEST_WINDOW = 128 << 20
LEAST_WINDOW = 8 << 20
GROWTH = 8
"""A block of text that cannot be split grows to this many times its size."""


@dataclass(frozen=True, slots=True)
class _Position:
    """After `position` samples of a block."""

    epoch: int = 0
    block: int = 0
    cursor: str | None = None
    skip: int = 0
    position: int = 0
    samples: int = 0
    """From the beginning, through all epochs."""


class StreamLoader(ResumableLoader):
    """Batches straight from text, tokenized on the fly; nothing is stored.

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
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        as_torch: bool = False,
        as_jax: Any = False,
        as_rows: bool = False,
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
        """Lists the files; inputs that are not local files are first copied to `work_dir` (or a temporary folder).

        `shuffle_buffer` is a number of sequences; 1 keeps the order of the text. `documents` and the four settings
        after it are those of `ramlet.Tokenizer.train`. `rank`, `world` and `as_rows` are as in `ramlet.Loader`.
        `memory` bounds the memory of the loader: it limits the tokenizer's cache, and never changes a batch.
        `max_examples` ends every epoch after that many. `streaming` exists for compatibility with loaders that can also
        load everything; it must be True.
        """
        if not streaming:
            raise SettingsError("a StreamLoader always streams: to shuffle ids on disk, use ramlet.Loader")
        super().__init__(
            _Position(),
            batch_size=batch_size,
            rank=rank,
            world=world,
            micro_batch=micro_batch,
            as_rows=as_rows,
            read_ahead=read_ahead,
        )
        whole_number("seq_len", seq_len)
        counts = {"epochs": epochs, "max_examples": max_examples}
        check_counts(seq_len=seq_len, stride=stride, shuffle_buffer=shuffle_buffer, **counts)
        self.stride = seq_len if stride is None else stride
        check_threads(threads)
        self.seq_len = seq_len
        self.seed = checked_seed(seed)
        self.epochs = epochs
        self.as_torch = as_torch
        self._kind = Kind(as_torch, as_jax)
        self._kind.check()
        self.document_mask = document_mask
        self._blocks = Blocks(seq_len, self.stride, shuffle_buffer, max_examples)
        self._threads = threads

        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
        if memory is not None:
            self.tokenizer = Tokenizer.load(self.tokenizer)  # with its own cache, which can be limited
        if document_mask and self.end_id is None:
            raise SettingsError(
                "a document mask needs an end-of-text token, which the tokenizer does not have: give it the special "
                "token <|endoftext|>, or train without a document mask"
            )
        self._scratch = TemporaryDirectory(prefix="ramlet-stream-") if work_dir is None else None
        folder = Path(work_dir or self._scratch.name)  # type: ignore[union-attr]
        reading = ReadSettings(
            documents=documents, doc_separator=doc_separator, text_field=text_field, format=format, on_error=on_error
        )
        inputs = paths_of(source)
        self._name = ", ".join(os.fspath(each) for each in inputs)
        budget = None if memory is None else Budget.parse(memory)
        window = LARGEST_WINDOW if budget is None else min(max(LEAST_WINDOW, budget.total // 4), LARGEST_WINDOW)
        self._files = TextFiles(inputs, reading, folder, window)
        self._cache_bytes = CACHE_BYTES if budget is None else SMALLEST_CACHE
        least = self.memory()
        if budget is not None or least > free_memory():
            limit = budget or Budget(free_memory())
            limit.require(least, "the blocks, the batches and the text that is being encoded")
        if budget is not None:  # the rest of its memory is for the tokenizer's cache
            self._cache_bytes = min(SMALLEST_CACHE + (budget.total - least) * 3 // 4, CACHE_BYTES)
            self.tokenizer.limit_cache(self._cache_bytes)

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""
        return self.tokenizer.vocab_size

    @property
    def end_id(self) -> int | None:
        """The id after every document; None if the tokenizer has none."""
        return self.tokenizer.end_of_text

    @property
    def tokenizer_fingerprint(self) -> str:
        """Of the tokenizer that makes the ids."""
        return self.tokenizer.fingerprint

    def describe(self) -> str:
        """A few lines of text for people."""
        lines = [
            f"text in {self._name}: {plural(self._files.bytes, 'byte')} in {plural(self._files.files, 'file')}, "
            "tokenized on the fly",
            f"sequences: of {self.seq_len:,} tokens, shuffled in blocks of {self._blocks.size:,}",
        ]
        if self._blocks.max_examples is not None:
            lines.append(f"epochs: at most {plural(self._blocks.max_examples, 'sequence')}")
        return "\n".join(lines)

    def memory(self, *, micro_batch: int | None = None) -> int:
        """The most bytes that it keeps in memory, including the batch in use and the tokenizer's cache."""
        width = 2 if self.vocab_size <= 1 << 16 else 4
        rows = micro_batch or self.division.rows
        batches = batches_memory(rows, self.seq_len, self.read_ahead, self.document_mask)
        block = (self._blocks.size * self.stride + self.seq_len + 1) * width
        step = self.division.batch_size * (self.seq_len + 1) * width
        window = self._files.window_bytes if self._files.windowed else 0
        text = BLOCK_COPIES * GROWTH * BLOCK_BYTES + max(window, self._files.decoding)
        whole = whole_text_memory(self._files, self.tokenizer)
        return batches + 3 * block + 2 * step + text + whole + self._cache_bytes

    def __len__(self) -> int:
        """A TypeError: how many sequences there are is known only after all of the text was tokenized."""
        raise TypeError("a stream has no known length: count_examples() reads all of it to count its sequences")

    def _batches(self, first: int, every: int) -> Iterator[Read]:
        end = None if self.epochs is None else (self._pass() + 1) * self.epochs
        samples = _Samples(self._files, self.tokenizer, self._blocks, self.seed, end, self._threads, self._name)
        mask = self.end_id if self.document_mask else None
        return _batches(samples, self._position, self.division, (first, every), self.seq_len, mask, self._kind)

    def _pass(self) -> int:
        return 0 if self.epochs is None else int(self._position.epoch) // self.epochs

    def _begin_pass(self, number: int) -> None:
        if self.epochs is not None:
            self._position = _Position(epoch=number * self.epochs, samples=self._position.samples)

    def _end_pass(self) -> None:
        self._begin_pass(self._pass() + 1)

    def _separate(self) -> None:
        self.tokenizer = Tokenizer.load(self.tokenizer)
        self.tokenizer.limit_cache(self._cache_bytes)

    def _settings_again(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "work_dir": self._files.folder}

    def count_examples(self) -> int:
        """Sequences in an epoch. All of the text is read and tokenized to count them."""
        ids = self._blocks.ids_wanted()
        found = 0
        for chunk in token_chunks(self._files, self.tokenizer, None, self._threads):
            found += len(chunk.ids)
            if ids is not None and found >= ids:
                break
        return self._blocks.count(found)

    @property
    def samples(self) -> int:
        """Sequences yielded so far, in complete global batches and over all ranks."""
        return int(self._position.samples)

    def _position_state(self) -> dict[str, Any]:
        return asdict(self._position)

    def _position_from(self, state: Mapping[str, Any]) -> _Position:
        cursor = state["cursor"]
        if cursor is not None and not isinstance(cursor, str):
            raise ValueError(f"{cursor!r} is no position in a file")
        names = ("epoch", "block", "skip", "position", "samples")
        return _Position(cursor=cursor, **{name: natural(state[name]) for name in names})

    def _changed_data(self) -> SourceChanged:
        return SourceChanged(
            f"{self._name} has changed since the state was saved, or is read with other settings: use the same files "
            "and settings, or start over"
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "seq_len": self.seq_len,
            "stride": self.stride,
            "shuffle_buffer": self._blocks.size,
            "max_examples": self._blocks.max_examples,
            "tokenizer": self.tokenizer_fingerprint,
            "data": self._files.fingerprint,
        }

    def __repr__(self) -> str:
        return f"<ramlet.StreamLoader {self._name}: sequences of {self.seq_len:,}>"


@dataclass(frozen=True)
class _Samples:
    """All samples in their order."""

    files: TextFiles
    tokenizer: Tokenizer
    blocks: Blocks
    seed: int
    end: int | None
    """The epoch before which to stop."""
    threads: int
    name: str

    def after(self, start: _Position) -> Iterator[tuple[Any, _Position]]:
        """The ids of each sample, and the position after it."""
        while self.end is None or start.epoch < self.end:
            if self.files.changed():
                raise SourceChanged(f"{self.name} changed since it was opened: do not change the files, and start over")
            chunks = token_chunks(self.files, self.tokenizer, start.cursor, self.threads)
            any_block = False
            for block in self.blocks.cut(chunks, start.block, start.skip):
                any_block = True
                yield from self._block(block, start)
                start = replace(start, position=0, samples=start.samples + block.count - start.position)
            if not any_block:
                raise SourceError(
                    f"{self.name} has less than one sequence of {self.blocks.seq_len:,} tokens: choose a smaller "
                    f"{option('seq_len')}, or add more text"
                )
            start = _Position(epoch=start.epoch + 1, samples=start.samples)

    def _block(self, block: Block, start: _Position) -> Iterator[tuple[Any, _Position]]:
        order = _native.shuffled(block.count, [self.seed, STREAM, start.epoch, block.number]).tolist()
        for position in range(start.position, block.count):
            after = _Position(
                epoch=start.epoch,
                block=block.number,
                cursor=block.cursor,
                skip=block.skip,
                position=position + 1,
                samples=start.samples + position + 1 - start.position,
            )
            yield self.blocks.row(block, order[position]), after


def _batches(
    source: _Samples,
    position: _Position,
    division: Division,
    turns: tuple[int, int],
    seq_len: int,
    end_id: int | None,
    kind: Kind,
) -> Iterator[Read]:
    """The batches whose turn it is: the first, and how many later the next. With an end id under a document mask."""
    samples = source.after(position)
    turn, every = turns
    number = 0
    while True:
        mine, before, size = [], position, 0
        for sample, (ids, after) in enumerate(islice(samples, division.batch_size)):
            if sample % division.world == division.rank:
                mine.append(ids)
            position, size = after, sample + 1
        if not size:
            return
        for piece in division.step(position.samples - size, size):
            if number == turn:
                rows = mine[piece.number * division.rows :][: piece.count]
                yield Read(make_batch(row_arrays(rows, seq_len, end_id), piece, kind, position), before, piece.number)
                turn += every
            number += 1
