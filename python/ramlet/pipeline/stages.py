"""What a pipeline asks for, as stages in order: the command of each, and everything its result depends on.

    for stage in stages(pipeline):
        stage.name, stage.out, stage.argv(memory="2GB"), stage.fingerprint

    text        WORK/text         only for text that is not on this disk: fetched once, for tokenizer and data
    tokenizer   WORK/tokenizer    if one is trained
    data        WORK/dataset      if one is prepared
    training    WORK/run          if there is a model
    report      WORK/report.html

A stage's fingerprint covers its settings, defaults included, and what it reads: files by path (relative to the
pipeline's file, so that everything can be moved together), size and modification time, and earlier stages by their
fingerprints. Memory and threads are not part of it. Stages are generated one by one, because the text that one reads
may be what an earlier one has fetched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import Manifest
from ramlet.engines.opening import choose_engine, has_gpu, require_ranks
from ramlet.errors import SettingsError
from ramlet.inputs import sources
from ramlet.inputs.named import Input, needs_staging
from ramlet.inputs.staging_folder import key_of
from ramlet.pipeline.file import Pipeline, Section
from ramlet.pipeline.places import TOKENIZERS, place_of
from ramlet.preparing.exclude import DatasetText
from ramlet.runtime.digest import digest
from ramlet.settings.owners import command_line
from ramlet.training.mix import parse_data
from ramlet.training.settings import RunSettings

NAMES = ("text", "tokenizer", "data", "training", "report")

_MARKERS = ("dataset_metadata.json", "model.safetensors", "config.json", "tokenizer.json")
"""Files that change whenever the content of their folder does."""


@dataclass(frozen=True)
class Stage:
    name: str
    out: str
    """The folder or file it makes."""
    done: tuple[str, ...]
    """Files that exist once it has finished."""
    settings: dict[str, Any]
    """Everything its result depends on, besides what it reads."""
    reads: dict[str, str]
    """What it reads, by kind: an identity that changes with the content."""
    command: str = ""
    """The command it runs; fetching text has none."""
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """Of the command, without memory and threads."""
    threaded: bool = True
    host_memory: str | int | None = None
    on_gpu: bool = False
    """Whether its memory budget may be that of a GPU."""

    @property
    def fingerprint(self) -> str:
        content = json.dumps([self.name, self.settings, self.reads], sort_keys=True)
        return digest(iter([b"ramlet stage 1", content.encode()]))

    @property
    def finished(self) -> bool:
        return all(os.path.exists(path) for path in self.done)

    def argv(self, *, threads: int | None = None, host_memory: str | None = None, **more: Any) -> list[str]:
        """The arguments after `ramlet`."""
        more |= {"host_memory": host_memory or self.host_memory, "threads": threads if self.threaded else None}
        return command_line(self.command, *self.inputs, **self.options, **more)


def stages(pipeline: Pipeline) -> Iterator[Stage]:
    """One after another; each is generated once those before it are done."""
    text = _Text(pipeline)
    if text.remote:
        yield text.stage()
    tokenizer: Stage | None = None
    data: Stage | None = None
    if pipeline.learned is not None:
        yield (tokenizer := _tokenizer(pipeline, pipeline.learned, text))
    if pipeline.prepared is not None:
        yield (data := _data(pipeline, pipeline.prepared, tokenizer, text))
    last = data
    if pipeline.trained is not None:
        yield (last := _training(pipeline, pipeline.trained, data))
    if pipeline.report and last is not None:
        page = os.path.join(pipeline.work, "report.html")
        # With its modification time: rebuilt from the same inputs it has other speeds and times.
        reads = {last.name: f"{last.fingerprint} {_identity(pipeline, last.done[0])}"}
        yield Stage("report", page, (page,), {}, reads, "report", (last.out,), {"out": page}, threaded=False)


def names_of(pipeline: Pipeline) -> list[str]:
    """The stages of a pipeline."""
    wanted = {
        "text": bool(remote_text(pipeline)),
        "tokenizer": pipeline.learned is not None,
        "data": pipeline.prepared is not None,
        "training": pipeline.trained is not None,
        "report": pipeline.report and (pipeline.prepared is not None or pipeline.trained is not None),
    }
    return [name for name in NAMES if wanted[name]]


def refuse_early(pipeline: Pipeline) -> None:
    """Finds what the last stage would refuse after the first ones have run for hours."""
    _refuse_work_in_text(pipeline)
    if pipeline.trained is None:
        return
    settings = pipeline.trained.settings
    require_ranks(settings.shard, choose_engine(settings.engine, settings.device).name)
    for name, path in pipeline.evals.items():
        _require_dataset(path, f"eval {name}")
    for path, _ in parse_data(pipeline.datasets):
        _require_dataset(path, "data")
    for key in ("config", "init_from"):
        path = getattr(settings, key)
        if path is not None and not os.path.exists(path):
            raise SettingsError(f"{key} {path} in {pipeline.path} does not exist: check the path")
    learned = pipeline.learned.settings if pipeline.learned is not None else None
    if settings.params is not None and learned is not None and learned.kind == "bpe":
        from ramlet.model.sizing import shape_for

        context = settings.seq_len or pipeline.prepared_length or 256
        # Raises if the vocabulary takes all of the parameters.
        shape_for(settings.params, vocab_size=learned.vocab_size, context=context, tied=settings.tied)


def _require_dataset(path: str, what: str) -> None:
    if not os.path.exists(path) or (os.path.isdir(path) and not os.path.exists(os.path.join(path, _MARKERS[0]))):
        raise SettingsError(f"{what}: no dataset at {path}; make one with `ramlet prepare`")


def _refuse_work_in_text(pipeline: Pipeline) -> None:
    """Results inside a text folder would be read as text by the next run."""
    work = os.path.realpath(pipeline.work)
    for given in _all_text(pipeline):
        folder = os.path.realpath(given.path)
        inside = os.path.relpath(work, folder)
        hidden = any(part.startswith(".") for part in inside.split("/"))
        if os.path.isdir(folder) and not needs_staging(given) and (inside == "." or not hidden):
            raise SettingsError(
                f"work, {pipeline.work}, is inside {given.path}, which is read as text: "
                "choose a folder outside of it, or name the text files one by one"
            )


def _all_text(pipeline: Pipeline) -> tuple[Input, ...]:
    sections = (pipeline.learned, pipeline.prepared)
    return (*pipeline.text, *(each for section in sections if section is not None for each in section.text))


# -- text


def remote_text(pipeline: Pipeline) -> list[Input]:
    """The inputs that become files in WORK/text first."""
    return [each for each in dict.fromkeys(_all_text(pipeline)) if _is_fetched(pipeline, each)]


def _is_fetched(pipeline: Pipeline, given: Input) -> bool:
    return needs_staging(given) or given.text_field not in (None, pipeline.reading.text_field)


def fetch_folder(pipeline: Pipeline, given: Input) -> str:
    """Where one input is fetched to."""
    key = key_of(_relative(pipeline, given).path, given.split, given.subset, given.text_field)
    return os.path.join(pipeline.work, "text", key)


def _relative(pipeline: Pipeline, given: Input) -> Input:
    return given if needs_staging(given) else replace(given, path=place_of(pipeline.path, given.path))


class _Text:
    """The text of every stage, as local paths and as an identity."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._identities: dict[tuple[Any, ...], str] = {}
        self.remote = remote_text(pipeline)

    def stage(self) -> Stage:
        folders = tuple(fetch_folder(self._pipeline, each) for each in self.remote)
        inputs = [asdict(_relative(self._pipeline, each)) for each in self.remote]
        settings = {"inputs": inputs, "reading": asdict(self._pipeline.reading)}
        return Stage("text", os.path.join(self._pipeline.work, "text"), folders, settings, {})

    def paths(self, section: Section) -> tuple[str, ...]:
        return tuple(
            fetch_folder(self._pipeline, each) if _is_fetched(self._pipeline, each) else each.path
            for each in section.text or self._pipeline.text
        )

    def identity(self, section: Section) -> str:
        paths, form = self.paths(section), section.settings.format
        if self.remote and not self.stage().finished:
            return self.stage().fingerprint
        known = (*paths, form)
        if known not in self._identities:
            self._identities[known] = digest(self._files(paths, form))
        return self._identities[known]

    def _files(self, paths: tuple[str, ...], form: str | None) -> Iterator[bytes]:
        """Every file, by what changes when its content does."""
        for each in sources.expand(paths, format=form):
            if each.size is None:
                raise SettingsError("a pipe can be read only once, and a pipeline reads its text twice: give a file")
            place = place_of(self._pipeline.path, each.path)
            yield json.dumps([place, each.format, each.compression, each.size, each.modified]).encode()


