"""Reads batches with one loader; loader.py runs it as a separate process.

    python benchmarks/loader_worker.py ramlet FOLDER --seq-len 1024 --batch-size 32 --batches 5000

`ramlet`        Loader without a background thread (read_ahead=0), so that it uses one thread like the others
`ramlet-ahead`  the same with its background thread, which is the default
`nanogpt`       what nanoGPT's train.py does on a CPU: a new np.memmap for each batch, rows at random positions, each
                converted to int64, torch.stack of inputs and of labels
`hf`            torch's DataLoader, shuffled, over a datasets.Dataset of rows of seq_len + 1 ids in torch's format,
                saved and loaded from disk first (not timed)

`--batches 0` is one epoch; nanoGPT has no epochs and reads as many batches as there are in one. Prints one JSON line:
seconds until the first batch, including creating the loader; seconds and tokens of the batches after the first; the
resident memory at the first batch, and the maximum after it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any


def resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def from_ramlet(options: argparse.Namespace, read_ahead: int) -> Iterator[Any]:
    from ramlet.loading.loader import Loader

    loader = Loader(
        options.folder,
        seq_len=options.seq_len,
        batch_size=options.batch_size,
        epochs=None if options.batches else 1,
        as_torch=not options.arrays,
        read_ahead=read_ahead,
    )
    for batch in loader:
        yield batch.input_ids, batch.targets


def from_nanogpt(options: argparse.Namespace) -> Iterator[Any]:
    import numpy as np
    import torch

    path, length = options.folder / "train.bin", options.seq_len
    while True:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        places = torch.randint(len(data) - length, (options.batch_size,))
        inputs = torch.stack([torch.from_numpy(data[at : at + length].astype(np.int64)) for at in places])
        labels = torch.stack([torch.from_numpy(data[at + 1 : at + 1 + length].astype(np.int64)) for at in places])
        yield inputs, labels


def from_hf(options: argparse.Namespace) -> Iterator[Any]:
    import datasets
    import numpy as np
    from torch.utils.data import DataLoader

    saved = options.folder / f"hf-{options.seq_len}"
    if not saved.exists():
        width = options.seq_len + 1
        ids = np.fromfile(options.folder / "train.bin", np.uint16, count=50_000_000 // width * width)
        datasets.Dataset.from_dict({"ids": ids.reshape(-1, width)}).save_to_disk(saved)
    dataset = datasets.load_from_disk(saved).with_format("torch")
    while True:
        for batch in DataLoader(dataset, batch_size=options.batch_size, shuffle=True):
            yield batch["ids"][:, :-1], batch["ids"][:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["ramlet", "ramlet-ahead", "nanogpt", "hf"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=5000)
    parser.add_argument("--arrays", action="store_true", help="NumPy arrays, without loading torch")
    parser.add_argument("--prepare", action="store_true", help="only create the files that the library needs")
    options = parser.parse_args()
    if not options.arrays:
        import torch

        torch.set_num_threads(1)
    if options.library.startswith("ramlet"):
        batches = from_ramlet(options, 2 if options.library == "ramlet-ahead" else 0)
    else:
        batches = from_hf(options) if options.library == "hf" else from_nanogpt(options)
    if options.prepare:
        next(batches)
        return
    limit = options.batches
    if not limit and options.library == "nanogpt":
        size = (options.folder / "train.bin").stat().st_size // 2
        limit = size // (options.seq_len * options.batch_size)
    start = time.perf_counter()
    first = next(batches)
    started = time.perf_counter() - start
    at_first = most = resident()
    tokens = 0
    start = time.perf_counter()
    for number, (inputs, labels) in enumerate(islice(batches, limit - 1 if limit else None)):
        assert inputs.shape == labels.shape == first[0].shape or not limit
        tokens += inputs.shape[0] * inputs.shape[1]
        if number % 256 == 0:
            most = max(most, resident())
    seconds = time.perf_counter() - start
    package = {"nanogpt": "torch", "hf": "datasets"}.get(options.library)
    print(
        json.dumps(
            {
                "start_seconds": started,
                "seconds": seconds,
                "tokens": tokens,
                "resident_at_first": at_first,
                "resident_most": max(most, resident()),
                "version": version(package) if package else "",
            }
        )
    )


if __name__ == "__main__":
    main()
