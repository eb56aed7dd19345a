"""A YAML file -> inputs and settings of `prepare`.

    config = load("config.yaml")
    config.inputs, config.out, config.memory, config.threads, config.append, config.cluster
    settings = config.prepare_settings(tokenizer="byte")     # the command line wins

Keys are the names of the options, with dashes or underscores. The keys of krill work too: its file is a ramlet file.
Its keys for other stages, or for memory, which the budget decides here, are accepted with a note.

    sequence_len: 2048                        pack: 2048
    datasets:                                 inputs: [corpus/, "org/name:train"]
      - {path: org/name, split: train}        out: data/
    preprocess_save_shard_size: 200MB         memory: 2GB

Every error names its line. Relative paths start from the current folder, as on the command line, not from the folder
of the file. Only plain YAML is read: a tag cannot run code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramlet.inputs.named import Input
from ramlet.preparing.settings import OUTPUT_FORMATS, PrepareSettings
from ramlet.settings.declared import keys
from ramlet.settings.kinds import Count, Memory, Size, Switch, Text
from ramlet.settings.yaml_nodes import Convert, compose
from ramlet.settings.yaml_settings import SettingsReader

if TYPE_CHECKING:
    import yaml


@dataclass(frozen=True)
class Config:
    """The content of a file; None, or empty, for what it does not give."""

    path: str
    inputs: tuple[Input, ...] = ()
    out: str | None = None
    memory: str | int | None = None
    threads: int | None = None
    append: bool | None = None
    cluster: str | None = None

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of PrepareSettings, each checked on its own."""

    shard_bytes: int | None = None
    """The size of a shard in bytes, which the width of an id, known with the tokenizer, turns into tokens."""

    notes: tuple[str, ...] = ()
    """One sentence for each key without an effect."""

    def prepare_settings(self, **given: Any) -> PrepareSettings:
        """The settings, with those `given` elsewhere in place of the file's; None is not given."""
        return PrepareSettings(**{**self.settings, **{name: v for name, v in given.items() if v is not None}})


def load(path: str | os.PathLike[str]) -> Config:
    """Reads and checks the file; an error is a SettingsError with its line."""
    name = os.fspath(path)
    reader = ConfigReader(name)
    root = compose(name)
    if root is not None:
        for key, value in reader.pairs(root):
            reader.take(reader.key(key, known_keys()), key, value)
    return reader.config()


_OWN: dict[str, Convert] = {
    "out": Text().read,
    "memory": Memory().read,
    "threads": Count().read,
    "append": Switch().read,
    "cluster": Text().read,
}

_KRILL = {
    "sequence_len": "pack",
    "min_length": "min_tokens",
    "hub_tokenizer_id": "tokenizer",
    "dataset_prepared_path": "out",
    "preprocess_dedup_cache_dir": "dedup_cache",
    "preprocess_save_shard_size": "tokens_per_shard",
}

_BUDGET_DECIDES: dict[str, Convert] = {
    "preprocess_memory_efficient": Switch().read,
    "preprocess_chunk_size": Count(least=0).read,
}

_OTHER_STAGES = (
    *("vocab_size", "hub_model_id", "output_dir", "num_epochs", "learning_rate", "weight_decay", "optimizer"),
    *("model_config_name", "gradient_accumulation_steps", "micro_batch_size"),
)

_DATASET_KEYS = {
    "path": "path",
    "split": "split",
    "text_column": "text_field",
    "text_field": "text_field",
    "name": "subset",
    "subset": "subset",
}


class ConfigReader(SettingsReader):
    """Also reads inputs, output, memory and threads, and the keys of krill."""

    def __init__(self, name: str) -> None:
        super().__init__(name, PrepareSettings)
        self.notes: list[str] = []

    def config(self) -> Config:
        found = dict(self.found)
        own = {name: found.pop(name) for name in _OWN if name in found}
        shard_bytes = found.pop("shard_bytes", None)
        inputs = tuple(found.pop("inputs", ()))
        columns = {each.text_field for each in inputs if each.text_field}
        if len(columns) == 1 and "text_field" not in found and all(each.text_field for each in inputs):
            # One column for all: make it the setting, so that files can be read as they are.
            found["text_field"] = columns.pop()
        return Config(
            path=self.name, inputs=inputs, settings=found, shard_bytes=shard_bytes, notes=tuple(self.notes), **own
        )

    def take(self, key: str, node: yaml.Node, value: yaml.Node, meant: str = "") -> None:
        meant = meant or _KRILL.get(key, key)
        if key in _OTHER_STAGES:
            self.once(key, key, node)
            self.notes.append(f"{key} is for another stage: prepare ignores it")
        elif key in _BUDGET_DECIDES:
            self.once(key, key, node)
            self.converted(key, value, _BUDGET_DECIDES[key])
            self.notes.append(f"{key} has no effect here: the memory budget decides")
        elif key in ("inputs", "datasets"):
            self.put("inputs", key, node, self.listed(key, value))
        elif key == "preprocess_save_shard_size":
            self.once("tokens_per_shard", key, node)
            self.found["shard_bytes"] = self.converted(key, value, Size(least=1).read)
        elif meant in _OWN:
            self.put(meant, key, node, self.filled(key, value, _OWN[meant]))
        elif key == "format" and self.plain(value) in OUTPUT_FORMATS:
            # The command's option of this name is the output format.
            super().take(key, node, value, "output_format")
        else:
            super().take(key, node, value, meant)

    def listed(self, name: str, node: yaml.Node) -> list[Input]:
        """Inputs, each a string or a mapping with a path; `name` is their key."""
        import yaml

        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        inputs = []
        for item in items:
            if isinstance(item, yaml.ScalarNode):
                inputs.append(Input(self.filled(name, item, Text().read)))
                continue
            if not isinstance(item, yaml.MappingNode):
                raise self.fault(item, f"{name} is a list of {{path, split, text_column}}")
            given: dict[str, str] = {}
            for key, value in item.value:
                key_name = self.key(key, list(_DATASET_KEYS))
                part = _DATASET_KEYS[key_name]
                if part in given:
                    raise self.fault(key, f"{key_name!r} is given twice for this dataset: remove one")
                if part == "path" or self.plain(value) is not None:
                    given[part] = self.filled(key_name, value, Text().read)
            if "path" not in given:
                raise self.fault(item, "a dataset without a path: give a file, a folder or a name on the hub")
            inputs.append(Input(**given))
        if not inputs:
            raise self.fault(node, f"{name} is empty: list at least one {{path, split, text_column}}")
        return inputs


def known_keys() -> list[str]:
    return ["inputs", *_OWN, *keys(PrepareSettings), "datasets", *_KRILL, *_BUDGET_DECIDES, *_OTHER_STAGES]
