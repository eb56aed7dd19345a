"""The folder of a run of `ramlet.fit`: that of any run (training/run_folder.py), with a module instead of a shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.training.run_folder import EXTENDABLE, MODULE, RunFolder


class ModuleFolder(RunFolder):
    def invalid(self, noted: Mapping[str, Any]) -> str | None:
        job, plan = noted["job"], noted["plan"]
        if not isinstance(job, dict) or MODULE not in job:
            raise SettingsError(f"{self.path} has a run of ramlet.train: choose another {option('out')}")
        counts = ("micro_batch", "batch_size", "accumulation")
        checks = {
            "settings": isinstance(noted["settings"], dict),
            "plan": isinstance(plan, dict) and set(plan) >= _PLANNED,
            "plan.optimizer": isinstance(plan, dict) and isinstance(plan.get("optimizer"), str),
            **{f"plan.{name}": isinstance(plan, dict) and _is_count(plan.get(name)) for name in counts},
            **{f"plan.{name}": isinstance(plan, dict) and isinstance(plan.get(name), bool) for name in _SWITCHES},
        }
        return next((name for name, holds in checks.items() if not holds), None)

    def refuse_other_modules(self, noted: Mapping[str, Any], now: Mapping[str, Any], *, resume: bool) -> None:
        """Refuses a folder whose run has another module or other settings."""
        if noted["job"].get("tensors") != now["job"]["tensors"]:
            raise SettingsError(
                f"{self.path} has another module ({noted['job'][MODULE]}, or one with other tensors): "
                f"choose another {option('out')}, or give the same module"
            )
        for name, value in now["settings"].items():
            before = noted["settings"].get(name)
            if before == value or (resume and name in EXTENDABLE):
                continue
            hint = f", or {option('resume', True)} to continue it" if name in EXTENDABLE else ""
            raise SettingsError(
                f"{self.path} has a run with {name} {before}, not {value}: "
                f"choose another {option('out')}, or give the same value{hint}"
            )


_SWITCHES = ("recompute", "reuse")
_PLANNED = {"module", "device", "precision", "count", "unit", "row_size", "parts", "budget", "measured", "notes"}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