# -- commands


def _tokenizer(pipeline: Pipeline, section: Section, text: _Text) -> Stage:
    out = os.path.join(pipeline.work, "tokenizer")
    return Stage(
        "tokenizer",
        out,
        tuple(os.path.join(out, name) for name in ("tokenizer.json", "stats.json")),
        _as_json(section.settings),
        {"text": text.identity(section)},
        "tokenizer train",
        text.paths(section),
        {"out": out, **section.given, "spill_dir": pipeline.spill_dir, "cluster": pipeline.cluster},
    )


def _data(pipeline: Pipeline, section: Section, tokenizer: Stage | None, text: _Text) -> Stage:
    out = os.path.join(pipeline.work, "dataset")
    given = {name: value for name, value in section.given.items() if name not in ("tokenizer", "output_format")}
    settings = section.settings
    if pipeline.shard_bytes is not None:
        given["tokens_per_shard"] = _tokens_in(pipeline, pipeline.shard_bytes)
        settings = replace(settings, tokens_per_shard=given["tokens_per_shard"])
    exclude = (*settings.exclude, *(_evaluated(path) for path in pipeline.evals.values() if pipeline.exclude_eval))
    if exclude:
        given["exclude"] = exclude
    name = pipeline.tokenizer if tokenizer is None else tokenizer.out
    identity = _identity(pipeline, name) if tokenizer is None else tokenizer.fingerprint
    known = settings.known_by(_as_json(settings))  # a setting that came later does not rebuild older datasets
    decisive = {key: value for key, value in known.items() if key != "tokenizer"}
    if settings.dedup_cache is not None:
        decisive["dedup_cache"] = place_of(pipeline.path, settings.dedup_cache)
    reads = {"text": text.identity(section), "tokenizer": identity}
    decisive.pop("exclude", None)
    if exclude:
        reads["exclude"] = _excluded_identity(pipeline, exclude)
    else:  # without it they have no effect
        for name_of_setting in ("exclude_ngram", "exclude_field"):
            decisive.pop(name_of_setting, None)
    return Stage(
        "data",
        out,
        (os.path.join(out, "dataset_metadata.json"),),
        decisive,
        reads,
        "prepare",
        text.paths(section),
        {"tokenizer": name, "out": out, **given, "cluster": pipeline.cluster},
    )


