"""WORK/pipeline.json: which stages are made, and from what.

    {"format": "ramlet pipeline", "version": 1, "file": "../pipeline.yaml", "stages": {"tokenizer": {
        "state": "done", "fingerprint": "...", "settings": {...}, "reads": {...}, "resumes": false}}}

A stage is recorded as `begun` before its command runs and as `done` after it: so it is known what an existing folder
was made from, even if the command was killed half-way. The file is replaced atomically. Folders of stages to be rebuilt
are moved aside, never removed. `file` is the pipeline that owns the results, relative to WORK, so that both can be
moved together:

    with Record("my-model") as record:              # locked against another `ramlet run`
        record.claim("pipeline.yaml")               # SettingsError if the results belong to another file
        record.set_aside("my-model/run")            # -> my-model/run.old-1
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError, SettingsError
from ramlet.pipeline.stages import Stage
from ramlet.runtime.atomic_files import is_temporary, replacing, sync_folder, write_json_to
from ramlet.runtime.folder_lock import Lock, hold
from ramlet.runtime.small_files import read_json

NAME = "pipeline.json"
FORMAT = "ramlet pipeline"
VERSION = 1
LARGEST = 16 << 20
LOCKS = ("lock", ".lock")
"""In folders started by earlier versions, and by the native core."""


@dataclass(frozen=True)
class Recorded:
    """What is known of a stage."""

    state: str
    fingerprint: str
    settings: dict[str, Any]
    reads: dict[str, str]
    resumes: bool
    """Whether it was begun as a longer version of an existing run."""

    @property
    def done(self) -> bool:
        return self.state == "done"


class Record:
    """The record of a folder; with `writes=False` it is only read, and not locked."""

    def __init__(self, work: str, *, writes: bool = True) -> None:
        self._work = work
        self._writes = writes
        self._path = os.path.join(work, NAME)
        self._lock: Lock | None = None
        self._file: str | None = None
        self._stages: dict[str, Recorded] = {}

    def __enter__(self) -> Record:
        if self._writes:
            # Keeps out another `ramlet run`, which might move aside what this one writes.
            self._lock = hold(self._work, "run", instead="`work`")
        try:
            if self._writes:
                os.makedirs(self._work, exist_ok=True)
            self._stages = self._read()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise SettingsError(
                    f"cannot write into {self._work}: {error.strerror}; choose another `work`"
                ) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def _read(self) -> dict[str, Recorded]:
        try:
            found = read_json(self._path, SettingsError, LARGEST, lone_surrogates=True)
            if found["format"] != FORMAT or found["version"] != VERSION:
                raise ValueError(f"version {found['version']}")
            self._file = found.get("file")
            return {
                name: Recorded(
                    str(each["state"]),
                    str(each["fingerprint"]),
                    dict(each["settings"]),
                    dict(each["reads"]),
                    bool(each["resumes"]),
                )
                for name, each in found["stages"].items()
            }
        except FileNotFoundError:
            return {}
        except NotADirectoryError:
            raise SettingsError(f"`work`, {self._work}, is a file: give a folder for the results") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{self._path} cannot be read ({type(error).__name__}): remove it; stages then check their folders"
            ) from None

    def claim(self, file: str) -> None:
        """Refuses the results of another file; a file that no longer exists was renamed to this one."""
        name = os.path.relpath(file, self._work)
        if self._file in (None, name):
            self._file = name
            return
        other = os.path.normpath(os.path.join(self._work, str(self._file)))
        if os.path.exists(other) and not os.path.samefile(other, file):
            raise SettingsError(
                f"{self._work} holds the results of {other}: give {file} a `work` of its own, "
                f"or move {other} away to continue with its results"
            )
        self._file = name
        if self._writes:
            self._write()

    def of(self, name: str) -> Recorded | None:
        return self._stages.get(name)

    def note(self, stage: Stage, *, done: bool, resumes: bool = False) -> None:
        """Writes down that the stage has begun, or is done."""
        state = "done" if done else "begun"
        self._stages[stage.name] = Recorded(state, stage.fingerprint, stage.settings, stage.reads, resumes)
        self._write()

    def _write(self) -> None:
        stages = {name: asdict(each) for name, each in self._stages.items()}
        with replacing(self._path) as file:
            content = {"format": FORMAT, "version": VERSION, "file": self._file, "stages": stages}
            write_json_to(file, content)

    @staticmethod
    def holds_work(path: str) -> bool:
        """Whether there is anything to keep: a stage that failed at once may leave a folder with only its lock."""
        if not os.path.isdir(path):
            return os.path.lexists(path)
        return any(name not in LOCKS and not is_temporary(name) for _, _, names in os.walk(path) for name in names)

    @staticmethod
    def set_aside(path: str, cache: str | None = None) -> str:
        """Renames what is there to the first free name; refused while a command writes to it.

        What a dataset has put into a dedup cache goes with it: the new one would lack all documents of the old one.
        """
        with hold(path, "run", instead="`work`"):
            if cache is not None:
                _take_along(Path(path), Path(cache))
            number = 1
            while os.path.lexists(f"{path}.old-{number}"):
                number += 1
            aside = f"{path}.old-{number}"
            os.rename(path, aside)
            sync_folder(os.path.dirname(path) or ".")
        return aside


def _take_along(dataset: Path, cache: Path) -> None:
    """Moves what the runs of a dataset have put into the cache to DATASET/dedup-cache."""
    try:
        runs = Manifest.read(dataset).runs
    except DatasetError:
        return
    names = [f"{run['id']}.{ending}" for run in runs for ending in ("hashes", "near") if run["id"].isalnum()]
    for name in names:
        if (cache / name).is_file():
            (dataset / "dedup-cache").mkdir(exist_ok=True)
            shutil.move(cache / name, dataset / "dedup-cache" / name)
