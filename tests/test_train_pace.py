"""How fast a run is, how long it still takes, and what share of it its evaluations are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oracles_training import make_data, run
from ramlet.engines.torch.engine import TorchEngine
from ramlet.training import entry
from ramlet.training.job import EVALUATION_COST, LEAST_EVAL_TOKENS, evaluations, resolve
from ramlet.training.listener import Listener
from ramlet.training.pace import Pace, times_left
from ramlet.training.settings import EVAL_SHARE, EVAL_TOKENS, EVALUATIONS, RunSettings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("pace"))


# -- speed


class Behind(TorchEngine):
    """As a GPU is: Python asks for work and does not wait for it. Every step takes half a second of its clock."""

    marks = 0

    @property
    def is_async(self) -> bool:
        return True

    def mark(self) -> Any:
        Behind.marks += 1
        return Behind.marks

    def seconds(self, earlier: Any, later: Any) -> float:
        assert later == earlier + 1, "of the step, and of nothing else"
        return 0.5 * (later - earlier)


def test_the_speed_of_a_device_that_works_behind(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last steps before a pause are looked at one right behind the other; that says nothing of their speed."""
    monkeypatch.setattr(entry, "open_engine", lambda device, threads, name: Behind("cpu", wanted="cpu"))
    run(data, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    speeds = {line["step"]: line["tokens_per_second"] for line in lines if "loss" in line}
    assert speeds == dict.fromkeys(range(1, 13), 6 * 32 / 0.5)


# -- time left


@pytest.mark.parametrize("every", [0, 1, 3, 4, 7, 12, 100])
def test_how_often_something_still_comes(every: int) -> None:
    steps = 12
    for step in range(steps + 1):
        coming = [later for later in range(step + 1, steps + 1) if later == steps or (every and later % every == 0)]
        assert times_left(step, steps, every) == len(coming)


def test_what_is_left_counts_evaluations() -> None:
    pace = Pace(100, {"eval": 10, "save": 0}, {"eval": 3.0})
    assert pace.left(0) is None
    pace.stepped(2.0)
    assert pace.left(1) == 99 * 2 + 10 * 3 * 2, "before the first: what it should take"
    pace.paused("eval", 40.0)
    pace.stepped(4.0)
    assert pace.left(10) == 90 * 3 + 9 * 40
    pace.paused("save", 5.0)
    assert pace.left(95) == 5 * 3 + 40 + 5
    assert pace.left(100) == 0


def test_a_run_tells_what_is_left_and_where_an_evaluation_is(data: Path, tmp_path: Path) -> None:
    class Heard(Listener):
        def __init__(self) -> None:
            self.told: list[tuple[str, Any]] = []

        def expected(self, seconds: float) -> None:
            self.told.append(("expected", seconds))

        def stepped(self, step: int, *_: Any) -> None:
            self.told.append(("stepped", step))

        def evaluating(self, name: str, done: int, total: int) -> None:
            self.told.append((f"evaluating {name}", (done, total)))

    heard = Heard()
    run(data, tmp_path / "out", listener=heard, micro_batch=1)
    names = [name for name, _ in heard.told if not name.startswith("evaluating")]
    assert names == ["expected", "stepped"] * 12
    assert heard.told[-21][0] == "stepped"
    assert [value for name, value in heard.told[-22:-20]] == [0.0, 12]
    assert heard.told[-20:] == [("evaluating val", (done, 640)) for done in range(0, 640, 32)]


# -- evaluations


def cost(settings: RunSettings, steps: int, step_tokens: int, seq_len: int, sets: int = 1) -> float:
    """Of all evaluations, as a share of the training."""
    every, tokens = evaluations(settings, steps, step_tokens, seq_len, sets)
    times = times_left(0, steps, every) + (settings.init_from is not None)
    return times * sets * tokens * EVALUATION_COST / (steps * step_tokens)


def test_ordinary_runs_are_evaluated_ten_times_on_as_much_as_ever() -> None:
    assert evaluations(RunSettings(), 2000, 32 * 256, 256, 1) == (200, EVAL_TOKENS)
    assert evaluations(RunSettings(), 600, 32 * 256, 256, 1) == (60, EVAL_TOKENS)


def test_a_short_run_is_not_dwarfed() -> None:
    """Ten steps of 512 tokens had ten evaluations of 131,072 each."""
    every, tokens = evaluations(RunSettings(), 10, 512, 256, 1)
    assert (every, tokens) == (10, 1536)


@pytest.mark.parametrize("init_from", [None, "model"])
@pytest.mark.parametrize("sets", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 19, 99, 100, 101, 1_999, 30_000])
@pytest.mark.parametrize("step_tokens", [512, 8_192, 500_000])
def test_all_evaluations_together_take_a_share(steps: int, step_tokens: int, sets: int, init_from: str | None) -> None:
    settings = RunSettings(init_from=init_from)
    every, tokens = evaluations(settings, steps, step_tokens, 256, sets)
    assert 1 <= every <= steps
    assert 256 <= tokens <= EVAL_TOKENS
    assert times_left(0, steps, every) <= EVALUATIONS
    if tokens > 256:
        assert cost(settings, steps, step_tokens, 256, sets) <= EVAL_SHARE
    if tokens < LEAST_EVAL_TOKENS:
        assert every == steps, "fewer of them before they look at so little"


def test_what_is_said_is_done() -> None:
    assert evaluations(RunSettings(eval_every=1, eval_tokens=100_000), 10, 512, 256, 1) == (1, 100_000)
    assert evaluations(RunSettings(eval_every=0), 10, 512, 256, 1) == (0, 1536)
    assert evaluations(RunSettings(eval_every=5), 10, 512, 256, 1) == (5, 768)
    assert evaluations(RunSettings(eval_tokens=512), 100, 512, 256, 1) == (10, 512)
    assert evaluations(RunSettings(eval_tokens=10**6), 100, 512, 256, 1)[1] == 10**6


def test_checkpoints_come_as_often_as_ever() -> None:
    """Also in a run that is evaluated at its end alone."""
    feed: Any = SimpleNamespace(packed_length=None, vocab_size=257, validation=lambda: [("val", "data")])
    job = resolve(RunSettings(params=40_000, max_steps=20, batch_size=2), feed, TorchEngine("cpu"))
    assert (job.eval_every, job.checkpoint_every, job.sample_every) == (20, 2, 4)
    said = RunSettings(params=40_000, max_steps=20, batch_size=2, eval_every=5)
    assert resolve(said, feed, TorchEngine("cpu")).checkpoint_every == 5
