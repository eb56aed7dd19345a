"""The folder of a run.

    RUN/
      settings.yaml        every resolved setting, the data, the model's shape and the plan; written first
      metrics.jsonl        one line a logged step
      checkpoints/         what to go on from
      config.json model.safetensors tokenizer.json ...   the trained model, for transformers as well
      stats.json           written last: what was done, in what time and memory, and what had been predicted

A folder with stats.json is finished; one with settings.yaml alone was interrupted. Nothing of a run is there without
its settings. A run that is begun anew replaces the one that is there when it has a checkpoint, and not before
(run_files.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramlet.errors import ModelError, SettingsError, option
from ramlet.runtime.atomic_files import is_temporary, replacing
from ramlet.runtime.folder_lock import Lock, hold
from ramlet.runtime.small_files import YAML, read_json_object, read_text
from ramlet.training import run_files
from ramlet.training.run_files import CHECKPOINTS, NEW, NEXT, SETTINGS, STATISTICS, WEIGHTS

__all__ = ["RunFolder"]

_BEFORE = {".lock", "data", "stream", NEW, NEXT}
"""What may be there before a run has begun: text that was prepared for it, a stream's tokenizer."""
EXTENDABLE = ("max_steps", "epochs", "tokens", "lr", "min_lr", "warmup", "schedule")
"""What `--resume` may change: a run that goes on for longer than was planned."""


class RunFolder:
    """RUN, held against other runs while the block lasts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.place = self.path
        """Where this run's files are: in the folder, or inside it until they replace those of another run."""
        self._lock: Lock | None = None
        self._new = False

    def __enter__(self) -> RunFolder:
        self._lock = hold(self.path, "train")
        try:
            self._new = not self.path.exists()
            self.refuse_foreign()
            self.path.mkdir(exist_ok=True)
            run_files.settle(self.path)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise SettingsError(
                    f"cannot write into {self.path}: {error.strerror}; choose another {option('out')}"
                ) from None
            raise
        return self

    def refuse_foreign(self) -> None:
        """Stops where what is there is neither empty nor a run."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise SettingsError(f"{self.path} is a file: name a folder to write the run into")
        names = {name for name in os.listdir(self.path) if not is_temporary(name)}
        if names - _BEFORE and SETTINGS not in names:
            raise SettingsError(
                f"{self.path} holds something else ({sorted(names - _BEFORE)[0]} is in it): "
                f"choose another {option('out')}, or an empty folder"
            )

    def __exit__(self, *_: object) -> None:
        if self.replaces:
            shutil.rmtree(self.place, ignore_errors=True)
        if self._new and not (self.path / SETTINGS).exists():
            with suppress(OSError):
                self.path.rmdir()
        if self._lock is not None:
            self._lock.release()

    def noted(self) -> dict[str, Any] | None:
        """What an earlier run here wrote down, or None."""
        import yaml

        try:
            noted = yaml.safe_load(read_text(self.path / SETTINGS, SettingsError, YAML))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SettingsError(
                f"{self.path / SETTINGS} cannot be read ({reason}): choose another {option('out')}"
            ) from None
        if not isinstance(noted, dict) or not {"settings", "data", "job", "plan"} <= set(noted):
            raise SettingsError(f"{self.path / SETTINGS} is not a run's: choose another {option('out')}")
        if odd := _odd(noted):
            raise SettingsError(f"{self.path / SETTINGS} is damaged, for {odd} is not as it was written: restore it")
        return noted

    def note(self, values: Mapping[str, Any]) -> None:
        import yaml

        with replacing(self.place / SETTINGS) as file:
            yaml.safe_dump(dict(values), file, sort_keys=False, allow_unicode=True)

    def refuse_others(
        self, noted: Mapping[str, Any], now: Mapping[str, Any], shape: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Stops where the folder's run is of other settings, other data or a model of another shape."""
        if _without(noted["data"], "path") != _without(now["data"], "path"):
            if _without(noted["data"], "fingerprint") == _without(now["data"], "fingerprint"):
                raise SettingsError(
                    f"{_shown(now['data'])} is not what it was when {self.path} was trained on it: "
                    f"go on with it in another {option('out')}, with {option('init_from', self.path)}"
                )
            raise SettingsError(
                f"{self.path} was trained on other data ({_shown(noted['data'])}): "
                f"choose another {option('out')}, or give the same"
            )
        for name, value in now["settings"].items():
            before = noted["settings"].get(name)
            if before == value or (resume and name in EXTENDABLE):
                continue
            hint = f", or {option('resume')} to go on with it" if name in EXTENDABLE else ""
            raise SettingsError(
                f"{self.path} holds a run with {name} {before}, not {value}: "
                f"choose another {option('out')}, or give the same{hint}"
            )
        if noted["job"]["shape"] != shape:
            raise SettingsError(
                f"{self.path} holds a model of another shape: choose another {option('out')}, or give the same"
            )

    def holds_model(self) -> bool:
        """Whether there is anything to lose: a model, or a checkpoint to go on from."""
        if (self.path / STATISTICS).exists() or (self.path / WEIGHTS).exists():
            return True
        return any(self.path.glob(f"{CHECKPOINTS}/step_*/state.json"))

    def begin(self) -> None:
        """Makes room for a new run: beside a model that is there, or in place of what never became one."""
        if self.holds_model():
            self.place = self.path / NEW
            self.place.mkdir()
        else:
            run_files.clear(self.path)

    @property
    def replaces(self) -> bool:
        """Whether the folder still holds another run, which this one replaces."""
        return self.place != self.path

    def replace(self) -> None:
        """Makes this run, which has a checkpoint now, the one of the folder."""
        run_files.move_in(self.path)
        self.place = self.path

    def statistics(self) -> dict[str, Any] | None:
        """Of a finished run; None where they say nothing that can be used."""
        try:
            found = read_json_object(self.path / STATISTICS, ModelError)
            memory, loss = found["memory"], found["loss"]
            whole = [found["steps"], found["tokens"], memory["device_peak"], memory["predicted"]]
        except (OSError, ModelError, KeyError, TypeError):
            return None
        told = isinstance(found["scores"], dict) if "scores" in found else False
        known = all(isinstance(value, int) for value in whole) and isinstance(loss, (int, float, type(None)))
        return found if told and known else None

    def finish(self, statistics: Mapping[str, Any]) -> None:
        with replacing(self.place / STATISTICS) as file:
            json.dump(dict(statistics), file, ensure_ascii=False, indent=1)
            file.write("\n")


