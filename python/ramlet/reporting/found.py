"""What lies in a folder: a run, a dataset, or a tokenizer, as its stage wrote it.

    found = Finder().find("my-run")      Run, DatasetFound or TokenizerFound; anything else is one sentence
    found.files                          what it was read from: when one of them changes, look again

A finder is kept while a run is watched: the curves of a run go on where they were, and the lengths of a dataset's
documents are counted once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError, ModelError, RamletError, SettingsError, TokenizerError, option
from ramlet.reporting.lengths import Lengths, count_lengths
from ramlet.reporting.markup import MOST_SHOWN
from ramlet.reporting.metrics import NAME as METRICS
from ramlet.reporting.metrics import Metrics
from ramlet.runtime.budget import Budget, using_budget
from ramlet.runtime.small_files import YAML, read_json_object, read_text
from ramlet.training.run_files import whole_run

__all__ = ["DatasetFound", "Finder", "Found", "Run", "TokenizerFound", "figure", "look"]

SETTINGS = "settings.yaml"
STATISTICS = "stats.json"
MEASURES = "measures.json"
TOKENIZER = "tokenizer.json"

Json = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Told what is read, and how many bytes or files of how many are done."""


@dataclass(frozen=True)
class Run:
    path: Path
    settings: Json
    metrics: Metrics
    statistics: Json | None
    """Of a run that is finished."""
    measures: list[Json]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class DatasetFound:
    path: Path
    manifest: Manifest
    statistics: Json | None
    lengths: Lengths | None
    """None where the .idx files cannot be read."""
    files: tuple[Path, ...]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TokenizerFound:
    path: Path
    statistics: Json
    files: tuple[Path, ...]


Found = Run | DatasetFound | TokenizerFound


class Finder:
    """Reads folders, and remembers what need not be read twice."""

    def __init__(self, progress: Progress | None = None, budget: Budget | None = None) -> None:
        self._progress = progress
        self._budget = budget
        self._metrics: dict[Path, Metrics] = {}
        self._lengths: dict[Path, tuple[tuple[int, int], Lengths | None]] = {}

    def find(self, given: str | os.PathLike[str], *, waiting: bool = False) -> Found:
        """What is in the folder. A run without a step is an error, unless one is `waiting` for it."""
        path = Path(given)
        if not path.exists():
            raise SettingsError(f"no such folder: {path}")
        if not path.is_dir():
            raise SettingsError(f"{path} is a file: name the folder of a run, a dataset or a tokenizer")
        if (path / SETTINGS).is_file():
            return self._run(path, waiting)
        if (path / MANIFEST).is_file() or (path / ".work" / "plan.json").is_file():
            return self.dataset(path)
        if (path / TOKENIZER).is_file():
            return self.tokenizer(path)
        raise SettingsError(
            f"{path} is neither a run nor a dataset nor a tokenizer: it has no {SETTINGS}, {MANIFEST} or {TOKENIZER}"
        )

    def _run(self, path: Path, waiting: bool) -> Run:
        place = whole_run(path)
        metrics = self._metrics.setdefault(place, Metrics(place / METRICS))
        metrics.read(self._bytes(f"reading {METRICS}"))
        if not metrics.lines and not waiting:
            raise ModelError(
                f"{path} has no step yet: wait for its first one, or give {option('watch')} to see it come"
            )
        files = tuple(place / name for name in (SETTINGS, METRICS, STATISTICS, MEASURES))
        return Run(path, _settings(place), metrics, _json(place / STATISTICS, ModelError), _measures(place), files)

    def dataset(self, path: Path) -> DatasetFound:
        from ramlet.dataset.reader import Dataset

        with using_budget(self._budget):
            dataset = Dataset(path)
        index = (path / MANIFEST).stat()
        known = (index.st_mtime_ns, index.st_size)
        notes = []
        if self._lengths.get(path, ((), None))[0] != known:
            lengths = None
            try:
                lengths = count_lengths(dataset, self._bytes("reading lengths"))
            except DatasetError as error:
                notes.append(f"How long documents are is not shown: {error}.")
            self._lengths[path] = (known, lengths)
        elif self._lengths[path][1] is None:
            notes.append("How long documents are is not shown: the index files cannot be read.")
        statistics = _json(path / STATISTICS, DatasetError)
        if statistics is None:
            notes.append("How much memory preparing took is not known: there is no stats.json.")
        return DatasetFound(
            path, dataset.manifest, statistics, self._lengths[path][1], (path / MANIFEST, path / STATISTICS), notes
        )

    def tokenizer(self, path: Path) -> TokenizerFound:
        statistics = _json(path / STATISTICS, TokenizerError)
        if statistics is None:
            raise TokenizerError(
                f"{path} has no {STATISTICS}: only a folder that `ramlet tokenizer train` wrote can be reported on"
            )
        return TokenizerFound(path, statistics, (path / STATISTICS,))

    def _bytes(self, what: str) -> Callable[[int, int], None] | None:
        progress = self._progress
        return None if progress is None else lambda done, total: progress(what, done, total)


def _settings(path: Path) -> Json:
    import yaml

    # The loader in C is ten times as fast; where libyaml is missing the other one does.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_text(path / SETTINGS, ModelError, YAML)
        found = yaml.load(text, loader)  # a safe loader, whichever it is
    except FileNotFoundError:
        raise ModelError(f"{path / SETTINGS} is gone: there is no run in {path} any more") from None
    except ModelError:
        raise
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path / SETTINGS} is damaged: it is no YAML ({reason})") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in ("job", "plan")):
        raise ModelError(f"{path / SETTINGS} is not a run's: it says nothing of its job and its plan")
    return found


def _measures(path: Path) -> list[Json]:
    """`measures.json`, which whoever measures a run may put there; see `run_sections.measures`."""
    found = _json(path / MEASURES, ModelError)
    if found is None:
        return []
    measures = found.get("measures")
    if not isinstance(measures, list) or not all(_is_measure(one) for one in measures):
        raise ModelError(
            f'{path / MEASURES} is damaged: it is not {{"measures": [{{"name", "points": [{{"label", "value"}}]}}]}}'
        )
    return measures


def _is_measure(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("points"), list)
        and all(
            isinstance(point, dict)
            and isinstance(point.get("label"), str)
            and isinstance(point.get("value"), (int, float))
            and not isinstance(point.get("value"), bool)
            and abs(point["value"]) < MOST_SHOWN
            for point in one["points"]
        )
    )


def _json(path: Path, kind: type[RamletError]) -> Json | None:
    """A JSON object; None where there is no file."""
    try:
        return read_json_object(path, kind, lone_surrogates=True)  # what a model writes is shown as it is
    except (FileNotFoundError, NotADirectoryError):
        return None


def look(value: Any, *keys: str) -> Any:
    """What lies so deep in an object; None where it does not."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def figure(value: Any, *keys: str) -> float | None:
    """A number that lies so deep, or None: what is shown is checked where it is shown."""
    found = look(value, *keys)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not abs(found) < MOST_SHOWN:
        return None
    return found
