"""The moments of a parameter: a byte an element and moment, a float a block and moment.

2.03 bytes a parameter. All four are plain tensors, flat, in the order of the parameter's elements, whatever their
order in memory: a state can be saved in any format, and loaded into a parameter with another layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramlet.engines.torch.optim.factors import BLOCK

__all__ = ["Moments", "new_state"]

_SHAPES = {
    "exp_avg_codes": (torch.uint8, 1),
    "exp_avg_scales": (torch.float32, BLOCK),
    "exp_avg_root_codes": (torch.uint8, 1),
    "exp_avg_root_scales": (torch.float32, BLOCK),
}
"""Names in the state, in the order of Moments' fields: the type, and how many elements share one."""


@dataclass(frozen=True)
class Moments:
    """The tensors of a state, or the same part of each."""

    first: torch.Tensor
    first_scales: torch.Tensor
    root: torch.Tensor
    root_scales: torch.Tensor

    @classmethod
    def of(cls, state: dict[str, torch.Tensor]) -> Moments:
        return cls(*(state[name] for name in _SHAPES))

    def part(self, start: int, end: int) -> Moments:
        """Those of the elements from `start`, which begins a block, to `end`."""
        blocks = slice(start // BLOCK, -(-end // BLOCK))
        return Moments(self.first[start:end], self.first_scales[blocks], self.root[start:end], self.root_scales[blocks])


def new_state(parameter: torch.Tensor, smallest: int) -> dict[str, torch.Tensor]:
    """Moments of 0: in 8 bits for a parameter of `smallest` elements or more, in 32 for one of less."""
    count = parameter.numel()
    step = torch.zeros((), dtype=torch.int64)
    if count < smallest:
        moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
    else:
        moments = {
            name: torch.zeros(-(-count // shared), dtype=dtype, device=parameter.device)
            for name, (dtype, shared) in _SHAPES.items()
        }
    return {"step": step, **moments}
