"""ARCHITECTURE.md names every folder and file of the tree, in the order of their imports, and every dependency."""

from __future__ import annotations

import re

from documented import ROOT
from test_rooms import ALL, ALLOWED, package

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def table(first_cell: str) -> list[list[str]]:
    """The rows of the table with this first cell, without the header."""
    lines = PAGE.partition(f"| {first_cell} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(rows: list[list[str]]) -> list[str]:
    return [name.strip("`/ ") for row in rows for name in row[0].split(",")]


def test_every_folder_of_the_package_in_the_order_of_imports() -> None:
    rows = table("`python/ramlet/`")
    order = [name for name in names(rows) if (ROOT / "python/ramlet" / name).is_dir()]
    folders = {path.parent.name for path in (ROOT / "python/ramlet").glob("*/__init__.py")}
    assert sorted(order) == sorted(folders)
    for row in rows:
        if row[2]:
            assert (ROOT / "python/ramlet" / row[0].strip("`") / row[2].strip("`")).exists(), row
    for each in ALL:
        here, there = package(each.module), package(each.name)
        if here and there and here != there and each.when != "types" and (each.module, each.name) not in ALLOWED:
            assert order.index(there) < order.index(here), each


def test_every_file_of_the_core_and_of_the_engine() -> None:
    core = {name.partition("/")[0] for name in names(table("`rust/`"))}
    assert core == {path.name for path in (ROOT / "rust").iterdir()} - {"lib.rs", "error.rs"}
    section = PAGE.partition("### `engines/torch/`\n\n")[2].partition("\n\n")[0]
    engine = {name.strip("/") for name in re.findall(r"`([a-z0-9_]+(?:\.py|/))`", section)}
    there = {path.name for path in (ROOT / "python/ramlet/engines/torch").iterdir()}
    assert engine <= there
    assert there - engine <= {"__init__.py", "__pycache__", "model_files.py", "sizes.py", "stored.py"}


def test_every_file_of_the_jax_engine() -> None:
    section = PAGE.partition("### `engines/jax/`\n\n")[2].partition("\n\n")[0]
    named = {name.strip("/") for name in re.findall(r"`([a-z0-9_]+(?:\.py|/))`", section)}
    there = {path.name for path in (ROOT / "python/ramlet/engines/jax").iterdir()}
    assert named == there - {"__init__.py", "__pycache__"}


def test_every_dependency() -> None:
    cargo = (ROOT / "Cargo.toml").read_text().partition("[dependencies]\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^([\w-]+) =", cargo, re.M):
        assert re.search(rf"^\|[^|]*\b{name}\b", PAGE, re.M), name
    project = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("[project.scripts]")[0]
    for name in re.findall(r'"([A-Za-z][\w-]*)[\[>]', project):
        assert re.search(rf"^\|[^|]*\b{name.replace('-', '[-_]')}\b", PAGE, re.M), name
