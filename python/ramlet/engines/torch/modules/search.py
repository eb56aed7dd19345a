"""Finds the largest micro-batch that keeps a budget, by running it.

    plan = Search(module, loss, batch, budget=budget, ...).plan("auto")

Ways to train, in order of cost: as it is; with activation checkpointing; with 8-bit optimizer states, which change
results and come with a note. On a CPU freed tensors are returned at once, unless there is memory to keep them. In each,
micro-batches grow from 1: two measured sizes give the memory of a sample, and no size is tried that is predicted not to
fit. On a CPU every size runs watched first (guard.py), so the search itself stays within the budget; on a GPU the
allocator refuses what is too much.

A trial does what a step does: micro-batches with the gradients of the one before, the norm, an update. The update has
zero gradients and a learning rate of 0, so no weight changes; buffers are restored and the optimizer's states emptied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ramlet.engines import EIGHT_BIT, Hyperparameters
from ramlet.engines.plan import JITTER
from ramlet.engines.torch.base_memory import KeptBlocks, keep_large_blocks
from ramlet.engines.torch.engine import TorchEngine
from ramlet.engines.torch.modules import batches, optimizers
from ramlet.engines.torch.modules.checkpointing import Checkpointing, has_batch_statistics
from ramlet.engines.torch.modules.guard import Guard, TooLarge, TreeGauge, kept_bytes
from ramlet.engines.torch.modules.losses import Loss
from ramlet.engines.torch.modules.pieces import Piece, first_counted
from ramlet.engines.torch.modules.plan import ModulePlan
from ramlet.engines.torch.modules.trainee import ModuleTrainee, overlaps, unique_tensors
from ramlet.engines.torch.probe import MOST_UNMEASURED, SEEN, SLACK, UNMEASURED, UNSEEN
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import DRIFT, DRIFT_SHARE, Budget, refusal, with_reserve
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter

if TYPE_CHECKING:
    from ramlet.engines.torch.modules.dry_run import DryRun

GROWTH = 4
"""A size is at most this many times the last one, so that the noise of small sizes is not multiplied by much."""
WORTH = 1.15
"""A micro-batch this many times as large is worth another trial."""
FAILURES = 3
GAPS = 2.2
"""How many times as much a kept heap may need as what is kept for the backward pass: it fragments."""
TRANSIENT = 0.5
"""What a backward pass needs besides what was kept for it, as a fraction of that."""
LIBRARIES = 24_000_000
"""Pages of torch's libraries that only a backward pass and an update touch."""


class Way(NamedTuple):
    """To train."""

    recompute: bool
    optimizer: Any
    reuse: bool


@dataclass
class Tried:
    """What was measured of one way."""

    base: int
    """Resident before there are gradients and states."""
    gradients: int
    states: int
    recompute: bool = False
    kept: int = 0
    """For the backward pass of a sample."""
    scratch: int = 0
    """Of an update."""
    peaks: dict[int, int] = field(default_factory=dict)
    """By size; those that fit."""
    least: int = 0
    """What the smallest allowed micro-batch needs, where it does not fit."""
    gaps: bool = False
    """Whether the gaps between kept tensors took what the budget leaves."""

    @property
    def floor(self) -> int:
        return self.base + self.gradients + self.states

    @property
    def slope(self) -> float:
        """Bytes of a further sample."""
        first, last = min(self.peaks), max(self.peaks)
        return max(self.kept, (self.peaks[last] - self.peaks[first]) / max(1, last - first))

    def needs(self, peak: float) -> None:
        self.least = max(self.least, int(peak))


