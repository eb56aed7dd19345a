"""The batches of any loader: tensors in dicts, tuples and lists, sliced along their first dimension.

    rows(batch)                   32
    part = sliced(batch, 0, 8)    the first 8 samples: views, not copies
    placed(part, "cuda:0")

A sample is an index of the first dimension. Numbers, None and strings are the same for all samples, and so are tensors
without a dimension and those whose first dimension is 1; a list with as many items as there are samples is sliced too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ramlet.errors import SettingsError

IGNORED = -100
"""The label that losses ignore, PyTorch's default."""
HOW = "a batch is a tensor, or a dict or tuple of tensors whose first dimension is the sample"


def as_tensors(batch: Any) -> Any:
    """The same batch with tensors instead of NumPy arrays, and lists instead of arrays of text or objects."""
    return _mapped(batch, lambda leaf: _as_tensor(leaf) if _is_array(leaf) else leaf)


def _as_tensor(given: Any) -> Any:
    import numpy as np

    array = np.asarray(given)
    if array.dtype.kind not in "biufc":
        return array.tolist()
    if not array.dtype.isnative or min(array.strides, default=0) < 0:  # such as array[::-1]
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(array)


def rows(batch: Any) -> int:
    """Samples of a batch; refuses one that cannot be divided."""
    sizes = [len(tensor) for tensor in tensors(batch) if tensor.dim()]
    if not sizes:
        raise SettingsError(f"a batch of the loader is a {type(batch).__name__} without tensors: {HOW}")
    count = max(sizes)
    if not count:
        raise SettingsError("a batch of the loader is empty: leave out batches without samples")
    for size in sizes:
        if size not in (1, count):
            raise SettingsError(
                f"a batch of the loader cannot be divided into micro-batches, because its tensors have {count:,} and "
                f"{size:,} samples: {HOW}"
            )
    return count


def sliced(batch: Any, start: int, stop: int) -> Any:
    """The samples from `start` to `stop`."""
    count = rows(batch)
    if (start, stop) == (0, count):
        return batch

    def part(leaf: Any) -> Any:
        per_sample = leaf.dim() > 0 if isinstance(leaf, Tensor) else isinstance(leaf, (list, tuple))
        return leaf[start:stop] if per_sample and len(leaf) == count else leaf

    return _mapped(batch, part)


def placed(batch: Any, device: torch.device) -> Any:
    """The batch on a device."""
    return _mapped(batch, lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf)


def row_size(batch: Any) -> float:
    """Elements per sample: samples of another length need another amount of memory."""
    return sum(tensor.numel() for tensor in tensors(batch)) / rows(batch)


def tensors(batch: Any) -> Iterator[Tensor]:
    found: list[Tensor] = []
    _mapped(batch, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    yield from found


def targets_of(batch: Any) -> Tensor | None:
    """What the module should predict, as far as a batch says: `labels` or `targets`, or the second of a pair."""
    found: Any = None
    if isinstance(batch, Mapping):
        found = batch["labels"] if "labels" in batch else batch.get("targets")
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        found = batch[1]
    return found if isinstance(found, Tensor) and found.dim() else None


def _mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Mapping):
        return {name: _mapped(value, change) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)) and any(_holds_tensors(each) for each in batch):
        parts = [_mapped(each, change) for each in batch]
        if isinstance(batch, list):
            return parts
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return change(batch)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, (Tensor, Mapping, tuple, list)) or _is_array(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, Tensor)
