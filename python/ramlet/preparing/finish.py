"""The end of a run: what its parts made becomes a dataset, or the error that nothing is left.

The manifest is written last; until then a dataset is unfinished, or with `append` the one that it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramlet import __version__, _native
from ramlet.cluster.usage import by_node
from ramlet.dataset.duplicates import FILE as NEAR_DUPLICATES
from ramlet.dataset.ledger import Ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Split
from ramlet.errors import SettingsError, SourceError, option
from ramlet.preparing import exclude, near
from ramlet.preparing.core import Core, decoder_of
from ramlet.preparing.manifest import add_run, check_same, manifest_of_run, run_ledger, skipped_records, why_empty
from ramlet.preparing.work import Work, as_noted
from ramlet.runtime.atomic_files import replacing, write_json
from ramlet.runtime.small_files import read_json_object
from ramlet.tokenizer.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`.

    prepared: ramlet.Prepared = ramlet.prepare("corpus/", "my-dataset", tokenizer="gpt2")
    prepared.path, prepared.manifest["splits"]["train"]["tokens"], prepared.already_done
    """

    path: Path
    """The dataset's folder, or the `.npy` file."""

    manifest: Json = field(repr=False)
    statistics: Json = field(repr=False)
    already_done: bool
    """Nothing was read: the folder had this result already."""
    nothing_new: str = field(default="", repr=False)
    """Why an append added nothing and left the dataset unchanged; empty if it added something."""


def check_can_begin(work: Work, before: Manifest | None, tokenizer: Tokenizer | None) -> Prepared | None:
    """The result, if the folder has it already; refuses to replace another, or to append what does not fit."""
    folder, identity = work.folder, work.plan["id"]
    if before is not None and _has_run(before, identity):
        folder.check_whole(before)
        noted = folder.plan()
        # The work of an interrupted append is kept: the same append resumes it.
        if noted is None or _has_run(before, noted["id"]):
            with folder.alone():
                folder.finish()
        return Prepared(work.result, before.as_json(), {}, already_done=True)
    if before is not None and not work.append:
        if folder.npy is not None:  # which cannot be added to
            raise SettingsError(
                f"{work.result} holds a dataset from other inputs or settings: choose another {option('out')}"
            )
        raise SettingsError(
            f"{work.result} holds a dataset from other inputs or settings: "
            f"{option('append')} adds to it, or choose another folder"
        )
    if work.append and before is not None:
        check_same(before, tokenizer, work.settings, work.plan["end_id"], folder.out)
    if work.plan["cache"]:
        _native.check_dedup_cache(json.dumps(work.plan))
    return None


def end_if_empty(core: Core) -> Prepared | None:
    """Before the shards are laid out: ends a run that kept no document."""
    return _end(core).if_empty()


def finish(core: Core) -> Prepared:
    """The dataset from the results of all parts."""
    end = _end(core)
    if end.folder.npy is not None and end.is_empty():
        end.folder.npy.unlink(missing_ok=True)  # which a part has just written
    if ended := end.if_empty():
        return ended
    with end.folder.alone():
        return end.publish()


def _end(core: Core) -> _End:
    return _End(core, core.work.folder.manifest() if core.work.append else None)


