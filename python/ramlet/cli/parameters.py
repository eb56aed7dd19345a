"""Commands from functions: the annotation of a parameter says how it is given on the command line.

    def merge(
        datasets: Annotated[list[Path], Argument(metavar="DATASET...", help="Two or more datasets, in order.")],
        link: Annotated[bool, Option("--link", help="Hard-link shards instead of copying.")] = False,
    ) -> None: ...

    parameters(merge)               # click's parameters, in the order of the function

A parameter without a default is required. A `bool` is a switch, a `list` may be given several times. `panel` is the
group of an option in the help (`help_page.py`); `shown` is the default in words, for defaults that are found at run
time, and False hides it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import click

GENERAL = "General"
"""The group of the options that every command has."""


class Option:
    """How an option is given: its names, and what the help says of it."""

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        help: str | None = None,  # noqa: A002 - as in click.Option
        shown: str | bool = True,
        panel: str | None = None,
        min: int | None = None,  # noqa: A002 - as in click.IntRange
        max: int | None = None,  # noqa: A002
        hidden: bool = False,
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.shown = shown
        self.panel = panel
        self.min, self.max = min, max
        self.hidden = hidden


@dataclass(frozen=True)
class Argument:
    """How an argument without a name is given."""

    metavar: str
    help: str = ""
    shown: str | bool = True
    needed: bool = False
    """It has another, hidden name, so the function checks that one of them was given."""


class GroupedOption(click.Option):
    """An option with its group in the help."""

    def __init__(self, declared: list[str], panel: str | None = None, **options: Any) -> None:
        super().__init__(declared, **options)
        self.panel = panel


class DescribedArgument(click.Argument):
    """An argument with a help line, which click's have not."""

    def __init__(self, declared: list[str], how: Argument, **options: Any) -> None:
        super().__init__(declared, metavar=how.metavar, **options)
        self.how = how
        self.shown_required = self.required or how.needed

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.how.metavar
        return name if self.shown_required or name.startswith("[") else f"[{name}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        shown = f"  [default: {self.how.shown}]" if isinstance(self.how.shown, str) else ""
        return self.how.metavar, self.how.help + shown + ("  [required]" if self.shown_required else "")


def parameters(function: Callable[..., Any]) -> Iterator[click.Parameter]:
    """The options and arguments of a function."""
    for each in inspect.signature(function, eval_str=True).parameters.values():
        annotated = get_origin(each.annotation) is Annotated
        kind, *notes = get_args(each.annotation) if annotated else (each.annotation,)
        required = each.default is each.empty
        how = next((note for note in notes if isinstance(note, (Option, Argument))), None)
        if how is None:
            how = Argument(each.name.upper()) if required else Option()
        # Said in both cases: before click 8.3 an argument with the default None is required otherwise.
        given = {"required": True} if required else {"required": False, "default": each.default}
        make: Callable[..., click.Parameter] = _argument if isinstance(how, Argument) else _option
        yield make(each.name, how, *_kind(kind), **given)


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several: `list[str] | None` is (str, True)."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    if get_origin(annotation) is list:
        return get_args(annotation)[0], True
    return annotation, False


def _option(name: str, how: Option, kind: Any, several: bool, **given: Any) -> click.Parameter:
    names = how.names or (f"--{name.replace('_', '-')}",)
    switch = {"is_flag": True} if kind is bool else {"type": _type(kind, how), "multiple": several}
    return GroupedOption(
        [name, *names],
        panel=how.panel,
        metavar=how.metavar,
        help=how.help,
        show_default=how.shown,
        hidden=how.hidden,
        **switch,
        **given,
    )


def _argument(name: str, how: Argument, kind: Any, several: bool, **given: Any) -> click.Parameter:
    return DescribedArgument([name], how, type=_type(kind, None), nargs=-1 if several else 1, **given)


def _type(kind: Any, how: Option | None) -> Any:
    if kind is int and how is not None and (how.min, how.max) != (None, None):
        return click.IntRange(how.min, how.max)
    return click.Path(path_type=Path) if kind is Path else kind


def plain(value: Any) -> Any:
    """A value as commands expect it: a list where click has a tuple, None where nothing was given."""
    return (list(value) or None) if isinstance(value, tuple) else value
