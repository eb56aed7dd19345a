"""Batches as tensors: what `Loader(..., as_torch=True)` hands out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["tensors"]


def tensors(*arrays: Any) -> tuple[Tensor | None, ...]:
    """The same memory, each as a tensor; None stays None."""
    return tuple(None if array is None else torch.from_numpy(array) for array in arrays)
