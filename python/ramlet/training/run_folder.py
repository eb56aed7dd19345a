"""The folder of a run.

    RUN/
      settings.yaml        every resolved setting, the data, the model's shape and the plan; written first
      metrics.jsonl        one line per logged step
      checkpoints/         to resume from
      config.json model.safetensors tokenizer.json ...   the trained model, also for transformers
      stats.json           written last: results, time and memory, and the predicted memory

A folder with stats.json is finished; without it, it was interrupted. No file of a run exists without settings.yaml. A
run that starts over replaces the old one with its first checkpoint, not before (run_files.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ramlet.engines import Engine
from ramlet.engines.opening import ENGINES
from ramlet.engines.plan import SHARDS
from ramlet.errors import ModelError, SettingsError, option
from ramlet.model.shape import Shape
from ramlet.runtime.atomic_files import is_temporary, replacing
from ramlet.runtime.folder_lock import Lock, hold
from ramlet.runtime.small_files import YAML, parse_yaml, read_json_object, read_text
from ramlet.training import run_files
from ramlet.training.recipe import as_recorded_now, recipe_of
from ramlet.training.run_files import CHECKPOINTS, NEW, NEXT, SETTINGS, STATISTICS, WEIGHTS

_BEFORE = {".lock", "data", "stream", NEW, NEXT}
"""What may exist before a run has started: its prepared text, a stream's tokenizer."""
EXTENDABLE = ("max_steps", "epochs", "tokens", "lr", "min_lr", "warmup", "schedule", "decay")
"""What the setting `resume` may change: a run that continues for longer than planned."""
PLACES = ("init_from", "config")
"""Paths, which can be written in several ways."""
MODULE = "module"
"""The key of `job` that only a run of `ramlet.fit` has: the class of its module."""
KEPT = ("optimizer", "weights")
"""What a resumed run keeps from its plan, because its states are stored in this form."""


def settings_text(values: Mapping[str, Any]) -> str:
    """The content of settings.yaml; refuses what could not be read back, before the run changes anything."""
    import yaml

    # libyaml, if this build of PyYAML has it: the same text in a tenth of the time.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text: str = yaml.dump(dict(values), None, dumper, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"the name {error.object!r} is not UTF-8, so no settings.yaml can have it: rename the file or folder"
        ) from None
    if len(text.encode()) > YAML:
        raise SettingsError(
            f"the settings of this run take {len(text.encode()):,} bytes, and {YAML:,} is the most: name folders or "
            f"patterns instead of many files, or a shorter {option('sample_prompt')}"
        )
    return text


def other_choice(run: Path, name: str, chosen: str, wanted: str) -> SettingsError:
    """The error about a run that should continue with another optimizer, or another precision of its weights."""
    return SettingsError(
        f"{run} was begun with {name} {chosen}, and a run keeps it: give {option(name, chosen)} to continue this run, "
        f"or use {wanted} in another {option('out')}, with {option('init_from', run)} to start from its model"
    )


def other_engine(noted: Mapping[str, Any] | None, engine: Engine) -> str | None:
    """The engine that a resumed run was trained with until now, if it is not this one."""
    return next((name for name in ENGINES if name in (noted or {}) and name not in engine.versions), None)


F = TypeVar("F", bound="RunFolder")


