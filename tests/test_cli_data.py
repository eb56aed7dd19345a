"""`ramlet data`: the commands as a user runs them."""

from __future__ import annotations

import doctest
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet.dataset.ledger
import ramlet.dataset.manifest
import ramlet.dataset.reader
from conftest import AMPLE
from oracles_dataset import checksums, write_dataset  # noqa: F401
from ramlet.cli import main

TEXTS = ["Hello, world", "two\nlines", "naïve 語", "a" * 300]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`ramlet data ARGUMENTS` in the test's folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def one(*arguments: str) -> tuple[int, str, str]:
        code = main(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    documents = [list(text.encode()) for text in TEXTS]
    return write_dataset(tmp_path / "d", documents, documents[:1])


def test_the_docstrings_examples() -> None:
    for module in (ramlet.dataset.ledger, ramlet.dataset.manifest, ramlet.dataset.reader):
        done = doctest.testmod(module)
        assert (done.failed, done.attempted > 0) == (0, True)


class TestInspect:
    def test_what_it_shows(self, path: Path, run: Run) -> None:
        code, out, _ = run("inspect", "d", "--samples", "4", "--sample-tokens", "20")
        assert code == 0
        assert "train        335 tokens, 4 documents, 2 shards" in out
        assert "per token    1.00 characters, 1.00 bytes" in out
        assert "    8-15           4  ████" in out
        assert "  too_short                  2       5 B  fewer characters than min_chars" in out
        # What a document holds is never sent to the terminal as it is.
        assert "a.jsonl, 17: hm\\x1b[31m" in out
        assert "train, document 0: 13 tokens\n[H][e][l][l][o][,][ ][w][o][r][l][d][<|endoftext|>]\n" in out
        assert "[t][w][o][\\n]\n[l]" in out
        assert "... and 281 tokens more" in out

    def test_the_same_seed_the_same_documents(self, path: Path, run: Run) -> None:
        words = ("inspect", "d", "--samples", "2", "--json")
        numbers = [
            [one["document"] for one in json.loads(run(*words, "--seed", str(seed))[1])["samples"]]
            for seed in (0, 0, 1, 2, 3)
        ]
        assert numbers[0] == numbers[1]
        assert len({tuple(some) for some in numbers}) > 1

    def test_json(self, path: Path, run: Run) -> None:
        told = json.loads(run("inspect", "d", "--split", "val", "--json")[1])
        assert told["splits"]["val"] == {"tokens": 13, "documents": 1, "shards": 1}
        assert told["samples"][0]["text"] == "Hello, world<|endoftext|>"
        assert told["samples"][0]["tokens"][0] == "H"
        assert told["dropped"] == [
            {"rule": "too_short", "why": "fewer characters than min_chars", "count": 2, "bytes": 5}
        ]

    def test_without_a_tokenizer(self, path: Path, run: Run) -> None:
        (path / "tokenizer.json").unlink()
        code, out, _ = run("inspect", "d", "--split", "val")
        assert code == 0
        assert "72 101 108" in out

    def test_packed(self, tmp_path: Path, run: Run) -> None:
        write_dataset(tmp_path / "p", [[65] * 20], pack=8)
        out = run("inspect", "p")[1]
        assert "packed       3 sequences of 8, 12.5% padding, 1 document split" in out
        assert "train, piece 2: 5 tokens" in out


class TestVerify:
    def test_sound(self, path: Path, run: Run) -> None:
        code, out, err = run("verify", "d", "--memory", AMPLE)
        assert (code, err) == (0, "")
        first, last = out.splitlines()
        assert first.startswith("d is sound: 3 shards, 5 documents, 348 tokens, ")
        assert last.startswith("peak ")
        assert last.endswith(" of 8.00 GB")

    def test_problems(self, path: Path, run: Run) -> None:
        (path / "train/shard_00000.bin").unlink()
        (path / "val/other").write_text("")
        code, out, err = run("verify", "d")
        assert code == 1
        assert out.splitlines()[:2] == ["train/shard_00000.bin: missing", "d has 1 problem"]
        assert err == "val/other: not a file of the dataset\n"
        code, out, err = run("verify", "d", "--json", "--quiet")
        told = json.loads(out)
        assert (code, told["sound"], told["problems"]) == (1, False, ["train/shard_00000.bin: missing"])

    def test_adopt(self, path: Path, run: Run) -> None:
        (path / "train/shard_00009.bin").write_bytes(struct.pack("<4H", 1, 256, 2, 256))
        assert "train/shard_00009.bin: not in the manifest" in run("verify", "d")[1]
        code, out, err = run("verify", "d", "--adopt")
        assert code == 0
        assert "d is sound: 4 shards, 7 documents, 352 tokens" in out
        assert err.splitlines() == [
            "train/shard_00009.bin is now train/shard_00002.bin",
            "adopted 1 shard: 2 documents, 4 tokens",
        ]

    def test_a_budget_too_small(self, path: Path, run: Run) -> None:
        code, _, err = run("verify", "d", "--memory", "9MB")
        assert code == 1
        assert err.startswith("error: needs at least ")

    def test_no_dataset(self, run: Run) -> None:
        assert run("verify", "none") == (1, "", "error: no such folder: none\n")


class TestMerge:
    def test_it(self, path: Path, tmp_path: Path, run: Run) -> None:
        write_dataset(tmp_path / "e", [[1, 2, 3]])
        code, out, _ = run("merge", "d", "e", "--out", "m")
        assert code == 0
        assert out.startswith("2 datasets merged into m: 4 shards, 6 documents, 352 tokens\npeak ")
        assert run("verify", "m")[0] == 0
        assert run("merge", "e", "d", "--out", "m")[2] == (
            "error: m already exists and has something else in it: choose another folder, or remove it first\n"
        )
        told = json.loads(run("merge", "d", "e", "--out", "n", "--link", "--json")[1])
        assert told["splits"]["train"] == {"shards": 3, "documents": 5, "tokens": 339}


class TestExport:
    def test_it(self, path: Path, tmp_path: Path, run: Run) -> None:
        code, out, _ = run("export", "d", "--to", "nanogpt", "--out", "x")
        assert code == 0
        assert out.startswith("348 tokens in x, for nanogpt: train.bin, val.bin, meta.pkl\npeak ")
        assert np.fromfile(tmp_path / "x/val.bin", "<u2").tolist() == [*TEXTS[0].encode(), 256]
        told: dict[str, Any] = json.loads(
            run("export", "d", "--to", "llm.c", "--out", "y", "--split", "val", "--name", "n", "--json")[1]
        )
        assert told["files"] == ["n_val_000000.bin"]
        assert sorted(os.listdir(tmp_path / "y")) == [".ramlet-export.json", "n_val_000000.bin"]

    def test_an_unknown_layout(self, path: Path, run: Run) -> None:
        code, _, err = run("export", "d", "--to", "csv", "--out", "x")
        assert (code, err) == (
            1,
            "error: unknown format 'csv': use nanogpt, llm.c, megatron, npy, hf\n",
        )
