"""A folder that HF's `datasets.load_from_disk` opens: a DatasetDict of Arrow streams.

    OUT/dataset_dict.json                          the splits
    OUT/train/data-00000-of-00002.arrow            an Arrow IPC stream: input_ids, list of uint16 or uint32
    OUT/train/dataset_info.json  state.json        the features; the files

A row is a document, including its end id, or a sequence of a packed dataset. `datasets` itself is not needed to write
it, and only one record batch is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramlet.dataset.export.run import Export
from ramlet.dataset.reader import Dataset, Ids
from ramlet.errors import SettingsError, option

try:
    import pyarrow as pa
except ImportError:
    pa = None

COPIES = 3
FILE_BYTES = 500_000_000
"""Bytes of ids in an Arrow file, as in `datasets` itself."""


def row_bytes(dataset: Dataset) -> int:
    """Memory that the largest row takes: rows are written whole, and the next one is there when a file is closed."""
    if dataset.sequence_length:
        return 0
    return COPIES * dataset.manifest.id_bytes * max(dataset.longest(split) for split in dataset.splits)


def write(job: Export) -> None:
    if pa is None:
        raise SettingsError(f"{option('to', 'hf')} needs pyarrow: pip install 'ramlet[hf]'")
    ids = pa.uint16() if job.dataset.manifest.dtype == "uint16" else pa.uint32()
    for split in job.splits:
        (job.folder / split).mkdir()
        _describe(job, split, _write_rows(job, split, ids), str(ids))
    _dump(job, "dataset_dict.json", {"splits": list(job.splits)})


def _write_rows(job: Export, split: str, ids: Any) -> list[str]:
    """The names of the files."""
    schema = pa.schema([("input_ids", pa.list_(ids))])
    folder = job.folder / split
    parts: list[Path] = []
    rows = _rows(job, split)
    waiting = next(rows, None)
    while waiting is not None:
        parts.append(folder / f"part-{len(parts)}")
        size = 0
        with open(parts[-1], "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            while waiting is not None and (not size or size + waiting[0].nbytes <= FILE_BYTES):
                values, offsets = waiting
                # From buffers: `pa.array` would import pandas, which takes 40 MB.
                inner = pa.Array.from_buffers(ids, len(values), [None, pa.py_buffer(values)])
                buffers = [None, pa.py_buffer(offsets)]
                column = pa.Array.from_buffers(pa.list_(ids), len(offsets) - 1, buffers, children=[inner])
                stream.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
                size += values.nbytes
                waiting = next(rows, None)
    # The names contain the number of parts, which is known only now.
    names = [f"data-{number:05}-of-{len(parts):05}.arrow" for number in range(len(parts))]
    for part, name in zip(parts, names):
        part.rename(folder / name)
        job.files.append(f"{split}/{name}")
    return names


def _rows(job: Export, split: str) -> Iterator[tuple[Ids, npt.NDArray[np.int32]]]:
    """Ids, and where each row begins in them and the last one ends."""
    length = job.dataset.sequence_length
    if length:
        # Sequences do not cross shards, so neither do blocks of whole ones.
        for block in job.counted(job.dataset.blocks(split, max(1, (1 << 19) // length) * length)):
            yield block, np.arange(0, len(block) + 1, length, dtype=np.int32)
        return
    for ids, _, ends in job.dataset.document_blocks(split):
        for block in job.counted(iter([ids])):
            yield block, np.concatenate([[0], ends.astype(np.int32)]).astype(np.int32)


def _describe(job: Export, split: str, names: list[str], dtype: str) -> None:
    # Written as a Sequence, which every version of `datasets` reads; newer ones call it List.
    feature = {"feature": {"dtype": dtype, "_type": "Value"}, "length": -1, "_type": "Sequence"}
    info = {"citation": "", "description": "", "features": {"input_ids": feature}, "homepage": "", "license": ""}
    _dump(job, f"{split}/dataset_info.json", info)
    first = job.dataset.shards(split)[0]
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        # Identifies the result in HF's caches.
        "_fingerprint": f"{first.xxh64}{job.dataset.splits[split].tokens:x}",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    _dump(job, f"{split}/state.json", state)


def _dump(job: Export, name: str, value: dict[str, Any]) -> None:
    with job.open(name) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())
