"""The smallest budgets that commands with a model name are enough; `benchmarks/limits.py` is the long form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oracles_training import make_data, run

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from limits import STEPS, Limits
from limits_cases import Case


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Limits:
    folder = tmp_path_factory.mktemp("limits")
    data = make_data(folder)
    run(data, folder / "run", engine="native")
    return Limits(folder, {"": folder}, {"dataset": data, "run": folder / "run"}, sys.executable)


@pytest.mark.parametrize(
    "words",
    [
        "eval {run} --data {dataset} --tokens 512 --device cpu --quiet",
        "generate {run} --prompt abc --max-tokens 20 --seed 1 --device cpu --quiet",
        "plan --params 100k --vocab-size 300 --device cpu --threads 1 --quiet",
    ],
    ids=lambda words: words.split()[0],
)
def test_at_the_least_budget(limits: Limits, words: str) -> None:
    limits.run(Case(words.split()[0], words), "", STEPS[0])
    assert limits.tallies[words.split()[0]].problems == []
