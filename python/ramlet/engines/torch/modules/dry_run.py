"""The need of a step that does not fit a GPU, without its memory: on tensors that have sizes and no contents.

    dry_run = DryRun(module, loss, batch, device)
    dry_run.reserved(weights + states + dry_run.passes(recompute=False, kept=kept))

The allocator of a GPU refuses a pass that does not fit, and so nobody sees its peak. This tells it, rather too large
than too small, for the budget that an error names. Libraries hide some of what they take; that was measured on an H200.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module  # functional_call is for a module, and a loss has one inside
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ramlet.engines.torch.modules.losses import Loss
from ramlet.engines.torch.modules.optimizers import trainable

TRANSIENT = 2.5
"""What a backward pass needs besides what was kept for it, as a fraction of that, if sizes alone do not tell."""
SEGMENTS = 3 * 20 << 20
"""The allocator takes memory for tensors of 1 to 10 MB in segments of 20 MB."""
GAPS = 1.1
"""How many times as much it reserves as tensors need."""
RECURRENT = 64_000_000
"""cuDNN's workspace, besides recurrent weights in an order of its own."""
ROUNDING = 512
"""Of torch's allocator on a GPU."""


class DryRun:
    """Of the smallest micro-batch of a module on a GPU."""

    def __init__(self, module: nn.Module, loss: Loss, batch: Any, device: torch.device) -> None:
        self._module, self._loss, self._batch = module, loss, batch
        self._workspaces = workspaces(module, device)
        self._seen: dict[bool, int | None] = {}

    def passes(self, recompute: bool, kept: int) -> int:
        """Of a forward and a backward pass, with the gradients; with activation checkpointing as it is enabled now."""
        if recompute not in self._seen:
            self._seen[recompute] = pass_bytes(self._module, self._loss, self._batch)
        seen = self._seen[recompute]
        if seen is not None:
            return seen
        sizes = [each.nbytes for _, each in trainable(self._module)]
        return sum(sizes) + 2 * max(sizes) + int((1 + TRANSIENT) * kept)

    def reserved(self, tensors: int) -> int:
        """What the allocator reserves for so many bytes of tensors, and libraries."""
        return int(GAPS * (tensors + SEGMENTS + self._workspaces))


def workspaces(module: nn.Module, device: torch.device) -> int:
    """What libraries take besides tensors: cuBLAS for each of two threads, cuDNN for recurrent layers."""
    hopper = torch.cuda.get_device_capability(device) >= (9, 0)
    products = 2 * (34_000_000 if hopper else 9_000_000)
    recurrent = [each for each in module.modules() if isinstance(each, nn.RNNBase)]
    copied = sum(parameter.nbytes for each in recurrent for parameter in each.parameters())
    return products + 2 * copied + (RECURRENT if recurrent else 0)


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors that were made inside the block and are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._count, result)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self._counted:
            return
        self._counted.add(place)
        size = -(-storage.nbytes() // ROUNDING) * ROUNDING
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, place, size)

    def _freed(self, place: int, size: int) -> None:
        self._counted.discard(place)
        self.now -= size


def pass_bytes(module: nn.Module, loss: Loss, batch: Any) -> int | None:
    """The peak of two micro-batches in a row, with their gradients; None if the module reads its numbers."""
    # Autograd counts GPUs at its first backward pass. With one that is not there it would start a thread for it, and
    # processes that are forked later could not train.
    torch.ones(1, requires_grad=True).sum().backward()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    living = Living()
    own = [*module.named_parameters(), *module.named_buffers()]
    try:
        with mode:
            tensors = {name: mode.from_tensor(each).detach().requires_grad_(each.requires_grad) for name, each in own}
            given = tree_map_only(Tensor, mode.from_tensor, batch)
            with _reparametrize_module(module, tensors, tie_weights=True), living:
                for _ in range(2):
                    loss.differentiable(given).reshape(()).backward()
    except Exception:  # noqa: BLE001 - any module may do what sizes alone cannot
        return None
    return living.peak
