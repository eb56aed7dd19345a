"""The devices of a run, and their memory; `python -m ramlet.engines.jax.device` lists them as JSON.

On a CPU, memory is the resident set of the process, as everywhere in ramlet. On a GPU or TPU it is what XLA's
allocator has in use on the fullest of the devices.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from ramlet.engines.choices import needs_a_gpu
from ramlet.errors import BudgetError, SettingsError, option
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import free_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import release_heap

KINDS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}
"""JAX's platforms by the names of the setting `device`."""


@dataclass(frozen=True)
class Device:
    wanted: str = "auto"

    @cached_property
    def devices(self) -> list[Any]:
        """Those of this process."""
        return local_devices(self.wanted)

    @property
    def kind(self) -> str:
        return KINDS[self.devices[0].platform]

    @property
    def name(self) -> str:
        count = len(self.devices)
        return self.kind if count == 1 else f"{count} x {self.kind}"

    @property
    def uses_host_memory(self) -> bool:
        return self.kind == "cpu"

    def precision(self, wanted: str) -> str:
        """`auto` is bf16, except on a CPU, where XLA multiplies it as fp32."""
        if wanted in ("fp8", "fp16"):
            if self.kind == "cpu":
                raise needs_a_gpu(wanted)
            raise SettingsError(
                f"the jax engine does not multiply {wanted}: use {option('precision', 'bf16')}, "
                f"or {option('engine', 'torch')}"
            )
        if wanted != "auto":
            return wanted
        return "fp32" if self.kind == "cpu" else "bf16"

    def budget(self, memory: Budget | str | int | None) -> Budget:
        if self.kind == "cpu":
            return Budget.parse(memory)
        total, used = (min(_stat(device, name) for device in self.devices) for name in ("bytes_limit", "bytes_in_use"))
        free = total - used
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
        """XLA knows what a step needs before it runs: the plan keeps within the budget, and nothing else is large."""

    def release(self) -> None:
        release_heap()

    def keep_freed(self, keep: bool) -> None:
        """XLA allocates a step's memory at once, and returns it."""

    def current(self, meter: Meter) -> int:
        return meter.current if self.kind == "cpu" else max(_stat(each, "bytes_in_use") for each in self.devices)

    def peak(self, meter: Meter) -> int:
        return meter.peak if self.kind == "cpu" else max(_stat(each, "peak_bytes_in_use") for each in self.devices)

    def free(self) -> int:
        if self.kind == "cpu":
            return free_memory()
        return min(_stat(each, "bytes_limit") - _stat(each, "bytes_in_use") for each in self.devices)

    def gpus(self) -> list[dict[str, Any]]:
        if self.kind == "cpu":
            return []
        return [
            {
                "name": each.device_kind,
                "memory": _stat(each, "bytes_limit"),
                "free": _stat(each, "bytes_limit") - _stat(each, "bytes_in_use"),
                "bf16": True,
            }
            for each in self.devices
        ]

    @property
    def is_async(self) -> bool:
        return self.kind != "cpu"

    def mark(self) -> Any:
        return time.monotonic()

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(later - earlier)


@dataclass
class DeviceGauge:
    """The peak of a GPU's or TPU's memory, as XLA counts it: that of the whole process, which cannot be reset."""

    device: Device
    meter: Meter

    def reset(self) -> None:
        pass

    def peak(self) -> int:
        return self.device.peak(self.meter)


def _stat(device: Any, name: str) -> int:
    return int((device.memory_stats() or {}).get(name, 0))


def local_devices(wanted: str) -> list[Any]:
    """All devices of this process, of the kind that is asked for."""
    try:
        found = list(jax.local_devices())
    except RuntimeError as error:  # JAX raises it if a platform that is asked for is not there
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise SettingsError(
            f"JAX finds no {wanted} here ({reason}): use {option('device', 'cpu')}, "
            f"or install JAX for it{_INSTALL.get(wanted, '')}"
        ) from None
    kind = KINDS.get(found[0].platform)
    if kind is None or wanted not in ("auto", kind):
        raise SettingsError(
            f"JAX finds no {wanted} here, but {found[0].platform}: use {option('device', 'cpu')}, "
            f"or install JAX for it{_INSTALL.get(wanted, '')}"
        )
    return found


_INSTALL = {"cuda": ", pip install 'jax[cuda12]'", "tpu": ", pip install 'jax[tpu]'"}


def survey() -> list[dict[str, Any]]:
    """All devices of this machine, for `ramlet doctor`."""
    return [
        {
            "kind": KINDS.get(each.platform, "?"),
            "name": each.device_kind,
            "memory": _stat(each, "bytes_limit"),
        }
        for each in jax.local_devices()
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(survey()) + "\n")
