"""What a pipeline asks for, as stages in their order: the command of each, and all that its result follows from.

    for stage in stages(pipeline):
        stage.name, stage.out, stage.words, stage.fingerprint

    text        WORK/text         only for text that is not on this disk: fetched once, for tokenizer and data alike
    tokenizer   WORK/tokenizer    where one is learned
    data        WORK/dataset      where one is prepared
    training    WORK/run          where there is a model
    report      WORK/report.html

A stage's fingerprint is over its settings, defaults included, and over what it reads: files by path (from the
pipeline's file on, so that all can be moved together), size and time of change, and the stages before by their
fingerprints. Memory and threads are not in it. Stages are made one by one, for the text that one reads may be what the
one before has fetched.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from ramlet.errors import SettingsError
from ramlet.inputs import sources
from ramlet.inputs.staging import Input, needs_staging
from ramlet.inputs.staging_folder import key_of
from ramlet.pipeline.file import Pipeline, Section
from ramlet.pipeline.places import place_of
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.digest import digest
from ramlet.settings.declared import argv
from ramlet.tokenizer.settings import TrainSettings
from ramlet.training.mix import parse_data
from ramlet.training.settings import RunSettings

__all__ = ["NAMES", "Stage", "fetched", "fetched_to", "names_of", "refuse_early", "stages"]

NAMES = ("text", "tokenizer", "data", "training", "report")

_MARKS = ("dataset_metadata.json", "model.safetensors", "config.json", "tokenizer.json")
"""Of a folder that a stage reads: what changes whenever its content does."""


@dataclass(frozen=True)
class Stage:
    name: str
    out: str
    """The folder or file that it makes."""
    done: tuple[str, ...]
    """Files that are there when it is finished."""
    settings: dict[str, Any]
    """All that decides its result, besides what it reads."""
    reads: dict[str, str]
    """What it reads, by what it is: an identity that changes with the content."""
    words: tuple[str, ...] = ()
    """The command, without memory and threads; empty where there is none."""
    threaded: bool = True
    host_memory: str | int | None = None
    on_gpu: bool = False
    """Its memory may be that of a device."""

    @property
    def fingerprint(self) -> str:
        said = json.dumps([self.name, self.settings, self.reads], sort_keys=True)
        return digest(iter([b"ramlet stage 1", said.encode()]))

    @property
    def finished(self) -> bool:
        return all(os.path.exists(path) for path in self.done)

    def command(self, memory: str | int | None, threads: int | None, *more: str, host: str | None = None) -> list[str]:
        """The words behind `ramlet`."""
        words = [*self.words, *more]
        if memory is not None:
            words += ["--memory", str(memory)]
        if self.host_memory is not None or host is not None:
            words += ["--host-memory", str(host or self.host_memory)]
        if threads is not None and self.threaded:
            words += ["--threads", str(threads)]
        return words


def shown(words: list[str]) -> str:
    """As a user types it."""
    return shlex.join(["ramlet", *words])


def stages(pipeline: Pipeline) -> Iterator[Stage]:
    """One after another; each is asked for when those before are done."""
    work = pipeline.work
    text = _Text(pipeline)
    if text.remote:
        yield text.stage()
    tokenizer: Stage | None = None
    if pipeline.learned is not None:
        tokenizer = _tokenizer(pipeline, pipeline.learned, text)
        yield tokenizer
    data: Stage | None = None
    if pipeline.prepared is not None:
        data = _data(pipeline, pipeline.prepared, tokenizer, text)
        yield data
    last = data
    if pipeline.trained is not None:
        last = _training(pipeline, pipeline.trained, data)
        yield last
    if "report" in names_of(pipeline) and last is not None:
        page = os.path.join(work, "report.html")
        words = ("report", last.out, "--out", page)
        # And by when it was made: anew from the same, with --force, it has other figures.
        reads = {last.name: f"{last.fingerprint} {_identity(pipeline, last.done[0])}"}
        yield Stage("report", page, (page,), {}, reads, words, threaded=False)


def names_of(pipeline: Pipeline) -> list[str]:
    """The stages that there will be."""
    there = {
        "text": bool(_Text(pipeline).remote),
        "tokenizer": pipeline.learned is not None,
        "data": pipeline.prepared is not None,
        "training": pipeline.trained is not None,
        "report": pipeline.report,
    }
    return [name for name in NAMES if there[name]]


def refuse_early(pipeline: Pipeline) -> None:
    """What the last stage would refuse after the first ones have taken hours."""
    _refuse_work_in_text(pipeline)
    if pipeline.trained is None:
        return
    settings = pipeline.trained.settings
    if find_spec("torch") is None:
        raise SettingsError("training needs PyTorch: pip install 'ramlet[train]'")
    for name, path in pipeline.evals.items():
        _require_dataset(path, f"eval {name}")
    for path, _ in parse_data(pipeline.datasets):
        _require_dataset(path, "data")
    for key in ("config", "init_from"):
        path = getattr(settings, key)
        if path is not None and not os.path.exists(path):
            raise SettingsError(f"{key} {path} in {pipeline.path} is not there: check the path")
    learned = pipeline.learned.settings if pipeline.learned is not None else None
    if settings.params is not None and learned is not None and learned.kind == "bpe":
        from ramlet.model.sizing import shape_for

        context = settings.seq_len or pipeline.prepared_length or 256
        # Raises where the vocabulary leaves no room for a model.
        shape_for(settings.params, vocab_size=learned.vocab_size, context=context, tied=settings.tied)


def _require_dataset(path: str, what: str) -> None:
    if not os.path.exists(path) or (os.path.isdir(path) and not os.path.exists(os.path.join(path, _MARKS[0]))):
        raise SettingsError(f"{what}: there is no dataset {path}; make one with  ramlet prepare TEXT --out {path}")


def _refuse_work_in_text(pipeline: Pipeline) -> None:
    """Results among the text would be read as text by the next run."""
    work = os.path.realpath(pipeline.work)
    for given in _all_text(pipeline):
        folder = os.path.realpath(given.path)
        inside = os.path.relpath(work, folder)
        hidden = any(part.startswith(".") for part in inside.split("/"))
        if os.path.isdir(folder) and not needs_staging(given) and (inside == "." or not hidden):
            raise SettingsError(
                f"work, {pipeline.work}, lies in {given.path}, which is read as text: "
                "choose a folder beside it, or name the text more closely"
            )


def _all_text(pipeline: Pipeline) -> tuple[Input, ...]:
    sections = (pipeline.learned, pipeline.prepared)
    return (*pipeline.text, *(each for section in sections if section is not None for each in section.text))


# -- text


def fetched(given: Input, column: str) -> bool:
    """Whether an input becomes files in WORK/text first."""
    return needs_staging(given) or given.text_field not in (None, column)


def fetched_to(pipeline: Pipeline, given: Input) -> str:
    """The folder of what was fetched of one input."""
    key = key_of(_noted(pipeline, given).path, given.split, given.subset, given.text_field)
    return os.path.join(pipeline.work, "text", key)


def _noted(pipeline: Pipeline, given: Input) -> Input:
    return given if needs_staging(given) else replace(given, path=place_of(pipeline.path, given.path))


class _Text:
    """The text of every stage, as local paths and as an identity."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._surveys: dict[tuple[Any, ...], str] = {}
        self.column = pipeline.reading.text_field
        self.remote = [each for each in dict.fromkeys(_all_text(pipeline)) if fetched(each, self.column)]

    def stage(self) -> Stage:
        folders = tuple(fetched_to(self._pipeline, each) for each in self.remote)
        inputs = [asdict(_noted(self._pipeline, each)) for each in self.remote]
        settings = {"inputs": inputs, "reading": asdict(self._pipeline.reading)}
        return Stage("text", os.path.join(self._pipeline.work, "text"), folders, settings, {})

    def paths(self, section: Section) -> list[str]:
        return [
            fetched_to(self._pipeline, each) if fetched(each, self.column) else each.path
            for each in section.text or self._pipeline.text
        ]

    def identity(self, section: Section) -> str:
        paths, form = self.paths(section), section.settings.format
        if self.remote and not self.stage().finished:
            return self.stage().fingerprint
        known = (*paths, form)
        if known not in self._surveys:
            self._surveys[known] = digest(self._marks(paths, form))
        return self._surveys[known]

    def _marks(self, paths: list[str], form: str | None) -> Iterator[bytes]:
        """What moves when one of the files does."""
        for each in sources.expand(paths, format=form):
            if each.size is None:
                raise SettingsError("a pipe can be read once only, and a pipeline reads its text twice: give a file")
            place = place_of(self._pipeline.path, each.path)
            yield json.dumps([place, each.format, each.compression, each.size, each.modified]).encode()


