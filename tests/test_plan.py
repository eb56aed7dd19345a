"""Spending a budget: what is given up first, what never changes, and that the smallest budget named is enough."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramlet.engines.order import TORCH_ORDER
from ramlet.engines.plan import Correction, Plan, Task
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.predict import predict
from ramlet.engines.torch.probe import expected
from ramlet.errors import BudgetError, SettingsError
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.runtime.budget import Budget

TEN_MILLION = shape_for(10_000_000, vocab_size=8192, context=256)
BASE = 310_000_000


def planned(budget: int | str, **changes) -> Plan:
    given = {"threads": 2, **{name: changes.pop(name) for name in ("device", "world", "correction") if name in changes}}
    task = {"shape": TEN_MILLION, "seq_len": 256, "batch_size": 64, "precision": "bf16", "resident": BASE, **changes}
    return make_plan(Task(budget=Budget.parse(budget), **task), **given)


def smallest(**changes) -> int:
    """What the error says."""
    with pytest.raises(BudgetError) as refused:
        planned("20MB", **changes)
    return int(re.search(r"needs at least (\d+)MB", str(refused.value))[1]) * 10**6


def test_without_pressure_the_micro_batch_is_the_fastest_not_the_largest() -> None:
    plan = planned("100GB")
    assert plan.choice.micro_batch * plan.seq_len == TORCH_ORDER.group
    assert not plan.choice.recompute
    assert (plan.choice.optimizer, plan.choice.weights, plan.choice.reuse) == ("adamw", "fp32", True)
    assert plan.notes == ()


def test_what_costs_least_is_given_up_first() -> None:
    plans = [planned(budget) for budget in range(smallest(), 800_000_000, 3_000_000)]
    costs = [
        (
            plan.choice.weights == "bf16",
            plan.choice.optimizer == "adamw8bit",
            plan.choice.recompute,
            -plan.choice.micro_batch,
        )
        for plan in reversed(plans)
    ]
    assert costs == sorted(costs), "a smaller budget never pays less than a larger one"
    assert {cost[:2] for cost in costs} == {(False, False), (False, True), (True, True)}
    assert any(cost[2] for cost in costs)


def test_every_plan_fits_and_keeps_the_batch() -> None:
    for budget in range(smallest(), 800_000_000, 7_000_000):
        plan = planned(budget)
        assert plan.peak <= budget - budget // 32
        assert plan.batch_size == 64
        assert plan.choice.micro_batch * plan.accumulation >= 64 > plan.choice.micro_batch * (plan.accumulation - 1)


def test_micro_batches_are_even_on_a_gpu() -> None:
    plan = planned("100GB", batch_size=129, seq_len=256, device="cuda")
    # Sixty-four at a time would be 64, 64, 1.
    assert (plan.choice.micro_batch, plan.accumulation) == (43, 3)


def test_micro_batches_of_wide_models_have_fewer_tokens_on_a_gpu() -> None:
    def tokens(width: int) -> int:
        shape = Shape(1000, 1024, 2, width, width // 64)
        return planned("100GB", shape=shape, batch_size=64, seq_len=1024, device="cuda").choice.micro_batch * 1024

    assert [tokens(width) for width in (64, 768, 1152, 4096)] == [16384, 16384, 11264, 8192]


def test_queries_and_keys_are_kept_where_a_gpu_has_the_memory() -> None:
    """First of all savings they are normalized again; a CPU always does that."""
    shape = Shape(1000, 1024, 6, 256, 4, qk_norm=True)
    given = {"shape": shape, "batch_size": 32, "seq_len": 512, "device": "cuda"}
    plan = planned("100GB", **given)
    assert plan.choice.keeps_qk
    less = planned(f"{plan.peak}B", **given)  # without the reserve
    assert less.choice == plan.choice.with_(keeps_qk=False)
    assert plan.peak - less.peak == pytest.approx(6 * 32 * 512 * 2 * 256 * 2, rel=0.02)
    for others in ({"device": "cpu"}, {"forced": {"recompute": True}}, {"document_mask": True}, {"precision": "fp32"}):
        assert not planned("100GB", **{**given, **others}).choice.keeps_qk
    assert not planned("100GB", **{**given, "shape": Shape(1000, 1024, 6, 256, 4)}).choice.keeps_qk


def test_what_changes_results_is_said() -> None:
    plan = planned(smallest())
    assert len(plan.notes) == 2
    assert "8-bit" in plan.notes[0]
    assert "bf16" in plan.notes[1]
    asked = planned(smallest(), forced={"optimizer": "adamw8bit", "weights": "bf16"})
    assert asked.notes == ()


@pytest.mark.parametrize(
    "forced",
    [
        {"micro_batch": 3},
        {"optimizer": "adamw"},
        {"optimizer": "adamw8bit"},
        {"recompute": False},
        {"recompute": True},
        {"weights": "fp32"},
        {"chunk": 100},
        {"reuse": True},
        {"optimizer": "adamw8bit", "weights": "bf16", "compute": "fp32"},
        {"micro_batch": None, "optimizer": None},
    ],
)
def test_what_the_user_fixed_stays(forced: dict) -> None:
    for budget in (smallest(forced=forced), 10**10):
        plan = planned(budget, forced=forced)
        for name, value in forced.items():
            assert value is None or getattr(plan.choice, name) == value


def test_a_micro_batch_larger_than_the_batch_is_the_batch() -> None:
    assert planned("10GB", batch_size=2, forced={"micro_batch": 8}).choice.micro_batch == 2


@settings(max_examples=150)
@given(
    layers=st.integers(1, 12),
    heads=st.integers(1, 12),
    vocab=st.integers(64, 60_000),
    seq_len=st.integers(1, 2048),
    batch=st.integers(1, 300),
    world=st.integers(1, 5),
    compute=st.sampled_from(["fp32", "bf16"]),
    device=st.sampled_from(["cpu", "cuda"]),
    masked=st.booleans(),
    extra=st.integers(0, 1 << 32),
)
def test_the_smallest_budget_is_true(
    layers, heads, vocab, seq_len, batch, world, compute, device, masked, extra
) -> None:
    shape = Shape(vocab, 2048, layers, heads * 32, heads)
    given = {
        "shape": shape,
        "seq_len": seq_len,
        "batch_size": batch,
        "precision": compute,
        "device": device,
        "world": world,
        "document_mask": masked,
        "loader_bytes": lambda rows: rows * seq_len * 64,
    }
    least = smallest(**given)
    plan = planned(least, **given)
    assert plan.peak <= least
    # And it is no more than a little too large: two megabytes and the reserve.
    with pytest.raises(BudgetError):
        planned(int(least * 31 / 32) - 6_000_000, **given)
    assert planned(least + extra, **given).peak <= least + extra


def test_the_smallest_budget_bears_a_base_that_is_a_little_larger() -> None:
    assert planned(smallest(), resident=BASE + 1_500_000).peak <= smallest()


def test_an_error_names_the_parts_and_the_way_out() -> None:
    with pytest.raises(BudgetError, match=r"needs at least \d+MB: .* for overhead, .* for optimizer.* smaller model"):
        planned("100MB")
    with pytest.raises(BudgetError, match='or optimizer="adamw8bit"'):
        planned("100MB", forced={"optimizer": "adamw"})


def test_what_was_learned_goes_into_the_plan() -> None:
    before = planned("800MB")
    after = planned("800MB", correction=Correction(factor=2.0, extra=100_000_000))
    assert after.choice.micro_batch < before.choice.micro_batch
    assert after.peak <= 800_000_000
    assert expected(after, after.choice.micro_batch, after.correction) == pytest.approx(after.peak, abs=2)


def test_the_loader_is_counted_by_its_micro_batch() -> None:
    plan = planned("10GB", loader_bytes=lambda rows: rows * 1_000_000)
    assert plan.parts["data"] >= plan.choice.micro_batch * 1_000_000


def test_ranks_share_the_batch() -> None:
    plan = planned("10GB", batch_size=10, world=4, seq_len=64)
    assert plan.share == 3
    assert plan.choice.micro_batch == 3
    assert plan.accumulation == 1


@given(batch=st.integers(1, 40), micro_batch=st.integers(1, 12), world=st.integers(1, 5))
def test_part_sizes_are_those_that_a_rank_meets(batch: int, micro_batch: int, world: int) -> None:
    plan = planned("100GB", batch_size=batch, world=world, seq_len=8, forced={"micro_batch": micro_batch})
    for rank in range(world):
        share = len(range(batch)[rank::world])
        parts = {len(range(share)[at : at + micro_batch]) for at in range(0, share, micro_batch)}
        assert plan.part_sizes(rank) == parts


def test_a_plan_survives_json() -> None:
    plan = planned(smallest(), correction=Correction(1.1, 5))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan


def test_the_table_names_every_part_and_adds_up() -> None:
    plan = planned("1GB")
    rows = plan.table()
    assert [row[0] for row in rows][-1] == "predicted peak"
    prediction = predict(TEN_MILLION, plan.choice, seq_len=256, base=BASE, threads=2)
    assert prediction.parts == plan.parts
    assert len(rows) == len(plan.parts) + 1


@pytest.mark.parametrize("wrong", [{"seq_len": 257}, {"seq_len": 0}, {"batch_size": 0}, {"world": 0}])
def test_what_makes_no_sense_is_refused(wrong: dict) -> None:
    with pytest.raises(SettingsError):
        planned("10GB", **wrong)


def test_bf16_weights_with_adamw_are_refused() -> None:
    with pytest.raises(SettingsError, match="adamw8bit"):
        planned("10GB", forced={"optimizer": "adamw", "weights": "bf16"})


def test_blocks_are_not_kept_where_their_gaps_are_not_known() -> None:
    for budget in range(smallest(), 800_000_000, 3_000_000):
        choice = planned(budget).choice
        assert not (choice.reuse and (choice.recompute or choice.weights == "bf16"))
    assert planned("10GB", forced={"recompute": True}).choice.reuse is False
    assert planned("10GB").choice.reuse is True
