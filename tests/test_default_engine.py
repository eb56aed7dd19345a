"""What `engine: auto` chooses, what it tells, and a run that was begun with the other engine."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml

from oracles_training import losses, make_data, run
from ramlet.engines import opening
from ramlet.engines.opening import choose_engine
from ramlet.runtime import processor
from ramlet.training.listener import Listener

WHY = "engine: native, the default on a CPU"


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def noted(self, line: str) -> None:
        self.lines += [line] if line.startswith("engine:") else []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("default"))


def trained(data: Path, out: Path, **settings: Any) -> list[str]:
    """Trains, and returns what was said about the engine."""
    heard = Heard()
    run(data, out, listener=heard, eval_every=0, **settings)
    return heard.lines


def engine_of(out: Path) -> list[str]:
    noted = yaml.safe_load((out / "settings.yaml").read_text())
    return [name for name in opening.ENGINES if name in noted]


def test_auto_is_native_on_a_cpu_and_says_so(data: Path, tmp_path: Path) -> None:
    assert trained(data, tmp_path / "auto", max_steps=2) == [WHY]
    assert engine_of(tmp_path / "auto") == ["native"]
    assert trained(data, tmp_path / "named", max_steps=2, engine="native") == []
    assert trained(data, tmp_path / "auto", max_steps=2) == []  # finished: nothing to do


def test_a_run_begun_with_torch_continues_natively(data: Path, tmp_path: Path) -> None:
    """Its losses are those of a run that does not change the engine."""
    same, changed = tmp_path / "same", tmp_path / "changed"
    assert trained(data, same, engine="torch", max_steps=4) == []
    assert engine_of(same) == ["torch"]
    copytree(same, changed)
    trained(data, same, engine="torch", max_steps=8, resume=True)
    assert trained(data, changed, max_steps=8, resume=True) == [f"{WHY}; the run was begun with torch"]
    assert engine_of(changed) == ["native"]
    assert losses(changed) == pytest.approx(losses(same), abs=1e-3)
    said = trained(data, changed, max_steps=9, resume=True, engine="torch")
    assert said == ["engine: torch; the run was begun with native"]


def test_several_processes_train_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native engine has one process; torchrun starts several."""
    monkeypatch.setattr(opening, "has_gpu", lambda: False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert str(choose_engine("auto", "auto")) == "torch, because several processes train together"
    monkeypatch.setattr(opening, "has_torch", lambda: False)
    assert choose_engine("auto", "cpu").name == "native"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert choose_engine("auto", "cpu").name == "native"


def test_a_gpu_without_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "has_gpu", lambda: True)
    assert str(choose_engine("auto", "auto")) == "torch, which uses the GPU"
    monkeypatch.setattr(opening, "has_torch", lambda: False)
    said = "native, on the CPU: using the GPU needs PyTorch, pip install 'ramlet[torch]'"
    assert str(choose_engine("auto", "auto")) == said
    assert str(choose_engine("auto", "cpu")) == "native, the default on a CPU"


def test_auto_is_torch_on_a_cpu_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "flags", lambda: {"avx512_bf16", "amx_bf16"})
    assert choose_engine("auto", "cpu").name == "native"  # the tests do not use it
    monkeypatch.delenv("RAMLET_VECTORS")
    assert str(choose_engine("auto", "cpu")) == "torch, which multiplies bf16 with AMX"
    monkeypatch.setattr(opening, "has_torch", lambda: False)
    assert choose_engine("auto", "cpu").name == "native"
