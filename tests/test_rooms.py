"""Which room may know which: torch and JAX in one place each, no cycles, and light rooms that stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import ramlet

ROOT = Path(ramlet.__file__).parent
ENGINES = {"torch": "torch", "triton": "torch", "jax": "jax", "optax": "jax"}
"""Libraries, and the engine that alone imports each."""

ALLOWED = {
    ("ramlet.pipeline.process", "ramlet.cli"): "a stage is a process of its own, and what it runs is the command line",
}
"""Imports within a function that close a circle between packages, each with its reason."""


class Import(NamedTuple):
    module: str
    """That imports."""
    name: str
    """What it imports."""
    when: str
    """`load`, `call` (within a function) or `types`."""


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""What an import can be inside: expressions are most of a file."""


def imports(node: ast.AST, module: str, when: str = "load") -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, STATEMENTS):
            continue
        inside = when
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and when == "load":
            inside = "call"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            inside = "types"
        if isinstance(child, ast.Import):
            yield from (Import(module, each.name, when) for each in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            names = [f"ramlet.{each.name}" for each in child.names] if child.module == "ramlet" else [child.module]
            yield from (Import(module, name, when) for name in names)
        else:
            yield from imports(child, module, inside)


ALL = [
    each
    for file in sorted(ROOT.rglob("*.py"))
    for each in imports(ast.parse(file.read_text(encoding="utf-8")), module_of(file))
]


def package(name: str) -> str | None:
    """`ramlet.training.loop` -> training; None for what lies at the top, which all may know."""
    parts = name.split(".")
    return parts[1] if parts[0] == "ramlet" and len(parts) > 1 and (ROOT / parts[1]).is_dir() else None


def circles(found: list[Import]) -> set[tuple[str, str]]:
    """Pairs of packages of which each knows the other, be it by way of third ones."""
    knows: dict[str, set[str]] = defaultdict(set)
    for each in found:
        here, there = package(each.module), package(each.name)
        if here and there and here != there:
            knows[here].add(there)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in knows[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    return {(here, there) for here in list(knows) for there in knows[here] if here in reached(there)}


def test_a_library_is_known_to_its_engine_alone() -> None:
    elsewhere = [
        each
        for each in ALL
        if (engine := ENGINES.get(each.name.split(".")[0])) and not each.module.startswith(f"ramlet.engines.{engine}")
    ]
    assert elsewhere == []


def test_an_engine_is_opened_and_not_imported() -> None:
    """What an engine has inside is no one's business; only what users call of it by name."""
    inside = {
        (each.module, each.name)
        for each in ALL
        if each.name.startswith("ramlet.engines.")
        and each.name.split(".")[2] not in ("plan", "opening")
        and not each.module.startswith("ramlet.engines.")
        and each.when != "types"
    }
    assert inside == {
        ("ramlet.loading.batch", "ramlet.engines.torch.batches"),  # as_torch=True
        ("ramlet.loading.batch", "ramlet.engines.jax.batches"),  # as_jax=True
        ("ramlet.loading.resumable", "ramlet.engines.torch"),  # what torch knows about this process
        ("ramlet.loading.resumable", "ramlet.engines.torch.datasets"),  # loaders are its datasets
    }


def test_no_circles_when_packages_are_loaded() -> None:
    assert circles([each for each in ALL if each.when == "load"]) == set()


def test_no_circles_when_functions_are_called() -> None:
    left = [each for each in ALL if each.when != "types" and (each.module, each.name) not in ALLOWED]
    assert circles(left) == set()
    assert ALLOWED.keys() <= {(each.module, each.name) for each in ALL if each.when == "call"}, "an exception of no use"


LIGHT = (
    *("ramlet", "ramlet.cli", "ramlet.engines", "ramlet.engines.plan", "ramlet.generation.settings"),
    *("ramlet.model.names", "ramlet.model.shape", "ramlet.model.sizing", "ramlet.training.settings"),
)
NEUTRAL = (
    *("ramlet.generation", "ramlet.loading", "ramlet.loading.loader", "ramlet.loading.stream_loader"),
    *("ramlet.model.export", "ramlet.model.files", "ramlet.training.entry", "ramlet.training.evaluate_run"),
    *("ramlet.training.propose", "ramlet.training.self_check", "ramlet.training.trainer"),
)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [(LIGHT, {"torch", "jax", "numpy", "ramlet._native"}), (NEUTRAL, {"torch", "jax"})],
    ids=["light", "neutral"],
)
def test_what_loading_a_room_does_not_load(modules: tuple[str, ...], heavy: set[str]) -> None:
    program = f"import sys, {', '.join(modules)}; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
