"""AdamW: `optax.scale_by_adam`, with its moments under the names of a checkpoint."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from ramlet.engines import Hyperparameters
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import Described, States
from ramlet.engines.jax.weights import Tree
from ramlet.engines.jax.weights import layout as weights_layout
from ramlet.model.shape import Shape

WEIGHTS = ("fp32",)


def layout(shape: Shape) -> Described:
    moment = {name: (size, jnp.float32) for name, size in weights_layout(shape).items()}
    return {"exp_avg": moment, "exp_avg_sq": moment}


def transformation(shape: Shape, settings: Hyperparameters, placement: Placement, dtype: Any) -> Any:
    return adam(settings)


def adam(settings: Hyperparameters) -> Any:
    """Of any tree of weights."""
    inner = optax.scale_by_adam(settings.beta1, settings.beta2, settings.eps)

    def init(params: Tree) -> States:
        first = inner.init(params)
        return {"exp_avg": first.mu, "exp_avg_sq": first.nu}

    def update(grads: Tree, state: States, params: Tree | None = None, *, count: Any) -> tuple[Tree, States]:
        given = optax.ScaleByAdamState(count - 1, state["exp_avg"], state["exp_avg_sq"])
        updates, after = inner.update(grads, given)
        return updates, {"exp_avg": after.mu, "exp_avg_sq": after.nu}

    return optax.GradientTransformationExtraArgs(init, update)
