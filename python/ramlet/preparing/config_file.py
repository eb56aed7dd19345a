"""A YAML file -> what `prepare` is told by it.

    config = load("config.yaml")
    config.inputs, config.out, config.memory, config.threads, config.append
    settings = config.prepare_settings(tokenizer="byte")     # what the command line says wins

Keys are the names of the options, with dashes or underscores. The keys of krill work beside them as they
are: its file is a ramlet file. What it says of other stages, or of memory, which here the budget
decides, is accepted and told as a note.

    sequence_len: 2048                        pack: 2048
    datasets:                                 inputs: [corpus/, "org/name:train"]
      - {path: org/name, split: train}        out: data/
    preprocess_save_shard_size: 200MB         memory: 2GB

Every mistake is told with its line. Relative paths start from the current folder, as on the command line, not
from the folder of the file. Only plain YAML is read: a tag cannot make it run anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.inputs.staging import Input
from ramlet.preparing.settings import PrepareSettings, check_option
from ramlet.settings.values import count, list_of_words, real_number, share_of_memory, size, switch, word
from ramlet.settings.yaml_nodes import Convert, NodeReader, compose

if TYPE_CHECKING:
    import yaml

__all__ = ["OPTIONS", "Config", "ConfigReader", "known_keys", "load"]


@dataclass(frozen=True)
class Config:
    """What a file says; None, or nothing, where it does not say."""

    path: str
    inputs: tuple[Input, ...] = ()
    out: str | None = None
    memory: str | int | None = None
    threads: int | None = None
    append: bool | None = None

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of PrepareSettings, each checked by itself."""

    shard_bytes: int | None = None
    """The size of a shard in bytes: tokens only when the tokenizer, and so the width of an id, is known."""

    notes: tuple[str, ...] = ()
    """One sentence for each key that was read but decides nothing."""

    def prepare_settings(self, **given: Any) -> PrepareSettings:
        """With what was `given` elsewhere in the place of what the file says; None is not given."""
        return PrepareSettings(**{**self.settings, **{name: v for name, v in given.items() if v is not None}})

    def tokens_per_shard(self, id_bytes: int) -> int | None:
        """What `shard_bytes` comes to with ids of this width."""
        return None if self.shard_bytes is None else max(1, self.shard_bytes // id_bytes)


def load(path: str | os.PathLike[str]) -> Config:
    """Reads and checks the file; a mistake is a SettingsError with its line."""
    name = os.fspath(path)
    reader = ConfigReader(name)
    root = compose(name)
    if root is not None:
        for key, value in reader.pairs(root):
            reader.take(reader.key(key, known_keys()), key, value)
    return reader.config()


_AS: dict[str, Convert] = {
    **dict.fromkeys(("min_chars", "max_chars", "min_line_chars", "max_line_chars", "min_tokens"), count),
    **dict.fromkeys(("max_tokens", "tokens_per_shard", "pack"), count),
    **dict.fromkeys(("max_symbols", "max_repeated", "max_invalid", "max_line_symbols", "val_fraction"), real_number),
    **dict.fromkeys(("normalize", "filter", "collapse_blanks", "allow_empty"), switch),
    "document_bytes": size,
    **dict.fromkeys(("documents", "doc_separator", "text_field", "format", "on_error", "tokenizer"), word),
    **dict.fromkeys(("end_token", "unknown", "dedup", "dedup_cache", "long_documents", "output_format"), word),
}
assert set(_AS) == {each.name for each in fields(PrepareSettings)}

_OWN: dict[str, Convert] = {
    "inputs": list_of_words,
    "out": word,
    "memory": share_of_memory,
    "threads": count,
    "append": switch,
}

_ALSO: dict[str, tuple[str, Convert]] = {
    "docs": ("documents", word),
    "input_format": ("format", word),
    "no_normalize": ("normalize", switch),
    "no_filter": ("filter", switch),
    "no_dedup": ("dedup", switch),
}
"""As the command names them."""

_KRILL: dict[str, tuple[str, Convert]] = {
    "sequence_len": ("pack", count),
    "min_length": ("min_tokens", count),
    "hub_tokenizer_id": ("tokenizer", word),
    "dataset_prepared_path": ("out", word),
    "preprocess_dedup_cache_dir": ("dedup_cache", word),
    "preprocess_save_shard_size": ("tokens_per_shard", size),
}

_BUDGET_DECIDES: dict[str, Convert] = {"preprocess_memory_efficient": switch, "preprocess_chunk_size": count}

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


class ConfigReader(NodeReader):
    """Takes keys one by one, from wherever in a file they stand."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.notes: list[str] = []
        self.found: dict[str, Any] = {}

    def config(self) -> Config:
        found = dict(self.found)
        own = {name: found.pop(name) for name in _OWN if name in found and name != "inputs"}
        shard_bytes = found.pop("shard_bytes", None)
        inputs = tuple(found.pop("inputs", ()))
        columns = {each.text_field for each in inputs if each.text_field}
        if len(columns) == 1 and "text_field" not in found and all(each.text_field for each in inputs):
            # One column for all: then it is the setting, and files can be read as they are.
            found["text_field"] = columns.pop()
        return Config(
            path=self.name, inputs=inputs, settings=found, shard_bytes=shard_bytes, notes=tuple(self.notes), **own
        )

    def take(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        if key in _OTHER_STAGES:
            self.once(key, key, node)
            self.notes.append(f"{key} is for another stage: prepare leaves it alone")
        elif key in _BUDGET_DECIDES:
            self.once(key, key, node)
            self.converted(key, value, _BUDGET_DECIDES[key])
            self.notes.append(f"{key} decides nothing here: the memory budget does")
        elif key == "datasets":
            self._put("inputs", key, node, self.listed(key, value))
        elif key == "preprocess_save_shard_size":
            self.once("tokens_per_shard", key, node)
            self.found["shard_bytes"] = self.converted(key, value, size)
            if self.found["shard_bytes"] < 1:
                raise self.fault(value, f"{key} is a size of at least 1 byte, not 0")
        elif key in _OWN or _KRILL.get(key, ("",))[0] in _OWN:
            name, convert = _KRILL.get(key) or (key, _OWN[key])
            self._put(name, key, node, self._own(key, value, convert))
        else:
            self._setting(key, node, value)

    def _own(self, key: str, node: yaml.Node, convert: Convert) -> Any:
        """A value that is no setting of the result."""
        value = self.converted(key, node, convert)
        if key == "threads" and value < 1:
            raise self.fault(node, f"threads is a whole number of at least 1, not {value}")
        if value == "":
            raise self.fault(node, f"{key} is empty: give a value or leave the key out")
        return [Input(each) for each in value] if key == "inputs" else value

    def _setting(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        setting, convert = _KRILL.get(key) or _ALSO.get(key) or (key, _AS[key])
        unset = self.plain(value) is None and setting not in _NEVER_NONE
        converted = None if unset else self.converted(key, value, convert)
        if key == "no_dedup":
            if not converted:
                return
            converted = "none"
        elif key in ("no_normalize", "no_filter"):
            converted = not converted
        elif key == "format" and converted in ("shards", "npy"):
            setting = "output_format"  # --format of the command is both, and no word means two things
        try:
            check_option(setting, converted)
        except SettingsError as error:
            raise self.fault(value, str(error).replace(setting, key, 1)) from None
        self._put(setting, key, node, converted)

    def _put(self, what: str, key: str, node: yaml.Node, value: Any) -> None:
        self.once(what, key, node)
        self.found[what] = value

    def listed(self, name: str, node: yaml.Node) -> list[Input]:
        """Inputs, each a word or a mapping with its path; `name` is the key that they stand under."""
        import yaml

        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        inputs = []
        for item in items:
            if isinstance(item, yaml.ScalarNode):
                inputs.append(Input(self._own(name, item, word)))
                continue
            if not isinstance(item, yaml.MappingNode):
                raise self.fault(item, f"{name} is a list of {{path, split, text_column}}")
            given: dict[str, str] = {}
            for key, value in item.value:
                key_name = self.key(key, list(_DATASET_KEYS))
                part = _DATASET_KEYS[key_name]
                if part in given:
                    raise self.fault(key, f"{key_name!r} is given twice for this dataset: leave one out")
                if part == "path" or self.plain(value) is not None:
                    given[part] = self._own(key_name, value, word)
            if "path" not in given:
                raise self.fault(item, "a dataset without a path: give a file, a folder or a name on the hub")
            inputs.append(Input(**given))
        if not inputs:
            raise self.fault(node, f"{name} is empty: list at least one {{path, split, text_column}}")
        return inputs


_NEVER_NONE = frozenset(each.name for each in fields(PrepareSettings) if each.default is not None)


OPTIONS = (*_AS, *_ALSO)
"""The keys that are options of what `prepare` makes."""


def known_keys() -> list[str]:
    return [*_OWN, *OPTIONS, "datasets", *_KRILL, *_BUDGET_DECIDES, *_OTHER_STAGES]
