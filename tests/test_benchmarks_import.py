"""Benchmarks run rarely, so what they import of ramlet is checked here, without running them."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))


def imported(script: Path) -> list[tuple[str, str]]:
    """Modules of ramlet with the names that are taken from them."""
    found = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ramlet":
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "ramlet"]
    return found


def exists(module: str, name: str) -> bool:
    try:
        if find_spec(module) is None:
            return False
        return not name or hasattr(importlib.import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:  # what looks like a package is a module
        return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_is_imported_of_ramlet_exists(script: Path) -> None:
    missing = [f"{module}: {name}" for module, name in imported(script) if not exists(module, name)]
    assert not missing


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    script = tmp_path / "stale.py"
    script.write_text("def main():\n    from ramlet.runtime.budget import Budget, Purse\n    import ramlet.nowhere\n")
    missing = {each for each in imported(script) if not exists(*each)}
    assert missing == {("ramlet.runtime.budget", "Purse"), ("ramlet.nowhere", "")}
