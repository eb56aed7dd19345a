"""Where settings are declared: each class is next to the code it belongs to, and is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ramlet.settings.declared import argv

COMMANDS = {
    "train": "ramlet.training.settings:RunSettings",
    "prepare": "ramlet.preparing.settings:PrepareSettings",
    "tokenizer train": "ramlet.tokenizer.settings:TrainSettings",
    "generate": "ramlet.generation.settings:SampleSettings",
}
"""By command."""


def owner(command: str) -> type[Any]:
    """The class of a command's settings."""
    module, _, name = COMMANDS[command].partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


def owners() -> list[type[Any]]:
    return [owner(command) for command in COMMANDS]


def command_line(command: str, *inputs: object, **options: Any) -> list[str]:
    """A command as a user would type it, without `ramlet`: input paths, then settings and other options in this order.

    >>> command_line("tokenizer train", "-odd.txt", out="tok", special_tokens=["<|end|>"], quiet=True, threads=None)
    ['tokenizer', 'train', './-odd.txt', '--out', 'tok', '--special-token', '<|end|>', '--quiet']
    """
    paths = [f"./{path}" if path[:1] == "-" != path else path for path in map(str, inputs)]
    return [*command.split(), *paths, *argv(owner(command) if command in COMMANDS else None, options)]
