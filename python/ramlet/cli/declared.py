"""The options of a command, built from declared settings.

    @with_settings(*options(PrepareSettings), panels=("Reading", "Output"))
    def prepare(inputs: Inputs, given: Given, json: Json = False) -> None:
        settings = PrepareSettings(**given)

In place of `given` the command gets one option per setting, and is called with a dict of the values that were given,
parsed. `panels` is the order of the groups in the help, including those of other options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args

from ramlet.cli.parameters import Option
from ramlet.cli.usage import UsageError
from ramlet.errors import SettingsError, option
from ramlet.settings.declared import Setting, flag, with_flags
from ramlet.settings.kinds import NotANumber, Strings, Switch

Given = dict[str, Any]


def with_settings(*settings: Setting, panels: Sequence[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Turns a function with a parameter `given` into a command."""
    known = {each.name: each for each in settings}

    def decorate(command: Callable[..., None]) -> Any:
        @wraps(command)
        def run(**values: Any) -> None:
            command(given=_given(known, values), **values)

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            parameters += _parameters(known) if each.name == "given" else [each]
        parameters.sort(key=lambda each: _rank(each, panels))
        # Only keyword parameters may be in any order, with or without a default.
        plain = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.settings = known  # type: ignore[attr-defined]  # for error messages, see help_page.Command
        return run

    return decorate


def _rank(parameter: inspect.Parameter, panels: Sequence[str]) -> int:
    annotated = get_args(parameter.annotation)
    panel = getattr(annotated[1], "panel", None) if len(annotated) > 1 else None
    return panels.index(panel) if panel in panels else -1


def _parameters(settings: Mapping[str, Setting]) -> Iterator[inspect.Parameter]:
    for each in settings.values():
        names = [*each.flags, *([f"-{each.short}"] if each.short else [])]
        if each.opposite:
            names[0] += f"/{flag(each.opposite)}"
        kind: Any = bool if isinstance(each.kind, Switch) else list[str] if isinstance(each.kind, Strings) else str
        how = Option(
            *names,
            metavar=each.kind.metavar or None,
            help=with_flags(each.help, settings),
            shown=with_flags(each.shown_default, settings) or False,
            panel=each.panel,
        )
        yield _parameter(each.name, kind | None, how, None)
        for name, value in each.stands_for.items():
            line = f"Same as {each.flags[0]} {value}."
            yield _parameter(name, bool, Option(flag(name), help=line, panel=each.panel), False)


def _parameter(name: str, kind: Any, how: Any, default: Any) -> inspect.Parameter:
    annotation = Annotated[kind, how]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _given(settings: Mapping[str, Setting], values: dict[str, Any]) -> Given:
    """Removes the settings from the values of the command, and returns those that were given."""
    given: Given = {}
    for each in settings.values():
        value = values.pop(each.name)
        if value is not None and value != []:
            given[each.name] = _parsed(each, value)
        for name, meant in each.stands_for.items():
            if values.pop(name):
                if given.get(each.name, meant) not in ("auto", meant):
                    raise SettingsError(f"{option(name)} contradicts {option(each.name, value)}: use only one of them")
                given[each.name] = meant
    return given


def _parsed(each: Setting, value: Any) -> Any:
    try:
        each.kind.read(value)
    except NotANumber as error:
        raise UsageError(f"{option(each.name)} {error}", setting=each.name, value=value) from None
    except ValueError:
        pass  # raised again, with the name of the setting
    return each.read(value)
