"""Messages for wrong usage: one sentence, with a suggestion.

    unknown option --vocab-sise: did you mean --vocab-size?
    --out is missing; for example: ramlet train --data data --out run --params 10M
    --threads: 'many' is not a whole number (see ramlet train --help)

The class of click's exception says what is wrong; the sentence is ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from ramlet.cli.help_page import examples
from ramlet.errors import RamletError
from ramlet.settings.names import nearest


class UsageError(RamletError):
    """An option, argument or number that cannot be parsed."""

    code = 2


def usage_sentence(error: click.ClickException) -> str:
    """The message for an exception of click's parser."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ramlet"
    if isinstance(error, click.NoSuchOption):
        near = _nearest(error.option_name, _option_names(context))
        return f"unknown option {error.option_name}: " + (f"did you mean {near}?" if near else f"see {path} --help")
    parameter: Any = getattr(error, "param", None)
    if isinstance(error, click.MissingParameter) and context is not None and parameter is not None:
        name = _name(parameter)
        shown = examples(context.command)
        with_it = [line for line in shown if parameter.param_type_name == "argument" or name in line.split()]
        return f"{name} is missing; for example: {next(iter(with_it or shown), f'{path} --help')}"
    if isinstance(error, click.BadParameter) and parameter is not None:
        problem = error.message.rstrip(".")
        problem = re.sub(r"valid int(eger)?( range)?$", "whole number", problem)
        problem = re.sub(r"valid float( range)?$", "number", problem)
        return f"{_name(parameter)}: {problem} (see {path} --help)"
    if isinstance(error, click.BadOptionUsage):
        without = error.option_name in _switches(context)
        return f"{error.option_name} {'takes no value' if without else 'needs a value'}"
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    sentence = re.sub(r"^Got unexpected extra arguments? \((.*)\)$", r"unexpected argument \1", sentence)
    sentence = sentence[:1].lower() + sentence[1:]
    return sentence if "did you mean" in sentence else f"{sentence}: see {path} --help"


def _name(parameter: Any) -> str:
    """The name of an argument, or the long name of an option."""
    if parameter.param_type_name == "argument":
        return str(parameter.human_readable_name)
    return next((name for name in parameter.opts if name.startswith("--")), str(parameter.opts[0]))


def _options(context: click.Context | None) -> list[click.Option]:
    every = context.command.get_params(context) if context is not None else []
    return [each for each in every if isinstance(each, click.Option)]


def _option_names(context: click.Context | None) -> list[str]:
    shown = [each for each in _options(context) if not each.hidden]
    return [name for each in shown for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


def _switches(context: click.Context | None) -> set[str]:
    return {name for each in _options(context) if each.is_flag for name in (*each.opts, *each.secondary_opts)}


def _nearest(word: str, names: Sequence[str]) -> str | None:
    """The option that was probably meant: one or two letters differ, or it has a word more or less.

    >>> _nearest("--vocab-sise", ["--out", "--vocab-size"]), _nearest("--steps", ["--max-steps", "--out"])
    ('--vocab-size', '--max-steps')
    """
    # Without the leading hyphens, which would make all names similar.
    plain = word.lstrip("-").replace("_", "-")
    close = nearest(plain, [name.lstrip("-") for name in names])
    if close:
        return f"--{close}"
    parts = plain.split("-")
    related = [name for name in names if set(parts) <= set(name[2:].split("-")) or name[2:] in parts]
    return min(related, key=len, default=None)
