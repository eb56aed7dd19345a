"""Importing is cheap, and the public names are these and no others."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramlet

PROBE = """
import os, sys
before = set(sys.modules)
{statement}
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        rss = int(line.split()[1]) * 1024
sys.__stdout__.write("\\n" + repr((rss, sorted(set(sys.modules) - before))))
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def probe(statement: str) -> tuple[int, set[str]]:
    """Peak RSS of the statement in a fresh interpreter, the best of three, and the modules that it loads.

    How many they are stands for its time, which is spent in loading them and differs with what else the machine does.
    """
    runs = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True
        )
        runs.append(ast.literal_eval(done.stdout.splitlines()[-1]))
    return min(run[0] for run in runs), set(runs[0][1])


HEAVY = {"torch", "numpy", "rich", "pydantic", "tokenizers", "huggingface_hub", "pyarrow", "psutil", "asyncio"}


@linux
def test_importing_ramlet_is_light() -> None:
    rss, modules = probe("import ramlet")
    assert len(modules) < 10
    assert rss < 60e6
    assert not modules & (HEAVY | {"click", "typing", "ramlet._native"})


@linux
def test_the_budget_and_the_sources_are_light() -> None:
    rss, modules = probe("import ramlet.runtime.budget, ramlet.inputs.sources; ramlet.inputs.sources.survey('.')")
    assert len(modules) < 100
    assert rss < 30e6
    # hashlib would bring in OpenSSL.
    assert not modules & (HEAVY | {"click", "hashlib"})


@linux
@pytest.mark.parametrize("arguments", [["--version"], ["tokenizer", "--help"], ["data", "--help"]])
def test_commands_are_light(arguments: list[str]) -> None:
    """What the frame takes of a 128 MB budget before a command has done anything."""
    rss, modules = probe(f"from ramlet.cli import main; assert main({arguments!r}) == 0")
    assert len(modules) < 300
    assert rss < 30e6
    assert not modules & HEAVY


def test_public_names() -> None:
    assert set(ramlet.__all__) == {
        "__version__",
        "Budget",
        "Dataset",
        "DatasetError",
        "Meter",
        "Prepared",
        "Tokenizer",
        "RamletError",
        "BudgetError",
        "SettingsError",
        "SourceError",
        "SourceChanged",
        "BrokenInput",
        "TokenizerError",
        "DiskFull",
        "InternalError",
        "Interrupted",
        "ModelError",
        "PipelineError",
        "TrainingStopped",
        "Batch",
        "Listener",
        "Loader",
        "StreamLoader",
        "AdamW8bit",
        "TrainResult",
        "prepare",
        "run_pipeline",
        "train",
        "fit",
        "FitResult",
        "plan_module",
        "plan",
        "evaluate",
        "evaluate_tasks",
        "generate",
        "report",
    }
    assert dir(ramlet) == sorted(ramlet.__all__)


@pytest.mark.parametrize("name", ramlet.__all__)
def test_every_public_name_loads_as_itself(name: str) -> None:
    value = getattr(ramlet, name)
    assert name == "__version__" or value.__name__ == name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'ramlet' has no attribute 'Budgit'"):
        _ = ramlet.Budgit  # type: ignore[attr-defined]


def _is_leaf_error(name: str) -> bool:
    value = getattr(ramlet, name)
    return inspect.isclass(value) and issubclass(value, ramlet.RamletError) and value is not ramlet.RamletError


DOCUMENTED = [name for name in ramlet.__all__ if name != "__version__"]


def functions_of(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function, or what a class has for its users: how it is made, and its methods and properties."""
    value = getattr(ramlet, name)
    if not inspect.isclass(value):
        yield name, value
        return
    for key, member in vars(value).items():
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(plain) and plain.__module__.startswith("ramlet") and not key.startswith("_"):
            yield f"{name}.{key}", plain


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(ramlet, name)
    assert value.__doc__, f"{name} has no docstring"
    assert value.__module__.startswith("ramlet")
    for path, function in functions_of(name):
        assert function.__doc__, f"{path} has no docstring"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_signature_is_typed(name: str) -> None:
    for path, function in functions_of(name):
        signature = inspect.signature(function)
        untyped = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is inspect.Parameter.empty and parameter.name not in ("self", "cls")
        ]
        assert untyped == [], path
        assert signature.return_annotation is not inspect.Signature.empty, path


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if not _is_leaf_error(name)])
def test_every_public_name_has_an_example_that_can_be_called(name: str) -> None:
    """A paragraph of the docstring that is code, with the name in it; every call in it fits what it calls."""
    value = getattr(ramlet, name)
    code = "\n".join(map(_code, inspect.cleandoc(value.__doc__).split("\n\n")))
    assert re.search(rf"\bramlet\.{name}\b", code), f"no example of {name}"
    for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
        words = ast.unparse(call.func).removeprefix("ramlet.").split(".")
        if words[0] not in ramlet.__all__:
            continue
        called: Any = ramlet
        for word in words:
            called = getattr(called, word)
        keywords = {str(keyword.arg): None for keyword in call.keywords}
        inspect.signature(called).bind(*[None] * len(call.args), **keywords)


def _code(paragraph: str) -> str:
    """The paragraph where it is Python, else nothing; what >>> gives back is left out."""
    if ">>> " in paragraph:
        paragraph = "\n".join(re.findall(r"^\s*>>> (.*)$", paragraph, re.MULTILINE))
    try:
        ast.parse(textwrap.dedent(paragraph))
    except SyntaxError:
        return ""
    return textwrap.dedent(paragraph)


def test_python_m_ramlet_works() -> None:
    done = subprocess.run([sys.executable, "-m", "ramlet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ramlet {ramlet.__version__}\n"
