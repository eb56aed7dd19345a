"""WORK/pipeline.json: which stages are made, and from what.

    {"format": "ramlet pipeline", "version": 1, "file": "../pipeline.yaml", "stages": {"tokenizer": {
        "state": "done", "fingerprint": "...", "settings": {...}, "reads": {...}, "resumes": false}}}

A stage is noted as `begun` before its command runs and as `done` after: so a folder that is there is known for what it
was made from, also when it was killed half-way. The file is replaced whole. Folders of stages that are to be made anew
are moved aside, never removed. `file` is whose results these are, from here, so that both can be moved together:

    with Record("my-model") as record:              # held against another `ramlet run`
        record.claim("pipeline.yaml")               # SettingsError where they are another file's
        record.set_aside("my-model/run")            # -> my-model/run.old-1
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ramlet.errors import SettingsError
from ramlet.pipeline.stages import Stage
from ramlet.runtime.atomic_files import is_temporary, replacing, sync_folder
from ramlet.runtime.folder_lock import Lock, hold
from ramlet.runtime.small_files import read_json

__all__ = ["NAME", "Noted", "Record"]

NAME = "pipeline.json"
FORMAT = "ramlet pipeline"
VERSION = 1
LARGEST = 16 << 20
LOCKS = ("lock", ".lock")
"""Of folders that were begun by earlier versions, and of the native core."""


@dataclass(frozen=True)
class Noted:
    """What is known of a stage."""

    done: bool
    fingerprint: str
    settings: dict[str, Any]
    reads: dict[str, str]
    resumes: bool = False
    """It was begun as a longer version of what was there."""


class Record:
    """The record of a folder; with `writes=False` it is only read, and nothing is held."""

    def __init__(self, work: str, *, writes: bool = True) -> None:
        self._work = work
        self._writes = writes
        self._path = os.path.join(work, NAME)
        self._lock: Lock | None = None
        self._file: str | None = None
        self._stages: dict[str, Noted] = {}

    def __enter__(self) -> Record:
        if self._writes:
            # Keeps another `ramlet run` out, which might move aside what this one writes.
            self._lock = hold(self._work, "run", instead="`work`")
        try:
            if self._writes:
                os.makedirs(self._work, exist_ok=True)
            self._stages = self._read()
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise SettingsError(
                    f"cannot write into {self._work}: {error.strerror}; choose another `work`"
                ) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _read(self) -> dict[str, Noted]:
        try:
            found = read_json(self._path, SettingsError, LARGEST)
            if found["format"] != FORMAT or found["version"] != VERSION:
                raise ValueError(f"version {found['version']}")
            self._file = found.get("file")
            return {
                name: Noted(
                    each["state"] == "done",
                    str(each["fingerprint"]),
                    dict(each["settings"]),
                    dict(each["reads"]),
                    bool(each["resumes"]),
                )
                for name, each in found["stages"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{self._path} cannot be read ({type(error).__name__}): remove it, and what is there is compared again"
            ) from None

    def claim(self, file: str) -> None:
        """Refuses results of another file; one that is gone was renamed, and is this one."""
        name = os.path.relpath(file, self._work)
        if self._file in (None, name):
            self._file = name
            return
        other = os.path.normpath(os.path.join(self._work, str(self._file)))
        if os.path.exists(other) and not os.path.samefile(other, file):
            raise SettingsError(
                f"{self._work} holds the results of {other}: give {file} a `work` of its own, "
                f"or move {other} away to go on with them"
            )
        self._file = name
        if self._writes:
            self._write()

    def of(self, name: str) -> Noted | None:
        return self._stages.get(name)

    def note(self, stage: Stage, *, done: bool, resumes: bool = False) -> None:
        """Writes down that the stage is begun, or done."""
        self._stages[stage.name] = Noted(done, stage.fingerprint, stage.settings, stage.reads, resumes)
        self._write()

    def _write(self) -> None:
        noted = {
            name: {
                "state": "done" if each.done else "begun",
                "fingerprint": each.fingerprint,
                "settings": each.settings,
                "reads": each.reads,
                "resumes": each.resumes,
            }
            for name, each in self._stages.items()
        }
        with replacing(self._path) as file:
            whole = {"format": FORMAT, "version": VERSION, "file": self._file, "stages": noted}
            json.dump(whole, file, ensure_ascii=False, indent=1)
            file.write("\n")

    @staticmethod
    def holds_work(path: str) -> bool:
        """Whether there is anything to keep: a stage that failed at once may leave a folder with its lock."""
        if not os.path.isdir(path):
            return os.path.lexists(path)
        return any(name not in LOCKS and not is_temporary(name) for _, _, names in os.walk(path) for name in names)

    @staticmethod
    def set_aside(path: str) -> str:
        """Gives what is there another name, the first that is free; refused while a command writes it."""
        with hold(path, "run", instead="`work`"):
            number = 1
            while os.path.lexists(f"{path}.old-{number}"):
                number += 1
            aside = f"{path}.old-{number}"
            os.rename(path, aside)
            sync_folder(os.path.dirname(path) or ".")
        return aside
