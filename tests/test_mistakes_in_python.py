"""Mistakes in calls from Python: one sentence, as on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramlet
from conftest import AMPLE
from oracles_training import make_data, run
from ramlet.errors import SettingsError

train: Any = ramlet.train  # whose types forbid all of this
evaluate: Any = ramlet.evaluate
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "datasets without weights": (lambda: train(["data", "other"], "new"), "'data' is not a pair"),
    "no dataset": (lambda: train([], "new"), "a mix needs at least one dataset"),
    "a number for data": (lambda: train(3, "new"), "a list of (data, weight) pairs, not 3"),
    "a weight that is no number": (lambda: train([("data", float("nan"))], "new"), "above 0, not nan"),
    "a weight in words": (lambda: train([("data", "1")], "new"), "a number above 0, not '1'"),
    "an evaluation set without a name": (lambda: train("data", "new", evals="data"), "as in {'general': 'data'}"),
    "a list of datasets to evaluate on": (lambda: evaluate("run", ["data"]), "several by name"),
    "a length in words": (lambda: evaluate("run", "data", seq_len="16"), "seq_len must be a whole number, not '16'"),
    "negative threads": (lambda: evaluate("run", "data", threads=-1), "threads must be at least 1, not -1"),
    "threads of a task": (lambda: ramlet.evaluate_tasks("run", "q", threads=0), "threads must be at least 1"),
    "threads of a plan": (lambda: ramlet.plan(params="1M", threads=-2), "threads must be at least 1"),
    "a vocabulary in words": (lambda: ramlet.plan(params="1M", vocab_size="8k"), "vocab_size must be a whole number"),  # type: ignore[arg-type]
    "a prompt that is no text": (lambda: ramlet.generate("run", 3), "prompt must be text, not int"),  # type: ignore[arg-type]
    "no run to evaluate": (lambda: evaluate(None), "a path must be text or a path object, not None"),
    "no run to generate with": (lambda: ramlet.generate(3, "a"), "a path must be text or a path object, not 3"),  # type: ignore[arg-type]
    "no folder to train in": (lambda: train("data", None), "a path must be text or a path object, not None"),
    "a dataset that is no path": (lambda: evaluate("run", {"a": None}), "text or a path object, not None"),
    "no dataset to read": (lambda: ramlet.Dataset(None), "text or a path object, not None"),  # type: ignore[arg-type]
    "no run to report on": (lambda: ramlet.report(None), "text or a path object, not None"),  # type: ignore[arg-type]
    "a number for a page": (lambda: ramlet.report("run", out=5), "text or a path object, not 5"),  # type: ignore[arg-type]
    "no pipeline": (lambda: ramlet.run_pipeline(None), "text or a path object, not None"),  # type: ignore[arg-type]
    "no task": (lambda: ramlet.evaluate_tasks("run", None), "text or a path object, not None"),  # type: ignore[arg-type]
    "a number for a task": (lambda: ramlet.evaluate_tasks("run", 5), "text or a path object, not 5"),  # type: ignore[arg-type]
    "a task that is no path": (lambda: ramlet.evaluate_tasks("run", {"a": 5}), "path object, not 5"),  # type: ignore[dict-item]
    "too many samples": (lambda: ramlet.generate("run", "a", num_samples=10**30), "between 1 and 1,000,000,000"),
    "too large a k": (lambda: ramlet.generate("run", "a", top_k=10**30), "between 1 and 1,000,000,000"),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("python")
    run(make_data(here), here / "run", max_steps=1)
    return here


@pytest.mark.parametrize("name", MISTAKES)
def test_one_sentence_and_nothing_left(bench: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(bench)
    call, sentence = MISTAKES[name]
    with pytest.raises(SettingsError) as caught:
        call()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("new").exists()


def test_none_is_the_default(bench: Path) -> None:
    """As in `ramlet.generate`."""
    given: dict[str, Any] = {"device": None, "engine": None, "precision": None, "memory": AMPLE, "threads": 1}
    assert ramlet.evaluate(bench / "run", **given)["val"].loss > 0
