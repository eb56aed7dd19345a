"""The help page of a command: what it does, examples, and options in groups.

    Train a model within a memory budget.           the docstring's first line

    Usage: ramlet train [OPTIONS]

    To fit the memory budget, batches ...           its other paragraphs

    Examples:                                       its indented lines, and those that begin with `ramlet `
      ramlet train --data data --out run --params 10M

    Model:                                          options by their `panel`, in the order of the function
      -p, --params N   Number of parameters.
    General:                                        last: --json, --quiet, --debug, --help
      ...

The examples are also shown when an argument is missing, and the tests run them through the parser.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ramlet.cli.color import bold
from ramlet.cli.parameters import GENERAL, GroupedOption, parameters, plain
from ramlet.settings.names import nearest

UNGROUPED = "Options"
COLUMN = 26
"""The help of an option starts in this column, or below the option if its names are longer."""


def _underscores_are_hyphens(word: str) -> str:
    """`--tokens_per_shard` is `--tokens-per-shard`. Called for names of options and choices, not for values."""
    return word.replace("_", "-")


CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": _underscores_are_hyphens,
    "max_content_width": 100,
}

DEBUG, SETTINGS = "ramlet.debug", "ramlet.settings"
"""Keys of the context's `meta`, for `main`: whether --debug was given, and the declared settings of the command."""


def parts_of(text: str | None) -> tuple[str, list[str], list[str]]:
    """The first paragraph, the other paragraphs, and the examples of a docstring.

    >>> parts_of("Does it.\\n\\n    Well.\\n\\n      ramlet do a\\n\\n      ramlet do b\\n    ")
    ('Does it.', ['Well.'], ['ramlet do a', 'ramlet do b'])
    """
    first, *rest = [part for part in inspect.cleandoc(text or "").split("\n\n") if part.strip()] or [""]
    # If everything after the first line is examples, cleandoc removes their indent.
    marks = (" ", "ramlet ")
    shown = [part for part in rest if part.startswith(marks)]
    prose = [" ".join(part.split()) for part in rest if not part.startswith(marks)]
    return " ".join(first.split()), prose, [line.strip() for part in shown for line in part.splitlines()]


def examples(command: Any) -> list[str]:
    """The examples in the help of a command."""
    return parts_of(command.help)[2]


MULTIPLE = ("--special-tokens",)
"""Options that take all arguments up to the next option, as in the scripts of other tools."""


def repeat_option(arguments: list[str]) -> list[str]:
    """
    >>> repeat_option(["a.txt", "--special-tokens", "<a>", "<b>", "--vocab-size", "300"])
    ['a.txt', '--special-tokens', '<a>', '--special-tokens', '<b>', '--vocab-size', '300']
    """
    repeated: list[str] = []
    current = ""
    for word in arguments:
        if word.startswith("-"):
            current = word if word.replace("_", "-") in MULTIPLE else ""
        elif current and repeated[-1] != current:
            repeated.append(current)
        repeated.append(word)
    return repeated


def _remember_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.meta[DEBUG] = value


@contextmanager
def _context_in_errors(ctx: click.Context) -> Iterator[None]:
    """click's parser raises some errors without it; `usage.py` looks up in it what the command takes."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


class Command(click.Command):
    """A function as a command, with the help page of this module and with --debug."""

    def __init__(self, function: Callable[..., None], name: str | None = None) -> None:
        debug = GroupedOption(
            ["--debug"],
            panel=GENERAL,
            is_flag=True,
            expose_value=False,
            callback=_remember_debug,
            help="Show the full traceback of an error.",
        )
        super().__init__(
            name or function.__name__.replace("_", "-"),
            callback=function,
            params=[*parameters(function), debug],
            help=function.__doc__,
            context_settings=CONTEXT,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[SETTINGS] = getattr(self.callback, "settings", {})
        with _context_in_errors(ctx):
            return super().parse_args(ctx, repeat_option(args))

    def invoke(self, ctx: click.Context) -> Any:
        ctx.params = {name: plain(value) for name, value in ctx.params.items()}
        return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, ctx, formatter)
        _write_options(self, ctx, formatter)


class Group(click.Group):
    """A command with subcommands, one per line, with their full first sentence. Without one it shows its help."""

    def __init__(self, description: str, *params: click.Parameter) -> None:
        super().__init__(
            help=description,
            invoke_without_command=True,
            subcommand_metavar="COMMAND [ARGS]...",
            params=list(params),
            context_settings=CONTEXT,
        )

    def add(self, function: Callable[..., None], name: str | None = None) -> Callable[..., None]:
        """Adds a function as a command."""
        self.add_command(Command(function, name))
        return function

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _context_in_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx._protected_args and not ctx.args:
            print(ctx.get_help())
            return None
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they were added

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = nearest(args[0], self.commands, similar=0.6)  # there are few, some of three letters
            ctx.fail(f"no such command {args[0]!r}" + (f": did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, ctx, formatter)
        with formatter.section(_heading("Commands")):
            formatter.write_dl([(name, parts_of(each.help)[0]) for name, each in self.commands.items()])
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
                # Padding the first row gives all groups the same column.
                formatter.write_dl([(rows[0][0].ljust(width), rows[0][1]), *rows[1:]], col_max=width)


def _records(command: Any, ctx: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """For each argument and option: its group, and its names and help."""
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        # click puts a default in words into parentheses, and adds the range of a number.
        text = re.sub(r"\[default: \((.*)\)(?=[];])", r"[default: \1", text)
        text = re.sub(r"; (\d+<=)?x[<>]=\d+]$", "]", text)
        group = "Arguments" if parameter.param_type_name == "argument" else getattr(parameter, "panel", None)
        yield group or (GENERAL if "--help" in parameter.opts else UNGROUPED), (names, text)
