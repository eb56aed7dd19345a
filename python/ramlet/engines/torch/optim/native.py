"""The steps on a CPU: one call of the native core each, with torch's number of threads, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import numpy.typing as npt
import torch

from ramlet import _native
from ramlet.engines.torch.optim.factors import Factors
from ramlet.engines.torch.optim.state import Moments


def step(
    weights: torch.Tensor, gradients: torch.Tensor, moments: Moments, factors: Factors, key: int, first_index: int
) -> None:
    """Updates flat tensors, which start at `first_index` of the parameter."""
    _native.adamw8bit_step(
        _array(weights),
        _array(gradients),
        moments.first.numpy(),
        moments.first_scales.numpy(),
        moments.root.numpy(),
        moments.root_scales.numpy(),
        factors=astuple(factors),
        rounding_key=key,
        first_index=first_index,
        threads=torch.get_num_threads(),
    )


def momentum(gradients: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, decay: float, gain: float) -> None:
    """Moves Muon's momentum, flat codes and scales, towards the gradients, and the gradients towards the momentum."""
    _native.momentum8bit_step(
        _array(gradients), codes.numpy(), scales.numpy(), decay=decay, gain=gain, threads=torch.get_num_threads()
    )


def subtract(weights: torch.Tensor, changes: torch.Tensor, keep: float, key: int) -> None:
    """`keep * weights - changes`, rounded to bf16 by the key and the place in memory; (count, rows, columns) each."""
    for matrix, change in zip(weights, changes):
        _native.subtract_rounded(
            matrix.view(-1).view(torch.uint16).numpy(),
            change.view(-1).numpy(),
            keep=keep,
            rounding_key=key,
            first_index=matrix.storage_offset(),
            threads=torch.get_num_threads(),
        )


def _array(numbers: torch.Tensor) -> npt.NDArray[np.float32] | npt.NDArray[np.uint16]:
    """The tensor's own memory; NumPy has no bfloat16, so those are passed as uint16."""
    narrow = numbers.dtype == torch.bfloat16
    array: npt.NDArray[np.float32] = (numbers.view(torch.uint16) if narrow else numbers).detach().numpy()
    return array


def muon_scratch_bytes(sizes: Sequence[tuple[int, int]], threads: int) -> int:
    """The scratch memory of `muon_update`, by the rows and columns of all matrices."""
    return _native.muon_scratch_bytes(sizes, threads)


def muon_update(
    batches: Sequence[tuple[torch.Tensor, ...]],
    coefficients: Sequence[tuple[float, float, float]],
    factors: tuple[float, float, float, float],
) -> None:
    """Of weights, directions and row squares, (count, rows, columns) each; overwrites the directions.

    All matrices in one call, which distributes them among the threads. The views are of fp32, each matrix contiguous.
    """
    matrices = [
        (*(matrix.data_ptr() for matrix in views), *views[0].shape) for batch in batches for views in zip(*batch)
    ]
    threads = torch.get_num_threads()
    needed = muon_scratch_bytes([matrix[3:] for matrix in matrices], threads)
    scratch = torch.empty(needed, dtype=torch.uint8)  # torch aligns to 64 bytes
    _native.muon_update(
        matrices,
        coefficients=coefficients,
        factors=factors,
        scratch=scratch.data_ptr(),
        scratch_bytes=needed,
        threads=threads,
    )
