"""What `ramlet init` chooses: layers beside the embedding, a time that it tells; and which mistake it tells first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oracles_training import sentences
from ramlet.cli import main
from ramlet.pipeline import init, looking
from ramlet.training.machine import Machine


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and a machine whose speed need not be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "open_engine", lambda **_: None)
    monkeypatch.setattr(init, "_plan", lambda *_: None)
    machine = Machine("cpu", 2, 8 * 10**9, 20e9, "fp32")
    monkeypatch.setattr(init, "look", lambda engine: machine)
    monkeypatch.setattr(init, "free_memory", lambda: 8 * 10**9)
    (tmp_path / "a.txt").write_text(sentences(200))
    return tmp_path


def proposed(monkeypatch: pytest.MonkeyPatch, text_bytes: int, **given: Any) -> init.Proposal:
    found = looking.TextFound(("a.txt",), 1, text_bytes, text_bytes, 1000, ("text",))
    monkeypatch.setattr(init, "look_at_text", lambda inputs: found)
    return init.propose_pipeline(["a.txt"], out="p.yaml", **given)


@pytest.mark.parametrize("text_bytes", [10**5, 12 * 10**6, 10**8, 10**10])
@pytest.mark.parametrize("seconds", [60, 3600, 10**7])
def test_layers_have_their_part_of_the_parameters(
    place: Path, monkeypatch: pytest.MonkeyPatch, text_bytes: int, seconds: float
) -> None:
    shape = proposed(monkeypatch, text_bytes, seconds=seconds).shape
    assert shape.vocab_size * shape.width <= 0.55 * shape.parameters
    assert shape.layers >= 2


def test_a_size_that_was_asked_for_has_layers_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proposed(monkeypatch, 12 * 10**6, params=300_000)
    assert (found.vocab_size, found.shape.layers) == (2000, 2)
    assert proposed(monkeypatch, 12 * 10**6, params=1_000_000).vocab_size == 4000


def test_the_time_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "a.txt"]) == 0
    said = capsys.readouterr()
    assert "time limit 60 min" in said.err
    assert "layers of width " in said.err
    assert "(time limit 60 min)" in Path("pipeline.yaml").read_text()
    assert main(["init", "a.txt", "--time", "10 minutes", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_limit"] == 600
    assert main(["init", "a.txt", "--time", "1h30m", "--force", "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", ["soon", "10", "0min", "-5min", "1h 5", "5 parsecs", "", "1e3h"])
def test_times_that_are_none(place: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "a.txt", "--time", wrong]) == 1
    assert f"--time must be a time like 20min, 1h or 2d, not {wrong!r}" in capsys.readouterr().err
    assert not Path("pipeline.yaml").exists()


def test_the_input_is_looked_at_before_the_output(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pipeline.yaml").write_text("mine")
    assert main(["init", "nosuchdir"]) == 1
    assert "no such file or folder: nosuchdir" in capsys.readouterr().err
    assert main(["init", "a.txt"]) == 1
    assert "pipeline.yaml already exists" in capsys.readouterr().err
    assert Path("pipeline.yaml").read_text() == "mine"
