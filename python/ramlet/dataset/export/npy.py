"""train.npy, val.npy: an array of ids; of a packed dataset, one row per sequence."""

from __future__ import annotations

import numpy as np

from ramlet.dataset.export.run import Export


def write(job: Export) -> None:
    length = job.dataset.sequence_length
    for split in job.splits:
        tokens = job.dataset.splits[split].tokens
        shape = (tokens // length, length) if length else (tokens,)
        with job.open(f"{split}.npy") as file:
            header = {"descr": job.dataset.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            job.copy_ids(split, file)
