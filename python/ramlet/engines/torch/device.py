"""Where a run takes place, and how much memory it takes there.

On a CPU memory is the resident set of the whole process tree, as everywhere in ramlet. On a GPU it is what torch's
allocator has reserved of the device, which the allocator itself keeps under the budget; the CUDA context (about half a
gigabyte, the driver's) is not in it.
"""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ramlet.errors import BudgetError, SettingsError, option
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

__all__ = ["Device", "choose_device"]


@dataclass(frozen=True)
class Device:
    kind: str
    """cpu or cuda."""
    index: int = 0

    @property
    def name(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    def precision(self, wanted: str) -> str:
        """What products are made in; `auto` is bf16 where the hardware multiplies it faster than fp32."""
        if wanted != "auto":
            if wanted == "fp16" and self.kind == "cpu":
                raise SettingsError(f"fp16 is for GPUs: give {option('precision', 'bf16')} or fp32 on a CPU")
            return wanted
        if self.kind == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        return "bf16" if _cpu_multiplies_bf16() else "fp32"

    def budget(self, memory: Budget | str | int | None) -> Budget:
        """What `--memory` means here."""
        if self.kind == "cpu":
            return Budget.parse(memory)
        free, total = torch.cuda.mem_get_info(self.index)
        if memory is None or memory == "auto":
            return Budget(int(free * 0.9))
        if isinstance(memory, str) and memory.strip().endswith("%"):
            Budget.parse(memory)  # for its errors
            return Budget(int(free * float(memory.strip().rstrip("%")) / 100))
        budget = Budget(Budget.parse(memory).asked)  # a process that waits holds nothing of the device
        if budget.total > total:
            raise BudgetError(
                f"the device has {Budget(total)}, less than a budget of {budget}: give a smaller {option('memory')}"
            )
        return budget

    def cap(self, budget: Budget) -> None:
        """From here on the allocator refuses what would go over the budget."""
        if self.kind == "cuda":
            _, total = torch.cuda.mem_get_info(self.index)
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget.total / total), self.index)

    def release(self) -> None:
        """Gives back what was freed: what is held for one use may be of no use for the next."""
        gc.collect()
        if self.kind == "cuda":
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()
        else:
            with suppress(OSError, AttributeError):  # glibc has it
                ctypes.CDLL(None).malloc_trim(0)

    def current(self, meter: Meter) -> int:
        return torch.cuda.memory_reserved(self.index) if self.kind == "cuda" else meter.current

    def peak(self, meter: Meter) -> int:
        return torch.cuda.max_memory_reserved(self.index) if self.kind == "cuda" else meter.peak

    @property
    def runs_behind(self) -> bool:
        """Whether Python is ahead of the work that it asked for."""
        return self.kind == "cuda"

    def mark(self) -> Any:
        """The moment when all that was asked for so far is done; on a GPU only the GPU knows it."""
        if self.kind == "cpu":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.index))
        return event

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two marks, of which the later one is waited for."""
        if self.kind == "cpu":
            return float(later - earlier)
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1000

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)


def _cpu_multiplies_bf16() -> bool:
    """AVX-512 BF16 or AMX; without them bf16 products are slower than fp32's."""
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
            raise SettingsError(f"there is no GPU that PyTorch can use here: give {option('device', 'cpu')}")
        if local >= torch.cuda.device_count():
            raise SettingsError(
                f"{local + 1} processes want a GPU each, and there are {torch.cuda.device_count()}: "
                "give torchrun a smaller --nproc-per-node"
            )
    return Device(wanted, local)
