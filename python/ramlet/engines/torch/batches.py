"""Batches as tensors, for `Loader(..., as_torch=True)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tensors(*arrays: Any) -> tuple[Tensor | None, ...]:
    """Arrays as tensors that share their memory; None stays None."""
    return tuple(None if array is None else torch.from_numpy(array) for array in arrays)
