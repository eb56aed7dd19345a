"""The pages for users say what is true: their commands run, their Python too, their flags exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documented import ROOT, blocks, commands, make_checkout, run_all
from ramlet.cli import main

DOCS = ROOT / "docs"
NEW = [DOCS / name for name in ("tokenizers.md", "moving-from-other-tools.md", "troubleshooting.md", "api.md")]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(page: Path) -> None:
    """Its blocks one after another, with the names of those before."""
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block.replace('"1GB"', '"8GB"').replace("1_000", "300"), page.name, "exec"), names)


def test_tokenizers(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "tokenizers.md"
    run_all(commands(page), capsys)
    run_python(page)


def test_what_tokenizers_shows_is_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--text", "Hello, world"], "15496 11 995"),
        (["--text", "a<|endoftext|>b", "--allow-special", "<|endoftext|>"], "64 50256 65"),
    ):
        assert main(["tokenizer", "encode", "--tokenizer", "gpt2", *words]) == 0
        assert capsys.readouterr().out.strip() == said
    main(["tokenizer", "encode", "--tokenizer", "gpt2", "--text", "a<|endoftext|>b"])
    assert len(capsys.readouterr().out.split()) == 9
