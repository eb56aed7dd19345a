"""Reads a folder: a run, a dataset, or a tokenizer, as its stage wrote it.

    found = Finder().find("my-run")      Run, DatasetFound or TokenizerFound; anything else is an error
    found.files                          what it was read from: if one of them changes, read it again

A finder is kept while a run is watched: then only new lines of metrics.jsonl are read, and the lengths of a dataset's
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
from ramlet.reporting.markup import is_number
from ramlet.reporting.metrics import NAME as METRICS
from ramlet.reporting.metrics import Metrics
from ramlet.runtime.budget import Budget, using_budget
from ramlet.runtime.small_files import YAML, read_json_object, read_text
from ramlet.training.run_files import whole_run

SETTINGS = "settings.yaml"
STATISTICS = "stats.json"
MEASURES = "measures.json"
TOKENIZER = "tokenizer.json"

Json = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Called with what is read, and how many bytes or files are done and in total."""


@dataclass(frozen=True)
class Run:
    path: Path
    settings: Json
    metrics: Metrics
    statistics: Json | None
    """Of a finished run."""
    measures: list[Json]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class DatasetFound:
    path: Path
    manifest: Manifest
    statistics: Json | None
    lengths: Lengths | None
    """None if the .idx files cannot be read."""
    files: tuple[Path, ...]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TokenizerFound:
    path: Path
    statistics: Json
    files: tuple[Path, ...]


class Finder:
    """Reads folders, and remembers what does not have to be read twice."""

    def __init__(self, progress: Progress | None = None, budget: Budget | None = None) -> None:
        self._progress = progress
        self._budget = budget
        self._metrics: dict[Path, Metrics] = {}
        self._lengths: dict[Path, tuple[tuple[int, int], Lengths | None, list[str]]] = {}

    def find(self, given: str | os.PathLike[str], *, waiting: bool = False) -> Run | DatasetFound | TokenizerFound:
        """What is in the folder. A run without a step is an error, unless the caller is `waiting` for one."""
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
            raise ModelError(f"{path} has no steps yet: wait for the first one, or watch it with {option('watch')}")
        files = tuple(place / name for name in (SETTINGS, METRICS, STATISTICS, MEASURES))
        return Run(path, _settings(place), metrics, _json(place / STATISTICS, ModelError), _measures(place), files)

    def dataset(self, path: Path) -> DatasetFound:
        from ramlet.dataset.reader import Dataset

        with using_budget(self._budget):
            dataset = Dataset(path)
        index = (path / MANIFEST).stat()
        known = (index.st_mtime_ns, index.st_size)
        if path not in self._lengths or self._lengths[path][0] != known:
            try:
                self._lengths[path] = known, count_lengths(dataset, self._bytes("reading lengths")), []
            except DatasetError as error:
                self._lengths[path] = known, None, [f"Document lengths are not shown: {error}."]
        _, lengths, notes = self._lengths[path]
        statistics = _json(path / STATISTICS, DatasetError)
        if statistics is None:
            notes = [*notes, "The memory that preparing used is unknown: stats.json is missing."]
        return DatasetFound(path, dataset.manifest, statistics, lengths, (path / MANIFEST, path / STATISTICS), notes)

    def tokenizer(self, path: Path) -> TokenizerFound:
        statistics = _json(path / STATISTICS, TokenizerError)
        if statistics is None:
            raise TokenizerError(
                f"{path} has no {STATISTICS}: only folders written by `ramlet tokenizer train` can be reported on"
            )
        return TokenizerFound(path, statistics, (path / STATISTICS,))

    def _bytes(self, what: str) -> Callable[[int, int], None] | None:
        progress = self._progress
        return None if progress is None else lambda done, total: progress(what, done, total)


def _settings(path: Path) -> Json:
    import yaml

    # The C loader is ten times faster, if libyaml is available.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_text(path / SETTINGS, ModelError, YAML)
        found = yaml.load(text, loader)  # both are safe loaders
    except FileNotFoundError:
        raise ModelError(f"{path / SETTINGS} is gone: {path} no longer holds a run") from None
    except ModelError:
        raise
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path / SETTINGS} is damaged: it is not YAML ({reason})") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in ("job", "plan")):
        raise ModelError(f"{path / SETTINGS} is not from a run: it has no job and no plan")
    return found


def _measures(path: Path) -> list[Json]:
    """`measures.json`, which any tool that evaluates a run may write; see `run_sections.measures`."""
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
    points = value_at(one, "points")
    return (
        isinstance(value_at(one, "name"), str)
        and isinstance(points, list)
        and all(isinstance(value_at(each, "label"), str) and number_at(each, "value") is not None for each in points)
    )


def _json(path: Path, kind: type[RamletError]) -> Json | None:
    """A JSON object; None if there is no file."""
    try:
        return read_json_object(path, kind, lone_surrogates=True)  # text that a model wrote is shown as it is
    except (FileNotFoundError, NotADirectoryError):
        return None


def value_at(value: Any, *keys: str) -> Any:
    """The value at this path in nested objects; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number_at(value: Any, *keys: str) -> float | None:
    """The number at this path, or None: files are not checked when read, but where a value is shown."""
    found = value_at(value, *keys)
    return found if is_number(found) else None
