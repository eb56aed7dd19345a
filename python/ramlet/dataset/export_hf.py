"""A folder that HF's `datasets.load_from_disk` opens: a DatasetDict of Arrow streams.

    OUT/dataset_dict.json                          the splits
    OUT/train/data-00000-of-00002.arrow            an Arrow IPC stream: input_ids, list of uint16 or uint32
    OUT/train/dataset_info.json  state.json        the features; the files

A row is a document, its end id included, or a sequence of a packed dataset. `datasets` itself is not needed to
write it, and what is held is one record batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ramlet.dataset.reader import Ids
from ramlet.errors import SettingsError, option

if TYPE_CHECKING:
    from ramlet.dataset.export import Export

__all__ = ["write_hf"]

FILE_BYTES = 500_000_000
"""Ids in an Arrow file, in bytes: what `datasets` takes too."""

Rows = tuple[Ids, npt.NDArray[np.int32]]


def write_hf(job: Export) -> None:
    try:
        import pyarrow as pa
    except ImportError:
        raise SettingsError(f"{option('to', 'hf')} needs pyarrow: pip install 'ramlet[hf]'") from None
    ids = pa.uint16() if job.dataset.manifest.dtype == "uint16" else pa.uint32()
    schema = pa.schema([("input_ids", pa.list_(ids))])
    for split in job.splits:
        (job.folder / split).mkdir()
        writer: Any = None
        parts: list[str] = []
        size = 0
        for values, offsets in _rows(job, split):
            if writer is not None and size + values.nbytes > FILE_BYTES:
                _close(writer)
                writer = None
            if writer is None:
                # The name tells how many parts there are, which is known at the end.
                parts.append(f"part-{len(parts)}")
                writer = _Writer(pa, os.fspath(job.folder / split / parts[-1]), schema)
                size = 0
            # From buffers: `pa.array` would import pandas, which takes 40 MB.
            inner = pa.Array.from_buffers(ids, len(values), [None, pa.py_buffer(values)])
            buffers = [None, pa.py_buffer(offsets)]
            rows = pa.Array.from_buffers(pa.list_(ids), len(offsets) - 1, buffers, children=[inner])
            writer.stream.write_batch(pa.RecordBatch.from_arrays([rows], schema=schema))
            size += values.nbytes
        if writer is not None:
            _close(writer)
        _describe(job, split, _numbered(job, split, parts), str(ids))
    _dump(job, "dataset_dict.json", {"splits": list(job.splits)})


class _Writer:
    def __init__(self, pa: Any, path: str, schema: Any) -> None:
        self.file = open(path, "wb")  # noqa: SIM115 - closed by `_close`, when the next part begins
        self.stream = pa.ipc.new_stream(self.file, schema)


def _close(writer: _Writer) -> None:
    writer.stream.close()
    writer.file.flush()
    os.fsync(writer.file.fileno())
    writer.file.close()


def _rows(job: Export, split: str) -> Iterator[Rows]:
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


def _numbered(job: Export, split: str, parts: list[str]) -> list[str]:
    names = [f"data-{number:05}-of-{len(parts):05}.arrow" for number in range(len(parts))]
    for part, name in zip(parts, names):
        (job.folder / split / part).rename(job.folder / split / name)
        job.files.append(f"{split}/{name}")
    return names


def _describe(job: Export, split: str, names: list[str], dtype: str) -> None:
    # Written as a Sequence, which every version of `datasets` reads; newer ones call it List.
    feature = {"feature": {"dtype": dtype, "_type": "Value"}, "length": -1, "_type": "Sequence"}
    _dump(
        job,
        f"{split}/dataset_info.json",
        {"citation": "", "description": "", "features": {"input_ids": feature}, "homepage": "", "license": ""},
    )
    first = job.dataset.shards(split)[0]
    _dump(
        job,
        f"{split}/state.json",
        {
            "_data_files": [{"filename": name} for name in names],
            # Names the result in HF's caches: other ids, another name.
            "_fingerprint": f"{first.xxh64}{job.dataset.splits[split].tokens:x}",
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        },
    )


def _dump(job: Export, name: str, value: dict[str, Any]) -> None:
    with job.open(name) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
