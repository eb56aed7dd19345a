"""What `ramlet.fit` refuses, in one sentence each, before the first step; and budgets, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

import ramlet
from conftest import AMPLE
from oracles_training import write_state
from test_fit import StopAt

X, Y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)


def batches(*_: Any) -> list[Any]:
    return [(X, Y)] * 3


def frozen() -> nn.Module:
    module = nn.Linear(3, 2)
    return module.requires_grad_(False)


def on_two_devices() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta"))


def expanded(*, persistent: bool) -> nn.Module:
    """With a buffer whose rows are one row in memory, as masks often are."""
    module = nn.Linear(3, 2)
    module.register_buffer("tall", torch.ones(2).expand(4, 2), persistent=persistent)
    return module


def mean(module: Any, batch: Any) -> Tensor:
    found: Tensor = module(batch[0]).mean()
    return found


class Endless:
    def __iter__(self) -> Any:
        while True:
            yield X, Y


class Nothing:
    """It has no length."""

    def __iter__(self) -> Any:
        return iter([])


CASES: dict[str, tuple[Callable[[], Any], Any, Any, dict[str, Any], str]] = {
    "no module": (lambda: 3, batches(), mean, {}, "torch.nn.Module, not int"),
    "nothing to train": (frozen, batches(), mean, {}, "no trainable parameter"),
    "two devices": (on_two_devices, batches(), mean, {}, "several devices"),
    "meta": (lambda: nn.Linear(3, 2, device="meta"), batches(), mean, {}, "only their shapes"),
    "complex": (lambda: nn.Linear(3, 2, dtype=torch.complex64), batches(), mean, {}, "cannot store"),
    "no scalar": (lambda: nn.Linear(3, 2), batches(), lambda m, b: m(b[0]), {}, "no scalar, it has the shape (1, 2)"),
    "no tensor": (lambda: nn.Linear(3, 2), batches(), lambda m, b: 1.0, {}, "the loss is a float"),
    "no gradient": (lambda: nn.Linear(3, 2), batches(), lambda m, b: mean(m, b).detach(), {}, "no gradient"),
    "nan": (lambda: nn.Linear(3, 2), batches(), lambda m, b: mean(m, b) * float("nan"), {}, "first batch is nan"),
    "loss and outputs": (
        lambda: nn.Linear(3, 2),
        batches(),
        lambda m, b: (mean(m, b), m(b[0])),
        {},
        "a Tensor, not a ",
    ),
    "loss and more": (
        lambda: nn.Linear(3, 2),
        batches(),
        lambda m, b: (mean(m, b), {"a": 1}),
        {},
        "a dict, not a count",
    ),
    "negative count": (lambda: nn.Linear(3, 2), batches(), lambda m, b: (mean(m, b), -4), {}, "is -4, not a count"),
    "lazy": (lambda: nn.LazyLinear(2), batches(), mean, {}, "lazy parameters"),
    "expanded": (lambda: expanded(persistent=True), batches(), mean, {}, "tall of the module repeats its numbers"),
    "no loss": (lambda: nn.Linear(3, 2), [X], None, {}, "no scalar"),
    "no labels": (lambda: Dictionary(), [{"x": X}], None, {}, "returned no loss"),
    "sum": (lambda: nn.Linear(3, 2), batches(), nn.CrossEntropyLoss(reduction="sum"), {}, "reduction='mean'"),
    "criterion": (lambda: nn.Linear(3, 2), [{"x": X}], nn.CrossEntropyLoss(), {}, "must be a pair"),
    "no length": (lambda: nn.Linear(3, 2), Endless(), mean, {"max_steps": None}, "no known length: give max_steps"),
    "no batches": (lambda: nn.Linear(3, 2), [], mean, {}, "no batches"),
    "ends": (lambda: nn.Linear(3, 2), iter(batches()), mean, {"max_steps": 9}, "ended after 3 batches"),
    "no loader": (lambda: nn.Linear(3, 2), 3, mean, {}, "iterable of batches"),
    "unequal": (lambda: nn.Linear(3, 2), [(X, torch.ones(3))], mean, {}, "have 4 and 3 samples"),
    "no tensors": (lambda: nn.Linear(3, 2), ["text"], mean, {}, "a str without tensors"),
    "eval empty": (lambda: nn.Linear(3, 2), batches(), mean, {"evals": {"test": []}}, "set test has no batches"),
    "eval nothing": (
        lambda: nn.Linear(3, 2),
        batches(),
        mean,
        {"evals": Nothing(), "eval_batches": 3},
        "the evaluation set val has no batches: give one that has",
    ),
    "two losses": (
        lambda: nn.Linear(3, 2),
        batches(),
        lambda module, batch: (mean(module, batch), mean(module, batch)),
        {},
        "returned a pair whose second part is a Tensor, not a count: return the mean alone",
    ),
    "eval once": (lambda: nn.Linear(3, 2), batches(), mean, {"evals": iter(batches())}, "only once"),
    "optimizer": (lambda: nn.Linear(3, 2), batches(), mean, {"optimizer": "adam"}, "unknown optimizer 'adam'"),
    "muon": (lambda: nn.Conv1d(4, 2, 1), batches(), mean, {"optimizer": "muon"}, "muon updates the matrices"),
    "precision": (lambda: nn.Linear(3, 2), batches(), mean, {"precision": "fp8"}, "fp32 or bf16"),
    "empty batches": (lambda: nn.Linear(3, 2), [(X[:0], Y[:0])], mean, {}, "a batch of the loader is empty: leave out"),
    "fp16": (lambda: nn.Linear(3, 2).half(), [(X.half(), Y)], mean, {}, "weight of the module is trained in float16"),
    "a class": (lambda: nn.Linear(3, 2), batches(), nn.CrossEntropyLoss, {}, "an object of it, CrossEntropyLoss()"),
    "complex loss": (lambda: nn.Linear(3, 2), batches(), lambda m, b: mean(m, b) * 1j, {}, "the loss is a complex num"),
    "no optimizer": (lambda: nn.Linear(3, 2), batches(), mean, {"optimizer": None}, "optimizer gave a NoneType: give"),
    "device": (lambda: nn.Linear(3, 2), batches(), mean, {"device": "tpu"}, "a GPU such as cuda:1, not on 'tpu'"),
    "meta device": (lambda: nn.Linear(3, 2), batches(), mean, {"device": "meta"}, "cuda:1, not on 'meta'"),
    "many GPUs": (lambda: nn.Linear(3, 2), batches(), mean, {"device": "cuda:99"}, "there is no cuda:99: PyTor"),
    "misspelt": (lambda: nn.Linear(3, 2), batches(), mean, {"max_step": 3}, "did you mean max_steps?"),
}


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(x)}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(case: str, tmp_path: Path) -> None:
    module, loader, loss, given, sentence = CASES[case]
    given = {"max_steps": 2, "memory": AMPLE, "threads": 1, **given}
    with pytest.raises(ramlet.SettingsError) as caught:
        ramlet.fit(module(), loader, loss, out=tmp_path / "run", **given)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    if case != "ends":
        assert not (tmp_path / "run").exists()


def test_a_buffer_that_nobody_saves_may_repeat_its_numbers(tmp_path: Path) -> None:
    ramlet.fit(expanded(persistent=False), batches(), mean, out=tmp_path / "run", max_steps=2, memory=AMPLE, threads=1)
    assert "tall" not in load_file(tmp_path / "run" / "model.safetensors")


class Deep(nn.Module):
    """Much larger activations than weights."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(12)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def largest_block_loss(module: nn.Module, batch: Tensor) -> Tensor:
    found: Tensor = module(batch).square().mean()
    return found


