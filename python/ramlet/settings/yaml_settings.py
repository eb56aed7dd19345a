"""Reads a settings class from a YAML file; errors have line numbers.

    reader = SettingsReader("pipeline.yaml", RunSettings)
    reader.take("max_iters", key, value)     any of its names; key and value are nodes, which have line numbers
    settings = reader.made(section)          RunSettings(max_steps=2000)

An error about one value has the line of that value; one about several settings, the line of the first it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.settings.declared import keys
from ramlet.settings.kinds import Switch
from ramlet.settings.yaml_nodes import NodeReader

if TYPE_CHECKING:
    import yaml


class SettingsReader(NodeReader):
    """Collects keys one by one, from anywhere in a file."""

    def __init__(self, name: str, settings: type[Any]) -> None:
        super().__init__(name)
        self._settings = settings
        self.keys = keys(settings)
        self.found: dict[str, Any] = {}

    def take(self, key: str, node: yaml.Node, value: yaml.Node, meant: str = "") -> None:
        """`meant` is the name of the setting if the key comes from another tool."""
        known = self.keys[meant or key]
        name = known.setting.name
        if known.value is None:
            unset = known.setting.default is None and self.plain(value) is None
            self.put(name, key, node, None if unset else self.converted(key, value, known.setting.kind.read))
            return
        is_on = self.converted(key, value, Switch().read)
        if is_on or isinstance(known.value, bool):
            self.put(name, key, node, known.value if is_on else not known.value)

    def put(self, name: str, key: str, node: yaml.Node, value: Any) -> None:
        self.once(name, key, node)
        self.found[name] = value

    def made(self, section: yaml.Node | None, **defaults: Any) -> Any:
        """The settings; `section` gives the line of an error that names no key of the file."""
        try:
            return self._settings(**{**defaults, **self.found})
        except SettingsError as error:
            raise self.with_line(error, section) from None
