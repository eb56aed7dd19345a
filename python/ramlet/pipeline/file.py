"""Reads pipeline.yaml; every mistake is reported with its line.

    memory: 2GB                            for every stage; never changes the result, nor does threads
    threads: 2
    cluster: ray                           where tokenizer and data are made; memory and threads are each worker's
    work: my-model/                        where everything goes [default: the file's name without its suffix]
    text: [corpus/, more.jsonl]            what tokenizer and data are made from
    tokenizer: {vocab_size: 8000}          options of `ramlet tokenizer train`; or a name (gpt2, byte, char), or a path
    data: {dedup: doc}                     options of `ramlet prepare`; or existing datasets;
                                           exclude_eval: true keeps text of `training: eval` out of it
    model: {params: 10M, seq_len: 256}     these two: options of `ramlet train`
    training: {batch_size: 32, max_steps: 2000, eval: {general: other-dataset/}}
    report: true

How text is read (`docs`, `text_field` ...) can be set at the top, for both tokenizer and data, or in a section. Paths
are relative to the file. The keys of krill's config files work too (krill_config.py). Without `model` and `training`,
the pipeline ends with the data.

    pipeline = load("pipeline.yaml")
    pipeline.learned.settings, pipeline.prepared.settings, pipeline.trained.settings, pipeline.notes
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.inputs.named import Input
from ramlet.inputs.settings import ReadSettings
from ramlet.pipeline import krill_config as krill
from ramlet.pipeline.places import input_at, path_at, tokenizer_at
from ramlet.preparing.config_file import ConfigReader
from ramlet.preparing.settings import PrepareSettings
from ramlet.settings.declared import keys
from ramlet.settings.kinds import Count, Memory, Switch, Text
from ramlet.settings.yaml_nodes import Convert, NodeReader, compose
from ramlet.settings.yaml_settings import SettingsReader
from ramlet.tokenizer.settings import TrainSettings
from ramlet.training.settings import MODEL, RunSettings

if TYPE_CHECKING:
    import yaml

END = "<|endoftext|>"


@dataclass(frozen=True)
class Section:
    """What a section says, and the settings: the same with all defaults."""

    given: dict[str, Any]
    settings: Any
    text: tuple[Input, ...] = ()
    """If it reads other text than the rest."""


@dataclass(frozen=True)
class Pipeline:
    path: str
    work: str
    memory: str | int | None = None
    threads: int | None = None
    cluster: str | None = None
    text: tuple[Input, ...] = ()
    reading: ReadSettings = field(default_factory=ReadSettings)
    """How text is read, unless a section says otherwise."""

    tokenizer: str = "gpt2"
    """A name or a path, if none is trained."""
    learned: Section | None = None
    spill_dir: str | None = None

    datasets: tuple[str, ...] = ()
    """Existing ones, if none is prepared."""
    prepared: Section | None = None
    shard_bytes: int | None = None
    exclude_eval: bool = False
    """Whether text of the evaluation sets of the training is kept out of the data."""

    trained: Section | None = None
    evals: dict[str, str] = field(default_factory=dict)
    host_memory: str | int | None = None

    report: bool = True
    notes: tuple[str, ...] = ()

    @property
    def prepared_length(self) -> int | None:
        """The sequence length that the data is packed to."""
        packed: int | None = self.prepared.settings.pack if self.prepared is not None else None
        return packed


def load(path: str | os.PathLike[str]) -> Pipeline:
    """Reads and checks the file; a mistake is a SettingsError with its line."""
    name = os.fspath(path)
    reader = _Reader(name)
    root = compose(name)
    if root is None:
        raise SettingsError(f"{name} is empty: `ramlet init TEXT` writes one to start from")
    for key, value in reader.pairs(root):
        reader.top(key, value)
    return reader.pipeline()


_string = Text(empty=True).read

_TEXT = ("text", "inputs", "datasets")
_OWN: dict[str, Convert] = {
    "memory": Memory().read,
    "threads": Count().read,
    "cluster": Text().read,
    "work": _string,
    "report": Switch().read,
    "host_memory": Memory().read,
    "exclude_eval": Switch().read,
}
_RUN = keys(RunSettings)
SECTIONS: dict[str, tuple[str, ...]] = {
    "tokenizer": (*keys(TrainSettings), "spill_dir"),
    "data": (
        *(key for key in keys(PrepareSettings) if key not in ("tokenizer", "tokenization")),
        "exclude_eval",
    ),
    "model": tuple(key for key, of in _RUN.items() if of.setting.panel == MODEL),
    "training": (*(key for key, of in _RUN.items() if of.setting.panel != MODEL), "eval", "host_memory"),
}
"""The settings of each section."""
TOP = (
    *("memory", "threads", "cluster", "work", "text", "tokenizer", "data", "model", "training", "report"),
    *keys(ReadSettings),
    *("inputs", "datasets", "preprocess", "train", "vocab_size", "hub_tokenizer_id", "output_dir"),
    *(*krill.DATA, *krill.TRAINING, *krill.NOTED),
)


class _Reader(NodeReader):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.notes: list[str] = []
        self.nodes: dict[str, yaml.Node] = {}
        """The keys of the sections, for their lines."""
        self.own: dict[str, Any] = {}
        """Values of keys that are not settings of a command, by field of Pipeline."""
        self.texts: dict[str, tuple[Input, ...]] = {}
        """By section; `text` is the one at the top."""
        self.hub_tokenizer: str | None = None
        self.reading = SettingsReader(name, ReadSettings)
        self.learning = SettingsReader(name, TrainSettings)
        self.preparing = ConfigReader(name)
        self.running = SettingsReader(name, RunSettings)
        self.keys = {
            "tokenizer": (*SECTIONS["tokenizer"], *_TEXT, "hub_id"),
            "data": (*SECTIONS["data"], *_TEXT),
            "model": SECTIONS["model"],
            "training": (*SECTIONS["training"], "eval_dataset_dir", *krill.TRAINING, *krill.NOTED, "output_dir"),
            "preprocess": krill.PREPROCESS,
        }

    # -- the top

    def top(self, node: yaml.Node, value: yaml.Node) -> None:
        """One key at the top of the file."""
        key = self._known(node, TOP, "the top of the file")
        if key in ("tokenizer", "data", "model", "training", "preprocess", "train"):
            section = "training" if key == "train" else key
            self.once(section, key, node)
            self.nodes[section] = node
            getattr(self, f"_{section}")(value)
        elif key in _TEXT:
            self._take_text("text", key, node, value)
        elif key in self.reading.keys:
            self.reading.take(key, node, value)
        elif key == "vocab_size":
            self._read_as(key, "tokenizer: vocab_size")
            self.learning.take(key, node, value)
        elif key == "hub_tokenizer_id":
            self._hub_tokenizer(key, node, value)
        elif key in krill.DATA:
            self._krill_data(key, node, value)
        elif key in krill.TRAINING or key in krill.NOTED or key == "output_dir":
            self._krill_training(key, node, value)
        else:
            self._own(key, node, value)

    def _own(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        found = self.filled(key, value, _OWN[key])
        self.once(key, key, node)
        self.own[key] = found

    def _known(self, node: yaml.Node, known: tuple[str, ...], where: str) -> str:
        """The key; an unknown one is refused with the place where it belongs, or the most similar key."""
        key = self.word(node)
        if key not in known:
            if key in TOP[:10]:
                raise self.fault(node, f"{node.value!r} belongs at the top of the file, not under {where}")
            home = next((section for section, keys in self.keys.items() if key in keys), None)
            if home is not None:
                raise self.fault(node, f"{node.value!r} belongs under `{home}`, not {where}")
        return self.key(node, known)

    def _take_text(self, section: str, key: str, node: yaml.Node, value: yaml.Node) -> None:
        self.once(f"text of {section}", key, node)
        inputs = self.preparing.listed(key, value)
        if any(each.path == "-" for each in inputs):
            raise self.fault(value, "a pipeline reads its text more than once: write standard input to a file first")
        self.texts[section] = tuple(input_at(self.name, each) for each in inputs)

    def _read_as(self, key: str, meant: str) -> None:
        self.notes.append(f"{key} is read as {meant}")

    # -- sections

    def _tokenizer(self, value: yaml.Node) -> None:
        import yaml

        if isinstance(value, yaml.ScalarNode):
            self.own["tokenizer"] = self.converted("tokenizer", value, _string)
            if not self.own["tokenizer"]:
                raise self.fault(value, "tokenizer is empty: name one, or give {vocab_size: 8000}")
            return
        for node, each in self.pairs(value, "tokenizer"):
            key = self._known(node, self.keys["tokenizer"], "tokenizer")
            if key in _TEXT:
                self._take_text("tokenizer", key, node, each)
            elif key == "hub_id":
                self._hub_tokenizer(key, node, each)
            elif key == "spill_dir":
                self.once(key, key, node)
                self.own[key] = self.converted(key, each, _string)
            else:
                self.learning.take(key, node, each)

    def _hub_tokenizer(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        self.once("the tokenizer's name", key, node)
        self.hub_tokenizer = self.converted(key, value, _string)

    def _data(self, value: yaml.Node) -> None:
        import yaml

        if not isinstance(value, yaml.MappingNode):
            items = value.value if isinstance(value, yaml.SequenceNode) else [value]
            self.own["datasets"] = tuple(self.converted("data", each, _string) for each in items)
            if not all(self.own["datasets"]) or not items:
                raise self.fault(value, "data is empty: name a dataset, or give the options of `ramlet prepare`")
            return
        for node, each in self.pairs(value):
            key = self._known(node, self.keys["data"], "data")
            if key in _TEXT:
                self._take_text("data", key, node, each)
            elif key == "exclude_eval":
                self._own(key, node, each)
            else:
                self.preparing.take(key, node, each)

    def _preprocess(self, value: yaml.Node) -> None:
        for node, each in self.pairs(value, "preprocess"):
            key = self._known(node, krill.PREPROCESS, "preprocess")
            if key in krill.DATA:
                self._krill_data(key, node, each)
            else:
                self._krill_training(key, node, each)

    def _model(self, value: yaml.Node) -> None:
        for node, each in self.pairs(value, "model"):
            self.running.take(self._known(node, self.keys["model"], "model"), node, each)

    def _training(self, value: yaml.Node) -> None:
        for node, each in self.pairs(value, "training"):
            key = self._known(node, self.keys["training"], "training")
            if key in ("eval", "eval_dataset_dir"):
                self.once("eval", key, node)
                self.own["evals"] = self._evals(each)
            elif key == "host_memory":
                self._own(key, node, each)
            elif key in self.running.keys and key != "optimizer":
                self.running.take(key, node, each)
            else:
                self._krill_training(key, node, each)

    def _evals(self, value: yaml.Node) -> dict[str, str]:
        """`{general: DIR}`, or `DIR`, or a list of `NAME=DIR` as on the command line."""
        import yaml

        if isinstance(value, yaml.MappingNode):
            pairs = [(self.word(node), self.converted("eval", each, _string)) for node, each in value.value]
        else:
            items = value.value if isinstance(value, yaml.SequenceNode) else [value]
            split = [self.converted("eval", each, _string).partition("=") for each in items]
            pairs = [(name, path) if equals else ("general", name) for name, equals, path in split]
        named: dict[str, str] = {}
        for name, path in pairs:
            if not name or not path or name in named or "=" in name:
                raise self.fault(value, f"eval: give each set a name of its own, as in {{general: {path or 'DIR'}}}")
            named[name] = path_at(self.name, path)
        return named

    # -- krill

    def _krill_data(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        self.preparing.take(key, node, value)
        if krill.DATA[key]:
            self._read_as(key, f"data: {krill.DATA[key]}")

    def _krill_training(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        if key in krill.NOTED:
            self.once(key, key, node)
            self.notes.append(f"{key} has no effect here: {krill.NOTED[key]}")
        elif key == "output_dir":
            self.once("work", key, node)
            self.own["work"] = self.converted(key, value, _string)
            self._read_as(key, "work")
        elif key == "model_config_name":
            params = self.converted(key, value, krill.parameters)
            self.running.put("params", key, node, params)
            self._read_as(key, f"model: {{params: {params}}}")
        else:
            self.running.take(key, node, value, krill.TRAINING[key])
            if key != krill.TRAINING[key]:
                self._read_as(key, f"training: {krill.TRAINING[key]}")

    # -- the whole file

    def pipeline(self) -> Pipeline:
        config = self.preparing.config()
        text = self.texts.get("text", ())
        columns = {each.text_field for each in text}
        if len(columns) == 1 and None not in columns and "text_field" not in self.reading.found:
            # The same column everywhere: then it is the setting, and files can be read as they are.
            self.reading.found["text_field"] = columns.pop()
        reading = self.reading.made(None)
        learned = self._learned()
        own = {"tokenizer": self.hub_tokenizer or "gpt2", "datasets": (), **self.own}
        own["work"] = own.get("work") or os.path.splitext(os.path.basename(self.name))[0]
        own |= {name: path_at(self.name, own[name]) for name in ("work", "spill_dir") if name in own}
        own["tokenizer"] = tokenizer_at(self.name, own["tokenizer"])
        own["datasets"] = tuple(path_at(self.name, each) for each in own["datasets"])
        prepared = None if own["datasets"] else self._prepared(config.settings)
        if not text and any(section is not None and not section.text for section in (learned, prepared)):
            raise SettingsError(f"{self.name} names no text: add `text: [FILE or FOLDER]`")
        trained = self._trained()
        if own.get("exclude_eval") and not own.get("evals"):
            raise self.fault(self.nodes["data"], "exclude_eval without an evaluation set: add `training: {eval: ...}`")
        if own["datasets"] and trained is None:
            raise self.fault(self.nodes["data"], "an existing dataset and nothing to do with it: add `model`")
        return Pipeline(
            path=self.name,
            text=text,
            reading=reading,
            learned=learned,
            prepared=prepared,
            shard_bytes=config.shard_bytes,
            trained=trained,
            notes=(*self.notes, *config.notes),
            **own,
        )

    def _learned(self) -> Section | None:
        found = self.learning.found
        if "tokenizer" in self.own or not (found or ("tokenizer" in self.nodes and self.hub_tokenizer is None)):
            return None
        if "tokenizer" not in self.nodes or self.hub_tokenizer is not None:
            found.setdefault("special_tokens", (END,))
            self.notes.append(f"a tokenizer is trained, with {END} after each document")
        settings = self.learning.made(self.nodes.get("tokenizer"), **self.reading.found)
        return Section({**self.reading.found, **found}, settings, self.texts.get("tokenizer", ()))

    def _prepared(self, found: dict[str, Any]) -> Section:
        if found.get("dedup_cache"):
            found["dedup_cache"] = path_at(self.name, found["dedup_cache"])
        if found.get("exclude"):
            found["exclude"] = tuple(input_at(self.name, Input(each)).path for each in found["exclude"])
        given = {**self.reading.found, **found}
        if given.get("output_format", "shards") != "shards":
            raise self.fault(self.nodes["data"], "a pipeline stores its dataset in shards: remove the npy format")
        try:
            settings = PrepareSettings(**given)
        except SettingsError as error:
            raise self.preparing.with_line(error, self.nodes.get("data")) from None
        return Section(given, settings, self.texts.get("data", ()))

    def _trained(self) -> Section | None:
        section = self.nodes.get("model") or self.nodes.get("training")
        found = self.running.found
        if section is None and not found:
            return None
        for name in ("config", "init_from"):
            if found.get(name):
                found[name] = path_at(self.name, found[name])
        settings = self.running.made(section)
        try:
            settings.require_size()
        except SettingsError:
            where = "" if section is None else f", line {section.start_mark.line + 1}"
            raise SettingsError(
                f"{self.name}{where}: the size of the model is missing: add `model: {{params: 10M}}`; "
                "`ramlet plan` suggests one"
            ) from None
        return Section(dict(found), settings)