class _End:
    def __init__(self, core: Core, before: Manifest | None) -> None:
        self.core, self.work, self.before = core, core.work, before
        self.settings, self.plan, self.folder = self.work.settings, self.work.plan, self.work.folder
        self.inputs = self.work.planned.inputs
        if self.settings.exclude:
            found = read_json_object(self.folder.work / exclude.FOLDER / "set.json", SourceError)
            self.inputs = {**self.inputs, "exclude": found}
        self.notes = _Notes(self.work)

    def is_empty(self) -> bool:
        return not self.settings.allow_empty and bool(why_empty(self._dropped(), self.settings))

    def _dropped(self) -> Ledger:
        return run_ledger(self.notes, {name: Split.of(()) for name in SPLITS}, 0, self.work.planned.skipped)

    def if_empty(self) -> Prepared | None:
        """Ends a run that kept no document: with an error, or, if it appends, with the dataset unchanged."""
        ledger = self._dropped()
        why = why_empty(ledger, self.settings)
        if self.settings.allow_empty or not why:
            return None
        statistics = self._statistics(ledger)
        self.folder.abandon()
        if self.before is None:
            raise SourceError(
                f"{why}; nothing was written: change the settings that dropped them, "
                f"or give {option('allow_empty')} to write an empty dataset",
                why=why,
            )
        return Prepared(self.folder.out, self.before.as_json(), statistics, already_done=False, nothing_new=why)

    def _statistics(self, ledger: Ledger) -> Json:
        compared = {} if self.settings.near is None else {"near": near.statistics(self.settings.near)}
        nodes = by_node(self.folder.work)
        return {
            "ramlet": __version__,
            "settings": as_noted(self.settings),
            "threads": self.core.threads,
            "ledger": ledger,
            **compared,
            "skipped": skipped_records(self.notes),
            **({"exclude": self.inputs["exclude"]} if self.settings.exclude else {}),
            "memory": self.core.meter.summary(),
            **({"nodes": nodes} if nodes else {}),
        }

    def publish(self) -> Prepared:
        settings, plan, result, before = self.settings, self.plan, self.work.result, self.before
        assembled = json.loads(_native.assembled_shards(self.folder.work, self.folder.out))
        tokenizer = self.core.load_tokenizer()
        number, name = len(before.runs) if before else 0, self.folder.tokenizer_file
        skipped = self.work.planned.skipped
        run = manifest_of_run(settings, plan, tokenizer, assembled, self.notes, skipped, number, name)
        noted = {"id": plan["id"], "command": self.work.command, "settings": as_noted(settings), "inputs": self.inputs}
        manifest = add_run(run, before, self.notes, noted)
        self.core.meter.stage("finishing")
        statistics = self._statistics(run.ledger)
        if before is None:
            with (
                open(self.folder.work / "tokenizer.json", "rb") as saved,
                replacing(self.folder.out / manifest.tokenizer.file, binary=True) as file,
            ):
                shutil.copyfileobj(saved, file)
        if plan["cache"] and plan["unit"]:
            _native.commit_dedup_cache(self.folder.work, self.folder.out)
        if settings.near is not None:
            self._finish_near(tokenizer)
        if self.folder.npy is None:
            write_json(result / "stats.json", statistics)
            if settings.exclude:
                earlier = [each["id"] for each in before.runs] if before else []
                exclude.write_examples(result, self.folder.work, plan["id"], earlier)
        manifest.write(result)
        self.folder.finish()
        return Prepared(result, manifest.as_json(), statistics, already_done=False)

    def _finish_near(self, tokenizer: Tokenizer) -> None:
        """Some of the pairs for the user, and what was kept for later runs with the same cache."""
        found = self.folder.work / NEAR_DUPLICATES
        encoder, decode = decoder_of(tokenizer)
        if self.plan["cache"]:
            self.core.require_bits()
        _native.finish_near(self.folder.work, self.folder.out, found, encoder=encoder, decode=decode)
        near.write_examples(found, self.folder.out / NEAR_DUPLICATES, append=self.before is not None)


class _Notes:
    """The notes of the tasks as they are in the end; read again each time, if they are too many for the memory."""

    MOST = 2048

    def __init__(self, work: Work) -> None:
        self._work = work
        self._held = list(self._read()) if work.plan["tasks"] <= self.MOST else None

    def __iter__(self) -> Iterator[Json]:
        return iter(self._held) if self._held is not None else self._read()

    def _read(self) -> Iterator[Json]:
        stage = "tokens" if self._work.settings.near is None else "near"
        for note in self._work.folder.notes(stage, self._work.plan["tasks"]):
            note.pop("near", None)  # pairs that may be shown, which are many
            yield note


def _has_run(manifest: Manifest, identity: str) -> bool:
    return any(run["id"] == identity for run in manifest.runs)
