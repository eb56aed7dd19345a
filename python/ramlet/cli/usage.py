"""What is wrong with a command line, in one sentence with what was probably meant.

    no option --vocab-sise: did you mean --vocab-size?
    --out is missing; an example: ramlet train --data data --out run --params 10M
    --threads: 'many' is not a whole number (ramlet train --help tells what it takes)

Typer's own sentences are told apart by the names of its exceptions, for it has them in a private module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from ramlet.cli.help_page import examples
from ramlet.settings.names import nearest

__all__ = ["usage_sentence"]


def usage_sentence(error: typer.TyperException) -> str:
    """The sentence for what the parser did not like."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ramlet"
    wrong = getattr(error, "option_name", None)
    parameter: Any = getattr(error, "param", None)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        near = _nearest(str(wrong), _option_names(context))
        return f"no option {wrong}: " + (f"did you mean {near}?" if near else f"{path} --help tells what there is")
    if kind == "MissingParameter" and parameter is not None:
        name = _name(parameter)
        shown = examples(context.command)
        with_it = [line for line in shown if parameter.param_type_name == "argument" or name in line.split()]
        example = next(iter(with_it or shown), f"{path} --help")
        return f"{name} is missing; an example: {example}"
    sentence = error.format_message().rstrip(".").replace("\n", " ")
    if kind == "BadParameter" and parameter is not None:
        told = str(getattr(error, "message", sentence)).rstrip(".")
        told = re.sub(r"valid int( range)?$", "whole number", told)
        told = re.sub(r"valid float( range)?$", "number", told)
        return f"{_name(parameter)}: {told} ({path} --help tells what it takes)"
    if kind == "BadOptionUsage":
        return f"{wrong} needs a value after it, and there is none"
    sentence = re.sub(r"^Got unexpected extra argument\(s\) \((.*)\)$", r"nothing is known to do with \1", sentence)
    sentence = sentence[:1].lower() + sentence[1:]
    if ". Did you mean " in sentence:
        return sentence.replace(". Did you mean ", ": did you mean ")
    return f"{sentence}: {path} --help tells what there is"


def _name(parameter: Any) -> str:
    """The name of an argument, or an option's long one."""
    if parameter.param_type_name == "argument":
        return str(parameter.human_readable_name)
    return next((name for name in parameter.opts if name.startswith("--")), str(parameter.opts[0]))


def _option_names(context: Any) -> list[str]:
    if context is None:
        return []
    every = [*context.command.params, context.command.get_help_option(context)]
    shown = [option for option in every if option.param_type_name == "option" and not option.hidden]
    return [name for option in shown for name in (*option.opts, *option.secondary_opts) if name.startswith("--")]


def _nearest(word: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant: one or two letters off, or longer or shorter by a whole word.

    >>> _nearest("--vocab-sise", ["--out", "--vocab-size"]), _nearest("--steps", ["--max-steps", "--out"])
    ('--vocab-size', '--max-steps')
    """
    # Without the hyphens, which would make any two names alike.
    plain = word.lstrip("-").replace("_", "-")
    close = nearest(plain, [name.lstrip("-") for name in names])
    if close:
        return f"--{close}"
    words = plain.split("-")
    akin = [name for name in names if set(words) <= set(name[2:].split("-")) or name[2:] in words]
    return min(akin, key=len, default=None)
