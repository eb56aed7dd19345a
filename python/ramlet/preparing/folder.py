"""The folder that `prepare` writes to, and the unfinished work in it.

A folder goes through these states, and a kill at any moment leaves one of them:

    OUT/.work/...                            unfinished; the same command resumes from the notes there
    OUT/.work/... train/ val/                complete shards, but no manifest that lists them
    OUT/dataset_metadata.json train/ val/... finished; the next run removes what is left of .work

With `append` the manifest exists from the start and is replaced at the end: until then the dataset is unchanged. For
output in one file (`npy`) the work is in a hidden folder next to it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramlet.dataset.duplicates import FILE as NEAR_DUPLICATES
from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import SPLITS, TOKENIZER, Manifest, beside
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.runtime.atomic_files import is_temporary, remove, remove_left, replacing, sync_folder
from ramlet.runtime.folder_lock import PARTS_LOCK, Lock, alone, hold, share
from ramlet.runtime.small_files import CHARACTERS, LARGE, read_json_object

CONTAMINATED = "contaminated.jsonl"
"""Examples of documents that share a passage with an evaluation set."""
_OURS = {MANIFEST, TOKENIZER, "stats.json", CONTAMINATED, NEAR_DUPLICATES, *SPLITS}
_FOLDERS = ("exclude", "scan", "drops", "tokens", "near_pairs", "near", "shards", "inputs", "workers")
_SHARD = re.compile(r"shard_\d+\.(bin|idx)")


class OutFolder:
    """OUT and the work in it, locked against other runs while the block lasts."""

    def __init__(self, out: Path, *, npy: Path | None = None) -> None:
        self.out = out
        self.npy = npy
        self.work = out / (f".{npy.name}.work" if npy else ".work")
        self._lock: Lock | None = None
        self._created: list[Path] = []
        """Folders that this run created, innermost first."""

    @property
    def tokenizer_file(self) -> str:
        return beside(self.npy, ".tokenizer.json").name if self.npy else TOKENIZER

    def manifest(self) -> Manifest | None:
        """The manifest of a finished dataset, if there is one."""
        if self.npy is None:
            return Manifest.read(self.out) if (self.out / MANIFEST).exists() else None
        path = beside(self.npy, ".json")
        try:
            found = Manifest.read_beside(self.npy)
        except (OSError, ValueError) as error:
            raise SettingsError(f"cannot read {path} ({error}): repair it, or choose another folder") from None
        if found is None and path.exists():
            raise SettingsError(f"{path} was not written by ramlet: choose another {option('out')}")
        return found

    def check_whole(self, manifest: Manifest) -> None:
        """Checks the size of each file in the manifest; `ramlet data verify` reads them."""
        sizes: dict[Path, int | None] = {} if self.npy is None else {self.npy: None}
        for shard in manifest.shards:
            sizes[self.out / shard.file] = shard.bytes
            sizes[self.out / shard.index] = None
        for path, size in sizes.items():
            if not path.is_file() or size not in (None, path.stat().st_size):
                raise DatasetError(
                    f"{path} is missing or incomplete, although the dataset was finished: "
                    f"remove {self.npy or self.out} and its other files, and run the same command again"
                )

    def results(self) -> set[str]:
        """Real paths of what is written here: never an input, even if it is inside an input folder."""
        if self.npy is None:
            return {os.path.realpath(self.out)}
        return {os.path.realpath(f"{self.npy}{ending}") for ending in ("", ".json", ".tokenizer.json")} | {
            os.path.realpath(self.work)
        }

    def refuse_others(self) -> None:
        """Refuses a folder with other files in it, before anything is written."""
        if self.npy:
            if self.npy.exists() and self.manifest() is None and not self.work.exists():
                raise SettingsError(f"{self.npy} exists and was not written by ramlet: choose another {option('out')}")
            return
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise SettingsError(f"{self.out} is a file: give a folder to write the dataset to")
        names = {name for name in os.listdir(self.out) if not is_temporary(name)}
        if MANIFEST in names or (".work" in names and names <= _OURS | {".work"}):
            return
        if names:
            raise SettingsError(
                f"{self.out} holds something else ({sorted(names)[0]} is in it): choose another folder, or an empty one"
            )

    def __enter__(self) -> OutFolder:
        """Locks the result for this run, or refuses if another process is writing it."""
        self._lock = hold(self.npy or self.out, "prepare")
        try:
            self.refuse_others()
            self._created = [path for path in (self.work, self.out) if not path.exists()]
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / PARTS_LOCK).touch()  # which `share` expects, and does not create
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise SettingsError(
                    f"cannot write into {self.out}: {error.strerror}; choose another {option('out')}"
                ) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Unlocks the folder. If no work was begun, removes what this run created."""
        if self.work in self._created and not (self.work / "plan.json").exists():
            shutil.rmtree(self.work, ignore_errors=True)
            if self.out in self._created:
                with suppress(OSError):
                    self.out.rmdir()
        if self._lock is not None:
            self._lock.release()

    def share(self) -> Lock:
        """While a process runs parts of the plan: others may run other parts, but nobody begins or ends the run."""
        return share(self.work / PARTS_LOCK)

    def alone(self) -> Lock:
        """While the run begins or ends: nobody may run parts of it, who would be left without the folder."""
        return alone(self.work / PARTS_LOCK, self.npy or self.out)

    def remove_left(self) -> None:
        """Removes what killed processes left of files that they were writing."""
        for name in _FOLDERS:
            remove_left(self.work / name)
        for split in () if self.npy else SPLITS:
            remove_left(self.out / split)

    def plan(self) -> dict[str, Any] | None:
        """The plan of an unfinished run."""
        try:
            return read_json_object(self.work / "plan.json", DatasetError, LARGE)  # with the files of a dedup cache
        except (OSError, ValueError):
            return None

    def begin(self, plan: dict[str, Any]) -> None:
        """Starts from scratch and removes the work of another plan. `inputs.new` becomes the plan's inputs."""
        with self.alone():
            if self.npy is None:
                # Before the plan is removed: it shows that the shards left by a kill are ours.
                self._remove_shards()
            for name in ("plan.json", "run.json", "tokenizer.json"):
                (self.work / name).unlink(missing_ok=True)
            for name in _FOLDERS:
                shutil.rmtree(self.work / name, ignore_errors=True)
            os.replace(self.work / "inputs.new", self.work / "inputs")
            sync_folder(self.work)
            self.save(plan)

    def save(self, plan: dict[str, Any]) -> None:
        """Saves the plan; from then on the same command resumes it."""
        with replacing(self.work / "plan.json") as file:
            json.dump(plan, file, indent=1)

    def refuse_strangers(self) -> None:
        """Refuses shards that someone else put into a dataset, which a run that goes on would write over."""
        for path in () if self.npy or self._may_have_shards() else self._unlisted():
            raise DatasetError(
                f"the manifest does not list {path}: run data verify with {option('adopt')} to add it, or move it away"
            )

    def _remove_shards(self) -> None:
        """Removes shards of an unfinished run; never one that a manifest lists, or that someone else put there."""
        self.refuse_strangers()
        for path in [*self._unlisted(), *self._temporary()]:
            path.unlink()

    def _may_have_shards(self) -> bool:
        """Whether shards that no manifest lists may be those of the unfinished run."""
        return self.manifest() is None or (self.plan() is not None and (self.work / "shards/layout.json").exists())

    def _unlisted(self) -> list[Path]:
        manifest = self.manifest()
        counted = {name for shard in (manifest.shards if manifest else ()) for name in (shard.file, shard.index)}
        found = [path for split in SPLITS for path in sorted((self.out / split).glob("*"))]
        return [
            path for path in found if _SHARD.fullmatch(path.name) and f"{path.parent.name}/{path.name}" not in counted
        ]

    def _temporary(self) -> list[Path]:
        return [path for split in SPLITS for path in (self.out / split).glob("*") if is_temporary(path.name)]

    def notes(self, stage: str, count: int, **types: type) -> Iterator[dict[str, Any]]:
        """The notes of a finished stage's tasks, in order; `types` are those of values that were not checked yet.

        One at a time: a note with the characters of its text may be large.
        """
        for index in range(count):
            yield self.note(stage, index, **types)

    def note(self, stage: str, index: int, **types: type) -> dict[str, Any]:
        return self._note(self.work / stage / f"{index:06}.json", types)

    def _note(self, path: Path, types: dict[str, type]) -> dict[str, Any]:
        remedy = f"remove {self.work} and run the same command again"
        try:
            note = read_json_object(path, DatasetError, CHARACTERS)
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing: {remedy}") from None
        except DatasetError as error:
            raise DatasetError(f"{error}; {remedy}") from None
        found = {key: note.get(key) for key in types}
        wrong = any(type(found[key]) is not kind for key, kind in types.items())
        # The native core takes counts of 64 bits.
        if wrong or any(type(value) is int and not 0 <= value < 1 << 63 for value in found.values()):
            raise DatasetError(f"{path} is damaged: {remedy}")
        return note

    def abandon(self) -> None:
        """Removes the work of a run without a result, and keeps what existed before."""
        with self.alone():
            self.finish()

    def finish(self) -> None:
        """Removes the work, once the manifest is written; for a caller who holds `alone`."""
        # The plan first: what a kill leaves of the rest is never taken for a run to go on with.
        remove(self.work / "plan.json")
        self.remove_left()
        for split in () if self.npy else SPLITS:
            with suppress(OSError):
                (self.out / split).rmdir()  # a split without documents
        shutil.rmtree(self.work, ignore_errors=True)
