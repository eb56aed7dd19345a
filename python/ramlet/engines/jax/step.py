"""A model with its optimizer: micro-batches are collected, and one jitted step does the rest.

    trainee = Trainee(program, placement, ranks)
    for batch in micro_batches:
        loss += trainee.learn(batch, scale=1 / tokens)      # known after the update
    grad_norm = trainee.update(rate=1e-3, clip=1.0)

`Program` is the step as a function: a loop over the micro-batches that accumulates gradients, then the optimizer.
Weights and states are donated, so the new ones take the place of the old. All micro-batches of a step have the same
size, filled up with sequences whose targets are ignored, and every step has as many: nothing is compiled twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ramlet.engines import Hyperparameters, Pending, choices, training_names
from ramlet.engines.hashing import dropout_keys, seed_key
from ramlet.engines.jax import continuing, stored
from ramlet.engines.jax.gpt import DROPOUT_KEYS, GPT, Forward, Net, eval_rows, filled
from ramlet.engines.jax.initial import initialize
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.optim import States, optimizer_module, rounding_keys, stepped
from ramlet.engines.jax.ranks import JaxRanks
from ramlet.engines.jax.weights import DTYPES, Tree, dtype_of, layout, zeros
from ramlet.engines.plan import Choice, Plan
from ramlet.model.files import read_weights
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored


@dataclass(frozen=True)
class Program:
    """One training step, compiled for one size of its micro-batches."""

    shape: Shape
    choice: Choice
    settings: Hyperparameters
    placement: Placement
    seq_len: int
    document_mask: bool
    accumulation: int
    """Micro-batches in a step."""

    @cached_property
    def net(self) -> Net:
        choice = self.choice
        return Net(self.shape, self.placement, choice.compute, choice.chunk, choice.recompute, choice.dropout)

    @cached_property
    def forward(self) -> Forward:
        """For evaluation and samples: on this process's own devices."""
        return Forward(Net(self.shape, self.placement.own, self.choice.compute, self.choice.chunk))

    @property
    def eval_rows(self) -> int:
        """Sequences of an evaluation during training."""
        return min(self.choice.micro_batch, max(1, choices.EVAL_TOKENS // self.seq_len))

    def prepare_forward(self, sampled: int) -> None:
        """Compiles what evaluating, and generating so many tokens, need, before there are weights."""
        own = self.placement.own
        params = {
            name: jax.ShapeDtypeStruct(size, dtype_of(name, self.choice.weights), sharding=own.of(name, size))
            for name, size in layout(self.shape).items()
        }
        size = (eval_rows(self.eval_rows, own), self.seq_len)
        ids = jax.ShapeDtypeStruct(size, jnp.int32, sharding=own.batch())
        tables = jax.tree.map(
            lambda table: jax.ShapeDtypeStruct(table.shape, table.dtype, sharding=own.everywhere),
            self.net.tables(self.seq_len),
        )
        self.forward.losses(params, dict.fromkeys(training_names(self.document_mask), ids), tables)
        if sampled:
            continuing.prepare(self.forward, params, sampled)

    @property
    def rows(self) -> int:
        """Sequences in a micro-batch of one process: a multiple of its devices."""
        shards = self.placement.shards
        return -(-self.choice.micro_batch // shards) * shards

    @property
    def names(self) -> tuple[str, ...]:
        keys = (DROPOUT_KEYS,) if self.choice.dropout else ()
        return (*training_names(self.document_mask), *keys)

    @cached_property
    def states(self) -> Any:
        """The sizes of the optimizer's states (optim/__init__.py)."""
        return optimizer_module(self.choice.optimizer).layout(self.shape)

    @cached_property
    def _optimizer(self) -> Any:
        on_cpu = self.placement.mesh.devices.flat[0].platform == "cpu"
        dtype = jnp.float32 if on_cpu else DTYPES[self.choice.compute]
        module = optimizer_module(self.choice.optimizer)
        return module.transformation(self.shape, self.settings, self.placement, dtype)

    def step(self, params: Tree, states: States, batches: Tree, tables: Any, numbers: Tree) -> tuple[Any, ...]:
        """New weights and states, the summed loss, and the gradient norm."""
        blank = {name: jnp.zeros(array.shape, array.dtype) for name, array in params.items()}
        blank = {name: self.placement.hold(name, array) for name, array in blank.items()}

        def micro(grads: Tree, given: Any) -> Any:
            batch, scale = given
            loss, grads = self.net.learn(params, grads, batch, tables, scale)
            return grads, loss

        grads, losses = lax.scan(micro, blank, (batches, numbers["scales"]))
        squares = sum(jnp.sum(jnp.square(grad.astype(jnp.float32))) for grad in grads.values())
        grad_norm = jnp.sqrt(squares) * numbers["correction"]
        factor = numbers["correction"] * jnp.minimum(1.0, numbers["clip"] / (grad_norm + 1e-6))
        grads = {name: (grad * factor).astype(grad.dtype) for name, grad in grads.items()}
        updates, states = self._optimizer.update(grads, states, params, count=numbers["count"])
        keys = {name: numbers["keys"][number] for number, name in enumerate(rounding_keys(self.choice.optimizer, 0, 0))}
        params = stepped(params, updates, numbers["rate"], keys, self.shape, self.choice.optimizer, self.settings)
        return self._held(params), {key: self._held(tree) for key, tree in states.items()}, losses.sum(), grad_norm

    def _held(self, tree: Tree) -> Tree:
        return {name: self.placement.hold(name, array) for name, array in tree.items()}

    @cached_property
    def compiled(self) -> Any:
        """Ahead of time, from shapes alone: before there are weights."""
        with self.net.precision:
            return jax.jit(self.step, donate_argnums=(0, 1)).lower(*self._described()).compile()

    def _described(self) -> tuple[Any, ...]:
        def like(name: str, size: tuple[int, ...], dtype: Any) -> Any:
            return jax.ShapeDtypeStruct(size, dtype, sharding=self.placement.of(name, size))

        def batch(name: str) -> Any:
            rows = self.rows * self.placement.processes
            size = (self.accumulation, rows) if name == DROPOUT_KEYS else (self.accumulation, rows, self.seq_len)
            dtype = jnp.uint32 if name == DROPOUT_KEYS else jnp.int32
            return jax.ShapeDtypeStruct(size, dtype, sharding=self.placement.batch(1))

        def same(array: Any) -> Any:
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self.placement.everywhere)

        params = {
            name: like(name, size, dtype_of(name, self.choice.weights)) for name, size in layout(self.shape).items()
        }
        states = {
            key: {name: like(name, *each) for name, each in leaves.items()} for key, leaves in self.states.items()
        }
        numbers = self.numbers([0.0] * self.accumulation, 0.0, 1.0, 1.0, 1)
        return (
            params,
            states,
            {name: batch(name) for name in self.names},
            jax.tree.map(same, self.net.tables(self.seq_len)),
            jax.tree.map(same, numbers),
        )

    def numbers(self, scales: list[float], rate: float, clip: float, correction: float, count: int) -> Tree:
        """Of a step, the same in all processes."""
        scales = scales + [0.0] * (self.accumulation - len(scales))
        keys = rounding_keys(self.choice.optimizer, self.settings.seed, count)
        return {
            "scales": np.array(scales, np.float32),
            "rate": np.float32(rate),
            "clip": np.float32(clip or math.inf),
            "correction": np.float32(correction),
            "count": np.int32(count),
            "keys": np.array(list(keys.values()), np.uint32),
        }


class OutOfMemory(Exception):
    """Instead of XLA's RESOURCE_EXHAUSTED, which is one error of many of its type."""


class StepLoss:
    """The summed loss of some micro-batches of a step, divided by something; known after the update."""

    def __init__(self, step: list[Any], divisor: float = 1.0) -> None:
        self._step, self._divisor = step, divisor

    def __float__(self) -> float:
        if not self._step:
            raise RuntimeError("the loss of a step is known after its update")
        return float(self._step[0]) / self._divisor

    def __add__(self, other: Any) -> StepLoss:
        """All losses of a step are one number."""
        return self

    __radd__ = __add__

    def __truediv__(self, other: Any) -> StepLoss:
        return StepLoss(self._step, self._divisor * other)


class Trainee:
    """Weights and optimizer states, and the micro-batches of the current step."""

    overflow_is_normal = False

    def __init__(self, program: Program, ranks: JaxRanks) -> None:
        self.program, self.ranks = program, ranks
        self._placement = program.placement
        self._params = zeros(program.shape, program.choice.weights, self._placement)
        self._count = stored.Count()
        self._states: States = {}
        self._collected: list[dict[str, Any]] = []
        self._scales: list[float] = []
        self._loss: list[Any] = []
        self._seed_key = seed_key(program.settings.seed)
        self._tables: Any = None
        self._model = GPT(program.forward, {}, rows=program.eval_rows, seq_len=program.seq_len)

    @property
    def model(self) -> GPT:
        self._model.params = {name: self._placement.own_part(name, array) for name, array in self._params.items()}
        return self._model

    # A step.

    def learn(self, batch: Mapping[str, Any], scale: float) -> Pending:
        rows = self.program.rows
        size = (rows, self.program.seq_len)
        made = {name: filled(batch[name], size, name) for name in training_names(self.program.document_mask)}
        if self.program.choice.dropout:
            keys = dropout_keys(self._seed_key, np.array(batch["samples"], np.int64)) & 0xFFFFFFFF
            made[DROPOUT_KEYS] = np.pad(keys.astype(np.uint32), (0, rows - len(keys)))
        self._collected.append(made)
        self._scales.append(scale)
        return StepLoss(self._loss)

    def over_ranks(self, loss: Pending, tokens: int) -> tuple[Pending, int]:
        """The loss is already that of all processes: a step is one program over all of them."""
        return loss, self.ranks.sum(tokens)

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Any:
        program, placement = self.program, self._placement
        if not self._states:
            self.prepare_states()
        self._count.steps += 1
        collected = self._collected + [self._blank()] * (program.accumulation - len(self._collected))
        batches = {name: placement.put(np.stack([each[name] for each in collected]), 1) for name in program.names}
        if self._tables is None:
            self._tables = jax.tree.map(placement.copied, program.net.tables(program.seq_len))
        numbers = program.numbers(self._scales, rate, clip, correction, self._count.steps)
        numbers = jax.tree.map(placement.copied, numbers)
        self._collected, self._scales = [], []
        self._model.params = {}  # donated arrays have one owner
        try:
            self._params, self._states, loss, grad_norm = program.compiled(
                self._params, self._states, batches, self._tables, numbers
            )
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise OutOfMemory(str(error)) from None
            raise
        self._loss.append(loss)
        self._loss = []
        if placement.mesh.devices.flat[0].platform == "cpu":
            jax.block_until_ready(grad_norm)
        return grad_norm

    def _blank(self) -> dict[str, Any]:
        """A micro-batch without a loss: a step with fewer sequences than usual."""
        program = self.program
        none, size = np.zeros((0, 0)), (program.rows, program.seq_len)
        made = {name: filled(none, size, name) for name in program.names}
        if DROPOUT_KEYS in made:
            made[DROPOUT_KEYS] = np.zeros(program.rows, np.uint32)
        return made

    # Weights and states.

    def reset(self, seed: int) -> None:
        initialize(self.program.shape, self._params, seed, self._placement)
        self._count.steps = 0
        self._states = {}
        self.prepare_states()

    def prepare(self, plan: Plan, rank: int) -> None:
        """The plan was measured with the compiled step."""

    def prepare_states(self) -> None:
        if not self._states:
            self._states = {
                key: {name: self._placement.zeros(name, *each) for name, each in leaves.items()}
                for key, leaves in self.program.states.items()
            }

    def weights(self) -> dict[str, Stored]:
        return stored.weights(self.program.shape, self._params, self._placement)

    def states(self) -> dict[str, Stored]:
        return stored.states(
            self.program.shape, self.program.choice.optimizer, self._states, self._count, self._placement
        )

    def load_weights(self, found: ModelFolder) -> None:
        read_weights(found, self.program.shape, self.weights())

    def scale_state(self) -> dict[str, Any]:
        return {"loss_scale": 1.0, "good_steps": 0}

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        """Products read the weights themselves."""
