"""JAX as an `Engine` (the contract is in ramlet.engines): each method calls one of the files next to this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from ramlet.engines import Division, Hyperparameters, Sampling, choices
from ramlet.engines.gauge import ResidentGauge
from ramlet.engines.jax import plan as plans
from ramlet.engines.jax import probe
from ramlet.engines.jax.device import Device, DeviceGauge
from ramlet.engines.jax.gpt import GPT, Forward, Net
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.ranks import JaxRanks, joined
from ramlet.engines.jax.step import OutOfMemory, Program, Trainee
from ramlet.engines.jax.stored import weights
from ramlet.engines.jax.weights import DTYPES, zeros
from ramlet.engines.plan import Choice, Correction, Plan, Task
from ramlet.model.files import read_weights
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, with_reserve
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import settled_memory
from ramlet.runtime.threads import available_threads


@dataclass(frozen=True)
class JaxEngine(Device):
    asked_threads: int | None = None
    ranks: JaxRanks = field(default_factory=JaxRanks)
    baseline: ClassVar[str] = "Python and JAX"

    @property
    def threads(self) -> int:
        return self.asked_threads or available_threads()

    @property
    def versions(self) -> dict[str, str]:
        return {"jax": str(jax.__version__)}

    @property
    def out_of_memory(self) -> type[Exception]:
        return OutOfMemory

    @contextmanager
    def joined(self) -> Iterator[JaxEngine]:
        with joined() as ranks:
            opened = JaxEngine(self.wanted, self.asked_threads, ranks)
            assert opened.devices  # refused here, if there are none
            yield opened

    @cached_property
    def placement(self) -> Placement:
        """All devices of all processes."""
        if self.ranks.world == 1:
            return Placement.over(self.devices)
        return Placement.over(jax.devices(), self.ranks.world)

    @property
    def _place(self) -> plans.Place:
        return plans.Place(self.kind, self.placement.processes, self.placement.shards)

    # Memory.

    def resident(self, *, stepping: bool = False) -> int:
        if self.kind != "cpu":
            return 0
        jnp.ones((64, 64)).sum().block_until_ready()  # starts XLA's threads, and its compiler
        return settled_memory()

    # Plans.

    def sketch(self, task: Task) -> Plan:
        return self._plan(task)

    def _plan(self, task: Task, correction: Correction | None = None) -> Plan:
        return plans.make_plan(task, place=self._place, correction=correction)

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        if self.ranks.world > 1:
            # A step is one program over all processes: they must make the same plan.
            total = -self.ranks.most(-task.budget.total)
            task = replace(task, budget=replace(task.budget, total=total), resident=self.ranks.most(task.resident))
        replan = partial(self._plan, task)
        replan()  # refused with all parts, if nothing fits
        if self.uses_host_memory:
            task.budget.require(meter.peak, f"{self.baseline}, while they are loaded")
        meter.stage("compiling")

        def compile_for(plan: Plan) -> Program:
            return self._program(plan.shape, plan.choice, settings, plan.seq_len, plan.document_mask, plan.accumulation)

        correction = Correction()
        for _ in range(probe.ROUNDS):
            plan, program = probe.fitted(replan(correction=correction), compile_for, replan, self._place, self.ranks)
            program.prepare_forward(task.sampled)
            if self.uses_host_memory:
                settled_memory()  # the compiler's pages are not needed any more
            gauge = ResidentGauge(meter) if self.uses_host_memory else DeviceGauge(self, meter)
            expected = plan.peak
            plan = probe.measured(plan, Trainee(program, self.ranks), gauge).at_least(self.peak(meter))
            self.release()
            missing = self.ranks.most(max(0, plan.peak - expected))
            correction = Correction(extra=correction.extra + max(missing, task.budget.total // 64))
            if not self.ranks.any(plan.peak > task.budget.total):
                self._programs[program.shape, program.choice] = program
                return plan
        raise probe.too_large(plan.peak, plan)

    @cached_property
    def _programs(self) -> dict[tuple[Shape, Choice], Program]:
        """Those that a plan was made with."""
        return {}

    def _program(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        seq_len: int,
        document_mask: bool,
        accumulation: int,
    ) -> Program:
        return Program(shape, choice, settings, self.placement, seq_len, document_mask, accumulation)

    def eval_rows(self, seq_len: int) -> int:
        return max(1, choices.EVAL_TOKENS // seq_len)

    def division(
        self,
        shape: Shape,
        *,
        seq_len: int,
        precision: str,
        budget: Budget,
        document_mask: bool,
        aside: Mapping[str, int] | None = None,
    ) -> Division:
        """The fastest that fits; the error names the smallest budget for the smallest."""
        resident = self.resident()
        for found in choices.divisions(seq_len):
            own = plans.forward_parts(shape, found, seq_len, precision, self._place, document_mask=document_mask)
            parts = {self.baseline: resident, **(aside or {}), **own}
            if sum(parts.values()) <= budget.total - budget.reserve:
                return found
        budget.require(with_reserve(sum(parts.values())), parts, measured=resident)
        return found

    def generation_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        return plans.generation_parts(
            shape, precision=precision, prompt=prompt, settings=settings, vocabulary=vocabulary, place=self._place
        )

    # Models.

    def trainee(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        *,
        seq_len: int | None = None,
        document_mask: bool = False,
    ) -> Trainee:
        program = self._programs.get((shape, choice))
        if program is None:
            program = self._program(shape, choice, settings, seq_len or shape.context, document_mask, 1)
        return Trainee(replace(program, settings=settings) if program.settings != settings else program, self.ranks)

    def load(self, found: ModelFolder, precision: str, *, division: Division | None = None, seq_len: int = 0) -> GPT:
        shape = found.shape()
        chunk = choices.EVAL_CHUNK if division is None else division.chunk
        placement = self.placement.own
        params = zeros(shape, precision, placement)
        read_weights(found, shape, weights(shape, params, placement))
        rows = 1 if division is None else division.micro_batch
        forward = Forward(Net(shape, placement, precision, chunk))
        return GPT(forward, params, rows=rows, seq_len=seq_len or shape.context)

    # The machine, for estimates.

    def flops(self, precision: str, seconds: float) -> float:
        """The best of many products of the size that small models have."""
        tokens, width = (1024, 512) if self.kind == "cpu" else (8192, 2048)
        x, weight = jnp.ones((tokens, width), DTYPES[precision]), jnp.ones((4 * width, width), DTYPES[precision])
        multiply = jax.jit(lambda x, weight: x @ weight.T)
        multiply(x, weight).block_until_ready()
        best = 0.0
        end = time.perf_counter() + seconds
        while True:
            began = time.perf_counter()
            multiply(x, weight).block_until_ready()
            now = time.perf_counter()
            best = max(best, 8.0 * tokens * width * width / (now - began))
            if now >= end:
                return best
