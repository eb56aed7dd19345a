"""What the allocator keeps of a run of `ramlet.fit` on a CPU, and from when on it no longer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ramlet
from conftest import AMPLE
from ramlet.engines.torch import base_memory
from ramlet.engines.torch.modules import search, subject


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the allocator was told to keep freed tensors, each time."""
    assert search.keep_large_blocks is subject.keep_large_blocks  # these are not listened to
    found: list[bool] = []
    monkeypatch.setattr(base_memory, "keep_large_blocks", found.append)
    return found


def test_it_ends_before_the_budget_does(monkeypatch: pytest.MonkeyPatch, told: list[bool]) -> None:
    kept = base_memory.KeptBlocks(1_600_000_000)
    for resident, expected in ((1_500_000_000, []), (1_500_000_001, [False]), (1_599_000_000, [False])):
        monkeypatch.setattr(base_memory, "resident_memory", lambda now=resident: now)
        kept.check()
        assert told == expected


class Fills(ramlet.Listener):
    """The memory is full from some moment on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, planning: bool = False, training: bool = False) -> None:
        self._monkeypatch, self._training = monkeypatch, training
        self._resident(planning)

    def planned(self, *_: Any) -> None:
        self._resident(self._training)

    def _resident(self, full: bool) -> None:
        self._monkeypatch.setattr(base_memory, "resident_memory", lambda: 10**15 if full else 0)


def fit(out: Path, listener: ramlet.Listener) -> tuple[ramlet.FitResult, dict[str, Any]]:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    batches = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(3)]
    given = {"loss": nn.CrossEntropyLoss(), "max_steps": 3, "memory": AMPLE, "threads": 1}
    return ramlet.fit(module, batches, out=out, listener=listener, **given), module.state_dict()


def test_the_result_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[bool]) -> None:
    kept, first = fit(tmp_path / "kept", Fills(monkeypatch))
    assert told == []
    returned, second = fit(tmp_path / "returned", Fills(monkeypatch, training=True))
    assert told == [False]
    assert kept.plan.reuse
    assert returned.plan.reuse
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_plan_does_not_keep_what_its_trial_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[bool]
) -> None:
    assert not fit(tmp_path / "run", Fills(monkeypatch, planning=True))[0].plan.reuse
    assert told == [False]
