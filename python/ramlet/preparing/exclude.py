"""The evaluation set of `exclude`: documents that share an n-gram of words with it are dropped as `contaminated`.

    excluded = find(settings, staged)          files, folders, globs, hub names, URLs, and datasets of ramlet
    excluded.identity                          changes with the content of the set, not with where it is
    excluded.build(work, ...)                  WORK/exclude: the hashes of its n-grams, and the names of its files

What a word and an n-gram are, and how documents are compared, is in docs/design/exclude.md.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ramlet import _native
from ramlet.dataset import TOKEN_BYTES
from ramlet.dataset.manifest import NAME as MANIFEST
from ramlet.dataset.manifest import SPLITS, Manifest
from ramlet.errors import SettingsError, SourceChanged, SourceError, option
from ramlet.inputs import sources
from ramlet.inputs.sources import Source
from ramlet.inputs.staging_folder import Progress, StagingFolder, key_of
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.preparing.folder import CONTAMINATED
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.atomic_files import in_utf8, replacing, write_json
from ramlet.runtime.digest import digest
from ramlet.runtime.small_files import read_json_object

Json = dict[str, Any]

FOLDER = "exclude"
LEAST_MEMORY, LARGEST_MEMORY = 4 << 20, 64 << 20
"""For sorting the hashes; more would not be faster."""
LEAST_WINDOW = 8 << 20
NUMPY_BYTES = 20 << 20
"""NumPy, which only datasets need here, and blocks of ids."""


@dataclass(frozen=True)
class DatasetText:
    """A dataset of ramlet, or one of its splits, whose text is decoded to files."""

    shown: str
    path: Path
    splits: tuple[str, ...]

    @staticmethod
    def of(name: str) -> DatasetText | None:
        """The dataset that is meant, also as `DATASET:val`; None if it is something else."""
        folder, colon, split = name.rpartition(":")
        if (Path(name) / MANIFEST).is_file():
            return DatasetText(name, Path(name), SPLITS)
        if colon and split in SPLITS and (Path(folder) / MANIFEST).is_file():
            return DatasetText(name, Path(folder), (split,))
        return None

    @property
    def memory(self) -> int:
        """In which its text is decoded."""
        return NUMPY_BYTES + TOKEN_BYTES * Manifest.read(self.path).vocab_size

    @cached_property
    def mark(self) -> str:
        """Changes with its content."""
        manifest = Manifest.read(self.path)
        shards = [(shard.xxh64, shard.index_xxh64) for name in self.splits for shard in manifest.splits[name].shards]
        return digest([manifest.tokenizer.fingerprint.encode(), json.dumps(shards).encode()])

    def stage(self, folder: Path, field: str, progress: Progress | None) -> list[str]:
        staging = StagingFolder(folder, progress)
        return staging.rows(staging.place(key_of(self.shown, field), self.path.name), self.mark, field, self._rows)

    def _rows(self) -> Iterator[tuple[str, bool]]:
        from ramlet.dataset.reader import Dataset
        from ramlet.dataset.texts import pieces

        dataset = Dataset(self.path)
        decoder = getincrementaldecoder("utf-8")("replace")
        for split in self.splits:
            for text, _, ends in pieces(dataset, split):
                yield decoder.decode(text, ends), ends


@dataclass
class Excluded:
    """An evaluation set, in the order given."""

    settings: PrepareSettings
    parts: list[DatasetText | str]
    """Datasets, and paths of files and folders."""
    shown: dict[str, str]
    """What the user calls a staged file."""
    staged: Path

    @cached_property
    def identity(self) -> str:
        return digest(self._identities())

    def _identities(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, DatasetText):
                yield part.mark.encode()
                continue
            for source in self._expand([part]):
                yield json.dumps([source.format, source.compression, *_native.xxh64_file(source.path)]).encode()

    @cached_property
    def decoding(self) -> int:
        """The least memory that the decoder of one of its files takes."""
        datasets = any(isinstance(part, DatasetText) for part in self.parts)
        files = [part for part in self.parts if isinstance(part, str)]
        field = self.settings.exclude_field or self.settings.text_field
        found = [source.decoding(field) for source in self._expand(files)] if files else []
        return max([*found, Source("", "jsonl", "gz", 0).decoding(field) if datasets else 0])

    @property
    def datasets(self) -> int:
        """Memory in which the text of datasets is decoded."""
        return max((part.memory for part in self.parts if isinstance(part, DatasetText)), default=0)

    def _expand(self, paths: Iterable[str]) -> Iterator[Source]:
        for source in sources.expand(paths):
            if source.size is None:
                raise SourceError(f"{source.path} can be read only once, but {option('exclude')} is read twice")
            yield source

    def build(self, work: Path, memory: int, progress: Progress | None) -> Json:
        """Writes the n-grams, unless they are there already, and returns what the set consists of."""
        folder = work / FOLDER
        try:
            return read_json_object(folder / "set.json", SourceError)
        except (OSError, ValueError):
            pass
        field = self.settings.exclude_field or self.settings.text_field
        paths: list[str] = []
        for part in self.parts:
            if isinstance(part, DatasetText):
                files = part.stage(self.staged, field, progress)
                self.shown |= dict.fromkeys(files, part.shown)
                paths += files
            else:
                paths.append(part)
        try:
            found = self._read(folder, paths, field, memory, progress)
        except SourceError as error:
            # The field of the evaluation set has a setting of its own.
            sentence = error.sentence.replace(option("text_field"), option("exclude_field"))
            raise type(error)(f"{option('exclude')}: {sentence}", **error.facts) from None
        self._refuse_useless(found)
        if digest(self._identities()) != self.identity:
            names = ", ".join(self.settings.exclude)
            raise SourceChanged(f"{names} changed while it was read: run the same command again")
        write_json(folder / "set.json", found)
        return found

    def _read(self, folder: Path, paths: list[str], field: str, memory: int, progress: Progress | None) -> Json:
        folder.mkdir(exist_ok=True)
        total = sum(source.size or 0 for source in self._expand(paths))
        with replacing(folder / "names.jsonl") as names:
            documents, too_short, ngrams = _native.build_exclude_set(
                self._listing(paths, names),
                {**self.settings.reading(), "text_field": field},
                folder / "ngrams",
                clean=json.dumps(self.settings.cleaning()),
                ngram=self.settings.exclude_ngram,
                document_bytes=self.settings.largest_whole_file,
                memory=min(max(memory // 4, LEAST_MEMORY), LARGEST_MEMORY),
                window_bytes=max(memory // 4, LEAST_WINDOW),
                total=total,
                progress=None if progress is None else lambda _, done, size: progress("excluding", done, size),
            )
        return {
            "ngram": self.settings.exclude_ngram,
            "documents": documents,
            "too_short": too_short,
            "ngrams": ngrams,
            "identity": self.identity,
        }

    def _refuse_useless(self, found: Json) -> None:
        names = ", ".join(self.settings.exclude)
        if not found["documents"]:
            raise SourceError(f"no text in {names}: give {option('exclude')} an evaluation set with text")
        if not found["ngrams"]:
            raise SettingsError(
                f"no document in {names} has {found['ngram']} words, so none could be found in the text: "
                f"give a smaller {option('exclude_ngram')}"
            )

    def _listing(self, paths: list[str], names: Any) -> Iterator[tuple[str, str, str, int, int]]:
        for source in self._expand(paths):
            names.write(json.dumps(self.shown.get(source.path, source.path)) + "\n")
            yield source.spec()


def find(settings: PrepareSettings, staged: Path, progress: Progress | None) -> Excluded | None:
    """The set that the settings name; None if they name none. What is not on this disk is copied to `staged`."""
    if not settings.exclude:
        return None
    # Suffixes say what the files are: the format of the inputs need not be that of the evaluation set.
    reading = replace(settings, format=None, text_field=settings.exclude_field or settings.text_field)
    parts: list[DatasetText | str] = []
    shown: dict[str, str] = {}
    try:
        for name in settings.exclude:
            dataset = DatasetText.of(name)
            if dataset is not None:
                parts.append(dataset)
                continue
            for path in stage_in_subprocess([name], staged, reading=reading, progress=progress):
                parts.append(path)
                shown |= {} if path == name else {path: name}
        excluded = Excluded(settings, parts, shown, staged)
        _ = excluded.identity  # reads the files, so that what is missing is noticed now
    except SourceError as error:
        raise type(error)(f"{option('exclude')}: {error.sentence}", **error.facts) from None
    return excluded


def write_examples(dataset: Path, work: Path, run: str, earlier_runs: Iterable[str]) -> None:
    """Writes examples of the run's contaminated documents after those of the runs that the dataset has already."""
    path = dataset / CONTAMINATED
    kept = set(earlier_runs)
    lines: list[str] = []
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if _run_of(line) in kept]
    examples = json.loads(_native.contaminated_documents(work, dataset))
    names = _names(work / FOLDER / "names.jsonl", {each["excluded_file"] for each in examples})
    with replacing(path) as file:
        file.writelines(lines)
        for each in examples:
            each["excluded_source"] = names.get(each.pop("excluded_file"), "")
            file.write(in_utf8(json.dumps({**each, "run": run}, ensure_ascii=False)) + "\n")


def _run_of(line: str) -> Any:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found.get("run") if isinstance(found, dict) else None


def _names(path: Path, wanted: set[int]) -> dict[int, str]:
    """The names of these files of the set."""
    with path.open(encoding="utf-8") as file:
        return {number: json.loads(line) for number, line in enumerate(file) if number in wanted}
