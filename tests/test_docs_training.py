"""The documentation of training says what is true: its commands run, its flags exist, its links lead somewhere.

The commands of docs/training.md's main path and of docs/domain-adaptation.md are read from the pages and run in this
process, on little text and for few steps: documented.py says what is made smaller.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from documented import ROOT, blocks, commands, make_checkout, run_all
from ramlet.cli import main
from ramlet.settings.declared import declared
from ramlet.training.run_files import METRICS as JOURNAL
from ramlet.training.settings import EVALUATIONS, RunSettings

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINING = ROOT / "docs" / "training.md"
ADAPTING = ROOT / "docs" / "domain-adaptation.md"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the one that the pages speak of, with little in it."""
    make_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_main_path(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From text to a model that writes, as docs/training.md begins."""
    found = [shlex.split(line)[1:] for line in blocks(TRAINING)[0].splitlines()]
    assert [words[0] for words in found] == ["tokenizer", "prepare", "plan", "train", "eval", "generate"]
    written = run_all(found, capsys)
    assert written.startswith("def")
    run = checkout / "my-run"
    promised = {"settings.yaml", JOURNAL, "checkpoints", "model.safetensors", "stats.json", "config.json"}
    assert promised <= {path.name for path in run.iterdir()}
    lines = [json.loads(line) for line in (run / JOURNAL).read_text().splitlines()]
    printed = [line for block in blocks(TRAINING) for line in block.splitlines()]
    shown = [json.loads(line) for line in printed if line.startswith('{"step"')]
    assert len(shown) == 2
    for example in shown:
        assert any(set(line) == set(example) for line in lines), example


def test_adapting(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The worked example: base, three ways to adapt it, and the forgetting figure."""
    found = [words for words in commands(ADAPTING) if "law" not in words]
    assert [words[0] for words in found] == [
        *("tokenizer", "prepare", "prepare", "train", "train", "train", "train", "eval", "eval")
    ]
    run_all(found, capsys)
    for name, sets in (("adapted", {"val", "general"}), ("adapted-mix", {"val_prose", "val_code", "general"})):
        lines = [json.loads(line) for line in (checkout / name / JOURNAL).read_text().splitlines()]
        assert set(next(line["forgetting"] for line in lines if "forgetting" in line)) == sets


def test_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """No page names an option that no command has; what the guides' tools had is in one table, and understood."""
    known = set()
    for command in ("train", "plan", "eval", "generate", "export", "prepare", "tokenizer train"):
        main([*command.split(), "--help"])
        known |= set(re.findall(r"--[a-z0-9][a-z0-9-]+", capsys.readouterr().out))
    elsewhere = {"--nproc-per-node", "--use-streaming"}
    for page in (TRAINING, ADAPTING, ROOT / "docs" / "planning-memory.md"):
        named = {flag.replace("_", "-") for flag in re.findall(r"--[a-z0-9][a-z0-9_-]+", page.read_text())}
        assert named - known <= elsewhere, page.name


def test_how_often_a_run_is_evaluated() -> None:
    """The pages and the help say what is done; the sample outputs are of runs that did it."""
    for page in (TRAINING, ROOT / "docs" / "troubleshooting.md"):
        assert f"{EVALUATIONS} times in a run" in page.read_text()
    assert f"{EVALUATIONS} evaluations per run" in declared(RunSettings)["eval_every"].shown
    for page, steps in ((TRAINING, 300), (ADAPTING, 80)):
        told = [int(step) for block in blocks(page) for step in re.findall(r"^step (\d+): val:", block, re.MULTILINE)]
        assert told
        assert [step for step in told if step % (steps // EVALUATIONS)] == []


def test_every_setting_is_documented() -> None:
    text = "".join(page.read_text() for page in (TRAINING, ADAPTING))
    missing = [name for name in vars(RunSettings()) if f"--{name.replace('_', '-')}" not in text]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
