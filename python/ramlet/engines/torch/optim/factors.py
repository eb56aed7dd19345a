"""The factors of a step that are the same for all elements of a tensor.

They are computed in fp64 and rounded to fp32 once, here, so that every device uses the same ones. Bias corrections,
the gradient scale and the learning rate are combined: per element remains, with decayed = the decoded moment times the
decay:

    first  = decayed first + first_gain * gradient
    root   = sqrt((decayed root)^2 + (root_gain * gradient)^2)
    weight = keep * weight - rate * first / (root + eps)
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from ramlet.engines.hashing import scatter, seed_key
from ramlet.engines.torch.sizes import BLOCK

__all__ = ["BLOCK", "Factors", "rounding_key", "single"]


@dataclass(frozen=True)
class Factors:
    """In the order of the native core's arguments."""

    first_decay: float
    first_gain: float
    root_decay: float
    root_gain: float
    rate: float
    eps: float
    keep: float

    @classmethod
    def of(
        cls, step: int, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, grad_scale: float
    ) -> Factors:
        """Those of a step, counted from 1."""
        beta1, beta2 = betas
        unbias = math.sqrt(1 - beta2**step)
        exact = (
            beta1,
            (1 - beta1) * grad_scale,
            math.sqrt(beta2),
            math.sqrt(1 - beta2) * grad_scale,
            lr / (1 - beta1**step) * unbias,
            eps * unbias,
            1 - lr * weight_decay,
        )
        return cls(*(single(factor) for factor in exact))


def rounding_key(seed: int, parameter: int, step: int) -> int:
    """Together with an element's index, this seeds the stochastic rounding of a parameter at a step."""
    return scatter(scatter(seed_key(seed) + parameter) + step)


def single(number: float) -> float:
    """Rounded to fp32."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)
