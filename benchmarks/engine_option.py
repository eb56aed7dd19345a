"""`--engine native|torch` of the scripts that run all commands: added to those that train or load a model."""

from __future__ import annotations

import argparse

ENGINES = ("native", "torch")
_COMMANDS = ("train", "eval", "generate", "plan", "init")


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="native", help="what runs models [default: native]")


def with_engine(words: list[str], engine: str) -> list[str]:
    """The words of a command, with the engine if it has one."""
    return [*words, "--engine", engine] if words[0] in _COMMANDS else words
