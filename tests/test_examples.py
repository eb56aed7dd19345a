"""The examples run as a user runs them, with a small model and few steps, and leave behind what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ramlet

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS, PARAMS = 12, "60k"


def run(folder: Path, *command: str) -> str:
    """What the script prints. It finds `ramlet` on the path, and has one processor: of two that are busy with other
    tests, the threads of PyTorch would spend their time waiting for each other."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, words in (("ramlet", f'"{sys.executable}" -m ramlet'), ("python3", f'"{sys.executable}"')):
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(ramlet.__file__).parents[1]),
        "STEPS": str(STEPS),
        "PARAMS": PARAMS,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, preexec_fn=_one_processor
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _one_processor() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def metrics(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_char_level(tmp_path: Path) -> None:
    said = run(tmp_path, "sh", str(EXAMPLES / "char_level.sh"), "out")
    assert "The value of " in said
    data = ramlet.Dataset(tmp_path / "out" / "data")
    assert data.tokenizer.kind == "char"
    assert min(data.splits["train"].tokens, data.splits["val"].tokens) > 10_000
    lines = metrics(tmp_path / "out" / "run")
    assert [line["step"] for line in lines if "sample" in line] == [0, STEPS // 2, STEPS]
    assert all(str(line["sample"]).startswith("The ") for line in lines if "sample" in line)


def test_appending(tmp_path: Path) -> None:
    said = run(tmp_path, "sh", str(EXAMPLES / "appending.sh"), "out")
    manifest = json.loads((tmp_path / "out" / "data" / "dataset_metadata.json").read_text())
    first, second = manifest["runs"]
    assert first["ledger"]["documents"]["dropped"]["duplicate"] == 0
    assert second["ledger"]["documents"]["dropped"]["duplicate"] > 5, "json came a second time"
    before, after = (float(loss) for loss in re.findall(r"^data: loss ([\d.]+)", said, re.M))
    assert after < before


def test_domain_adaptation(tmp_path: Path) -> None:
    said = run(
        tmp_path, sys.executable, str(EXAMPLES / "domain_adaptation.py"), "--steps", str(STEPS), "--params", PARAMS
    )
    rows = {words[0]: [float(word) for word in words[1:]] for words in map(str.split, said.splitlines()[-3:])}
    assert list(rows) == ["base", "adapted", "mixed"]
    assert rows["base"][2] == 0
    assert rows["adapted"][0] < rows["base"][0], "the domain is learned"
    assert rows["mixed"][1] < rows["adapted"][1], "and less is forgotten where the general text is mixed in"
    told = next(line for line in metrics(tmp_path / "adaptation-example" / "adapted") if "forgetting" in line)
    assert set(told["forgetting"]) == {"val", "general"}  # type: ignore[call-overload]


def test_streaming(tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, str(EXAMPLES / "streaming.py"), "--steps", str(STEPS), "--params", PARAMS)
    assert "a batch of the stream: 4 sequences of 128 tokens" in said
    assert re.search(rf"interrupted at step \d+ of {STEPS}, and saved", said)
    assert re.search(rf"^{STEPS} steps, {STEPS * 16 * 128:,} tokens", said, re.M)
    assert "tokens stored on disk: 0 files" in said
    stored = sum(path.stat().st_size for path in (tmp_path / "stream-example" / "run" / "stream").rglob("*"))
    assert stored < 200_000, "the tokenizer alone"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_every_example_is_listed_and_tested(path: Path) -> None:
    if path.name != "README.md":
        assert f"]({path.name})" in (EXAMPLES / "README.md").read_text()
        assert f"test_{path.stem}" in globals()