def _evaluated(path: str) -> str:
    """The part of a dataset that training evaluates: its validation split, or all of it if that is empty."""
    return f"{path}:val" if os.path.isdir(path) and Manifest.read(Path(path)).splits["val"].documents else path


def _excluded_identity(pipeline: Pipeline, names: tuple[str, ...]) -> str:
    """Of an evaluation set: what changes with its content."""
    found = []
    for name in names:
        dataset = DatasetText.of(name)
        if dataset is not None:
            found.append(f"{dataset.splits} {_identity(pipeline, str(dataset.path))}")
        elif needs_staging(name):
            found.append(name)
        else:
            found += [
                json.dumps([place_of(pipeline.path, each.path), each.format, each.size, each.modified])
                for each in sources.expand([name])
            ]
    return digest(each.encode() for each in found)


def _tokens_in(pipeline: Pipeline, size: int) -> int:
    """Tokens per shard: an id takes 2 bytes up to 65,536 tokens, and is assumed to take 4 if that is unknown."""
    learned = pipeline.learned.settings if pipeline.learned is not None else None
    small = (learned.vocab_size or 0) <= 1 << 16 if learned else pipeline.tokenizer in TOKENIZERS
    return max(1, size // (2 if small else 4))


def _training(pipeline: Pipeline, section: Section, data: Stage | None) -> Stage:
    out = os.path.join(pipeline.work, "run")
    names = pipeline.datasets if data is None else (data.out,)
    evals = [f"{name}={path}" for name, path in pipeline.evals.items()]
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
        "train",
        options={"data": names, "out": out, **section.given, "eval": evals},
        host_memory=pipeline.host_memory,
        on_gpu=_on_gpu(section.settings),
    )


def _on_gpu(settings: RunSettings) -> bool:
    return settings.device != "cpu" and has_gpu() and choose_engine(settings.engine, settings.device).name == "torch"


def _as_json(settings: Any) -> dict[str, Any]:
    """The settings as they will be read back from the record."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return found


def _identity(pipeline: Pipeline, name: str) -> str:
    """Of a file or folder: what changes with its content; of anything else: its name."""
    files = [name] if os.path.isfile(name) else [os.path.join(name, each) for each in _MARKERS]
    found = [(place_of(pipeline.path, each), os.stat(each)) for each in files if os.path.isfile(each)]
    return json.dumps([[path, status.st_size, status.st_mtime_ns] for path, status in found]) if found else name
