"""The types of settings: what type checkers read is what the declarations say, and they find a misspelt name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documented import ROOT
from ramlet.settings import typed, types
from ramlet.settings.declared import declared
from ramlet.settings.owners import COMMANDS, owner

PROGRAM = """\
import ramlet
from pathlib import Path

ramlet.train("data", "run", params="10M", batch_size=8, lr=3e-4, config=Path("shape.json"), schedule="cosine")
ramlet.train("data", "run", batch_sise=8)
ramlet.train("data", "run", schedule="cosin")
ramlet.prepare("text", "data", tokenizer="gpt2", dedup="line", pack=1024)
ramlet.prepare("text", "data", dedupe="line")
ramlet.Tokenizer.train("text", vocab_size="32k", special_tokens=["<|end|>"])
ramlet.Tokenizer.train("text", vocab=32_000)
ramlet.generate("run", "Once", temperature=0.7, top_k=None, stop="end")
ramlet.generate("run", "Once", temprature=0.7)
ramlet.Loader("data", seq_len=8, as_torch=True).dataloader(num_workers=2)
batch: ramlet.Batch = next(iter(ramlet.Loader("data")))
batch.step_sequence
"""
WRONG = {5: "batch_sise", 6: "cosin|schedule", 8: "dedupe", 10: "vocab", 12: "temprature", 15: "step_sequence"}
"""By line, what a type checker names."""


def test_it_is_what_the_declarations_say() -> None:
    assert types.FILE.read_text(encoding="utf-8") == types.written(), "python -m ramlet.settings.types updates it"
    assert set(types.FUNCTIONS) == set(COMMANDS)
    for command, (name, _) in types.FUNCTIONS.items():
        missing = declared(owner(command)).keys() - getattr(typed, name).__annotations__.keys()
        assert missing <= {"tokenizer"}, command  # an argument of its own


def found_by(output: str) -> dict[int, str]:
    return {int(line): message for line, message in re.findall(r"program\.py:(\d+):(?:\d+:)? *(.*)", output)}


def assert_found(found: dict[int, str]) -> None:
    assert found.keys() == WRONG.keys(), found
    for line, name in WRONG.items():
        assert re.search(name, found[line]), found[line]


def test_mypy_finds_a_misspelt_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # Nothing but the signatures is of interest, and torch, which would take most of the time, is not needed for them.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    words = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), "--no-error-summary"]
    words += ["--follow-imports", "silent", "--python-version", "3.10", "--hide-error-context", "program.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "python"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    errors = "\n".join(line for line in done.stdout.splitlines() if ": error:" in line)
    assert_found(found_by(errors))


def test_pyright_finds_a_misspelt_name(tmp_path: Path) -> None:
    pyright = pytest.importorskip("basedpyright", reason="it brings its own node; pyright downloads one")
    assert pyright
    (tmp_path / "program.py").write_text(PROGRAM)
    config = {"extraPaths": [str(ROOT / "python")], "typeCheckingMode": "standard", "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "basedpyright", "--outputjson", "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1: one["message"] for one in found if one["severity"] == "error"}
    assert_found(errors)
