"""The options of a section: the fields of the settings that its command has, in the words of either.

    reader = SettingsReader("pipeline.yaml", RunSettings, {"max_iters": "max_steps"})
    reader.take("max_iters", key, value)
    settings = reader.made(section)          RunSettings(max_steps=2000); a mistake has its line

How a value is read follows from the type of its field, so there is no second table of options here. What a command
calls otherwise than its settings do is listed below; a test holds the lists against the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.settings.values import count, real_number, switch, word
from ramlet.settings.yaml_nodes import Convert, NodeReader

if TYPE_CHECKING:
    import yaml

__all__ = ["MODEL", "READING_ALSO", "RUN_ALSO", "RUN_SWITCHES", "TOKENIZER_ALSO", "SettingsReader"]

READING_ALSO = {"docs": "documents", "input_format": "format", "text_column": "text_field"}
TOKENIZER_ALSO = {
    "type": "kind",
    "tokenizer_type": "kind",
    "docs": "documents",
    "special_token": "special_tokens",
}
RUN_ALSO = {
    "target_params": "params",
    "config_file": "config",
    "init_from_model": "init_from",
    "max_iters": "max_steps",
    "learning_rate": "lr",
    "shuffle_buffer_size": "shuffle_buffer",
}
RUN_SWITCHES = {
    "use_mixed_precision": ("precision", "bf16"),
    "use_8bit_optimizer": ("optimizer", "adamw8bit"),
    "untied": ("tied", False),
    "no_recompute": ("recompute", False),
}
"""Flags that stand for a value of another option."""

MODEL = ("params", "config", "init_from", "seq_len", "kv_groups", "tied")
"""What of a run's settings the section `model` has; the others belong to `training`."""


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word(each) for each in (value if isinstance(value, list) else [value]))


def _number(value: Any) -> float:
    return float(real_number(value))  # 1 and 1.0 are the same setting


_BY_TYPE: dict[str, Convert] = {
    "int": count,
    "float": _number,
    "bool": switch,
    "str": word,
    "tuple[str, ...]": _words,
}


class SettingsReader(NodeReader):
    """Takes options one by one, from wherever in a file they stand."""

    def __init__(
        self,
        name: str,
        settings: type[Any],
        also: Mapping[str, str],
        switches: Mapping[str, tuple[str, Any]] | None = None,
    ) -> None:
        super().__init__(name)
        self._settings = settings
        self._types = {each.name: str(each.type) for each in fields(settings)}
        self._also = also
        self._switches = switches or {}
        self.found: dict[str, Any] = {}

    @property
    def options(self) -> list[str]:
        return [*self._types, *self._also, *self._switches]

    def field(self, key: str) -> str:
        """The setting that a key decides."""
        return self._switches[key][0] if key in self._switches else self._also.get(key, key)

    def take(self, key: str, node: yaml.Node, value: yaml.Node) -> None:
        if key in self._switches:
            name, meant = self._switches[key]
            if self.converted(key, value, switch):
                self.put(name, key, node, meant)
            return
        name = self.field(key)
        kind, _, optional = self._types[name].partition(" | ")
        if optional and self.plain(value) is None:
            self.once(name, key, node)
            return
        self.put(name, key, node, self.converted(key, value, _BY_TYPE[kind]))

    def put(self, name: str, key: str, node: yaml.Node, value: Any) -> None:
        self.once(name, key, node)
        self.found[name] = value

    def made(self, section: yaml.Node | None, **defaults: Any) -> Any:
        """The settings; what is wrong with them together is told with the line of the first that is named."""
        try:
            return self._settings(**{**defaults, **self.found})
        except SettingsError as error:
            raise self.with_line(error, section) from None
