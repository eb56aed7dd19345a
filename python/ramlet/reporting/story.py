"""What belongs together: a run, the datasets it learned from, the tokenizers that made those.

    stories = Teller().tell(["my-run", "other-run"])
    stories[0].run, stories[0].datasets, stories[0].tokenizers, stories[0].notes

A run names its datasets in settings.yaml, a dataset its tokenizer in the manifest. Where one was moved together with
the other it is found beside it; a tokenizer counts only with the fingerprint that the dataset has. What is gone is
left out, with a word in `notes`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramlet.errors import RamletError, SettingsError
from ramlet.reporting.found import DatasetFound, Finder, Progress, Run, TokenizerFound
from ramlet.runtime.budget import Budget
from ramlet.runtime.plurals import plural

__all__ = ["Story", "Teller"]


@dataclass
class Story:
    """All that a page tells about one thing."""

    run: Run | None = None
    datasets: list[DatasetFound] = field(default_factory=list)
    tokenizers: list[TokenizerFound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Of what it is about."""
        return next(each.path for each in (self.run, *self.datasets, *self.tokenizers) if each is not None)

    @property
    def files(self) -> list[Path]:
        """What it was made from."""
        parts = [self.run, *self.datasets, *self.tokenizers]
        return [file for part in parts if part is not None for file in part.files]


class Teller:
    """Makes stories of folders; made once, it may be asked again while runs go on."""

    def __init__(self, progress: Progress | None = None, budget: Budget | None = None) -> None:
        self._finder = Finder(progress, budget)

    def tell(self, paths: Sequence[str | os.PathLike[str]], *, waiting: bool = False) -> list[Story]:
        """A story for each run; a dataset or tokenizer that is part of no run has one of its own."""
        if not paths:
            raise SettingsError("name the folder of a run, a dataset or a tokenizer")
        found = [self._finder.find(path, waiting=waiting) for path in paths]
        runs = [each for each in found if isinstance(each, Run)]
        datasets = [each for each in found if isinstance(each, DatasetFound)]
        tokenizers = [each for each in found if isinstance(each, TokenizerFound)]
        stories = [self._of_run(run) for run in runs]
        if len(stories) == 1:
            # Who names them beside one run means that they belong to it, wherever they lie now.
            _join(stories[0].datasets, datasets)
            _join(stories[0].tokenizers, tokenizers)
            self._add_tokenizers(stories[0])
            return stories
        for dataset in datasets:
            if not any(_same(dataset, known) for story in stories for known in story.datasets):
                stories.append(self._of_dataset(dataset, tokenizers))
        for tokenizer in tokenizers:
            if not any(_same(tokenizer, known) for story in stories for known in story.tokenizers):
                stories.append(Story(tokenizers=[tokenizer]))
        return stories

    def _of_run(self, run: Run) -> Story:
        story = Story(run=run)
        if run.metrics.broken:
            story.notes.append(f"{plural(run.metrics.broken, 'line')} of metrics.jsonl cannot be read, left out here.")
        data = run.settings.get("data")
        for named in data if isinstance(data, list) else []:
            self._add_dataset(story, run, named if isinstance(named, dict) else {})
        self._add_tokenizers(story)
        return story

    def _of_dataset(self, dataset: DatasetFound, given: Sequence[TokenizerFound]) -> Story:
        story = Story(datasets=[dataset])
        story.tokenizers += [each for each in given if _fingerprint(each) == dataset.manifest.tokenizer.fingerprint]
        self._add_tokenizers(story)
        return story

    def _add_dataset(self, story: Story, run: Run, named: dict[str, Any]) -> None:
        if "stream" in named:
            story.notes.append(f"It learned from the stream {named['stream']}, of which no dataset was written.")
            return
        path = Path(str(named.get("path", "")))
        # A run of --input has its dataset inside; others may have been moved together.
        places = [path, run.path / "data" / path.name, run.path.parent / path.name]
        place = next((each for each in places if each.is_dir()), None)
        if place is None:
            what = "is one array, without an account of its documents" if path.is_file() else "is not there any more"
            story.notes.append(f"Its data {path} {what}.")
            return
        try:
            # One after the other: the manifest of very many shards is large, and need not be there twice.
            changed = _changed(place, named.get("fingerprint"))
            dataset = self._finder.dataset(place)
        except RamletError as error:
            story.notes.append(f"Its data is not told about: {error}.")
            return
        if changed:
            story.notes.append(f"{place} has changed since the run was begun: it is shown as it is now.")
        _join(story.datasets, [dataset])

    def _add_tokenizers(self, story: Story) -> None:
        for dataset in story.datasets:
            note = dataset.manifest.tokenizer
            if any(_fingerprint(each) == note.fingerprint for each in story.tokenizers):
                continue
            name = Path(note.name)
            for place in (name, dataset.path.parent / name, dataset.path.parent / name.name):
                try:
                    tokenizer = self._finder.tokenizer(place)
                except (RamletError, OSError, ValueError):
                    continue  # not there, or not one that was trained here
                if _fingerprint(tokenizer) == note.fingerprint:
                    _join(story.tokenizers, [tokenizer])
                    break


def _join(known: list[Any], more: Sequence[Any]) -> None:
    known += [each for each in more if not any(_same(each, other) for other in known)]


def _same(one: Any, other: Any) -> bool:
    return bool(one.path.resolve() == other.path.resolve())


def _fingerprint(tokenizer: TokenizerFound) -> Any:
    about = tokenizer.statistics.get("tokenizer")
    return about.get("fingerprint") if isinstance(about, dict) else None


def _changed(dataset: Path, fingerprint: Any) -> bool:
    from ramlet.loading.tokens import open_tokens

    return fingerprint is not None and open_tokens(dataset, "train", 0.1).fingerprint != fingerprint
