"""Evaluating with the JAX engine: batches of any size with few programs, within the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import AMPLE
from oracles_model import GROUPED_QK_NORM, model_of
from ramlet.engines import SHARED, Division
from ramlet.engines.opening import open_engine
from ramlet.engines.torch.gpt import document_mask as torch_mask
from ramlet.engines.torch.model_files import save_model
from ramlet.model.folder import find_model
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

jax = pytest.importorskip("jax")
torch.set_num_threads(1)

DIVISION = Division(micro_batch=4, chunk=16)
TOKENS = GROUPED_QK_NORM.context


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX for a CPU, with a cache of its own for what it compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        from ramlet.engines.jax.loading import load_jax

        load_jax("cpu", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("jax-evaluation") / "run"
    save_model(model_of(GROUPED_QK_NORM), made)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return open_engine("cpu", 1, name="jax").load(find_model(folder), "fp32", division=DIVISION, seq_len=TOKENS)


def batch(rows: int, tokens: int) -> dict[str, Any]:
    ids, targets = np.random.default_rng([rows, tokens]).integers(0, GROUPED_QK_NORM.vocab_size, (2, rows, tokens))
    return {"input_ids": ids, "targets": targets}


def test_batches_of_any_size_have_few_programs_within_the_plan(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramlet.engines.jax.gpt import LENGTHS, Forward

    sizes = set()
    run = Forward.losses

    def seen(self: Forward, params: Any, given: Any, tables: Any) -> Any:
        sizes.add(given["input_ids"].shape)
        return run(self, params, given, tables)

    monkeypatch.setattr(Forward, "losses", seen)
    expected = model_of(GROUPED_QK_NORM)
    for rows, tokens in [(40, 3), (1, 48), (9, 20), (3, 31), (1, 1), (17, 6), (2, 7), (5, 13), (12, 24), (4, 48)]:
        given = batch(rows, tokens)
        found, theirs = np.array(model.token_losses(given)), np.array(expected.token_losses(given))
        assert found.shape == (rows, tokens)
        assert np.abs(found - theirs).max() < 1e-4
    assert {tokens for _, tokens in sizes} == {48, 24, 12, 6}
    assert len(sizes) == LENGTHS
    for rows, tokens in sizes:
        assert rows * tokens <= DIVISION.micro_batch * TOKENS
        # The logits of a token of each exist at once.
        assert rows <= max(DIVISION.micro_batch, DIVISION.chunk)


def test_a_model_keeps_few_programs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramlet.engines.jax import gpt
    from ramlet.engines.jax.gpt import Forward

    monkeypatch.setattr(gpt, "MOST_PROGRAMS", 2)
    forward = Forward(model.net)
    one = gpt.GPT(forward, model.params, rows=2, seq_len=TOKENS)
    first = one.token_losses(batch(2, 48))
    for tokens in (24, 48, 12, 48):
        one.token_losses(batch(2, tokens))
        assert len(forward._compiled) <= 2
    before = dict(forward._compiled)
    assert one.token_losses(batch(2, 48)) == first
    assert forward._compiled == before, "the program used last was kept"


@pytest.mark.parametrize("shared", [0, 1, 5, 12])
def test_the_mask_is_that_of_torch(shared: int) -> None:
    """Also where a later token is marked as shared, which it is not: only the beginning is."""
    from ramlet.engines.jax.gpt import document_mask

    documents = np.sort(np.random.default_rng(shared).integers(0, 4, (3, 12)), 1)
    documents[:, :shared] = SHARED
    documents[0, -2:] = SHARED
    expected = torch_mask(torch.tensor(documents))
    assert expected is not None
    assert np.array_equal(document_mask(documents.astype(np.int32)), expected)


PEAK = """
import sys
from ramlet import cli
code = cli.main(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_tasks_stay_within_the_smallest_budget(tmp_path: Path) -> None:
    """With rows of many lengths: programs are compiled while the model is there."""
    tokenizer = Tokenizer.train(texts=["abc"], kind="byte", special_tokens=["<|endoftext|>"], memory=AMPLE)
    tokenizer.save(tmp_path / "tokenizer.json")
    shape = Shape(vocab_size=257, context=1024, layers=4, width=128, heads=4)
    save_model(model_of(shape), tmp_path / "run", tokenizer_file=tmp_path / "tokenizer.json", end_id=256)
    with (tmp_path / "task.jsonl").open("w") as file:
        for words in [*range(1, 60), 90, 120, 150] * 2:
            item = {"question": "stone " * words, "choices": ["river", "tree", "a"], "answer": 0}
            file.write(json.dumps(item) + "\n")

    def measured(memory: int) -> tuple[dict[str, Any], int]:
        words = ("eval", tmp_path / "run", "--task", tmp_path / "task.jsonl", "--memory", f"{memory}MB")
        command = [sys.executable, "-c", PEAK, *map(str, words), "--device", "cpu", "--engine", "jax", "--json"]
        given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": ""}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=given)
        *_, told, peak = done.stdout.splitlines()
        return json.loads(told), int(peak) * 1024

    needed = measured(100)[0]["error"]["needed"]
    told, peak = measured(needed // 10**6)
    assert told["scores"]["task"]["items"] == 124
    assert peak <= needed, (peak, needed)
