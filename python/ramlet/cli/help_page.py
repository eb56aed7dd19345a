"""The help of a command: what it does, examples, and options in groups.

    Train a model, within a memory budget.          the docstring's first line

    Usage: ramlet train [OPTIONS]

    The budget decides how a step is divided ...    its other paragraphs

    Examples:                                       its indented lines, and those that begin with `ramlet `
      ramlet train --data data --out run --params 10M

    Model:                                          options by their `rich_help_panel`, in the order of the function
      -p, --params N   How large the model is.
    General:                                        last: --json, --quiet, --debug, --help
      ...

Typer groups options only through rich, which costs every command 6 MB of RSS; here it is forty lines. The examples are
also what an error shows where an argument is missing, and what the tests run through the parser.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ramlet.cli.color import bold

__all__ = ["GENERAL", "App", "Command", "Group", "examples"]

GENERAL = "General"
"""The group of what every command has."""

UNGROUPED = "Options"
COLUMN = 26
"""Names up to so wide have their help beside them, longer ones below."""


class App(typer.Typer):
    """A Typer whose commands have the help of this module."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **options})


def parts_of(text: str | None) -> tuple[str, list[str], list[str]]:
    """The first paragraph, the others, and the examples of a docstring.

    >>> parts_of("Does it.\\n\\n    Well.\\n\\n      ramlet do a\\n\\n      ramlet do b\\n    ")
    ('Does it.', ['Well.'], ['ramlet do a', 'ramlet do b'])
    """
    first, *rest = [part for part in inspect.cleandoc(text or "").split("\n\n") if part.strip()] or [""]
    # Where all behind the first line is examples, no indent is left to tell them by.
    marks = (" ", "ramlet ")
    shown = [part for part in rest if part.startswith(marks)]
    prose = [" ".join(part.split()) for part in rest if not part.startswith(marks)]
    return " ".join(first.split()), prose, [line.strip() for part in shown for line in part.splitlines()]


def examples(command: Any) -> list[str]:
    """The command lines that a command's help shows."""
    return parts_of(command.help)[2]


SEVERAL = ("--special-tokens",)
"""Options that take all words up to the next option, as they do in the scripts that have them."""


def spread(words: list[str]) -> list[str]:
    """
    >>> spread(["a.txt", "--special-tokens", "<a>", "<b>", "--vocab-size", "300"])
    ['a.txt', '--special-tokens', '<a>', '--special-tokens', '<b>', '--vocab-size', '300']
    """
    spread_out: list[str] = []
    several = ""
    for word in words:
        if word.startswith("-"):
            several = word if word.replace("_", "-") in SEVERAL else ""
        elif several and spread_out[-1] != several:
            spread_out.append(several)
        spread_out.append(word)
    return spread_out


class Command(TyperCommand):
    """A command with the help of this module."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # Typer writes a required argument as {RUN}.
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    """A command with sub-commands, each on its line, none cut short."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)
        named = [(name, self.commands[name]) for name in self.list_commands(ctx) if not self.commands[name].hidden]
        with formatter.section(_heading("Commands")):
            formatter.write_dl([(name, parts_of(command.help)[0]) for name, command in named])
        _write_options(self, ctx, formatter)


def _heading(text: str) -> str:
    return bold(text, sys.stdout)


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    first, prose, shown = parts_of(command.help)
    if first:
        formatter.write_text(first)
        formatter.write_paragraph()
    pieces = " ".join(command.collect_usage_pieces(ctx))
    formatter.write_usage(ctx.command_path, pieces, prefix=f"{_heading('Usage:')} ")
    for paragraph in prose:
        formatter.write_paragraph()
        formatter.write_text(paragraph)
    if shown:
        with formatter.section(_heading("Examples")):
            for line in shown:
                formatter.write(f"  {line}\n")


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], UNGROUPED: []}
    for name, record in _records(command, ctx):
        groups.setdefault(name, []).append(record)
    groups[GENERAL] = groups.pop(GENERAL, [])
    width = min(COLUMN, max(len(name) for rows in groups.values() for name, _ in rows))
    for name, rows in groups.items():
        if rows:
            with formatter.section(_heading(name)):
                # The first name as wide as the column: all groups then have the same.
                formatter.write_dl([(rows[0][0].ljust(width), rows[0][1]), *rows[1:]], col_max=width)


def _records(command: Any, ctx: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """The group of each argument and option, its names and its help."""
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        # Typer puts a default that is told in words in brackets of its own.
        told = re.sub(r"\[default: \((.*)\)(?=[];])", r"[default: \1", text)
        if parameter.param_type_name == "argument":
            yield "Arguments", (names, told)
        else:
            common = GENERAL if "--help" in parameter.opts else UNGROUPED
            yield parameter.rich_help_panel or common, (names, told)
