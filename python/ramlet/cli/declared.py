"""The options of a command, made of the declared settings.

    @with_settings(*options(PrepareSettings), panels=("Reading", "Output"))
    def prepare(inputs: Inputs, given: Given, json: Json = False) -> None:
        settings = PrepareSettings(**given)

In the place of `given` the command gets an option for each setting; what it is called with is a dict of those that were
given, as they were written, for the class to read. `panels` is the order of the groups in the help, those of the other
options included.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args

import typer

from ramlet.cli.wording import speak_of
from ramlet.errors import SettingsError, option
from ramlet.settings.declared import Setting, flag, told
from ramlet.settings.kinds import Switch, Words

__all__ = ["Given", "with_settings"]

Given = dict[str, Any]


def with_settings(*settings: Setting, panels: Sequence[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Makes a command of a function with a parameter `given`."""
    known = {each.name: each for each in settings}

    def decorate(command: Callable[..., None]) -> Any:
        @wraps(command)
        def run(**words: Any) -> None:
            speak_of(known)
            command(given=_given(known, words), **words)

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            parameters += _parameters(known) if each.name == "given" else [each]
        parameters.sort(key=lambda each: _rank(each, panels))
        # Keywords alone may stand in any order, whether they have a default or not.
        plain = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


def _rank(parameter: inspect.Parameter, panels: Sequence[str]) -> int:
    told = get_args(parameter.annotation)
    panel = getattr(told[1], "rich_help_panel", None) if len(told) > 1 else None
    return panels.index(panel) if panel in panels else -1


def _parameters(settings: Mapping[str, Setting]) -> Iterator[inspect.Parameter]:
    for each in settings.values():
        names = [*each.flags, *([f"-{each.short}"] if each.short else [])]
        if each.opposite:
            names[0] += f"/{flag(each.opposite)}"
        kind: Any = bool if isinstance(each.kind, Switch) else list[str] if isinstance(each.kind, Words) else str
        how = typer.Option(
            *names,
            metavar=each.kind.metavar or None,
            help=told(each.help, settings),
            show_default=told(each.shown_default, settings) or False,
            rich_help_panel=each.panel,
        )
        yield _parameter(each.name, kind | None, how, None)
        for name, value in each.stands_for.items():
            line = f"Same as {each.flags[0]} {value}."
            yield _parameter(name, bool, typer.Option(flag(name), help=line, rich_help_panel=each.panel), False)


def _parameter(name: str, kind: Any, how: Any, default: Any) -> inspect.Parameter:
    annotation = Annotated[kind, how]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _given(settings: Mapping[str, Setting], words: dict[str, Any]) -> Given:
    """Takes what was given out of the words of the command."""
    given: Given = {}
    for each in settings.values():
        value = words.pop(each.name)
        if value is not None and value != []:
            given[each.name] = value
        for name, meant in each.stands_for.items():
            if words.pop(name):
                if given.get(each.name, meant) not in ("auto", meant):
                    raise SettingsError(
                        f"{option(name)} and {option(each.name, value)} say different things: leave one out"
                    )
                given[each.name] = meant
    return given
