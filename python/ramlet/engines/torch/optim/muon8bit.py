"""Muon with 8-bit states: 1.02 bytes per parameter inside layers, and AdamW8bit for embeddings and gains.

The momentum is whole numbers from -127 to 127 times a scale for every 256 of them. One pass over the gradients decodes
a block, adds the gradients to it, turns them into the directions of the step, and encodes the block again, so the
momentum never exists in fp32. bf16 weights are rounded stochastically. What was tried: docs/design/recipe.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters
from ramlet.engines.constants import MOMENTUM
from ramlet.engines.torch.division import Held
from ramlet.engines.torch.optim import adamw8bit
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit, loops_for
from ramlet.engines.torch.optim.factors import rounding_key, single
from ramlet.engines.torch.optim.muon import Muon, Rate, others, row_bytes, scratch_bytes
from ramlet.engines.torch.sizes import BLOCK, adamw8bit_bytes, hidden_start
from ramlet.engines.torch.weights import Weights

__all__ = ["WEIGHTS", "WHOLE_MATRICES", "Muon8bit", "make", "scratch_bytes", "state_bytes"]

WEIGHTS = ("fp32", "bf16")
WHOLE_MATRICES = True


def state_bytes(held: Held, item: int) -> int:
    codes = held.hidden + 4 * _blocks(held.hidden)
    embeddings = adamw8bit_bytes(held.embeddings, hidden_start(held.shape))
    return codes + row_bytes(held.shape) + embeddings + adamw8bit_bytes(held.gains)


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def make(weights: Weights, settings: Hyperparameters) -> Muon8bit:
    return Muon8bit(weights, settings, adamw8bit.over(others(weights), settings))


class Muon8bit(Muon):
    _rest: AdamW8bit

    def __init__(self, weights: Weights, settings: Hyperparameters, rest: AdamW8bit) -> None:
        super().__init__(weights, settings, rest)
        self._seed = settings.seed
        self._loops = loops_for(weights.hidden.device.type)

    def _new_momentum(self, hidden: Tensor) -> dict[str, Tensor]:
        return {
            "momentum_codes": torch.zeros_like(hidden, dtype=torch.int8),
            "momentum_scales": torch.zeros(_blocks(hidden.numel()), device=hidden.device),
        }

    def _add_to_momentum(self, gradient: Tensor, state: dict[str, Tensor], grad_scale: float | Tensor) -> None:
        gain = single((1 - MOMENTUM) * float(grad_scale))
        self._loops.momentum(gradient, state["momentum_codes"], state["momentum_scales"], single(MOMENTUM), gain)

    def _subtract(self, weights: Tensor, changes: Tensor, keep: Rate) -> None:
        # By the place among all matrices, wherever this rank has them.
        key = (self._rounding_key() + self._origin) & 0xFFFFFFFF
        self._loops.subtract(weights, changes, single(float(keep)), key)

    def _rounding_key(self) -> int:
        """Of this step, which AdamW has counted; the parameters with lower numbers are AdamW's."""
        parameters = [group["params"][0] for group in self._rest.param_groups]
        return rounding_key(self._seed, len(parameters), int(self.state[parameters[0]]["step"]))
