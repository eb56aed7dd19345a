"""AdamW with two 8-bit moments: 2.03 bytes of state per parameter instead of 8. The codes are those of `AdamW8bit`.

    optimizer = optax.chain(scale_by_adam8bit(0.9, 0.95, 1e-8), ...)

Groups under 4,096 elements keep 32 bits, as in the other engines: `exact` names their weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import optax

from ramlet.engines import Hyperparameters
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import Described, States, unbias
from ramlet.engines.jax.optim.quantized import decode, encode, from_blocks, in_blocks, over_layers, scales_size
from ramlet.engines.jax.weights import LAYERS, Tree, is_matrix
from ramlet.engines.jax.weights import layout as weights_layout
from ramlet.engines.torch.sizes import SMALLEST_QUANTIZED, flat_elements
from ramlet.model.shape import Shape

WEIGHTS = ("fp32", "bf16")
CODES = ("exp_avg_codes", "exp_avg_scales", "exp_avg_root_codes", "exp_avg_root_scales")
EXACT = ("exp_avg", "exp_avg_sq")


def layout(shape: Shape) -> Described:
    matrices, gains = flat_elements(shape)
    sizes = weights_layout(shape)
    counts = {name: matrices if is_matrix(name) else gains for name in sizes}
    return described(sizes, {name for name, count in counts.items() if count < SMALLEST_QUANTIZED})


def described(sizes: dict[str, tuple[int, ...]], exact: Collection[str]) -> Described:
    found: Described = {}
    for name, size in sizes.items():
        scales = (scales_size(size, stacked=name.startswith(LAYERS)), jnp.float32)
        codes = (size, jnp.uint8)
        if name in exact:
            own = dict.fromkeys(EXACT, (size, jnp.float32))
        else:
            own = dict(zip(CODES, (codes, scales, codes, scales)))
        for key, value in own.items():
            found.setdefault(key, {})[name] = value
    return found


def transformation(shape: Shape, settings: Hyperparameters, placement: Placement, dtype: Any) -> Any:
    return scale_by_adam8bit(
        settings.beta1,
        settings.beta2,
        settings.eps,
        exact=layout(shape).get("exp_avg", ()),
        tiled=not placement.divides,
    )


def scale_by_adam8bit(
    beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-8, *, exact: Collection[str] = (), tiled: bool = True
) -> Any:
    """Of a dictionary of weights, in which `layers.*` are stacks."""

    def init(params: Tree) -> States:
        sizes = {name: array.shape for name, array in params.items()}
        return {
            key: {name: jnp.zeros(size, dtype) for name, (size, dtype) in leaves.items()}
            for key, leaves in described(sizes, exact).items()
        }

    def update(grads: Tree, state: States, params: Tree | None = None, *, count: Any) -> tuple[Tree, States]:
        first, second = unbias(beta1, count), jnp.sqrt(unbias(beta2, count))

        def direction(moment: Any, root: Any) -> Any:
            return moment * (second / first) / (root + eps * second)

        def quantized(grad: Any, codes: Any, scales: Any, root_codes: Any, root_scales: Any) -> tuple[Any, ...]:
            gradient = in_blocks(grad.astype(jnp.float32))
            stored = in_blocks(codes)
            moment = decode(stored, 7) * (scales * jnp.float32(beta1))[:, None]
            moment = moment + gradient * jnp.float32(1 - beta1)
            root = decode(in_blocks(root_codes), 8) * (root_scales * jnp.float32(beta2**0.5))[:, None]
            gained = gradient * jnp.float32((1 - beta2) ** 0.5)
            root = jnp.sqrt(root * root + gained * gained)
            new, new_scales = encode(jnp.abs(moment), 7)
            # If the scale is NaN or 0, the code is 0 without a sign.
            sign = (jnp.signbit(moment) & (new_scales > 0)[:, None]).astype(jnp.uint8) << 7
            new_root, new_root_scales = encode(root, 8)
            return (
                from_blocks(direction(moment, root), grad),
                from_blocks(new | sign, codes),
                new_scales,
                from_blocks(new_root, root_codes),
                new_root_scales,
            )

        updates: Tree = {}
        after: States = {key: {} for key in state}
        for name, grad in grads.items():
            if name in exact:
                moment = state["exp_avg"][name] * beta1 + grad * (1 - beta1)
                square = state["exp_avg_sq"][name] * beta2 + grad * grad * (1 - beta2)
                updates[name] = direction(moment, jnp.sqrt(square))
                after["exp_avg"][name], after["exp_avg_sq"][name] = moment, square
                continue
            arrays = [grad, *(state[key][name] for key in CODES)]
            updates[name], *new = over_layers(quantized, arrays, stacked=name.startswith(LAYERS), tiled=tiled)
            for key, value in zip(CODES, new):
                after[key][name] = value
        return updates, after

    return optax.GradientTransformationExtraArgs(init, update)
