"""The device of a run, and its memory.

On a CPU, memory is the resident set of the whole process tree, as everywhere in ramlet. On a GPU it is what torch's
allocator has reserved on the device, which the allocator itself keeps within the budget; the driver's CUDA context
(about half a gigabyte) is not included.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

from ramlet.engines.choices import needs_a_gpu
from ramlet.engines.torch.fp8 import is_fast
from ramlet.errors import BudgetError, SettingsError, option
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import release_heap


@dataclass(frozen=True)
class Device:
    kind: str
    """cpu or cuda."""
    index: int = 0

    @property
    def name(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def uses_host_memory(self) -> bool:
        return self.kind == "cpu"

    def precision(self, wanted: str) -> str:
        """`auto` is bf16 if the hardware multiplies it faster than fp32."""
        if wanted != "auto":
            if wanted in ("fp8", "fp16") and self.kind == "cpu":
                raise needs_a_gpu(wanted)
            if wanted == "fp8" and not is_fast(torch.cuda.get_device_capability(self.index)):
                name = torch.cuda.get_device_name(self.index)
                raise SettingsError(f"{name} does not multiply fp8: use {option('precision', 'bf16')}")
            return wanted
        if self.kind == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        return "bf16" if _cpu_multiplies_bf16() else "fp32"

    def budget(self, memory: Budget | str | int | None) -> Budget:
        if self.kind == "cpu":
            return Budget.parse(memory)
        free, total = torch.cuda.mem_get_info(self.index)
        if memory is None or memory == "auto":
            return Budget(int(free * 0.9))
        if isinstance(memory, str) and memory.strip().endswith("%"):
            Budget.parse(memory)  # for its errors
            return Budget(int(free * float(memory.strip().rstrip("%")) / 100))
        budget = Budget(Budget.parse(memory).asked)  # a process that waits uses no device memory
        if budget.total > total:
            raise BudgetError(
                f"the device has {Budget(total)}, less than the budget of {budget}: give a smaller {option('memory')}"
            )
        return budget

    def cap(self, budget: Budget) -> None:
        if self.kind == "cuda":
            _, total = torch.cuda.mem_get_info(self.index)
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget.total / total), self.index)

    def release(self) -> None:
        if self.kind == "cuda":
            gc.collect()
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()
        else:
            release_heap()

    def current(self, meter: Meter) -> int:
        return torch.cuda.memory_reserved(self.index) if self.kind == "cuda" else meter.current

    def peak(self, meter: Meter) -> int:
        return torch.cuda.max_memory_reserved(self.index) if self.kind == "cuda" else meter.peak

    @property
    def is_async(self) -> bool:
        return self.kind == "cuda"

    def mark(self) -> Any:
        if self.kind == "cpu":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.index))
        return event

    def seconds(self, earlier: Any, later: Any) -> float:
        if self.kind == "cpu":
            return float(later - earlier)
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1000

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)


def _cpu_multiplies_bf16() -> bool:
    """AVX-512 BF16 or AMX; without them bf16 products are slower than fp32."""
    known = torch.backends.cpu.get_cpu_capability()
    if not known.startswith("AVX512"):
        return False
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe())


def choose_device(wanted: str, local: int = 0) -> Device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise SettingsError(f"PyTorch finds no GPU here: use {option('device', 'cpu')}")
        if local >= torch.cuda.device_count():
            raise SettingsError(
                f"{local + 1} processes need a GPU each, and there are {torch.cuda.device_count()}: "
                "start fewer processes with torchrun"
            )
    return Device(wanted, local)
