"""A setting is declared once, next to the code it belongs to; options, keys, checks and docs are derived from that.

    @dataclass(frozen=True, kw_only=True)
    class RunSettings(Declared):
        max_steps: int | None = setting(None, Count(), "Stop after this many steps.", called=("max_steps", "max_iters"))

    RunSettings(max_steps="2k").max_steps           2000; an invalid value is a SettingsError that names the setting
    declared(RunSettings)["max_steps"].flags        ["--max-steps", "--max-iters"]
    keys(RunSettings)                               {"max_steps": ..., "max_iters": ...} in YAML
    argv(RunSettings, {"max_steps": 2000})          ["--max-steps", "2000"]

`cli/declared.py` builds the command line from these declarations, `yaml_settings.py` reads a section of a YAML file,
and `tables.py` writes the tables in docs/. A class parses its own values (`Declared`), so callers pass them on as they
were written. Names have underscores here; the command line replaces them with hyphens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.settings.kinds import Kind, Switch


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str = ""
    default: Any
    kind: Kind
    help: str
    """One line. `{seq_len}` in it is another setting of the class (`with_flags`)."""

    called: tuple[str, ...] = ()
    """Names of the option and the YAML key: the preferred one first, then names that other tools use."""
    short: str = ""
    """A letter for the command line."""
    opposite: str = ""
    """The option that turns a switch off."""
    stands_for: Mapping[str, Any] = field(default_factory=dict)
    """Flags that each stand for one value of this setting."""
    keys: tuple[str, ...] = ()
    """More names, in YAML only."""
    panel: str = ""
    """Its group in the help and in the docs."""
    shown: str = ""
    """The default in words, if it is computed."""
    decides: bool = True
    """Whether the result depends on it."""
    later: bool = False
    """Whether it was added after 0.1.0. With the default the result is the same as without the setting, so only other
    values are part of a result's signature, and results of older versions are still recognized."""

    @property
    def flags(self) -> list[str]:
        return [flag(name) for name in self.called]

    @property
    def shown_default(self) -> str:
        """Empty if there is no default to show."""
        if self.shown or self.default is True:
            return self.shown or self.called[0]
        if self.default is None or self.default is False or self.default == ():
            return ""
        return f"{self.default:,}" if isinstance(self.default, int) else str(self.default)

    def read(self, value: Any) -> Any:
        """The value as parsed by its kind, or a SettingsError that names the setting."""
        try:
            return None if value is None and self.default is None else self.kind.read(value)
        except ValueError as error:
            written = value if isinstance(value, (str, int)) else repr(value)
            raise SettingsError(f"{option(self.name)} {error}", setting=self.name, value=written) from None


def with_flags(line: str, settings: Mapping[str, Setting]) -> str:
    """A help line or a default in words, with `{seq_len}` replaced by `--seq-len`."""
    return re.sub(r"\{(\w+)\}", lambda found: settings[found[1]].flags[0], line)


def setting(default: Any, kind: Kind, help: str, **more: Any) -> Any:  # noqa: A002 - as in click.Option
    """A field of a settings class; `more` are fields of `Setting`."""
    return field(default=default, metadata={"setting": Setting(default=default, kind=kind, help=help, **more)})


_known: dict[type[Any], dict[str, Setting]] = {}


def declared(cls: type[Any]) -> dict[str, Setting]:
    """The settings of a class by name, including inherited ones, which lose a name that the class itself uses."""
    if cls not in _known:
        _known[cls] = _declared(cls)
    return _known[cls]


def _declared(cls: type[Any]) -> dict[str, Setting]:
    own = {each.name for each in fields(cls)} - {each.name for base in cls.__bases__ for each in _fields(base)}
    found = {each.name: _filled(each.name, each.metadata["setting"]) for each in fields(cls)}
    own_names = {word for name in own for word in found[name].called}
    return {
        name: each
        if name in own
        else replace(each, called=tuple(word for word in each.called if word not in own_names))
        for name, each in found.items()
    }


def _fields(cls: type[Any]) -> tuple[Any, ...]:
    return fields(cls) if hasattr(cls, "__dataclass_fields__") else ()


def _filled(name: str, each: Setting) -> Setting:
    opposite = each.opposite or (f"no_{name}" if isinstance(each.kind, Switch) and each.default is not False else "")
    return replace(each, name=name, called=each.called or (name,), opposite=opposite)


class Declared:
    """A dataclass of settings that parses and checks its own values."""

    def __post_init__(self) -> None:
        for name, each in declared(type(self)).items():
            object.__setattr__(self, name, each.read(getattr(self, name)))

    def decisive(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        return {name: getattr(self, name) for name, each in declared(type(self)).items() if each.decides}

    def known_by(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that are part of a result's signature (`Setting.later`)."""
        later = {name: each.default for name, each in declared(type(self)).items() if each.later}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}


def read(cls: type[Any], name: str, value: Any) -> Any:
    """One value of a class, parsed; the error names the setting."""
    return declared(cls)[name].read(value)


def options(cls: type[Any], *names: str, **changes: Any) -> list[Setting]:
    """The named settings of a class, or all of them, as options of a command; `changes` are fields of `Setting`."""
    return [replace(declared(cls)[name], **changes) for name in names or declared(cls)]


@dataclass(frozen=True)
class Key:
    """A key of YAML, and the setting it sets."""

    setting: Setting
    value: Any = None
    """The value of the setting if the key is a switch and true."""


def keys(cls: type[Any]) -> dict[str, Key]:
    """Every name of every setting. A setting's own name takes precedence over names of others."""
    found: dict[str, Key] = {}
    for each in declared(cls).values():
        for name in (*each.called, *each.keys):
            found[name] = Key(each)
        found |= {name: Key(each, value) for name, value in each.stands_for.items()}
        if each.opposite:
            found[each.opposite] = Key(each, False)
    return found | {name: Key(each) for name, each in declared(cls).items()}


def flag(name: str) -> str:
    """
    >>> flag("seq_len")
    '--seq-len'
    """
    return f"--{name.replace('_', '-')}"


def argv(cls: type[Any] | None, given: Mapping[str, Any]) -> list[str]:
    """Settings as command-line arguments; None is not given. Names that `cls` does not declare are other options."""
    known = declared(cls) if cls is not None else {}
    return [word for name, value in given.items() for word in _arguments(name, known.get(name), value)]


def _arguments(name: str, each: Setting | None, value: Any) -> Iterator[str]:
    written = flag(name) if each is None else each.flags[0]
    if isinstance(value, bool):
        if value:
            yield written
        elif each is not None and each.opposite:
            yield flag(each.opposite)
    elif value is not None:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            # The shortest text that gives the same number: 0.001, not 1e-3 or 0.0010000000000000000208.
            text = f"{one:g}" if isinstance(one, float) and float(f"{one:g}") == one else str(one)
            yield from [f"{written}={text}"] if text.startswith("-") else [written, text]


def differing(cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings, as read from a file, that differ from their default."""
    return {
        name: given[name]
        for name, each in declared(cls).items()
        if name in given and (tuple(given[name]) if isinstance(given[name], list) else given[name]) != each.default
    }
