"""The folder of a run.

    RUN/
      settings.yaml        every resolved setting, the data, the model's shape and the plan; written first
      metrics.jsonl        one line a logged step
      checkpoints/         what to go on from
      config.json model.safetensors tokenizer.json ...   the trained model, for transformers as well
      stats.json           written last: what was done, in what time and memory, and what had been predicted

A folder with stats.json is finished; one with settings.yaml alone was interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramlet.atomic_files import is_temporary, remove, replacing, sync_folder
from ramlet.errors import SettingsError
from ramlet.folder_lock import Lock, hold

__all__ = ["RunFolder"]

SETTINGS = "settings.yaml"
STATISTICS = "stats.json"
_BEFORE = {".lock", "data", "stream"}
"""What may be there before a run has begun: text that was prepared for it, a stream's tokenizer."""
_WRITTEN = ("stats.json", "model.safetensors", "metrics.jsonl", "config.json", "report.html", "measures.json")
EXTENDABLE = ("max_steps", "epochs", "tokens", "lr", "min_lr", "warmup", "schedule")
"""What `--resume` may change: a run that goes on for longer than was planned."""


class RunFolder:
    """RUN, held against other runs while the block lasts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: Lock | None = None
        self._new = False

    def __enter__(self) -> RunFolder:
        self._lock = hold(self.path, "train")
        try:
            self._new = not self.path.exists()
            self.refuse_foreign()
            self.path.mkdir(exist_ok=True)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise SettingsError(f"cannot write into {self.path}: {error.strerror}; choose another --out") from None
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
                "choose another --out, or an empty folder"
            )

    def __exit__(self, *_: object) -> None:
        if self._new and not (self.path / SETTINGS).exists():
            with suppress(OSError):
                self.path.rmdir()
        if self._lock is not None:
            self._lock.release()

    def noted(self) -> dict[str, Any] | None:
        """What an earlier run here wrote down, or None."""
        import yaml

        try:
            noted = yaml.safe_load((self.path / SETTINGS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = str(error).splitlines()[0]
            raise SettingsError(f"{self.path / SETTINGS} cannot be read ({reason}): choose another --out") from None
        if not isinstance(noted, dict) or not {"settings", "data", "job", "plan"} <= set(noted):
            raise SettingsError(f"{self.path / SETTINGS} is not a run's: choose another --out")
        return noted

    def note(self, values: Mapping[str, Any]) -> None:
        import yaml

        with replacing(self.path / SETTINGS) as file:
            yaml.safe_dump(dict(values), file, sort_keys=False, allow_unicode=True)

    def refuse_others(
        self, noted: Mapping[str, Any], now: Mapping[str, Any], shape: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Stops where the folder's run is of other settings, other data or a model of another shape."""
        if _without(noted["data"], "path") != _without(now["data"], "path"):
            if _without(noted["data"], "fingerprint") == _without(now["data"], "fingerprint"):
                raise SettingsError(
                    f"{_shown(now['data'])} is not what it was when {self.path} was trained on it: "
                    f"go on with it in another --out, with --init-from {self.path}"
                )
            raise SettingsError(
                f"{self.path} was trained on other data ({_shown(noted['data'])}): "
                "choose another --out, or give the same"
            )
        for name, value in now["settings"].items():
            before = noted["settings"].get(name)
            if before == value or (resume and name in EXTENDABLE):
                continue
            hint = ", or --resume to go on with it" if name in EXTENDABLE else ""
            raise SettingsError(
                f"{self.path} holds a run with {name} {before}, not {value}: "
                f"choose another --out, or give the same{hint}"
            )
        if noted["job"]["shape"] != shape:
            raise SettingsError(f"{self.path} holds a model of another shape: choose another --out, or give the same")

    def clear(self) -> None:
        """Removes the run that is here, its settings last: until then it is known for one."""
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        for name in (*_WRITTEN, SETTINGS):
            remove(self.path / name)

    def link(self, file: Path, name: str) -> None:
        """The same file under another name, without a second copy of it where the file system can do that."""
        hidden = self.path / f".{name}.ramlet-tmp"
        hidden.unlink(missing_ok=True)
        try:
            os.link(file, hidden)
        except OSError:
            shutil.copyfile(file, hidden)
        os.replace(hidden, self.path / name)
        # Of two names of one file a rename leaves both.
        hidden.unlink(missing_ok=True)
        sync_folder(self.path)

    def statistics(self) -> dict[str, Any] | None:
        """Of a finished run."""
        try:
            found: dict[str, Any] = json.loads((self.path / STATISTICS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def finish(self, statistics: Mapping[str, Any]) -> None:
        with replacing(self.path / STATISTICS) as file:
            json.dump(dict(statistics), file, ensure_ascii=False, indent=1)
            file.write("\n")


def _without(data: Any, left_out: str) -> Any:
    """Data without its path, for it may be moved and is known by what it holds; or by its name, whatever it holds."""
    return [{name: value for name, value in each.items() if name != left_out} for each in data]


def _shown(data: Any) -> str:
    return ", ".join(str(each.get("path", each)) for each in data) if isinstance(data, list) else str(data)