def _odd(noted: Mapping[str, Any]) -> str | None:
    """The first of what others rely on that is missing, or of another kind."""
    data, job, plan = noted["data"], noted["job"], noted["plan"]
    shape, length = (job.get("shape"), job.get("seq_len")) if isinstance(job, dict) else (None, None)
    choice = plan.get("choice") if isinstance(plan, dict) else None
    chosen = choice if isinstance(choice, dict) else {}
    checks = {
        "settings": isinstance(noted["settings"], dict),
        "data": isinstance(data, list) and all(isinstance(each, dict) for each in data),
        "job.shape": isinstance(shape, dict),
        "job.seq_len": _is_count(length),
        "plan.choice": isinstance(choice, dict),
        **{f"plan.choice.{name}": isinstance(chosen.get(name), str) for name in ("optimizer", "weights", "compute")},
        **{f"plan.choice.{name}": _is_count(chosen.get(name)) for name in ("micro_batch", "chunk")},
        **{f"plan.choice.{name}": isinstance(chosen.get(name), bool) for name in ("recompute", "reuse")},
        # Of a run from before it was there: 0.
        "plan.choice.held": chosen.get("held", 0) == 0 or _is_count(chosen.get("held")),
    }
    return next((name for name, holds in checks.items() if not holds), None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _without(data: Any, left_out: str) -> Any:
    """Data without its path, for it may be moved and is known by what it holds; or by its name, whatever it holds."""
    return [{name: value for name, value in each.items() if name != left_out} for each in data]


def _shown(data: Any) -> str:
    return ", ".join(str(each.get("path", each)) for each in data) if isinstance(data, list) else str(data)
