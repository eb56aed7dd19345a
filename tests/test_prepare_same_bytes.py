"""Threads, budgets and the size of tasks change how long it takes, never a byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracles_prepare as oracle
from conftest import AMPLE
from ramlet.preparing.run import Prepared, prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter

CASES: dict[str, dict[str, Any]] = {
    "documents": {"documents": "line", "tokens_per_shard": 20_000},
    "lines": {"doc_separator": "漢", "dedup": "line", "max_tokens": 300, "document_bytes": 500},
    "packed": {"documents": "line", "dedup": "none", "pack": 128, "tokens_per_shard": 30_000},
    "characters": {"documents": "line", "tokenizer": "char"},
    "gpt2": {"doc_separator": "ab", "tokenizer": "gpt2", "min_tokens": 20, "document_bytes": 1000},
}
WHOLE = {"files": {"dedup": "line", "document_bytes": 5000, "max_tokens": 300}}
"""A text file that is one document is cut where a task ends."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few files of every kind, with many duplicates."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = np.random.default_rng(0)
    words = ["".join(chance.choice(list("abcdefé漢\u0301"), int(n))) for n in chance.integers(1, 9, 300)]

    def lines(count: int) -> list[str]:
        made = [" ".join(chance.choice(words, int(n))) for n in chance.integers(0, 25, count)]
        return [*made, *chance.choice(made, count // 3)]

    (folder / "a.txt").write_text("\n".join(lines(500)))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines(400)))
    (folder / "c.txt").write_text("\r\n".join(lines(300)) + "\n\n" + (folder / "a.txt").read_text()[:15_000])
    for n in range(12):
        (folder / f"small-{n:02}.md").write_text("\n".join(lines(5)))
    return folder


def run(corpus: Path, out: Path, given: dict[str, Any], *, budget: int = 0, **others: Any) -> Prepared:
    """`budget`: bytes above what is resident."""
    total = resident_memory() * 32 // 31 + budget if budget else AMPLE
    chosen = PrepareSettings(**{"tokenizer": "byte", **given})
    with Meter(Budget.parse(total)) as meter:
        return prepare_to(corpus, out, chosen, meter=meter, **others)


def files(folder: Path) -> dict[str, bytes]:
    """Everything that was made, but for how it was made."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found.pop("stats.json")
    # The id of a run is also that of its folder: caches must tell two datasets of the same inputs apart.
    manifest = json.loads(found.pop("dataset_metadata.json"))
    for each in manifest["runs"]:
        each.pop("id")
        each.pop("command")  # it has the size of a task, which is for tests
        each["settings"].pop("dedup_cache")
    return {**found, "dataset_metadata.json": json.dumps(manifest).encode()}


@pytest.mark.parametrize("case", CASES | WHOLE)
def test_threads_and_budgets(corpus: Path, tmp_path: Path, case: str) -> None:
    wanted = None
    for n, others in enumerate(
        (
            {"threads": 1},
            {"threads": 2, "budget": 400_000_000},
            {"threads": 5},
            {"threads": 1, "budget": 60_000_000},
            {"threads": 2, "budget": 80_000_000},
        )
    ):
        run(corpus, tmp_path / str(n), (CASES | WHOLE)[case], task_bytes=10_000, **others)
        found = files(tmp_path / str(n))
        wanted = wanted or found
        assert found == wanted, others


@pytest.mark.parametrize("case", CASES)
def test_tasks(corpus: Path, tmp_path: Path, case: str) -> None:
    """However the input is divided: the same documents in the same order, and so the same shards and figures."""
    one = run(corpus, tmp_path / "one", CASES[case])
    assert one.manifest["splits"]["train"]["documents"] > 30
    for size in (900, 20_000):
        other = run(corpus, tmp_path / str(size), CASES[case], task_bytes=size, threads=2)
        assert other.manifest["splits"] == one.manifest["splits"], size
        assert (other.manifest["ledger"], other.manifest["lengths"]) == (
            one.manifest["ledger"],
            one.manifest["lengths"],
        )
        assert (other.path / "tokenizer.json").read_bytes() == (one.path / "tokenizer.json").read_bytes()
        for split in oracle.SPLITS:
            for shard in one.manifest["splits"][split]["shards"]:
                for name in (shard["file"], shard["index"]):
                    assert (other.path / name).read_bytes() == (one.path / name).read_bytes()


def test_npy(corpus: Path, tmp_path: Path) -> None:
    arrays = []
    for n, size in enumerate((None, 900, 20_000)):
        given = {"output_format": "npy", "documents": "line"}
        run(corpus, tmp_path / f"{n}.npy", given, task_bytes=size, threads=n + 1)
        arrays.append((tmp_path / f"{n}.npy").read_bytes())
    assert arrays[0] == arrays[1] == arrays[2]
