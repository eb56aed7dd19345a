"""Suggestions for unknown names of settings, stages, keys, options and files.

check_names({"param": "1M"}, ["params", "tokens"])      unknown setting 'param': did you mean params?
nearest("corpsu", ["corpus", "data"])                   corpus
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ramlet.errors import SettingsError
from ramlet.settings.declared import declared

SIMILAR = 0.75
"""Cutoff for `difflib`: one or two letters differ. With its default of 0.6, `wheel` would match `nowhere`."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raises an error for the first unknown name, with a suggestion."""
    names = sorted(known)
    for name in given:
        if name not in names:
            raise SettingsError(f"unknown setting {name!r}: {meant(name, names)}")


def given_to(function: Callable[..., Any], settings: Mapping[str, Any], cls: type[Any]) -> dict[str, Any]:
    """The `**settings` of a function, which are those of `cls`; an error names an unknown one."""
    kwdefaults: Mapping[str, Any] = getattr(function, "__kwdefaults__", None) or {}
    check_names(settings, [*declared(cls), *kwdefaults])
    return dict(settings)


def meant(name: str, known: Sequence[str]) -> str:
    """The most similar name as a question, or all known names."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"choose from {', '.join(known)}"


def nearest(name: str, known: Iterable[str], similar: float = SIMILAR) -> str | None:
    """The most similar known name, or None if none is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, similar)), None)
