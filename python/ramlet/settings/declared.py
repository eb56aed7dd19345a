"""A setting is declared once, beside its owner, and every face of it follows from that.

    @dataclass(frozen=True, kw_only=True)
    class RunSettings(Declared):
        max_steps: int | None = setting(None, Count(), "Stop after this many steps.", called=("max_steps", "max_iters"))

    RunSettings(max_steps="2k").max_steps           2000; a wrong value is a SettingsError that marks its name
    declared(RunSettings)["max_steps"].flags        ["--max-steps", "--max-iters"]
    keys(RunSettings)                               {"max_steps": ..., "max_iters": ...}, of YAML
    argv(RunSettings, {"max_steps": 2000})          ["--max-steps", "2000"]

The command line is made of these by `cli/declared.py`, a section of YAML is read by `yaml_settings.py`, and the tables
in docs/ are written by `tables.py`. A class reads its own values (`Declared`), so that a face has only to hand over
what was written. Names have underscores here; hyphens and dashes come with the face.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.settings.kinds import Kind, Switch

__all__ = ["Declared", "Key", "Setting", "argv", "declared", "differing", "keys", "options", "read", "setting", "told"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str = ""
    default: Any
    kind: Kind
    help: str
    """One line. `{seq_len}` in it is another setting of the class (`told`)."""

    called: tuple[str, ...] = ()
    """What options and keys call it, the usual one first; old names of the guides behind it."""
    short: str = ""
    """A letter for the command line."""
    opposite: str = ""
    """Of a switch: the option that turns it off."""
    stands_for: Mapping[str, Any] = field(default_factory=dict)
    """Further options, each another way to give this setting one value."""
    keys: tuple[str, ...] = ()
    """Further names, of YAML alone."""
    panel: str = ""
    """The group of the help that it is in; a section of the docs likewise."""
    shown: str = ""
    """The default in words, where it is none that can be written."""
    decides: bool = True
    """Whether the result follows from it."""
    later: bool = False
    """Whether 0.1.0 did not have it. By its default a result is what it was without it, so only another value counts
    in what a result is known by: one of an older version is known again."""

    @property
    def flags(self) -> list[str]:
        return [flag(name) for name in self.called]

    @property
    def shown_default(self) -> str:
        """Nothing where there is nothing to say."""
        if self.shown or self.default is True:
            return self.shown or self.called[0]
        if self.default is None or self.default is False or self.default == ():
            return ""
        return f"{self.default:,}" if isinstance(self.default, int) else str(self.default)

    def read(self, value: Any) -> Any:
        """What a user wrote, as it is used; a ValueError says what it should be."""
        return None if value is None and self.default is None else self.kind.read(value)


def told(line: str, settings: Mapping[str, Setting]) -> str:
    """A line of help or a default in words; settings that it names are options, for both stand beside options."""
    return re.sub(r"\{(\w+)\}", lambda found: settings[found[1]].flags[0], line)


def setting(default: Any, kind: Kind, help: str, **more: Any) -> Any:  # noqa: A002 - what the command calls it
    """A field of a settings class; what else there is to say of it, `Setting` tells."""
    return field(default=default, metadata={"setting": Setting(default=default, kind=kind, help=help, **more)})


_known: dict[type[Any], dict[str, Setting]] = {}


def declared(cls: type[Any]) -> dict[str, Setting]:
    """The settings of a class by name, inherited ones included, which leave a name that the class gives to its own."""
    if cls not in _known:
        _known[cls] = _declared(cls)
    return _known[cls]


def _declared(cls: type[Any]) -> dict[str, Setting]:
    own = {each.name for each in fields(cls)} - {each.name for base in cls.__bases__ for each in _fields(base)}
    found = {each.name: _filled(each.name, each.metadata["setting"]) for each in fields(cls)}
    taken = {word for name in own for word in found[name].called}
    return {
        name: each if name in own else replace(each, called=tuple(word for word in each.called if word not in taken))
        for name, each in found.items()
    }


def _fields(cls: type[Any]) -> tuple[Any, ...]:
    return fields(cls) if hasattr(cls, "__dataclass_fields__") else ()


def _filled(name: str, each: Setting) -> Setting:
    opposite = each.opposite or (f"no_{name}" if isinstance(each.kind, Switch) and each.default is not False else "")
    return replace(each, name=name, called=each.called or (name,), opposite=opposite)


class Declared:
    """A dataclass of settings, which reads and checks its own values."""

    def __post_init__(self) -> None:
        for name in declared(type(self)):
            object.__setattr__(self, name, read(type(self), name, getattr(self, name)))

    def decisive(self) -> dict[str, Any]:
        """What the result follows from."""
        return {name: getattr(self, name) for name, each in declared(type(self)).items() if each.decides}

    def known_by(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of these values those that a result is known by."""
        later = {name: each.default for name, each in declared(type(self)).items() if each.later}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}


def read(cls: type[Any], name: str, value: Any) -> Any:
    """One value of a class, as it is used; what is wrong with it is told with its name."""
    try:
        return declared(cls)[name].read(value)
    except ValueError as error:
        written = value if isinstance(value, (str, int)) else repr(value)
        raise SettingsError(f"{option(name)} {error}", setting=name, value=written) from None


def options(cls: type[Any], *names: str, panel: str = "") -> list[Setting]:
    """Some of the settings of a class, or all: for a command that has them; in a group of its own, or their own."""
    chosen = [declared(cls)[name] for name in names or declared(cls)]
    return [replace(each, panel=panel or each.panel) for each in chosen]


@dataclass(frozen=True)
class Key:
    """A key of YAML: the setting that it decides."""

    setting: Setting
    value: Any = None
    """What the setting becomes where the key is only true."""


def keys(cls: type[Any]) -> dict[str, Key]:
    """Every name of every setting; one's own name is never another's."""
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
    return [word for name, value in given.items() for word in _words(name, known.get(name), value)]


def _words(name: str, each: Setting | None, value: Any) -> Iterator[str]:
    written = flag(name) if each is None else each.flags[0]
    if isinstance(value, bool):
        if value:
            yield written
        elif each is not None and each.opposite:
            yield flag(each.opposite)
    elif value is not None:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            # As short as it can be read back: 0.001, not 1e-3 or 0.0010000000000000000208.
            text = f"{one:g}" if isinstance(one, float) and float(f"{one:g}") == one else str(one)
            yield from [f"{written}={text}"] if text.startswith("-") else [written, text]


def differing(cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What of these settings, as a file has noted them, is not the default."""
    return {
        name: given[name]
        for name, each in declared(cls).items()
        if name in given and (tuple(given[name]) if isinstance(given[name], list) else given[name]) != each.default
    }