FIT = """
import sys
import tempfile

import torch
import yaml

import ramlet
from ramlet.engines.torch.base_memory import load_torch
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import settled_memory
from test_fit_bad_input import Deep, largest_block_loss

load_torch(1)
largest_block_loss(Deep(), torch.ones(1, 8, 32)).backward()
base = resident_memory()
settled = settled_memory()
# 4 MB per tensor and sample, of which 28 are kept, or 18 with checkpointing.
batch = torch.ones(2, 32768, 32)
given, base_of_given = map(int, sys.argv[1:])
memory = given + max(0, base - base_of_given) if given else settled + 60_000_000
with tempfile.TemporaryDirectory() as folder, Meter() as meter:
    try:
        ramlet.fit(Deep(), [batch], largest_block_loss, out=folder + "/run", memory=memory, max_steps=2, threads=1)
        needed = 0
    except ramlet.BudgetError as error:
        needed = error.facts["needed"]
        assert sum(error.facts["parts"].values()) < needed
assert meter.peak <= memory, (meter.peak, memory)
print(needed, base)
"""


def test_budgets_are_kept() -> None:
    """An error whose budget works. Each in a process of its own: what one has left of the heap is not the other's.

    How many pages of torch's libraries a step makes resident differs by up to 80 MB from process to process, with what
    other processes use of them (base_memory.py): the second is given so much more.
    """

    def fit(memory: int, base: int = 0) -> tuple[int, int]:
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        command = [sys.executable, "-c", FIT, str(memory), str(base)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        needed, base = map(int, done.stdout.split())
        return needed, base

    needed, base = fit(0)
    assert needed
    assert fit(needed, base)[0] == 0


def inserted(values: Any, place: str, value: Any) -> None:
    *path, name = place.split(".")
    for each in path:
        values = values[each]
    if value is None:
        del values[name]
    else:
        values[name] = value


@pytest.mark.parametrize(
    ("place", "value"), [("data.batches", -4), ("data.batches", float("inf")), ("data.samples", -1)]
)
def test_a_damaged_position(place: str, value: float, tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_steps": 4, "memory": AMPLE, "threads": 1, "out": tmp_path / "run"}
    with pytest.raises(ramlet.Interrupted):
        ramlet.fit(nn.Linear(3, 2), batches(), mean, listener=StopAt(2), **given)
    file = tmp_path / "run" / "checkpoints" / "step_000002" / "state.json"
    state = json.loads(file.read_text())
    inserted(state, place, value)
    write_state(file, state)
    with pytest.raises(ramlet.ModelError, match=r"state.json is damaged \(data is invalid\)"):
        ramlet.fit(nn.Linear(3, 2), batches(), mean, **given)


@pytest.mark.parametrize(("place", "value"), [("plan.optimizer", None), ("plan.optimizer", 3), ("plan.measured", None)])
@pytest.mark.parametrize("steps", [2, 4])
def test_a_damaged_plan(place: str, value: Any, steps: int, tmp_path: Path) -> None:
    """Of a run that was stopped, and of one that is done."""
    given: dict[str, Any] = {"max_steps": 4, "memory": AMPLE, "threads": 1, "out": tmp_path / "run"}
    with contextlib.suppress(ramlet.Interrupted):
        ramlet.fit(nn.Linear(3, 2), batches(), mean, listener=StopAt(steps), **given)
    file = tmp_path / "run" / "settings.yaml"
    noted = yaml.safe_load(file.read_text())
    inserted(noted, place, value)
    file.write_text(yaml.safe_dump(noted))
    with pytest.raises(ramlet.RamletError, match=r"settings.yaml is damaged"):
        ramlet.fit(nn.Linear(3, 2), batches(), mean, **given)