# -- commands


def _tokenizer(pipeline: Pipeline, section: Section, text: _Text) -> Stage:
    out = os.path.join(pipeline.work, "tokenizer")
    words = [
        "tokenizer",
        "train",
        *map(_plainly, text.paths(section)),
        "--out",
        out,
        *argv(TrainSettings, section.given),
    ]
    if pipeline.spill_dir is not None:
        words += ["--spill-dir", pipeline.spill_dir]
    done = tuple(os.path.join(out, name) for name in ("tokenizer.json", "stats.json"))
    return Stage("tokenizer", out, done, _plain(section.settings), {"text": text.identity(section)}, tuple(words))


def _data(pipeline: Pipeline, section: Section, tokenizer: Stage | None, text: _Text) -> Stage:
    out = os.path.join(pipeline.work, "dataset")
    given = {name: value for name, value in section.given.items() if name not in ("tokenizer", "output_format")}
    settings = section.settings
    if pipeline.shard_bytes is not None:
        given["tokens_per_shard"] = _tokens_in(pipeline, pipeline.shard_bytes)
        settings = replace(settings, tokens_per_shard=given["tokens_per_shard"])
    named = pipeline.tokenizer if tokenizer is None else tokenizer.out
    words = ["prepare", *map(_plainly, text.paths(section)), "--tokenizer", named, "--out", out]
    words += argv(PrepareSettings, given)
    known = _identity(pipeline, named) if tokenizer is None else tokenizer.fingerprint
    decisive = {name: value for name, value in _plain(settings).items() if name != "tokenizer"}
    if settings.dedup_cache is not None:
        decisive["dedup_cache"] = place_of(pipeline.path, settings.dedup_cache)
    reads = {"text": text.identity(section), "tokenizer": known}
    done = (os.path.join(out, "dataset_metadata.json"),)
    return Stage("data", out, done, decisive, reads, tuple(words))


