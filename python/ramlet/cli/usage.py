"""Messages for wrong usage: one sentence, with a suggestion.

    unknown option --vocab-sise: did you mean --vocab-size?
    --out is missing; for example: ramlet train --data data --out run --params 10M
    --threads: 'many' is not a whole number (see ramlet train --help)

Typer's exceptions are recognized by their class names, because the classes are private.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from ramlet.cli.help_page import examples
from ramlet.errors import RamletError
from ramlet.settings.names import nearest


class UsageError(RamletError):
    """An option, argument or number that cannot be parsed."""

    code = 2


def usage_sentence(error: typer.TyperException) -> str:
    """The message for an exception of Typer's parser."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ramlet"
    wrong = getattr(error, "option_name", None)
    parameter: Any = getattr(error, "param", None)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        near = _nearest(str(wrong), _option_names(context))
        return f"unknown option {wrong}: " + (f"did you mean {near}?" if near else f"see {path} --help")
    if kind == "MissingParameter" and parameter is not None:
        name = _name(parameter)
        shown = examples(context.command)
        with_it = [line for line in shown if parameter.param_type_name == "argument" or name in line.split()]
        return f"{name} is missing; for example: {next(iter(with_it or shown), f'{path} --help')}"
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    if kind == "BadParameter" and parameter is not None:
        problem = str(getattr(error, "message", sentence)).rstrip(".")
        problem = re.sub(r"valid int( range)?$", "whole number", problem)
        problem = re.sub(r"valid float( range)?$", "number", problem)
        return f"{_name(parameter)}: {problem} (see {path} --help)"
    if kind == "BadOptionUsage":
        return f"{wrong} needs a value"
    sentence = re.sub(r"^Got unexpected extra argument\(s\) \((.*)\)$", r"unexpected argument \1", sentence)
    sentence = sentence[:1].lower() + sentence[1:]
    if ". Did you mean " in sentence:
        return sentence.replace(". Did you mean ", ": did you mean ")
    return f"{sentence}: see {path} --help"


def _name(parameter: Any) -> str:
    """The name of an argument, or the long name of an option."""
    if parameter.param_type_name == "argument":
        return str(parameter.human_readable_name)
    return next((name for name in parameter.opts if name.startswith("--")), str(parameter.opts[0]))


def _option_names(context: Any) -> list[str]:
    if context is None:
        return []
    options = [each for each in context.command.get_params(context) if each.param_type_name == "option"]
    names = [name for each in options if not each.hidden for name in (*each.opts, *each.secondary_opts)]
    return [name for name in names if name.startswith("--")]


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
