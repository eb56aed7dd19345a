"""Muon with 8-bit states: 1.02 bytes per parameter inside layers, and `adamw8bit` for embeddings and gains.

The momentum is whole numbers from -127 to 127 times a scale for every 256 of them, as in the other engines.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ramlet.engines import Hyperparameters
from ramlet.engines.constants import MOMENTUM
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import Described, States
from ramlet.engines.jax.optim.adamw8bit import described, scale_by_adam8bit
from ramlet.engines.jax.optim.muon import muon, row_squares
from ramlet.engines.jax.optim.quantized import (
    LEAST_NORMAL,
    block_scales,
    from_blocks,
    in_blocks,
    over_layers,
    scales_size,
)
from ramlet.engines.jax.weights import Tree, is_hidden, is_matrix
from ramlet.engines.jax.weights import layout as weights_layout
from ramlet.engines.torch.sizes import SMALLEST_QUANTIZED, flat_elements, hidden_start
from ramlet.model.shape import Shape

WEIGHTS = ("fp32", "bf16")
UNIT = np.float32(1 / 127)


def layout(shape: Shape) -> Described:
    sizes = weights_layout(shape)
    hidden = {name: size for name, size in sizes.items() if is_hidden(name)}
    others = {name: size for name, size in sizes.items() if name not in hidden}
    return {
        "momentum_codes": {name: (size, jnp.int8) for name, size in hidden.items()},
        "momentum_scales": {name: (scales_size(size, stacked=True), jnp.float32) for name, size in hidden.items()},
        "row_squares": row_squares(shape),
        **described(others, _exact(shape)),
    }


def _exact(shape: Shape) -> list[str]:
    counts = {True: hidden_start(shape), False: flat_elements(shape)[1]}
    return [
        name for name in weights_layout(shape) if not is_hidden(name) and counts[is_matrix(name)] < SMALLEST_QUANTIZED
    ]


def transformation(shape: Shape, settings: Hyperparameters, placement: Placement, dtype: Any) -> Any:
    rest = scale_by_adam8bit(
        settings.beta1, settings.beta2, settings.eps, exact=_exact(shape), tiled=not placement.divides
    )
    return muon(shape, placement, dtype, layout(shape), rest, _momentum)


def _momentum(grads: Tree, state: States) -> tuple[Tree, States]:
    directions: Tree = {}
    codes: Tree = {}
    scales: Tree = {}
    for name, grad in grads.items():
        arrays = [grad, state["momentum_codes"][name], state["momentum_scales"][name]]
        directions[name], codes[name], scales[name] = over_layers(_moved, arrays, stacked=True, tiled=False)
    return directions, {"momentum_codes": codes, "momentum_scales": scales}


def _moved(grad: Any, codes: Any, scales: Any) -> tuple[Any, Any, Any]:
    """Of one layer: the momentum moves towards the gradient, and the gradient towards the momentum."""
    decay = jnp.float32(MOMENTUM)
    gained = in_blocks(grad.astype(jnp.float32)) * jnp.float32(1 - MOMENTUM)
    moments = in_blocks(codes).astype(jnp.float32) * (scales * decay)[:, None] + gained
    direction = gained + moments * decay
    units = block_scales(jnp.abs(moments)) * UNIT
    units = jnp.where(units < LEAST_NORMAL, 0, units)
    inverse = jnp.where(units > 0, 1 / units, 0)[:, None]
    # If the scale is NaN or 0, all codes are 0.
    numbers = jnp.round(jnp.nan_to_num(moments * inverse, nan=0.0, posinf=0.0, neginf=0.0))
    return from_blocks(direction, grad), from_blocks(numbers.astype(jnp.int8), codes), units
