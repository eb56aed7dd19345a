"""Training, resuming, evaluating and writing with an engine that is not torch: the contract is all they know of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ramlet
from oracles_engine import Counter, CountingEngine, CountingTrainee
from oracles_training import assert_same_run, losses, make_data, metrics, run
from ramlet.engines import Engine, Model, Trainee
from ramlet.engines.torch.engine import TorchEngine
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.step import Trainee as TorchTrainee
from ramlet.errors import BudgetError, Interrupted
from ramlet.generation import entry as generation
from ramlet.training import entry, open_model
from ramlet.training.listener import Listener


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("second"))


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made: Engine = CountingEngine()
    for module in (entry, open_model, generation):
        monkeypatch.setattr(module, "open_engine", lambda *_, **__: made)
    return made


def test_a_run_learns_is_evaluated_and_writes(data: Path, tmp_path: Path) -> None:
    done = run(data, tmp_path / "run", sample_every=6, max_steps=40)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0] - 1
    assert [line["step"] for line in metrics(tmp_path / "run") if "sample" in line][:2] == [0, 6]
    again = ramlet.evaluate(tmp_path / "run", data, tokens=640)
    assert round(again["data"].loss, 6) == done.scores["val"]["loss"]
    texts = ramlet.generate(tmp_path / "run", "the", max_tokens=30, seed=1, num_samples=2)
    assert texts == ramlet.generate(tmp_path / "run", "the", max_tokens=30, seed=1, num_samples=2)
    assert texts[0] != texts[1]


def test_an_interrupted_run_goes_on(data: Path, tmp_path: Path) -> None:
    class Stop(Listener):
        def stepped(self, step: int, *_: Any) -> None:
            if step == 7:
                raise KeyboardInterrupt

    run(data, tmp_path / "whole")
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(data, tmp_path / "cut", listener=Stop())
    run(data, tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_budget_too_small_is_told_with_the_smallest(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"needs at least \d\dMB") as refused:
        run(data, tmp_path / "run", memory="50MB")
    assert refused.value.facts["needed"] > 60_000_000
    assert not (tmp_path / "run" / "settings.yaml").exists()


@pytest.mark.parametrize(
    ("contract", "engines"),
    [(Engine, (CountingEngine, TorchEngine)), (Trainee, (CountingTrainee, TorchTrainee)), (Model, (Counter, GPT))],
)
def test_engines_have_what_the_contract_asks_for(contract: type, engines: tuple[type, ...]) -> None:
    asked = {name for name in vars(contract) if not name.startswith("_")}
    assert len(asked) > 2
    for each in engines:
        made = {"shape", "model", *getattr(each, "__dataclass_fields__", ())}  # with the object
        assert asked - set(dir(each)) - made == set(), each


def test_torch_is_not_loaded(data: Path, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from oracles_engine import CountingEngine
from oracles_training import run
from ramlet.model.export import export_model
from ramlet.training import entry
entry.open_engine = lambda *_, **__: CountingEngine()
run(sys.argv[1], Path(sys.argv[2]), max_steps=2)
export_model(sys.argv[2], sys.argv[2] + "-bf16", dtype="bf16")
sys.exit("torch" in sys.modules)
"""
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", program, str(data), str(tmp_path / "run")], cwd=folder)
    assert done.returncode == 0
