"""The need of a pass, by sizes alone (engines/torch/modules/dry_run.py), compared with tensors counted by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ramlet.engines.torch.modules.dry_run import ROUNDING, DryRun, Living, pass_bytes
from ramlet.engines.torch.modules.losses import Loss

ROWS, WIDTH, HIDDEN = 64, 128, 1024


def mean(module: Any, batch: Tensor) -> Tensor:
    found: Tensor = module(batch).mean()
    return found


def need(module: nn.Module, batch: Tensor, loss: Any = mean) -> int | None:
    return pass_bytes(module, Loss(module, loss, "fp32"), batch)


def test_a_linear_layer_needs_two_gradients_and_its_outputs() -> None:
    module, batch = nn.Linear(WIDTH, HIDDEN, bias=False), torch.zeros(ROWS, WIDTH)
    weight, outputs = WIDTH * HIDDEN * 4, ROWS * HIDDEN * 4
    needed = need(module, batch)
    assert needed is not None
    # In the second backward pass: the gradients of both passes, and those of the outputs and of their mean.
    assert 2 * weight + outputs <= needed <= 2 * weight + 3 * outputs + 16 * ROUNDING


def test_what_is_kept_for_the_backward_pass_counts() -> None:
    batch = torch.zeros(ROWS, WIDTH)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
    few, many = (need(nn.Sequential(*layers[:count]), batch) for count in (1, 8))
    assert few is not None
    assert many is not None
    kept = 2 * ROWS * WIDTH * 4
    assert many - few >= 7 * (kept + WIDTH * WIDTH * 4)


def test_nothing_is_computed_and_nothing_changes() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 1))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert need(module, torch.zeros(ROWS, WIDTH)) is not None
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_tied_weight_has_two_new_gradients_besides_that_of_before() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(HIDDEN, WIDTH)
            self.head = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            found: Tensor = self.head(self.embedding(ids))
            return found

    needed = need(Tied(), torch.zeros(4, 8, dtype=torch.long))
    assert needed is not None
    weight, logits = HIDDEN * WIDTH * 4, 4 * 8 * HIDDEN * 4
    assert 3 * weight <= needed <= 4 * weight + 5 * logits


def test_a_module_that_reads_its_numbers_has_a_formula_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.linear(x)
            return found * 2 if float(found.detach().sum()) > 0 else found

    module, batch = Curious(), torch.zeros(ROWS, WIDTH)
    assert need(module, batch) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    dry_run = DryRun(module, Loss(module, mean, "fp32"), batch, torch.device("cuda", 0))
    gradients = sum(parameter.nbytes for parameter in module.parameters())
    assert dry_run.passes(recompute=False, kept=1000) > gradients + 1000
    assert dry_run.reserved(10**9) > 10**9


def test_freed_tensors_do_not_count() -> None:
    size = 1 << 20
    with Living() as living:
        for _ in range(10):
            torch.zeros(size)
        kept = torch.zeros(size)
    assert living.peak == 4 * size
    assert living.now == 4 * size
    del kept
    assert living.now == 0


FORKS = """
import os, sys
import torch
from torch import nn
from ramlet.engines.torch.modules.dry_run import pass_bytes
from ramlet.engines.torch.modules.losses import Loss

module = nn.Linear(4, 2)
assert pass_bytes(module, Loss(module, lambda module, batch: module(batch).mean(), "fp32"), torch.ones(3, 4))
module(torch.ones(3, 4)).sum().backward()
child = os.fork()
if not child:
    module(torch.ones(3, 4)).sum().backward()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_processes_that_are_forked_afterwards_can_train() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
