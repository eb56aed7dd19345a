"""The native core as an `Engine` (the contract is in ramlet.engines): each method calls one of the files next to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ramlet import __version__, _native
from ramlet.engines import Division, Hyperparameters, Ranks, Sampling, choices
from ramlet.engines.native.gpt import GPT, Layout, arena_parts, continuing_parts
from ramlet.engines.native.plan import batch_bytes, make_plan
from ramlet.engines.native.trainee import NativeTrainee
from ramlet.engines.opening import several_processes
from ramlet.engines.plan import Choice, Plan, Rehearsal, Task
from ramlet.errors import SettingsError, option
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, with_reserve
from ramlet.runtime.memory import free_memory, resident_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.processor import flags, has_amx
from ramlet.runtime.settled import release_heap, settled_memory
from ramlet.runtime.threads import available_threads

TOKEN_BYTES = 200
"""Per token when its bytes are first looked up; the tokenizer itself is resident before."""
TINY = Shape(vocab_size=64, context=16, layers=1, width=32, heads=1)
PROBED = Shape(vocab_size=256, context=128, layers=1, width=128, heads=2)
"""Models to start the engine with, and to measure its speed with: 4 MB, less than any budget has for a model."""
NOT_REHEARSED = 1_000_000
"""What Python loads and allocates to evaluate, after what is resident was measured: 0.3 to 1.6 MB."""
LEARNING_SHARE = 0.5
"""Of the speed of matrix products, in a micro-batch of a small model."""


@dataclass(frozen=True)
class NativeEngine:
    threads: int
    """At most one per core: more would need memory and make nothing faster."""
    asked_threads: int = 0
    """If they are more than that."""
    kind: ClassVar[str] = "cpu"
    name: ClassVar[str] = "cpu"
    ranks: ClassVar[Ranks] = Ranks()
    uses_host_memory: ClassVar[bool] = True
    is_async: ClassVar[bool] = False
    baseline: ClassVar[str] = "Python"
    out_of_memory: ClassVar[type[Exception]] = MemoryError

    @classmethod
    def open(cls, threads: int | None) -> NativeEngine:
        import numpy  # noqa: F401 - for batches: what is resident from here on

        _native.vectors()  # an unknown RAMLET_VECTORS is an error

        # The arena is one block; nothing else is so large that returning it would take time.
        _native.keep_large_blocks(False)
        cores = available_threads()
        return cls(min(threads or cores, cores), threads if threads and threads > cores else 0)

    @property
    def versions(self) -> dict[str, str]:
        return {"native": __version__}

    @contextmanager
    def joined(self) -> Iterator[NativeEngine]:
        if several_processes():
            raise SettingsError(
                f"the native engine trains in one process, with threads: do not use torchrun, "
                f"or use {option('engine', 'torch')}"
            )
        yield self

    def precision(self, wanted: str) -> str:
        """`auto` is bf16 if the CPU multiplies it faster than fp32."""
        if wanted in ("fp8", "fp16"):
            raise choices.needs_a_gpu(wanted)
        if wanted != "auto":
            return wanted
        return "bf16" if "avx512_bf16" in flags() and not has_amx() else "fp32"

    # Memory.

    def budget(self, memory: Budget | str | int | None) -> Budget:
        return Budget.parse(memory)

    def cap(self, budget: Budget) -> None:
        """A plan is exact: there is nothing to cap."""

    def resident(self, *, stepping: bool = False) -> int:
        """Evaluation and generation run through much of the code of a step; of training, `fit` takes steps itself."""
        settled = settled_memory()
        return settled if stepping else self._rehearsed(Choice(1, 16))

    def _rehearsed(self, choice: Choice, document_mask: bool = False, rehearsal: Rehearsal | None = None) -> int:
        """What is resident after a step like those of the choice: its threads, and the pages that it runs through."""
        import numpy as np

        tokens = TINY.context
        small = choice.with_(micro_batch=1, chunk=tokens, held=0)
        layout = Layout.of(small, seq_len=tokens, document_mask=document_mask, threads=self.threads)
        trainee = NativeTrainee(TINY, layout, Unchanging())
        batch = _blank(TINY, 1, tokens)
        if document_mask:
            batch |= {name: np.zeros((1, tokens), np.int64) for name in ("position_ids", "document_ids")}
        trainee.learn({**batch, "samples": range(1)}, 1.0)
        trainee.update(0.0, 1.0)
        trainee.model.token_losses(batch)
        if rehearsal is not None:
            rehearsal(trainee)
        del trainee
        self.release()
        return resident_memory()

    def release(self) -> None:
        release_heap()

    def keep_freed(self, keep: bool) -> None:
        """Nothing is freed between steps."""

    def current(self, meter: Meter) -> int:
        return meter.current

    def peak(self, meter: Meter) -> int:
        return meter.peak

    # Plans.

    def sketch(self, task: Task) -> Plan:
        plan = make_plan(task, threads=self.threads)
        if not self.asked_threads:
            return plan
        note = f"{self.asked_threads} threads are more than there are cores: using {self.threads}"
        return replace(plan, notes=(*plan.notes, note))

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        resident = self._rehearsed(Choice(1, 16, compute=task.precision), task.document_mask, task.rehearsal)
        plan = self.sketch(replace(task, resident=resident))
        # Another choice runs through other code.
        again = self._rehearsed(plan.choice, task.document_mask)
        plan = plan.at_least(plan.peak + max(0, again - resident))
        if plan.peak > task.budget.total - task.budget.reserve:
            plan = self.sketch(replace(task, resident=again))
        plan = plan.at_least(meter.peak)
        task.budget.require(meter.peak, f"{self.baseline}, while it was loaded")
        return plan

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
            arena = arena_parts(shape, self._forward(precision, found, seq_len, document_mask))
            batch = 2 * batch_bytes(found.micro_batch * seq_len, document_mask)
            parts = {
                self.baseline: resident,
                **(aside or {}),
                "weights": arena["weights"],
                "a micro-batch": arena["activations"] + batch,
                "logits": arena["logits"],
                "the byte lengths of tokens": shape.vocab_size * TOKEN_BYTES,
                "what is loaded later": NOT_REHEARSED,
            }
            if sum(parts.values()) <= budget.total - budget.reserve:
                return found
        budget.require(with_reserve(sum(parts.values())), parts, measured=resident)
        return found

    def _forward(self, precision: str, division: Division, seq_len: int, document_mask: bool) -> Layout:
        return Layout.forward(
            self.precision(precision),
            micro_batch=division.micro_batch,
            seq_len=seq_len,
            chunk=division.chunk,
            document_mask=document_mask,
            threads=self.threads,
        )

    def generation_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        arena = arena_parts(shape, self._forward(precision, ONE_TOKEN, 1, document_mask=False))
        parts = continuing_parts(shape, precision=precision, prompt=prompt, settings=settings, threads=self.threads)
        return {
            "weights": sum(arena.values()),
            **parts,
            **({"the tokenizer": vocabulary * TOKEN_BYTES} if vocabulary else {}),
            "what is loaded later": 2 * NOT_REHEARSED,  # also the code of its own forward pass
        }

    # Models.

    def trainee(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        *,
        seq_len: int | None = None,
        document_mask: bool = False,
    ) -> NativeTrainee:
        length = seq_len or shape.context
        layout = Layout.of(choice, seq_len=length, document_mask=document_mask, threads=self.threads)
        return NativeTrainee(shape, layout, settings)

    def load(self, found: ModelFolder, precision: str, *, division: Division | None = None, seq_len: int = 0) -> GPT:
        # A mask is possible with any layout: the documents of a batch are its own.
        layout = self._forward(precision, division or ONE_TOKEN, seq_len or 1, document_mask=division is not None)
        model = GPT(found.shape(), layout)
        model.load_weights(found)
        return model

    # Time, and the machine.

    def mark(self) -> float:
        return time.monotonic()

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def free(self) -> int:
        return free_memory()

    def flops(self, precision: str, seconds: float) -> float:
        """The best of many micro-batches of a small model."""
        shape, rows = PROBED, 1
        choice = Choice(rows, rows * shape.context, compute=precision, optimizer="adamw8bit")
        model = GPT(shape, Layout.of(choice, seq_len=shape.context, document_mask=False, threads=self.threads))
        model.initialize(0)
        batch = _blank(shape, rows, shape.context)
        operations = shape.step_flops(rows * shape.context)
        best = 0.0
        end = time.perf_counter() + seconds
        while True:
            began = time.perf_counter()
            model.learn(batch, None, 1.0)
            now = time.perf_counter()
            best = max(best, operations / max(1e-9, now - began) / LEARNING_SHARE)
            if now >= end:
                return best

    def gpus(self) -> list[dict[str, Any]]:
        return []


@dataclass(frozen=True)
class Unchanging:
    """Hyperparameters of a rehearsal."""

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    seed: int = 0


ONE_TOKEN = Division(micro_batch=1, chunk=1)
"""To generate text, which has its own forward pass: no memory for another."""


def _blank(shape: Shape, rows: int, seq_len: int) -> dict[str, Any]:
    import numpy as np

    ids = np.arange(rows * seq_len, dtype=np.int64).reshape(rows, seq_len) % shape.vocab_size
    return {"input_ids": ids, "targets": ids}
