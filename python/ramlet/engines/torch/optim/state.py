"""The moments of a parameter: for each moment a byte per element and a float per block.

2.03 bytes per parameter. All four are flat tensors in the order of the parameter's elements, whatever their order in
memory: a state can be saved in any format, and loaded for a parameter with another memory layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramlet.engines.torch.optim.factors import BLOCK

_SHAPES = {
    "exp_avg_codes": (torch.uint8, 1),
    "exp_avg_scales": (torch.float32, BLOCK),
    "exp_avg_root_codes": (torch.uint8, 1),
    "exp_avg_root_scales": (torch.float32, BLOCK),
}
"""Names in the state, in the order of Moments' fields: the dtype, and how many elements share a value."""


@dataclass(frozen=True)
class Moments:
    """The tensors of a state, or the same slice of each."""

    first: torch.Tensor
    first_scales: torch.Tensor
    root: torch.Tensor
    root_scales: torch.Tensor

    @classmethod
    def of(cls, state: dict[str, torch.Tensor]) -> Moments:
        return cls(*(state[name] for name in _SHAPES))

    def part(self, start: int, end: int) -> Moments:
        """The elements from `start`, the first of a block, to `end`."""
        blocks = slice(start // BLOCK, -(-end // BLOCK))
        return Moments(self.first[start:end], self.first_scales[blocks], self.root[start:end], self.root_scales[blocks])


def new_state(parameter: torch.Tensor, *, quantized: bool) -> dict[str, torch.Tensor]:
    """Zero moments, in 8 bits or in 32."""
    count = parameter.numel()
    step = torch.zeros((), dtype=torch.int64)
    if not quantized:
        moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
    else:
        moments = {
            name: torch.zeros(-(-count // shared), dtype=dtype, device=parameter.device)
            for name, (dtype, shared) in _SHAPES.items()
        }
    return {"step": step, **moments}
