"""Importing is cheap, and the public names are these and no others."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import ramlet

PROBE = """
import os, sys, time
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        rss = int(line.split()[1]) * 1024
sys.__stdout__.write("\\n" + repr((seconds, rss, sorted(sys.modules))))
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def probe(statement: str) -> tuple[float, int, set[str]]:
    """Seconds and peak RSS of the statement in a fresh interpreter, the best of three, and its modules."""
    runs = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True
        )
        runs.append(ast.literal_eval(done.stdout.splitlines()[-1]))
    return min(run[0] for run in runs), min(run[1] for run in runs), set(runs[0][2])


HEAVY = {"torch", "numpy", "rich", "pydantic", "tokenizers", "huggingface_hub", "pyarrow", "psutil", "asyncio"}


@linux
def test_importing_ramlet_is_light() -> None:
    seconds, rss, modules = probe("import ramlet")
    assert seconds < 0.15
    assert rss < 60e6
    assert not modules & (HEAVY | {"typer", "typing", "ramlet._native"})


@linux
def test_the_budget_and_the_sources_are_light() -> None:
    seconds, rss, modules = probe("import ramlet.budget, ramlet.sources; ramlet.sources.fingerprint('.')")
    assert seconds < 0.5
    assert rss < 25e6
    # hashlib would bring in OpenSSL.
    assert not modules & (HEAVY | {"typer", "hashlib"})


@linux
@pytest.mark.parametrize("arguments", [["--version"], ["tokenizer", "--help"], ["data", "--help"]])
def test_commands_are_light(arguments: list[str]) -> None:
    """What the frame takes of a 128 MB budget before a command has done anything."""
    seconds, rss, modules = probe(f"from ramlet.cli import main; assert main({arguments!r}) == 0")
    assert seconds < 0.5
    assert rss < 25e6
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
        "Interrupted",
        "ModelError",
        "PipelineError",
        "TrainingStopped",
        "Loader",
        "StreamLoader",
        "AdamW8bit",
        "TrainResult",
        "prepare",
        "run_pipeline",
        "train",
        "plan",
        "evaluate",
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
