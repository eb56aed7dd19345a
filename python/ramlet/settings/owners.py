"""Where settings are declared: each class is next to the code it belongs to, and is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["COMMANDS", "owner", "owners"]

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