class RunFolder:
    """RUN, locked against other runs inside the `with` block."""

    def __init__(self, path: str | os.PathLike[str], *, only_read: bool = False) -> None:
        """`only_read`: by a command that cannot write to another folder instead."""
        self.path = Path(path)
        self._remedy = "give another run" if only_read else f"choose another {option('out')}"
        self.place = self.path
        """Where this run's files are: the folder, or one inside it until they replace those of an old run."""
        self._lock: Lock | None = None
        self._new = False

    def __enter__(self: F) -> F:
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
        """Refuses a folder that is neither empty nor a run."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise SettingsError(f"{self.path} is a file: give a folder for the run")
        names = {name for name in os.listdir(self.path) if not is_temporary(name)}
        if names - _BEFORE and SETTINGS not in names:
            raise SettingsError(
                f"{self.path} is not empty and not a run (it has {sorted(names - _BEFORE)[0]}): "
                f"choose another {option('out')}, or an empty folder"
            )
        self._read()  # many programs have a settings.yaml, and a new run replaces what is there

    def __exit__(self, *_: object) -> None:
        if self.replaces:
            shutil.rmtree(self.place, ignore_errors=True)
        if self._new and not (self.path / SETTINGS).exists():
            with suppress(OSError):
                self.path.rmdir()
        if self._lock is not None:
            self._lock.release()

    def noted(self) -> dict[str, Any] | None:
        """The settings.yaml of an earlier run here, or None."""
        noted = self._read()
        if noted is not None and (name := self.invalid(noted)):
            raise SettingsError(f"{self.path / SETTINGS} is damaged ({name} is invalid): restore it")
        return noted

    def _read(self) -> dict[str, Any] | None:
        """What is in settings.yaml, if it is that of a run; None without one."""
        import yaml

        try:
            noted = parse_yaml(read_text(self.path / SETTINGS, SettingsError, YAML))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SettingsError(
                f"{self.path / SETTINGS} cannot be read ({reason}): restore it, or {self._remedy}"
            ) from None
        if not isinstance(noted, dict) or not {"settings", "data", "job", "plan"} <= set(noted):
            raise SettingsError(f"{self.path / SETTINGS} is not that of a run: {self._remedy}")
        return noted

    def invalid(self, noted: Mapping[str, Any]) -> str | None:
        """The first key of settings.yaml that is missing or of the wrong type."""
        if isinstance(noted["job"], dict) and MODULE in noted["job"]:
            raise SettingsError(
                f"{self.path} has a module that ramlet.fit trained ({noted['job'][MODULE]}): {self._remedy}"
            )
        return _invalid(noted)

    def note(self, text: str) -> None:
        """Writes settings.yaml, from `settings_text`."""
        with replacing(self.place / SETTINGS) as file:
            file.write(text)

    def refuse_others(
        self, noted: Mapping[str, Any], now: Mapping[str, Any], shape: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Refuses a folder whose run has other settings, other data or a model of another shape."""
        if _without(noted["data"], "path") != _without(now["data"], "path"):
            if _without(noted["data"], "fingerprint") == _without(now["data"], "fingerprint"):
                raise SettingsError(
                    f"{_shown(now['data'])} has changed since {self.path} was trained on it: "
                    f"continue in another {option('out')}, with {option('init_from', self.path)}"
                )
            raise SettingsError(
                f"{self.path} was trained on other data ({_shown(noted['data'])}): "
                f"choose another {option('out')}, or give the same data"
            )
        known, recipe = as_recorded_now(noted["settings"]), recipe_of(noted)
        resolved = {"schedule": recipe.schedule, "decay": recipe.decay, "qk_norm": noted["job"]["shape"].get("qk_norm")}
        for name, value in now["settings"].items():
            if name not in known:
                raise SettingsError(f"{self.path / SETTINGS} is damaged (settings.{name} is missing): restore it")
            before = known[name]
            if name in resolved and value is not None:
                before = resolved[name]
            if name in PLACES and before is not None and value is not None:
                before, value = os.path.normpath(before), os.path.normpath(value)
            if before == value or (resume and name in EXTENDABLE) or (value is None and name in resolved):
                continue
            if name in KEPT:
                # A resumed run keeps its choice, so `auto` is always the same, and so is the choice by its name.
                chosen = noted["plan"]["choice"][name]
                if value in ("auto", chosen):
                    continue
                raise other_choice(self.path, name, chosen, value)
            hint = f", or {option('resume')} to continue it" if name in EXTENDABLE else ""
            raise SettingsError(
                f"{self.path} has a run with {name} {before}, not {value}: "
                f"choose another {option('out')}, or give the same value{hint}"
            )
        if _completed(noted["job"]["shape"]) != shape:
            raise SettingsError(
                f"{self.path} has a model of another shape: choose another {option('out')}, or give the same shape"
            )

    def has_model(self) -> bool:
        """Whether there is anything to lose: a model, or a checkpoint to resume from."""
        if (self.path / STATISTICS).exists() or (self.path / WEIGHTS).exists():
            return True
        return any(self.path.glob(f"{CHECKPOINTS}/step_*/state.json"))

    def begin(self) -> None:
        """Starts a new run: inside the folder if it has a model, else in place of what is there."""
        if self.has_model():
            self.place = self.path / NEW
            self.place.mkdir()
        else:
            run_files.clear(self.path)

    @property
    def replaces(self) -> bool:
        """Whether the folder still has an old run, which this one will replace."""
        return self.place != self.path

    def replace(self) -> None:
        """Makes this run, which now has a checkpoint, the current one of the folder."""
        run_files.move_in(self.path)
        self.place = self.path

    def statistics(self) -> dict[str, Any] | None:
        """The stats.json of a finished run; None if it is missing or unusable, or the model is missing."""
        if not (self.path / WEIGHTS).is_file():
            return None
        try:
            found = read_json_object(self.path / STATISTICS, ModelError)
            memory, loss = found["memory"], found["loss"]
            whole = [found["steps"], found["tokens"], memory["device_peak"], memory["predicted"]]
        except (OSError, ModelError, KeyError, TypeError):
            return None
        numbers = all(isinstance(value, int) for value in whole) and isinstance(loss, (int, float, type(None)))
        return found if numbers and isinstance(found.get("scores"), dict) else None

    def finish(self, statistics: Mapping[str, Any]) -> None:
        with replacing(self.place / STATISTICS) as file:
            json.dump(dict(statistics), file, ensure_ascii=False, indent=1)
            file.write("\n")


