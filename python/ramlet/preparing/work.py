"""An unfinished run on disk: everything that a process needs to run a part of it, or to finish it.

    work.save()                  OUT/.work/run.json, next to the plan, the inputs and the tokenizer
    work = Work.load(folder)     in another process, here or on another machine

What decides the result is in the plan, which the native core reads; this is the rest: the settings as they were given,
what was found out about the inputs, and which command and version of ramlet made the plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.plan import Planned
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.atomic_files import write_json
from ramlet.runtime.digest import digest
from ramlet.runtime.small_files import LARGE, read_json_object

Json = dict[str, Any]


@dataclass
class Work:
    """A plan, its folder and its settings."""

    folder: OutFolder
    settings: PrepareSettings
    planned: Planned
    command: str = ""
    """A digest of the inputs and settings as they were given."""
    append: bool = False

    @property
    def plan(self) -> Json:
        return self.planned.plan

    @property
    def result(self) -> Path:
        return self.folder.npy or self.folder.out

    @property
    def cached(self) -> list[tuple[str, int]]:
        """Path and size of the files of the dedup cache, without which duplicates would be kept."""
        return [(os.path.join(self.plan["cache"], name), size) for name, size in self.plan["cache_listing"].items()]

    def save(self) -> None:
        planned = {key: value for key, value in asdict(self.planned).items() if key != "plan"}
        content = {
            "ramlet": __version__,
            "command": self.command,
            "append": self.append,
            "settings": as_json(self.settings),
            "planned": planned,
        }
        write_json(self.folder.work / "run.json", content)

    @classmethod
    def load(cls, folder: OutFolder) -> Work:
        """The run that was planned here; refuses one of another version."""
        plan = folder.plan()
        try:
            saved = read_json_object(folder.work / "run.json", DatasetError, LARGE, lone_surrogates=True)
            if plan is None:
                raise FileNotFoundError
        except (FileNotFoundError, NotADirectoryError):
            raise nothing_planned(folder) from None
        if saved.get("ramlet") != __version__:
            raise SettingsError(
                f"the plan in {folder.work} was made by ramlet {saved.get('ramlet')}, and this is {__version__}: "
                "use the same version everywhere"
            )
        try:
            settings: Json = {key: tuple(of) if isinstance(of, list) else of for key, of in saved["settings"].items()}
            return cls(
                folder,
                PrepareSettings(**settings),
                Planned(plan=plan, **saved["planned"]),
                command=saved["command"],
                append=saved["append"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"{folder.work / 'run.json'} is damaged ({error}): remove {folder.work}") from None


def nothing_planned(folder: OutFolder) -> SettingsError:
    return SettingsError(
        f"nothing is planned in {folder.npy or folder.out}, as this machine sees it: "
        f"run {option('stage', 'plan')} first"
    )


def command_of(
    inputs: Sequence[Any], settings: PrepareSettings, *, append: bool, shard_bytes: int | None, task_bytes: int | None
) -> str:
    """A digest of what the user gave: equal for the processes of one job, without looking at any input."""
    names = [os.fspath(each) if isinstance(each, (str, os.PathLike)) else asdict(each) for each in inputs]
    given = json.dumps([names, settings.tokenizer, append, shard_bytes, task_bytes, settings.exclude])
    return digest(iter([b"ramlet command 1", given.encode(), settings.parts()]))


def as_json(settings: PrepareSettings) -> Json:
    """The settings as they are read back from a file: with lists for tuples."""
    found: Json = json.loads(json.dumps(asdict(settings)))
    return found


def as_noted(settings: PrepareSettings) -> Json:
    """The same for people, and for any JSON parser: what is not UTF-8 in a name becomes a question mark."""
    found: Json = json.loads(json.dumps(asdict(settings), ensure_ascii=False).encode("utf-8", "replace"))
    return found
