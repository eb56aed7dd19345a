"""Settings of a class from a YAML file, every mistake with its line.

    reader = SettingsReader("pipeline.yaml", RunSettings)
    reader.take("max_iters", key, value)     by any of its names; the nodes know their lines
    settings = reader.made(section)          RunSettings(max_steps=2000)

What is wrong with one value is told where it stands, and what is wrong with two together at the first that the error
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.settings.declared import keys
from ramlet.settings.kinds import Switch
from ramlet.settings.yaml_nodes import NodeReader

if TYPE_CHECKING:
    import yaml

__all__ = ["SettingsReader"]


class SettingsReader(NodeReader):
    """Takes keys one by one, from wherever in a file they stand."""

    def __init__(self, name: str, settings: type[Any]) -> None:
        super().__init__(name)
        self._settings = settings
        self.keys = keys(settings)
        self.found: dict[str, Any] = {}

    def take(self, key: str, node: yaml.Node, value: yaml.Node, meant: str = "") -> None:
        """`meant` is the name of the setting, where the key is a word of another tool."""
        known = self.keys[meant or key]
        name = known.setting.name
        if known.value is None:
            unset = known.setting.default is None and self.plain(value) is None
            self.put(name, key, node, None if unset else self.converted(key, value, known.setting.kind.read))
            return
        said = self.converted(key, value, Switch().read)
        if said or isinstance(known.value, bool):
            self.put(name, key, node, known.value if said else not known.value)

    def put(self, name: str, key: str, node: yaml.Node, value: Any) -> None:
        self.once(name, key, node)
        self.found[name] = value

    def made(self, section: yaml.Node | None, **defaults: Any) -> Any:
        """The settings; what is wrong with them together is told with the line of the first that is named."""
        try:
            return self._settings(**{**defaults, **self.found})
        except SettingsError as error:
            raise self.with_line(error, section) from None
