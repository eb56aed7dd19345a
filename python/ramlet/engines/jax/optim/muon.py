"""Muon for the matrices inside layers: momentum, made orthogonal. AdamW for embeddings and gains.

    update = orthogonal factor of (gradient + momentum), every row divided by its running root mean square (NorMuon),
             times 0.2 sqrt(longer side)

optax has a Muon, but another one: five steps of a fixed polynomial instead of four of Polar Express, no running mean
squares of rows, and fused matrices as one. This is that of the other engines (docs/design/recipe.md). One layer's
matrices are orthogonalized at a time, in the place of their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import optax
from jax import lax

from ramlet.engines import Hyperparameters
from ramlet.engines.constants import COEFFICIENTS, MARGIN, MOMENTUM, ROW_DECAY, TINY, UPDATE_SIZE
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import Described, States, adamw
from ramlet.engines.jax.optim.quantized import over_layers
from ramlet.engines.jax.weights import LAYERS, Tree, is_hidden
from ramlet.engines.jax.weights import layout as weights_layout
from ramlet.model.shape import Shape

WEIGHTS = ("fp32",)


def layout(shape: Shape) -> Described:
    sizes = weights_layout(shape)
    hidden = {name: (size, jnp.float32) for name, size in sizes.items() if is_hidden(name)}
    moment = {name: (size, jnp.float32) for name, size in sizes.items() if name not in hidden}
    return {"momentum": hidden, "row_squares": row_squares(shape), "exp_avg": moment, "exp_avg_sq": moment}


def row_squares(shape: Shape) -> dict[str, tuple[tuple[int, ...], Any]]:
    sizes = weights_layout(shape)
    return {name: (size[:2], jnp.float32) for name, size in sizes.items() if is_hidden(name)}


def matrices(shape: Shape) -> dict[str, list[tuple[int, int]]]:
    """Of each stack: the first row and the rows of its matrices; queries, keys, values, gate and up are their own."""
    found = {}
    for name, fused in zip(("qkv", "out", "gate_up", "down"), shape.layer_matrices):
        start, own = 0, []
        for rows, _ in fused:
            own.append((start, rows))
            start += rows
        found[LAYERS + name] = own
    return found


def transformation(shape: Shape, settings: Hyperparameters, placement: Placement, dtype: Any) -> Any:
    return muon(shape, placement, dtype, layout(shape), adamw.adam(settings), _momentum)


def muon(
    shape: Shape, placement: Placement, dtype: Any, states: Described, rest: Any, momentum: Callable[..., Any]
) -> Any:
    """`dtype` is that of the products, `rest` the transformation of everything outside of layers' matrices."""

    def init(params: Tree) -> States:
        return {key: {name: jnp.zeros(*each) for name, each in leaves.items()} for key, leaves in states.items()}

    def update(grads: Tree, state: States, params: Tree | None = None, *, count: Any) -> tuple[Tree, States]:
        hidden = {name: grad for name, grad in grads.items() if is_hidden(name)}
        others = {name: grad for name, grad in grads.items() if name not in hidden}
        own = {key: state[key] for key in state if key.startswith(("momentum", "row_squares"))}
        updates, after = rest.update(others, {key: state[key] for key in state if key not in own}, count=count)
        directions, new = momentum(hidden, own)
        squares = {}
        for name, grad in directions.items():
            step = _step(matrices(shape)[name], dtype, placement)
            updates[name], squares[name] = over_layers(
                step, [grad, own["row_squares"][name]], stacked=True, tiled=False
            )
        return updates, {**after, **new, "row_squares": squares}

    return optax.GradientTransformationExtraArgs(init, update)


def _momentum(grads: Tree, state: States) -> tuple[Tree, States]:
    """The directions of the step: the gradient looks ahead by one step of the momentum (Nesterov)."""
    new = {name: before + (grads[name] - before) * (1 - MOMENTUM) for name, before in state["momentum"].items()}
    return {name: grad + (new[name] - grad) * MOMENTUM for name, grad in grads.items()}, {"momentum": new}


def _step(parts: list[tuple[int, int]], dtype: Any, placement: Placement) -> Callable[..., tuple[Any, Any]]:
    """The update of the matrices of one layer that are one in memory, from their directions."""

    def step(direction: Any, squares: Any) -> tuple[Any, Any]:
        direction = placement.gathered(direction)
        found = [_update(direction[start : start + rows], squares[start : start + rows]) for start, rows in parts]
        return tuple(jnp.concatenate(each) for each in zip(*found))

    def _update(matrix: Any, squares: Any) -> tuple[Any, Any]:
        rows, columns = matrix.shape
        x = matrix.T if rows > columns else matrix
        wide = x.astype(jnp.float32)
        x = (wide / (jnp.sqrt(jnp.sum(wide * wide)) * MARGIN + TINY)).astype(dtype)
        x, _ = lax.scan(_polar, x, jnp.array(COEFFICIENTS, jnp.float32))
        made = (x.T if rows > columns else x).astype(jnp.float32)
        means = jnp.sum(made * made, 1) / columns
        running = squares + (means - squares) * (1 - ROW_DECAY)
        scale = jnp.reciprocal(jnp.sqrt(running + TINY))
        before, after = jnp.sum(means), jnp.sum(means * scale * scale)
        scale = scale * jnp.sqrt((before + TINY) / (after + TINY)) * (UPDATE_SIZE * math.sqrt(max(rows, columns)))
        return made * scale[:, None], running

    return step


def _polar(x: Any, coefficients: Any) -> tuple[Any, None]:
    """A step towards the orthogonal factor (engines/constants.py)."""
    a, b, c = coefficients
    gram = x @ x.T
    return ((b * gram + c * (gram @ gram)).astype(x.dtype) @ x + a * x).astype(x.dtype), None


def row_places(shape: Shape) -> Iterator[tuple[str, int, int, int]]:
    """The mean squares of rows in the order of a checkpoint: stack, layer, first row and rows."""
    for name, parts in matrices(shape).items():
        for start, rows in parts:
            yield from ((name, layer, start, rows) for layer in range(shape.layers))