def _tokens_in(pipeline: Pipeline, size: int) -> int:
    """Of a shard: ids take two bytes up to 65,536 tokens. Of a tokenizer that is only named four, to be no larger."""
    learned = pipeline.learned.settings if pipeline.learned is not None else None
    small = (learned.vocab_size or 0) <= 1 << 16 if learned else pipeline.tokenizer in ("gpt2", "byte", "char")
    return max(1, size // (2 if small else 4))


def _training(pipeline: Pipeline, section: Section, data: Stage | None) -> Stage:
    out = os.path.join(pipeline.work, "run")
    names = pipeline.datasets if data is None else (data.out,)
    words = ["train", *(word for name in names for word in ("--data", name)), "--out", out]
    words += argv(RunSettings, section.given)
    words += [word for name, path in pipeline.evals.items() for word in ("--eval", f"{name}={path}")]
    decisive = section.settings.decisive()
    for key in ("config", "init_from"):
        if decisive[key] is not None:
            decisive[key] = _identity(pipeline, decisive[key])
    if data is not None:
        reads = {"data": data.fingerprint}
    else:
        reads = {
            f"dataset {place_of(pipeline.path, path)}": f"{weight:g} {_identity(pipeline, path)}"
            for path, weight in parse_data(names)
        }
    return Stage(
        "training",
        out,
        tuple(os.path.join(out, name) for name in ("stats.json", "model.safetensors")),
        decisive,
        reads,
        tuple(words),
        host_memory=pipeline.host_memory,
        on_gpu=section.settings.device != "cpu" and os.path.exists("/dev/nvidiactl"),
    )


def _plainly(path: str) -> str:
    """A path that is no option."""
    return f"./{path}" if path.startswith("-") else path


def _plain(settings: Any) -> dict[str, Any]:
    """As JSON has it, so that it is the same when it is read again."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return found


def _identity(pipeline: Pipeline, name: str) -> str:
    """Of a file or folder: what changes with its content; of anything else its name."""
    files = [name] if os.path.isfile(name) else [os.path.join(name, each) for each in _MARKS]
    found = [(place_of(pipeline.path, each), os.stat(each)) for each in files if os.path.isfile(each)]
    return json.dumps([[path, status.st_size, status.st_mtime_ns] for path, status in found]) if found else name
