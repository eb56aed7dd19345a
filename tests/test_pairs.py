"""Two commands on one output at once; `benchmarks/pairs.py` is the long form."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from forked import Forks, compiler
from pairs import Pair, pairs
from writing_commands import build

MEETINGS = 2
EVERY = pairs(models=False)
SHORT = [
    *("tokenizer train + prepare", "prepare + prepare", "prepare + data merge", "data merge + data merge"),
    *("data export nanogpt + data export megatron", "data export hf + data export hf"),
    *("tokenizer encode + tokenizer encode", "tokenizer encode + prepare --format npy", "report + report"),
    *("prepare --append + prepare --append", "prepare --append + data merge of it"),
]
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or compiler() is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forks, Path]]:
    scratch = tmp_path_factory.mktemp("forks")
    with Forks(scratch) as made:
        build(made, scratch / "world", models=False)
        yield made, scratch


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in EVERY]
)
def test_two_at_once(forks: tuple[Forks, Path], name: str) -> None:
    made, scratch = forks
    pair = Pair(made, EVERY[name], scratch / "world", scratch / "place")
    draw = random.Random(name)
    assert [wrong for _ in range(MEETINGS) for wrong in pair.at_once(draw)[1]] == []
