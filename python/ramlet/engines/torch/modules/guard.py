"""Measuring a module's memory on a CPU without ever using more than the budget.

Nothing is known of a module before it has run, and a forward pass that is too large cannot be undone. So the first run
of every size is watched: `Guard` sees each operation before it allocates its result, and stops the pass with `TooLarge`
if that would not fit. What a pass keeps for the backward pass is counted by `kept_bytes`, which keeps none of it: the
smallest need is known even where the real pass would not fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ramlet.engines.gauge import ResidentGauge
from ramlet.runtime.memory import resident_memory

_PAGE = os.sysconf("SC_PAGE_SIZE")


class TooLarge(Exception):
    """A pass that would not fit was stopped."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"{needed} bytes")
        self.needed = needed


def own_memory() -> int:
    """Resident bytes of this process; quick enough to be asked before every operation."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return resident_memory()


class TreeGauge(ResidentGauge):
    """With the workers of a DataLoader, which live as long as the run."""

    def peak(self) -> int:
        return super().peak() + max(0, resident_memory() - own_memory())


class Guard(TorchDispatchMode):
    """Inside the block, no operation makes this process larger than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most - max(0, resident_memory() - own_memory())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Wrapping it for the compiler would import that, 150 MB; nothing is compiled inside the block."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        needed = own_memory() + _result_bytes(func, args)
        if needed > self._most:
            raise TooLarge(needed)
        return func(*args, **(kwargs or {}))


def _result_bytes(func: Any, args: Any) -> int:
    """About the size of an operation's result: of a product exactly, else that of the largest argument."""
    sizes = [each for each in args if isinstance(each, Tensor) and each.dim()]
    if func.is_view or not sizes:
        return 0
    name = func.overloadpacket.__name__
    if name in ("mm", "bmm", "addmm", "baddbmm") and len(sizes) > 1:
        left, right = sizes[-2], sizes[-1]
        return math.prod(left.shape[:-1]) * int(right.shape[-1]) * left.element_size()
    if name == "embedding":
        return sizes[1].numel() * int(sizes[0].shape[-1]) * sizes[0].element_size()
    if name.endswith("_"):
        return 0
    return max(each.numel() * each.element_size() for each in sizes)


def kept_bytes(module: nn.Module, loss: Callable[[Any], Any], batch: Any) -> tuple[int, bool]:
    """What a forward pass keeps for the backward pass, without keeping it, and without what exists anyway.

    Also whether the pass fitted. If it did not, the bytes are an estimate: what was kept until then, times the share of
    innermost modules that were still to come.
    """
    total = done = 0
    owned = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    inner = [each for each in module.modules() if not any(True for _ in each.children())]
    seen: dict[int, StorageWeakRef] = {}

    def count(tensor: Tensor) -> None:
        nonlocal total
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in owned or (place in seen and not seen[place].expired()):
            return
        seen[place] = StorageWeakRef(storage)
        total += storage.nbytes()

    def refuse(_: None) -> Tensor:
        raise RuntimeError("this pass has nothing to go back through")

    def called(*_: Any) -> None:
        nonlocal done
        done += 1

    hooks = [each.register_forward_hook(called) for each in inner]
    try:
        with torch.autograd.graph.saved_tensors_hooks(count, refuse):
            loss(batch)
    except (TooLarge, torch.OutOfMemoryError):
        return total * max(len(inner), done) // max(1, done), False
    finally:
        for hook in hooks:
            hook.remove()
    return total, True
