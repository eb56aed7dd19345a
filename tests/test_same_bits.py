"""On a CPU a step's result follows from the model, the data and the settings: not from how memory divides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from ramlet.engines.order import even_parts, group_rows, head_chunk, unit_rows
from ramlet.engines.plan import Choice, Task
from ramlet.engines.torch.base_memory import keep_large_blocks
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.sizes import BYTES
from ramlet.engines.torch.step import Trainee
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget
from ramlet.training.settings import RunSettings

SEQ_LEN = 48
ROWS = 50
"""Units of 5 sequences, groups of 40, and a last one that is neither whole."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    keep_large_blocks(False)


def shape(**changes: Any) -> Shape:
    given = {"vocab_size": 300, "width": 48, "layers": 2, "heads": 4, "kv_heads": 2, "feed_forward": 96, "context": 64}
    return Shape(**{**given, **changes})


def choices(model: Shape, rows: int = ROWS, seq_len: int = SEQ_LEN, **forced: Any) -> list[Choice]:
    """All that budgets from plenty down to the least lead to."""
    found: list[Choice] = []
    budget = 10**9
    while True:
        try:
            made = make_plan(Task(model, seq_len, rows, Budget(budget), forced["compute"], forced=forced))
        except ValueError:
            return found
        if made.choice not in found:
            found.append(made.choice)
        budget = made.peak * 32 // 31 - 1000


def learned(model: Shape, choice: Choice, threads: int, *, steps: int = 2) -> dict[str, Tensor]:
    """Weights, states and losses after some steps that are divided as the choice says."""
    torch.set_num_threads(threads)
    trainee = Trainee(model, choice, RunSettings(), device="cpu")
    trainee.reset(seed=3)
    generator = torch.Generator().manual_seed(1)
    left: dict[str, Tensor] = {}
    for step in range(steps):
        ids = torch.randint(0, model.vocab_size, (ROWS, SEQ_LEN + 1), generator=generator)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, ROWS, choice.micro_batch):
            some = ids[start : start + choice.micro_batch]
            total += trainee.learn({"input_ids": some[:, :-1], "targets": some[:, 1:]}, 1 / (ROWS * SEQ_LEN))
        left[f"loss {step}"], left[f"length {step}"] = total, trainee.update(1e-3, 0.5)
    weights = {weight.name: weight.master.clone() for weight in trainee.model.weights}
    states = {name: value.clone() for name, value in trainee.optimizer_tensors().items()}
    return {**left, **weights, **states}


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("compute", "weights", "optimizer"),
    [
        ("fp32", "fp32", "adamw"),
        ("bf16", "fp32", "adamw8bit"),
        ("bf16", "bf16", "adamw8bit"),
        ("fp32", "fp32", "muon"),
        ("bf16", "fp32", "muon"),
        ("fp32", "fp32", "muon8bit"),
        ("bf16", "bf16", "muon8bit"),
    ],
)
def test_every_plan_gives_the_same_bits(compute: str, weights: str, optimizer: str, tied: bool) -> None:
    model = shape(tied=tied)
    found = choices(model, compute=compute, weights=weights, optimizer=optimizer)
    assert {choice.micro_batch for choice in found} == {40, 20, 10, 5}
    assert {choice.recompute for choice in found} == {True, False}
    wanted = learned(model, found[0], threads=1)
    assert wanted["loss 0"] != wanted["loss 1"]
    for number, choice in enumerate(found):
        threads = (2, 1, 3)[number % 3]
        assert differences(wanted, learned(model, choice, threads)) == [], (choice, threads)


def test_a_micro_batch_that_no_plan_has_is_told() -> None:
    model = shape()
    plan = make_plan(Task(model, SEQ_LEN, ROWS, Budget(10**9), forced={"micro_batch": 7}))
    assert "micro-batches of 7" in plan.notes[0]
    for rows in (5, 20, 40, 50, 60):
        plan = make_plan(Task(model, SEQ_LEN, ROWS, Budget(10**9), forced={"micro_batch": rows}))
        assert plan.notes == ()


def test_what_is_held_back_is_part_of_the_prediction() -> None:
    def plan(**forced: Any) -> Any:
        return make_plan(Task(shape(), SEQ_LEN, ROWS, Budget(10**9), forced=forced))

    assert plan().choice.held == 0, "a whole group at once holds nothing back"
    small = plan(micro_batch=5)
    assert small.choice.held == 40 * SEQ_LEN
    trainee = Trainee(shape(), small.choice, RunSettings(), device="cpu")
    assert trainee.model._held is not None
    held = sum(value.nbytes for value in vars(trainee.model._held).values() if isinstance(value, Tensor))
    assert small.parts["gradients"] == plan().parts["gradients"] + held
    assert held == small.choice.held * (48 * BYTES["fp32"] + 8)


def test_a_plan_from_before_has_nothing_held() -> None:
    old = {name: value for name, value in asdict(Choice(4, 64)).items() if name != "held"}
    assert Choice(**old).held == 0


@pytest.mark.parametrize("seq_len", [1, 2, 31, 32, 33, 85, 100, 255, 256, 257, 300, 511, 512, 1000, 1024, 2048, 5000])
def test_units_and_groups(seq_len: int) -> None:
    unit, group = unit_rows(seq_len), group_rows(seq_len)
    assert unit == 1 or unit * seq_len <= 256
    assert group in [unit << doubled for doubled in range(12)]
    assert group == unit or group * seq_len <= 2048
    assert 2 * group * seq_len > 2048
    for width in (16, 64, 200, 768):
        chunk = head_chunk(seq_len, width)
        parts = list(even_parts(3 * unit * seq_len + 7, unit * seq_len, chunk))
        assert max(part.stop - part.start for part in parts) == chunk <= 256
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert {first * unit * seq_len for first in range(4)} <= {part.start for part in parts}
