"""Killed at a change of the disk, every command that writes ends as if it had not been; `benchmarks/kills.py` is the
long form."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from forked import Forks, compiler
from kills import kill_everywhere
from writing_commands import CASES, build

KILLS = 3
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or compiler() is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forks, Path]]:
    scratch = tmp_path_factory.mktemp("forks")
    with Forks(scratch) as made:
        build(made, scratch / "world", models=False)
        yield made, scratch


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.models and name != "run"])
def test_without_a_model(forks: tuple[Forks, Path], name: str) -> None:
    made, scratch = forks
    result = kill_everywhere(made, CASES[name], scratch / "world", scratch / "place", KILLS, seed=0)
    assert result.losses == []
    assert result.kills >= KILLS


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.models or name == "run"])
def test_with_a_model_or_processes(trained: tuple[Forks, Path], name: str) -> None:
    made, scratch = trained
    result = kill_everywhere(made, CASES[name], scratch / "world", scratch / "place", KILLS, seed=0)
    assert result.losses == []
    assert result.kills >= KILLS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forks, Path]]:
    scratch = tmp_path_factory.mktemp("trained")
    with Forks(scratch) as made:
        build(made, scratch / "world")
        yield made, scratch
