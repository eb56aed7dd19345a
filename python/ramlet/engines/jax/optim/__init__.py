"""The optimizers, each an optax transformation over the tree of weights. A file of this name in this folder has:

    WEIGHTS = ("fp32",)                    the precisions of stored weights that it can update
    layout(shape)                          its states: by the name in a checkpoint, then by weight, size and dtype
    transformation(shape, settings, ...)   an `optax.GradientTransformationExtraArgs`

The state is a dictionary of trees, under the names of a checkpoint without the group (stored.py): `exp_avg`,
`momentum_codes`. `update` gets the number of the step as `count`, from 1, and returns the updates in the place of the
gradients; `stepped` applies them: `weight = (1 - lr * weight_decay) * weight - lr * update`.
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jax import lax

from ramlet.engines import Hyperparameters
from ramlet.engines.choices import has_no
from ramlet.engines.jax.layers import scatter
from ramlet.engines.jax.weights import Tree, is_hidden, is_matrix, starts
from ramlet.engines.torch.optim.factors import rounding_key
from ramlet.model.shape import Shape

States = dict[str, Tree]
Described = dict[str, dict[str, tuple[tuple[int, ...], Any]]]
"""Of states: by name, then by weight, the size and the dtype."""


def optimizer_module(name: str) -> ModuleType:
    if find_spec(f"ramlet.engines.jax.optim.{name}") is None:
        raise has_no("jax", name)
    return import_module(f"ramlet.engines.jax.optim.{name}")


def is_muon(name: str) -> bool:
    return name.startswith("muon")


def group_of(weight: str, optimizer: str) -> str:
    """The group of a weight in a checkpoint."""
    if not is_matrix(weight):
        return "gains"
    if not is_muon(optimizer):
        return "matrices"
    return "hidden" if is_hidden(weight) else "embeddings"


def groups(optimizer: str) -> tuple[str, ...]:
    """In the order of a checkpoint."""
    return ("hidden", "embeddings", "gains") if is_muon(optimizer) else ("matrices", "gains")


def counted(optimizer: str) -> tuple[str, ...]:
    """The groups that have the number of steps in a checkpoint."""
    return tuple(group for group in groups(optimizer) if group != "hidden")


def rounding_keys(optimizer: str, seed: int, step: int) -> dict[str, int]:
    """By group: the seed of the stochastic rounding of bf16 weights at a step, as in the torch engine."""
    numbered = (*counted(optimizer), *(group for group in groups(optimizer) if group == "hidden"))
    return {group: rounding_key(seed, number, step) for number, group in enumerate(numbered)}


def unbias(beta: float, count: Any) -> Any:
    """1 - beta^count, exact also if beta is close to 1."""
    return -jnp.expm1(count * jnp.float32(math.log(beta))) if beta else jnp.float32(1)


def stepped(
    params: Tree,
    updates: Tree,
    rate: Any,
    keys: dict[str, Any],
    shape: Shape,
    optimizer: str,
    settings: Hyperparameters,
) -> Tree:
    """The weights after a step; bf16 weights are rounded stochastically."""
    places = starts(shape)

    def one(name: str) -> Any:
        weight, group = params[name], group_of(name, optimizer)
        decay = settings.weight_decay if group in ("matrices", "hidden") else 0.0
        new = weight.astype(jnp.float32) * (1 - rate * decay) - rate * updates[name].astype(jnp.float32)
        if weight.dtype == jnp.float32:
            return new
        return rounded(new, keys[group], *places[name], stacked=name.startswith("layers."))

    return {name: one(name) for name in params}


def rounded(numbers: Any, key: Any, start: int, stride: int, *, stacked: bool) -> Any:
    """Floats as bfloat16, up or down at random by the key and the place in the flat weights."""
    size = numbers.shape[1:] if stacked else numbers.shape
    index = jnp.arange(math.prod(size), dtype=jnp.uint32).reshape(size) + jnp.uint32(start)
    if stacked:
        first = jnp.arange(numbers.shape[0], dtype=jnp.uint32) * jnp.uint32(stride)
        index = first.reshape(-1, *[1] * len(size)) + index
    drawn = scatter(index + key) & 0xFFFF
    bits = lax.bitcast_convert_type(numbers, jnp.uint32)
    finite = bits & 0x7F800000 != 0x7F800000
    kept = bits >> 16 | jnp.isnan(numbers).astype(jnp.uint32) << 6
    found = jnp.where(finite, (bits + drawn) >> 16, kept)
    return lax.bitcast_convert_type(found.astype(jnp.uint16), jnp.bfloat16)
