"""Every flag, YAML key and setting that there ever was still works: pinned_settings.json only grows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ramlet
from ramlet import cli
from ramlet.generation.settings import SampleSettings
from ramlet.inputs.settings import ReadSettings
from ramlet.pipeline import file
from ramlet.preparing import config_file
from ramlet.preparing.settings import PrepareSettings
from ramlet.tokenizer.settings import TrainSettings
from ramlet.training.settings import RunSettings

PINNED = json.loads((Path(__file__).parent / "pinned_settings.json").read_text())
CLASSES = {each.__name__: each for each in (ReadSettings, PrepareSettings, TrainSettings, RunSettings, SampleSettings)}
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "prepare": (ramlet.prepare, PrepareSettings),
    "train": (ramlet.train, RunSettings),
    "plan": (ramlet.plan, RunSettings),
    "generate": (ramlet.generate, SampleSettings),
    "Tokenizer.train": (ramlet.Tokenizer.train, TrainSettings),
}


def commands() -> Iterator[tuple[str, Any]]:
    waiting = [("ramlet", cli._root([]))]
    while waiting:
        path, command = waiting.pop(0)
        waiting += [(f"{path} {name}", below) for name, below in getattr(command, "commands", {}).items()]
        if not hasattr(command, "commands"):
            yield path, command


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", PINNED["flags"])
def test_flags(path: str) -> None:
    options = [each for each in COMMANDS[path].params if each.param_type_name == "option"]
    for kind, is_flag in (("with a value", False), ("alone", True)):
        names = {name for each in options if each.is_flag == is_flag for name in (*each.opts, *each.secondary_opts)}
        assert set(PINNED["flags"][path][kind]) - names == set()


def test_keys() -> None:
    reader = file._Reader("p.yaml")
    known = {"prepare": config_file.known_keys(), "the top of a pipeline": file.TOP}
    known |= {f"{name} of a pipeline": list(keys) for name, keys in reader.keys.items()}
    for where, keys in PINNED["keys"].items():
        assert set(keys) - set(known[where]) == set(), where


@pytest.mark.parametrize("name", CLASSES)
def test_settings_and_their_defaults(name: str) -> None:
    there = {each.name: each.default for each in fields(CLASSES[name])}
    for setting, default in PINNED["settings"][name].items():
        value = there[setting]
        assert (list(value) if isinstance(value, tuple) else value) == default, setting


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters(name: str) -> None:
    function, settings = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    known = set(parameters) - {"settings"}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        known |= {each.name for each in fields(settings)}
    assert set(PINNED["parameters"][name]) - known == set()
