"""What `make demo` installs: what ramlet needs, in the versions of the tests, and no PyTorch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def planned(*words: str) -> str:
    """What make would run: not with what the make around the tests was given."""
    outside = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "PROFILE", "CARGO_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    command = ["make", "--no-print-directory", "-n", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def pinned(name: str) -> set[str]:
    """The packages of a lock with their versions and hashes."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    return {re.sub(r"\s+;.*?(?=--hash)|\s+", " ", line).strip() for line in text.splitlines()}


def test_the_small_lock_is_a_part_of_the_large_one() -> None:
    assert pinned("build.txt") <= pinned("dev.txt")
    names = {line.partition("==")[0] for line in pinned("build.txt")}
    assert {"maturin", "numpy", "click", "pyyaml"} <= names
    assert not names & {"torch", "triton", "pytest"}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_demo_installs_the_small_one(tmp_path: Path) -> None:
    fresh = planned("demo", f"VENV={tmp_path}")
    assert "requirements/build.txt" in fresh
    assert "dev.txt" not in fresh
    assert "--profile quick" in fresh
    assert "--release" not in fresh
    for name in (".installed", ".editable", ".built"):
        (tmp_path / name).touch()
    assert planned("demo", f"VENV={tmp_path}").splitlines() == [f"{tmp_path}/bin/ramlet demo "]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_with_the_quick_profile_nothing_is_compiled_with_another(tmp_path: Path) -> None:
    """Else the dependencies would be compiled twice, and the checks before a merge would take minutes more."""
    run = planned("test", "lint", "check-wheel", f"VENV={tmp_path}", "PROFILE=quick")
    compiling = re.findall(r".*(?:maturin|cargo (?:test|clippy)|MATURIN).*", run)
    assert len(compiling) == 5, compiling
    assert all("--profile quick" in command for command in compiling), compiling