class Search:
    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        batch: Any,
        *,
        engine: TorchEngine,
        device: torch.device,
        budget: Budget,
        meter: Meter,
        settings: Hyperparameters,
        clip: float,
        precision: str,
        accumulation: int,
    ) -> None:
        self._module, self._loss, self._batch = module, loss, batch
        self._engine, self._device, self._budget, self._meter = engine, device, budget, meter
        self._settings, self._clip, self._precision = settings, clip, precision
        self._accumulation = accumulation
        self._on_cpu = device.type == "cpu"
        self._rows = batches.rows(batch)
        self._first = first_counted(batch, loss)
        # There are no statistics of a single sample.
        self._least = min(2 if has_batch_statistics(module) else 1, self._rows)
        self._gauge = TreeGauge(meter)
        self._limit = budget.total - (MOST_UNMEASURED + budget.total // SLACK if self._on_cpu else budget.reserve)
        self.checkpointing = Checkpointing(module)
        engine.resident(stepping=True)  # releases what was only loaded
        self._kept: dict[bool, tuple[int, bool]] = {}
        self._dry_run: DryRun | None = None

    def plan(
        self,
        optimizer: Any,
        *,
        recompute: bool | None = None,
        micro_batch: int | None = None,
        reuse: bool | None = None,
    ) -> ModulePlan:
        """The first way that fits; what is given is fixed. Its checkpointing stays enabled."""
        buffers = [(each, each.detach().clone()) for each in self._module.buffers() if not overlaps(each)]
        rejected: dict[Way, Tried] = {}
        wanted = None if micro_batch is None else min(max(micro_batch, self._least), self._rows)
        try:
            for way in self._ways(optimizer, recompute, reuse):
                if way.recompute:
                    self.checkpointing.enable()
                tried = self._try(way, wanted)
                if not tried.least:
                    if self._on_cpu and not way.recompute and reuse is None:
                        way, tried = self._with_kept_heap(way, tried, wanted)
                    return self._planned(way, tried, wanted, asked=optimizer)
                rejected[way] = tried
                if way.recompute:
                    self.checkpointing.disable()
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            del buffers
            self._engine.release()
        raise self._refusal(rejected, wanted or self._least)

    def _ways(self, given: Any, recompute: bool | None, reuse: bool | None) -> Iterator[Way]:
        first = "adamw" if given == "auto" else given
        possible = [False, True] if self.checkpointing.possible else [False]
        if recompute is not None:
            possible = [recompute and self.checkpointing.possible]
        kept = bool(reuse) or not self._on_cpu
        for recomputing in possible:
            yield Way(recomputing, first, kept)
        if given == "auto":
            yield Way(possible[-1], EIGHT_BIT[first], kept)

    def _with_kept_heap(self, way: Way, tried: Tried, wanted: int | None) -> tuple[Way, Tried]:
        """The same with freed tensors kept for reuse, which is faster, if there is memory for the gaps between them.

        Only if it is certain to fit: a heap that was fragmented once stays so, whatever is returned afterwards.
        """
        room = self._limit - tried.floor - LIBRARIES
        most = min(wanted or max(tried.peaks), int(room / max(1.0, GAPS * tried.kept)))
        if most < (wanted or self._least):
            return way, tried
        kept = way._replace(reuse=True)
        again = self._try(kept, wanted, most)
        if again.least or again.gaps:
            keep_large_blocks(False)
            return way, tried
        return kept, again

    def _try(self, way: Way, wanted: int | None, most: int | None = None) -> Tried:
        """Measures a way, up to micro-batches of `most`; `least` is 0 if it fits."""
        self._engine.release()
        if self._on_cpu:
            keep_large_blocks(way.reuse)
        states = optimizers.state_bytes(way.optimizer, self._module)  # refuses what it cannot update
        kept, forward_fits = self._kept_by_a_sample(way.recompute)
        tried = Tried(
            # After the forward pass above: with the pages of libraries that it has touched.
            base=resident_memory() if self._on_cpu else torch.cuda.memory_reserved(self._device),
            gradients=sum(parameter.nbytes for _, parameter in optimizers.trainable(self._module)),
            states=states,
            recompute=way.recompute,
            kept=kept,
            scratch=optimizers.scratch_bytes(way.optimizer, self._module, self._device, self._precision),
        )
        work = max(tried.kept * self._least, tried.scratch)
        if not forward_fits or (self._on_cpu and tried.floor + work > self._limit):
            tried.needs(max(self._expected(tried), self._limit))
            return tried
        optimizer = optimizers.make(way.optimizer, self._module, self._settings, precision=self._precision)
        blocks = KeptBlocks(self._budget.total) if self._on_cpu and way.reuse else None
        given: dict[str, Any] = {"device": self._device, "seed": self._settings.seed, "kept": blocks}
        trainee = ModuleTrainee(self._module, self._loss, optimizer, **given)
        begun = bool(optimizer.state)
        try:
            self._grow(trainee, tried, wanted, most or self._rows, updates=not begun)
            tried.states = trainee.state_bytes()
            tried.gaps = blocks is not None and blocks.ended
        finally:
            trainee.clear_gradients()
            if not begun:
                trainee.forget_states()
            del trainee, optimizer
            self._engine.release()
        return tried

    def _kept_by_a_sample(self, recompute: bool) -> tuple[int, bool]:
        """Bytes that one sample keeps for the backward pass, and whether its forward pass fits."""
        if recompute not in self._kept:
            batch = batches.placed(self._piece(self._least).batch, self._device)
            with self._watching():
                kept, fits = kept_bytes(self._module, self._loss, batch)
            blocks = len(self.checkpointing.blocks) if recompute else 0
            # Blocks are computed again one at a time: one of them is whole in memory.
            whole = self._kept[False][0] // blocks if blocks and False in self._kept else 0
            self._kept[recompute] = kept // self._least + whole, fits
            self._engine.release()
        return self._kept[recompute]

    def _expected(self, tried: Tried) -> int:
        """What the smallest micro-batch needs where it does not fit: the budget that an error names.

        On a GPU rather more than that. The allocator refuses a pass that does not fit, so nobody has seen its peak.
        """
        kept = tried.kept * self._least
        if self._on_cpu:
            return tried.floor + max(kept, tried.scratch) + int(TRANSIENT * kept) + LIBRARIES
        if self._dry_run is None:
            # Imports much of torch. On a GPU that does not count.
            from ramlet.engines.torch.modules.dry_run import DryRun

            batch = batches.placed(self._piece(self._least).batch, self._device)
            self._dry_run = DryRun(self._module, self._loss, batch, self._device)
        passes = self._dry_run.passes(tried.recompute, kept)
        return self._dry_run.reserved(tried.base + tried.states + max(passes, tried.gradients + tried.scratch))

    def _watching(self, later: int = 0) -> Any:
        """Inside, nothing exceeds the budget, even if `later` bytes are added."""
        return Guard(self._budget.total - self._budget.reserve - later) if self._on_cpu else nullcontext()

    def _grow(self, trainee: ModuleTrainee, tried: Tried, wanted: int | None, most: int, *, updates: bool) -> None:
        """Tries sizes from 1 up to the largest that is worth it, or to the wanted one."""
        most, first = wanted or most, self._least
        peaks = tried.peaks
        if not self._fits(trainee, first, tried, updates=updates):
            tried.needs(self._expected(tried))
            return
        failures, last = 0, first
        while last < most and failures < FAILURES:
            slope = max(1.0, tried.slope)
            fitting = last + int((self._limit - peaks[last]) / (slope * (SEEN if last > first else UNSEEN)))
            rows = min(most, fitting, last * GROWTH if last > first else last + 1)
            if rows <= last or (rows < last * WORTH and rows < most):
                break
            if self._fits(trainee, rows, tried, updates=updates):
                last = rows
            else:
                failures += 1
                most = (last + rows) // 2 if wanted is None else most
        if wanted is not None and last < wanted:
            tried.needs(peaks[last] + SEEN * tried.slope * (wanted - last))
        else:
            tried.least = 0

    def _fits(self, trainee: ModuleTrainee, rows: int, tried: Tried, *, updates: bool) -> bool:
        """Runs steps with micro-batches of this size and notes their peak."""
        if updates and not self._on_cpu:
            # A run has no states before its first update, which then come to lie in what its first passes leave free.
            trainee.forget_states()
        piece = self._piece(rows)
        times = min(2, self._accumulation * math.ceil(self._rows / rows))
        scale = 1.0 / (piece.expected * times)
        try:
            self._reset()
            if self._on_cpu:
                with self._watching():
                    if updates and not tried.peaks:
                        trainee.prepare_states()
                with self._watching(later=tried.gradients if times > 1 else 0):
                    trainee.learn(piece, scale)
            self._steps(trainee, piece, scale, times, updates=updates)
            if updates and not self._on_cpu:
                # As a run that is resumed, which has states before its first step, and other gaps between tensors.
                trainee.forget_states()
                self._engine.release()
                trainee.prepare_states()
                self._steps(trainee, piece, scale, times, updates=True)
            peak = self._peak()
        except TooLarge as error:
            tried.needs(error.needed if rows == self._least else 0)
            trainee.clear_gradients()
            self._engine.release()
            return False
        except torch.OutOfMemoryError:
            tried.needs(self._budget.total if rows == self._least else 0)
            trainee.clear_gradients()
            self._engine.release()
            return False
        if peak > self._limit:
            tried.needs(peak if rows == self._least else 0)
            return False
        tried.peaks[rows] = peak
        return True

    def _steps(self, trainee: ModuleTrainee, piece: Piece, scale: float, times: int, *, updates: bool) -> None:
        """Two of them, each with so many micro-batches."""
        for _ in range(2):
            for _ in range(times):
                trainee.learn(piece, scale)
            if updates:
                trainee.rehearse(self._clip)
            else:
                trainee.clear_gradients()

    def _reset(self) -> None:
        if self._on_cpu:
            self._gauge.reset()
        else:
            self._engine.release()
            torch.cuda.reset_peak_memory_stats(self._device)

    def _peak(self) -> int:
        return self._gauge.peak() if self._on_cpu else torch.cuda.max_memory_reserved(self._device)

    def _piece(self, rows: int) -> Piece:
        start = min(self._first, self._rows - rows)  # with the first sample that counts
        part = batches.sliced(self._batch, start, start + rows)
        return Piece(part, number=0, expected=self._loss.count(part) or 1.0, last_of_step=True)

    def _planned(self, way: Way, tried: Tried, wanted: int | None, *, asked: Any) -> ModulePlan:
        largest = max(tried.peaks)
        # As many micro-batches as with the largest size, but of equal sizes.
        rows = wanted or math.ceil(self._rows / math.ceil(self._rows / largest))
        peak = tried.peaks[largest]
        smallest = min(tried.peaks)
        if smallest <= rows < largest:
            peak -= (peak - tried.peaks[smallest]) * (largest - rows) // (largest - smallest)
        highest = peak if not self._on_cpu else max(peak + UNMEASURED, self._meter.peak)
        weights = sum(each.nbytes for each in unique_tensors(self._module))
        activations = int(min(max(0, peak - tried.floor), tried.slope * rows))
        notes: tuple[str, ...] = ()
        if asked == "auto" and way.optimizer != "adamw":
            notes = (f"{way.optimizer} instead of adamw, because only its states fit: results differ slightly",)
        if rows < self._rows and has_batch_statistics(self._module):
            notes += (f"batch norm has the statistics of micro-batches of {rows:,}, not of whole batches",)
        return ModulePlan(
            module=type(self._module).__name__,
            device=self._device.type,
            batch_size=self._rows,
            accumulation=self._accumulation,
            micro_batch=rows,
            recompute=way.recompute or self.checkpointing.was_on,
            optimizer=optimizers.name_of(way.optimizer, self._module),
            precision=self._precision,
            reuse=way.reuse,
            count=self._loss.count(self._batch),
            unit=self._loss.unit(self._batch),
            row_size=batches.row_size(self._batch),
            parts={
                "weights": weights,
                "gradients": tried.gradients,
                "optimizer": tried.states,
                "activations": activations,
                "overhead": highest - weights - tried.gradients - tried.states - activations,
            },
            budget=self._budget.asked,
            measured=tried.peaks[largest],
            notes=notes,
        )

    def _refusal(self, rejected: dict[Way, Tried], rows: int) -> BudgetError:
        """The error that names the smallest budget that works."""
        way, tried = min(rejected.items(), key=lambda each: each[1].least)
        if self._on_cpu:
            # The next run may have more resident before it begins.
            drift = max(DRIFT, tried.base // DRIFT_SHARE)
            needed = (tried.least + MOST_UNMEASURED + JITTER + drift) * SLACK // (SLACK - 1)
        else:
            needed = with_reserve(tried.least)
        parts = {
            "what is resident already, with the module's weights": tried.base,
            "gradients": tried.gradients,
            "the optimizer": tried.states,
            "activations": max(0, tried.least - tried.floor),
        }
        checkpointing = ", activation checkpointing" if way.recompute else ""
        return refusal(
            self._budget,
            needed,
            {name: size for name, size in parts.items() if size},
            how=f", with micro-batches of {rows}, {optimizers.name_of(way.optimizer, self._module)}{checkpointing}",
            remedy=f"; give more {option('memory')}, or use a smaller module or shorter samples",
        )
