"""The optimizers. A new one is one file here, plus its name in `OPTIMIZERS` of ramlet.engines. The file has:

    WEIGHTS = ("fp32",)              the precisions of stored weights that it can update
    state_bytes(held, item)          the memory of its states; `item` is the size of a stored weight in bytes, `held`
                                     counts the elements that this rank has (division.py)
    scratch_bytes(shape, choice, device, threads)   the scratch memory of a step, if it grows with the model
    CAPTURABLE = True                if a CUDA graph can capture its step: `lr` is a tensor then
    WHOLE_MATRICES = True            if the matrices inside layers, a group `hidden`, cannot be divided within one
    make(weights, settings)          a torch optimizer for the flat tensors of `weights`, one in each named group

Its `step(grad_scale=...)` multiplies the gradients by a factor. If it has a property `is_complete` that is True, the
factor may be a tensor, and a step also clears the gradients and refreshes the weights for matrix products. If it has a
method `divide(ranks)`, it is called before the first step: then the ranks may divide the work of a step. A checkpoint
stores the tensors of its `state` under the names that they have there, after the name of the group:
`matrices.exp_avg`, `gains.exp_avg`. In a sharded run a group has the part of the matrices that this rank owns; a
state has an element for each of its elements or for each block of 256, or is named in `ON_ALL_RANKS`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ramlet.engines import Hyperparameters
    from ramlet.engines.torch.weights import Weights

__all__ = ["ON_ALL_RANKS", "group", "needs_whole_matrices", "optimizer_module", "param_groups", "scalar"]

ON_ALL_RANKS = ("step", "row_squares")
"""States of which every rank has all."""


def optimizer_module(name: str) -> ModuleType:
    """On demand: predictions are importable without torch."""
    return import_module(f"ramlet.engines.torch.optim.{name}")


def needs_whole_matrices(name: str) -> bool:
    return getattr(optimizer_module(name), "WHOLE_MATRICES", False)


def param_groups(weights: Weights, settings: Hyperparameters) -> list[dict[str, Any]]:
    """Weight decay applies to the matrices, not to the gains of the norms."""
    return [group("matrices", weights, settings.weight_decay), group("gains", weights, 0.0)]


def group(name: str, weights: Weights, weight_decay: float) -> dict[str, Any]:
    """`products` are the weights for matrix products, which may be the same tensor; `first` is where the tensor starts
    in the whole one of the group, which has `whole` elements."""
    if name == "gains":
        flat, products, first, whole = weights.gains, weights.gains, 0, weights.gains.numel()
    else:
        part = weights.parts[name]
        flat, products = part.weights, part.products
        first, whole = part.range.start - part.whole.start, part.whole.size
    named: dict[str, Any] = {"name": name, "params": [flat], "products": products, "weight_decay": weight_decay}
    return {**named, "first": first, "whole": whole}


def scalar(value: float | Tensor, device: torch.device) -> Tensor:
    """As a tensor of one element on the device."""
    from torch import Tensor, full

    return value if isinstance(value, Tensor) else full((), value, device=device)
