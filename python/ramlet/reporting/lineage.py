"""What belongs together: a run, the datasets it was trained on, the tokenizers they were made with.

    lineages = LineageFinder().find(["my-run", "other-run"])
    lineages[0].run, lineages[0].datasets, lineages[0].tokenizers, lineages[0].notes

A run names its datasets in settings.yaml, a dataset its tokenizer in the manifest. If they were moved together, they
are found next to each other; a tokenizer counts only if its fingerprint is the one that the dataset has. What is
missing is skipped, with a line in `notes`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramlet.errors import RamletError, SettingsError
from ramlet.reporting.found import DatasetFound, Finder, Progress, Run, TokenizerFound, value_at
from ramlet.runtime.budget import Budget
from ramlet.runtime.plurals import plural


@dataclass
class Lineage:
    """One article of the page."""

    run: Run | None = None
    datasets: list[DatasetFound] = field(default_factory=list)
    tokenizers: list[TokenizerFound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The folder that the article is about."""
        return self._parts[0].path

    @property
    def files(self) -> list[Path]:
        """The files it was read from."""
        return [file for part in self._parts for file in part.files]

    @property
    def _parts(self) -> list[Run | DatasetFound | TokenizerFound]:
        return [part for part in (self.run, *self.datasets, *self.tokenizers) if part is not None]


class LineageFinder:
    """Reads folders; kept by a server, it reads them again while runs are in progress."""

    def __init__(self, progress: Progress | None = None, budget: Budget | None = None) -> None:
        self._finder = Finder(progress, budget)

    def find(self, paths: Sequence[str | os.PathLike[str]], *, waiting: bool = False) -> list[Lineage]:
        """One for each run; a dataset or tokenizer that belongs to none of the runs has one of its own."""
        if not paths:
            raise SettingsError("name the folder of a run, a dataset or a tokenizer")
        found = [self._finder.find(path, waiting=waiting) for path in paths]
        datasets = [each for each in found if isinstance(each, DatasetFound)]
        tokenizers = [each for each in found if isinstance(each, TokenizerFound)]
        lineages = [self._of_run(each) for each in found if isinstance(each, Run)]
        if len(lineages) == 1:
            # Named together with one run, they belong to it, wherever they are now.
            _join(lineages[0].datasets, datasets)
            _join(lineages[0].tokenizers, tokenizers)
            self._add_tokenizers(lineages[0])
            return lineages
        for dataset in datasets:
            if not any(_same(dataset, known) for lineage in lineages for known in lineage.datasets):
                lineages.append(self._of_dataset(dataset, tokenizers))
        for tokenizer in tokenizers:
            if not any(_same(tokenizer, known) for lineage in lineages for known in lineage.tokenizers):
                lineages.append(Lineage(tokenizers=[tokenizer]))
        return lineages

    def _of_run(self, run: Run) -> Lineage:
        lineage = Lineage(run=run)
        if run.metrics.broken:
            lineage.notes.append(f"{plural(run.metrics.broken, 'line')} of metrics.jsonl cannot be read: skipped.")
        data = run.settings.get("data")
        for each in data if isinstance(data, list) else []:
            self._add_dataset(lineage, run, each if isinstance(each, dict) else {})
        self._add_tokenizers(lineage)
        return lineage

    def _of_dataset(self, dataset: DatasetFound, given: Sequence[TokenizerFound]) -> Lineage:
        fingerprint = dataset.manifest.tokenizer.fingerprint
        lineage = Lineage(datasets=[dataset], tokenizers=[each for each in given if _fingerprint(each) == fingerprint])
        self._add_tokenizers(lineage)
        return lineage

    def _add_dataset(self, lineage: Lineage, run: Run, recorded: dict[str, Any]) -> None:
        if "stream" in recorded:
            lineage.notes.append(f"Trained on the stream {recorded['stream']}; no dataset was written.")
            return
        path = Path(str(recorded.get("path", "")))
        # A run that was trained directly on text has its dataset inside; others may have been moved together.
        places = [path, run.path / "data" / path.name, run.path.parent / path.name]
        place = next((each for each in places if each.is_dir()), None)
        if place is None:
            what = "is a single array, without a record of its documents" if path.is_file() else "no longer exists"
            lineage.notes.append(f"Its data {path} {what}.")
            return
        try:
            # One after the other: the manifest of a great many shards is large, and must not be in memory twice.
            changed = _changed(place, recorded.get("fingerprint"))
            dataset = self._finder.dataset(place)
        except RamletError as error:
            lineage.notes.append(f"Its data is not shown: {error}.")
            return
        if changed:
            lineage.notes.append(f"{place} has changed since the run began: it is shown as it is now.")
        _join(lineage.datasets, [dataset])

    def _add_tokenizers(self, lineage: Lineage) -> None:
        for dataset in lineage.datasets:
            wanted = dataset.manifest.tokenizer
            if any(_fingerprint(each) == wanted.fingerprint for each in lineage.tokenizers):
                continue
            name = Path(wanted.name)
            for place in (name, dataset.path.parent / name, dataset.path.parent / name.name):
                try:
                    tokenizer = self._finder.tokenizer(place)
                except (RamletError, OSError, ValueError):
                    continue  # missing, or not one that was trained here
                if _fingerprint(tokenizer) == wanted.fingerprint:
                    _join(lineage.tokenizers, [tokenizer])
                    break


def _join(known: list[Any], more: Sequence[Any]) -> None:
    known += [each for each in more if not any(_same(each, other) for other in known)]


def _same(one: Any, other: Any) -> bool:
    return bool(one.path.resolve() == other.path.resolve())


def _fingerprint(tokenizer: TokenizerFound) -> Any:
    return value_at(tokenizer.statistics, "tokenizer", "fingerprint")


def _changed(dataset: Path, fingerprint: Any) -> bool:
    from ramlet.loading.tokens import open_tokens

    return fingerprint is not None and open_tokens(dataset, "train", 0.1).fingerprint != fingerprint
