"""PyTorch as an `Engine` (the contract is in ramlet.engines): each method calls one of the files next to this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch

from ramlet.engines import Division, Hyperparameters, Sampling
from ramlet.engines.choices import EVAL_CHUNK, EVAL_TOKENS
from ramlet.engines.gauge import ResidentGauge
from ramlet.engines.plan import Choice, Correction, Plan, Task
from ramlet.engines.torch.base_memory import keep_large_blocks
from ramlet.engines.torch.device import Device, choose_device
from ramlet.engines.torch.forward_memory import divisions, generation_parts
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import load_model
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.probe import allowance, probe
from ramlet.engines.torch.ranks import TorchRanks, joined
from ramlet.engines.torch.step import Trainee
from ramlet.engines.torch.trial import tried
from ramlet.engines.torch.weights import DTYPES
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget, with_reserve
from ramlet.runtime.memory import free_memory, resident_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import settled_memory


@dataclass(frozen=True)
class TorchEngine(Device):
    ranks: TorchRanks = field(default_factory=TorchRanks)
    wanted: str = "auto"
    """The device as the user named it."""
    baseline: ClassVar[str] = "Python and PyTorch"

    @classmethod
    def on(cls, device: str, ranks: TorchRanks | None = None) -> TorchEngine:
        ranks = ranks or TorchRanks()
        chosen = choose_device(device, ranks.local)
        return cls(chosen.kind, chosen.index, ranks, device)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}

    @property
    def out_of_memory(self) -> type[Exception]:
        return torch.OutOfMemoryError

    @contextmanager
    def joined(self) -> Iterator[TorchEngine]:
        with joined(self.wanted) as ranks:
            yield self.on(self.wanted, ranks)

    def resident(self, *, stepping: bool = False) -> int:
        if stepping:
            # The first backward pass starts threads and queries the drivers for devices.
            torch.ones(1, requires_grad=True).sum().backward()
        return settled_memory() if self.kind == "cpu" else 0

    def keep_freed(self, keep: bool) -> None:
        keep_large_blocks(keep)

    def sketch(self, task: Task) -> Plan:
        # As a run starts with it: what is planned here must not be refused there.
        return self._plan(task, correction=allowance(task.budget) if self.kind == "cpu" else None)

    def fit(self, task: Task, settings: Hyperparameters, meter: Meter) -> Plan:
        # Ranks make the same plan: that of the one that needs most.
        replan = partial(self._plan, replace(task, resident=self.ranks.most(task.resident)))

        def build(choice: Choice) -> Trainee:
            # On a GPU a rank that runs out of memory would leave the others waiting for it.
            ranks = replace(self.ranks, silent=self.kind == "cuda") if choice.shard != "none" else None
            return Trainee(task.shape, choice, settings, device=self.name, ranks=ranks)

        if self.kind == "cuda":
            rows = self.eval_rows(task.seq_len)
            plan = tried(replan, build, device=self, budget=task.budget, eval_rows=rows, ranks=self.ranks)
        else:
            plan = replan(correction=allowance(task.budget))
            task.budget.require(self.ranks.most(meter.peak), f"{self.baseline}, while they are loaded")
            gauge = ResidentGauge(meter, self.ranks)
            plan = gauge.of_this_rank(probe(plan, build, gauge=gauge, replan=replan)).at_least(meter.peak)
        self.release()
        return plan

    def _plan(self, task: Task, *, correction: Correction | None) -> Plan:
        world = task.ranks or self.ranks.world
        return make_plan(task, device=self.kind, world=world, threads=self.threads, correction=correction)

    def eval_rows(self, seq_len: int) -> int:
        return max(1, EVAL_TOKENS // seq_len)

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
        resident = resident_memory() if self.kind == "cpu" else 0
        for found, parts in divisions(
            shape,
            seq_len=seq_len,
            precision=precision,
            base={self.baseline: resident, **(aside or {})},
            document_mask=document_mask,
            device=self.kind,
        ):
            if sum(parts.values()) <= budget.total - budget.reserve:
                return found
        budget.require(with_reserve(sum(parts.values())), parts, measured=resident)
        return found

    def generation_parts(
        self, shape: Shape, *, precision: str, prompt: int, settings: Sampling, vocabulary: int
    ) -> dict[str, int]:
        return generation_parts(
            shape,
            precision=precision,
            prompt=prompt,
            settings=settings,
            vocabulary=vocabulary if self.uses_host_memory else 0,
            device=self.kind,
        )

    def trainee(
        self,
        shape: Shape,
        choice: Choice,
        settings: Hyperparameters,
        *,
        seq_len: int | None = None,
        document_mask: bool = False,
    ) -> Trainee:
        return Trainee(shape, choice, settings, device=self.name, ranks=self.ranks)

    def load(self, found: ModelFolder, precision: str, *, division: Division | None = None, seq_len: int = 0) -> GPT:
        chunk = EVAL_CHUNK if division is None else division.chunk
        return load_model(found, device=self.name, dtype=DTYPES[precision], chunk=chunk)

    def free(self) -> int:
        free: int = torch.cuda.mem_get_info()[0] if self.kind == "cuda" else free_memory()
        return free

    def flops(self, precision: str, seconds: float) -> float:
        """The best of many products of the size that small models have."""
        tokens, width = (1024, 512) if self.kind == "cpu" else (8192, 2048)
        made = partial(torch.ones, dtype=DTYPES[precision], device=self.kind)
        x, weight, out = made(tokens, width), made(4 * width, width), made(tokens, 4 * width)
        best = 0.0
        end = time.perf_counter() + seconds
        while True:
            began = time.perf_counter()
            torch.mm(x, weight.t(), out=out)
            if self.kind == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            best = max(best, 8.0 * tokens * width * width / (now - began))
            if now >= end:
                return best

    def gpus(self) -> list[dict[str, Any]]:
        return [_gpu(index) for index in range(torch.cuda.device_count() if self.kind == "cuda" else 0)]


def _gpu(index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"name": torch.cuda.get_device_name(index), "memory": total, "free": free, "bf16": bool(bf16)}