def _invalid(noted: Mapping[str, Any]) -> str | None:
    """The first key that is missing or of the wrong type, among those that are used."""
    data, job, plan = noted["data"], noted["job"], noted["plan"]
    shape, length = (job.get("shape"), job.get("seq_len")) if isinstance(job, dict) else (None, None)
    choice = plan.get("choice") if isinstance(plan, dict) else None
    chosen = choice if isinstance(choice, dict) else {}
    checks = {
        "settings": isinstance(noted["settings"], dict),
        "data": isinstance(data, list) and all(isinstance(each, dict) for each in data),
        "job.shape": isinstance(shape, dict),
        "job.seq_len": _is_count(length),
        "job.recipe": _is_recipe(job.get("recipe")) if isinstance(job, dict) else False,
        "plan.choice": isinstance(choice, dict),
        **{f"plan.choice.{name}": isinstance(chosen.get(name), str) for name in ("optimizer", "weights", "compute")},
        **{f"plan.choice.{name}": _is_count(chosen.get(name)) for name in ("micro_batch", "chunk")},
        **{f"plan.choice.{name}": isinstance(chosen.get(name), bool) for name in ("recompute", "reuse")},
        # Older runs do not have these.
        "plan.choice.keeps_qk": isinstance(chosen.get("keeps_qk", False), bool),
        "plan.choice.held": chosen.get("held", 0) == 0 or _is_count(chosen.get("held")),
        "plan.choice.dropout": _is_share(chosen.get("dropout", 0.0)),
        "plan.choice.shard": chosen.get("shard", "none") in SHARDS,
    }
    return next((name for name, holds in checks.items() if not holds), None)


def _is_recipe(found: Any) -> bool:
    """Older runs do not have one."""
    if not isinstance(found, dict):
        return found is None
    strings = all(isinstance(found.get(name), str) for name in ("optimizer", "schedule"))
    return strings and _is_share(found.get("decay"))


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _completed(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shape of a run with what newer versions note of it, which has the defaults that do as before."""
    try:
        return Shape(**shape).to_dict()
    except (TypeError, SettingsError):
        return shape  # damaged, or by a newer version: another one in any case


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _without(data: Any, left_out: str) -> Any:
    """The data without one key: without its path, because it may be moved; without its fingerprint to find changes."""
    return [{name: value for name, value in each.items() if name != left_out} for each in data]


def _shown(data: Any) -> str:
    return ", ".join(str(each.get("path", each)) for each in data) if isinstance(data, list) else str(data)
