"""A model that is trained further takes a part of the from-scratch rate, and is told once that it forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from oracles_training import SMALL, make_data, metrics, run
from ramlet.cli import main
from ramlet.training.listener import Listener
from ramlet.training.recipe import CONTINUED, default_rate


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("continued")


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return make_data(shared)


@pytest.fixture(scope="module")
def domain(shared: Path) -> Path:
    return make_data(shared, "domain", lines=200, words=["LEX", "IUS", "IUDEX", "REUS", "ACTIO", "FORUM"])


@pytest.fixture(scope="module")
def general(data: Path, shared: Path) -> Path:
    run(data, shared / "general", max_steps=40, eval_every=0, checkpoint_every=0)
    return shared / "general"


def rate_of(out: Path) -> tuple[float, int]:
    noted = yaml.safe_load((out / "settings.yaml").read_text())
    decided: Any = next(
        value for value in noted.values() if isinstance(value, dict) and "warmup" in value and "steps" in value
    )
    return decided["lr"], decided["parameters"]


def test_the_default_rate(data: Path, general: Path, tmp_path: Path) -> None:
    start = {"init_from": str(general), "params": None, "seq_len": None, "max_steps": 1}
    for name, given, optimizer, part in (
        ("scratch", {"max_steps": 1, "lr": None, "optimizer": "auto"}, "muon", 1.0),
        ("continued", {**start, "lr": None}, "adamw", CONTINUED),
    ):
        run(data, tmp_path / name, **given)
        rate, parameters = rate_of(tmp_path / name)
        assert rate == pytest.approx(part * default_rate(parameters, optimizer)), name
    assert default_rate(parameters, "adamw", continued=True) == CONTINUED * default_rate(parameters, "adamw")
    run(data, tmp_path / "given", **{**start, "lr": 2e-3})
    assert rate_of(tmp_path / "given")[0] == 2e-3


class Heard(Listener):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, line: str) -> None:
        self.warnings.append(line)


def test_forgetting_is_warned_of_once(data: Path, domain: Path, general: Path, tmp_path: Path) -> None:
    start = {"init_from": str(general), "params": None, "seq_len": None}
    heard = Heard()
    done = run(domain, tmp_path / "out", evals={"general": data}, listener=heard, max_steps=40, eval_every=10, **start)
    rises = [line["forgetting"]["general"] for line in metrics(tmp_path / "out") if "forgetting" in line]
    assert len([rise for rise in rises if rise > 0.1]) > 1
    assert len(heard.warnings) == 1
    assert done.statistics["forgetting"]["general"] == rises[-1]


def test_the_summary_tells(
    data: Path, domain: Path, general: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--data", str(domain), "--init-from", str(general), "--eval", f"general={data}"]
    sizes = ["--batch-size", "6", "--max-steps", "30", "--lr", "3e-3", "--eval-every", "10", "--sample-every", "0"]
    limits = ["--memory", "8GB", "--threads", "1", "--device", "cpu", "--eval-tokens", str(SMALL["eval_tokens"])]
    assert main([*words, *sizes, *limits, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert said.err.count("warning: the model is forgetting general") == 1
    summary = [line for line in said.out.splitlines() if "general" in line]
    assert "since the start)" in summary[0]
    assert summary[1].startswith("the model forgot some of general (+")
