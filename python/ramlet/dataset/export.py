"""A dataset in the layouts of other trainers.

    nanogpt    train.bin, val.bin: ids without a header, uint16 (uint32 where the vocabulary needs it); meta.pkl with
               the vocabulary, unless it is GPT-2's (see `nanogpt_meta`)
    llm.c      NAME_train_000000.bin ...: 256 int32 (20240520, 1, ids in the file, zeros), then uint16 ids; the
               end id stands before each document; 100 million ids a file, whatever documents they cut
    megatron   train.bin, train.idx: what Megatron-LM calls an indexed dataset, one sequence a document
    npy        train.npy, val.npy: an array; of a packed dataset a row a sequence
    hf         a folder that `datasets.load_from_disk` opens, column input_ids (see `export_hf`)

Megatron's .idx, all little-endian: `MMIDIDX` and two zero bytes; u64 1; u8 dtype (8 is uint16, 4 int32); u64
sequences; u64 documents + 1; then int32 ids in each sequence, int64 byte in the .bin at which each begins, and
int64 the first sequence of each document and their number.

Of a packed dataset the rows are its sequences, with their padding. Everything is copied in bounded blocks into a
folder that is there whole or not at all.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ramlet.dataset.manifest import SPLITS
from ramlet.dataset.nanogpt_meta import needs_meta, write_meta
from ramlet.dataset.new_folder import is_export, new_folder, note_export
from ramlet.dataset.reader import BLOCK_ENDS, Dataset, Ids
from ramlet.dataset.unchanged import identity, refuse_changed
from ramlet.dataset.verify import Progress
from ramlet.errors import DatasetError, SettingsError, option

__all__ = ["FORMATS", "Export", "export"]

LLM_C_MAGIC, LLM_C_VERSION, LLM_C_HEADER = 20240520, 1, 256
LLM_C_TOKENS = 100_000_000
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {"uint16": ("<u2", 8), "uint32": ("<i4", 4)}


@dataclass
class Export:
    """What is being exported and, afterwards, what came of it."""

    dataset: Dataset
    folder: Path
    splits: tuple[str, ...]
    name: str
    progress: Progress | None = None
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tokens: int = 0
    already_done: bool = False
    """Nothing was written: the folder held this very result."""

    @property
    def total(self) -> int:
        return sum(self.dataset.splits[split].tokens for split in self.splits)

    def counted(self, blocks: Iterator[Ids]) -> Iterator[Ids]:
        """The blocks, with progress told as they go by."""
        width = self.dataset.manifest.id_bytes
        for block in blocks:
            yield block
            self.tokens += len(block)
            if self.progress is not None:
                self.progress(self.tokens * width, self.total * width)

    def open(self, name: str) -> IO[bytes]:
        self.files.append(name)
        return open(self.folder / name, "wb")


def export(
    path: str | os.PathLike[str],
    to: str,
    out: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Export:
    """Writes a dataset into the new folder `out` in the layout `to`, one of `FORMATS`; where that is done, nothing.

    `splits` are those that hold ids unless some are named; `name` begins the names of llm.c's files.
    """
    write = FORMATS.get(to)
    if write is None:
        raise SettingsError(f"there is no layout {to!r}: choose {', '.join(FORMATS)}")
    dataset = Dataset(path)
    chosen = _chosen(dataset, splits)
    named = (name or Path(out).resolve().name) if to == "llm.c" else ""
    origin = {"dataset": identity(dataset.manifest), "to": to, "splits": list(chosen), "name": named}
    with new_folder(out, "data export", lambda: is_export(out, origin)) as folder:
        if folder is None:
            return Export(dataset, Path(out), chosen, named, already_done=True)
        job = Export(dataset, folder, chosen, named, progress)
        try:
            write(job)
        except (DatasetError, OSError):
            refuse_changed(dataset.path, dataset.manifest)
            raise
        refuse_changed(dataset.path, dataset.manifest)
        note_export(folder, origin)
    return job


def _chosen(dataset: Dataset, splits: Sequence[str] | None) -> tuple[str, ...]:
    for split in splits or ():
        if not dataset.shards(split):
            raise DatasetError(f"{dataset.path} has nothing in {split}")
    chosen = tuple(split for split in SPLITS if dataset.shards(split) and (not splits or split in splits))
    if not chosen:
        raise DatasetError(f"{dataset.path} is empty: there is nothing to export")
    return chosen


def _write_nanogpt(job: Export) -> None:
    for split in job.splits:
        with job.open(f"{split}.bin") as file:
            for block in job.counted(job.dataset.blocks(split)):
                file.write(block.data)
            _sync(file)
    if needs_meta(job.dataset.manifest):
        with job.open("meta.pkl") as file:
            write_meta(job.dataset.tokenizer, file)
            _sync(file)
    if job.dataset.manifest.dtype == "uint32":
        job.notes.append("the ids are uint32, for uint16 cannot hold the vocabulary: nanoGPT's np.uint16 must follow")


def _write_npy(job: Export) -> None:
    length = job.dataset.sequence_length
    for split in job.splits:
        tokens = job.dataset.splits[split].tokens
        shape = (tokens // length, length) if length else (tokens,)
        with job.open(f"{split}.npy") as file:
            header = {"descr": job.dataset.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in job.counted(job.dataset.blocks(split)):
                file.write(block.data)
            _sync(file)


def _write_llm_c(job: Export) -> None:
    dataset = job.dataset
    if dataset.manifest.dtype != "uint16":
        raise DatasetError(
            f"llm.c reads uint16 ids, and the {dataset.vocab_size:,} tokens of {dataset.path} need uint32"
        )
    if dataset.end_id is None:
        raise DatasetError(f"llm.c tells documents apart by an end id, and {dataset.path} has none")
    if dataset.manifest.packed is not None:
        raise DatasetError(
            f"{dataset.path} is packed, and llm.c packs by itself: export a dataset prepared without {option('pack')}"
        )
    for split in job.splits:
        documents = _end_id_first(dataset, split, dataset.end_id)
        for number, blocks in enumerate(_portions(job.counted(documents), LLM_C_TOKENS)):
            with job.open(f"{job.name}_{split}_{number:06}.bin") as file:
                file.write(bytes(4 * LLM_C_HEADER))
                count = 0
                for block in blocks:
                    file.write(np.ascontiguousarray(block).data)
                    count += len(block)
                file.seek(0)
                file.write(struct.pack("<3i", LLM_C_MAGIC, LLM_C_VERSION, count))
                _sync(file)


def _end_id_first(dataset: Dataset, split: str, end_id: int) -> Iterator[Ids]:
    """The documents with the end id before them instead of behind."""
    for ids, starts, ends in dataset.document_blocks(split):
        starts, ends = starts.astype(np.int64), ends.astype(np.int64)
        # Not every document has one: the last of a shard that was moved in by hand may lack it.
        ended = ids[ends - 1] == end_id
        body = np.ones(len(ids), bool)
        body[ends[ended] - 1] = False
        sizes = ends - starts - ended + 1
        result = np.empty(int(sizes.sum()), ids.dtype)
        marks = np.cumsum(sizes) - sizes
        rest = np.ones(len(result), bool)
        rest[marks] = False
        result[marks] = end_id
        result[rest] = ids[body]
        yield result


def _portions(blocks: Iterator[Ids], size: int) -> Iterator[Iterator[Ids]]:
    """The stream of blocks cut into streams of `size` ids, the last of what is left."""
    waiting: list[Ids] = []

    def next_block() -> Ids | None:
        return waiting.pop() if waiting else next(blocks, None)

    def portion() -> Iterator[Ids]:
        room = size
        while room and (block := next_block()) is not None:
            if len(block) > room:
                waiting.append(block[room:])
            yield block[:room]
            room -= min(room, len(block))

    while (block := next_block()) is not None:
        waiting.append(block)
        yield portion()


def _write_megatron(job: Export) -> None:
    form, code = MEGATRON_DTYPES[job.dataset.manifest.dtype]
    for split in job.splits:
        with job.open(f"{split}.bin") as file:
            for block in job.counted(job.dataset.blocks(split)):
                file.write(block.astype(form, copy=False).data)
            _sync(file)
        count = sum(len(sizes) for sizes in _sizes(job.dataset, split))
        width = np.dtype(form).itemsize
        with job.open(f"{split}.idx") as file:
            file.write(MEGATRON_MAGIC + struct.pack("<QBQQ", 1, code, count, count + 1))
            for sizes in _sizes(job.dataset, split):
                file.write(sizes.astype("<i4").data)
            place = 0
            for sizes in _sizes(job.dataset, split):
                behind = np.cumsum(sizes * width) + place
                file.write((behind - sizes * width).astype("<i8").data)
                place = int(behind[-1])
            for start in range(0, count + 1, BLOCK_ENDS):
                file.write(np.arange(start, min(start + BLOCK_ENDS, count + 1), dtype="<i8").data)
            _sync(file)


def _sizes(dataset: Dataset, split: str) -> Iterator[npt.NDArray[np.int64]]:
    """Ids in each document, or in each sequence of a packed dataset."""
    for shard in dataset.shards(split):
        if dataset.sequence_length:
            left = shard.tokens // dataset.sequence_length
            while left:
                yield np.full(min(left, BLOCK_ENDS), dataset.sequence_length, np.int64)
                left -= min(left, BLOCK_ENDS)
            continue
        before = 0
        for ends in dataset.end_blocks(shard):
            places = ends.astype(np.int64)
            yield places - np.concatenate([np.asarray([before], np.int64), places[:-1]])
            before = int(ends[-1])


def _write_hf(job: Export) -> None:
    from ramlet.dataset.export_hf import write_hf

    write_hf(job)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


FORMATS: dict[str, Callable[[Export], Any]] = {
    "nanogpt": _write_nanogpt,
    "llm.c": _write_llm_c,
    "megatron": _write_megatron,
    "npy": _write_npy,
    "hf": _write_hf,
}
