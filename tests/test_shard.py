"""Ranks that divide a model among them: the bits of ranks that do not, the memory that is predicted, the same files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles_training import ranks
from oracles_training_memory import highest
from ramlet.engines.plan import SHARDS, Choice, Plan, Task
from ramlet.engines.torch.division import Range, can_divide, groups_of, most_ranks, owners_of
from ramlet.engines.torch.exchange import Sharding
from ramlet.engines.torch.optim import needs_whole_matrices
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.predict import state_bytes, work_bytes
from ramlet.engines.torch.ranks import TorchRanks, joined
from ramlet.engines.torch.sizes import layer_starts
from ramlet.engines.torch.step import Trainee
from ramlet.errors import BudgetError, SettingsError
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import read_header, read_tensors_into, send_tensors, write_tensors
from ramlet.runtime.budget import Budget
from ramlet.training.settings import RunSettings

TIED = Shape(131, 48, 3, 32, 4, kv_heads=2, feed_forward=80, qk_norm=True)
UNTIED = Shape(131, 48, 3, 32, 4, feed_forward=80, tied=False)
ONE_LAYER = Shape(300, 48, 1, 32, 4, feed_forward=80)
SHAPES = {"tied": TIED, "untied": UNTIED, "one layer": ONE_LAYER}
KINDS = [
    ("adamw", "fp32", "fp32"),
    ("adamw", "fp32", "bf16"),
    ("adamw8bit", "fp32", "fp32"),
    ("adamw8bit", "bf16", "bf16"),
    ("muon", "fp32", "fp32"),
    ("muon8bit", "fp32", "bf16"),
    ("muon8bit", "bf16", "bf16"),
]
DIVIDED = SHARDS[1:]


# What belongs to whom.


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("whole_matrices", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_everything_has_one_owner(name: str, whole_matrices: bool, world: int) -> None:
    shape = SHAPES[name]
    owners = owners_of(shape, whole_matrices=whole_matrices, world=world)
    for group, whole in groups_of(shape, whole_matrices).items():
        ranges = [owned[group] for owned in owners]
        assert (ranges[0].start, ranges[-1].end) == (whole.start, whole.end)
        assert all(one.end == other.start for one, other in pairwise(ranges))
        starts = layer_starts(shape) if group == "hidden" else range(0, whole.end, 256)
        assert {each.start for each in ranges if each.size} <= set(starts)
    sharding = Sharding("weights", owners, TorchRanks(0, world))
    some = Range(100, 5000)
    pieces = sharding.pieces(some)
    assert [each for rank, piece in pieces for each in range(*piece)] == list(range(*some))


def test_shares_are_about_equal() -> None:
    shape = Shape(50_304, 1024, 12, 768, 12, feed_forward=2048)
    for optimizer in ("adamw", "muon"):
        owners = owners_of(shape, whole_matrices=needs_whole_matrices(optimizer), world=4)
        sizes = [sum(each.size for each in owned.values()) for owned in owners]
        assert max(sizes) <= 1.001 * sum(sizes) / 4


def test_too_many_ranks() -> None:
    assert can_divide(ONE_LAYER, whole_matrices=False, world=40)
    assert not can_divide(ONE_LAYER, whole_matrices=True, world=5)
    most = most_ranks(ONE_LAYER, whole_matrices=True, world=1000)
    assert can_divide(ONE_LAYER, whole_matrices=True, world=most)
    with pytest.raises(SettingsError, match=f"over 9 ranks with muon, only over up to {most}"):
        made(ONE_LAYER, world=9, optimizer="muon", shard="states")
    # Where nobody asked for it, such a model is just not divided.
    assert made(ONE_LAYER, world=9, optimizer="muon").choice.shard == "none"


# The same numbers.


def learned(shape: Shape, choice: Choice, among: TorchRanks) -> Trainee:
    """After two steps."""
    trainee = Trainee(shape, choice, RunSettings(), device="cpu", ranks=among)
    trainee.reset(3)
    for step in range(2):
        draw = torch.Generator().manual_seed(10 * step + among.rank)
        ids = torch.randint(0, shape.vocab_size, (2, 33), generator=draw)
        # In the second step one rank has nothing.
        batch = {"input_ids": ids[:, :-1], "targets": ids[:, 1:], "samples": range(2)}
        if step and among.rank:
            batch = {name: value[:0] for name, value in batch.items()}
        trainee.learn(batch, 1 / 64)
        # Without clipping: the norm of gradients that are divided is summed in another order.
        assert float(trainee.update(1e-2, 0.0)) > 0
    return trainee


def saved(trainee: Trainee, folder: Path, name: str) -> tuple[bytes, bytes]:
    """The files, written by the first rank; on others nothing."""
    found = []
    for kind, tensors in (("weights", trainee.weights()), ("states", trainee.states())):
        if trainee.ranks.first:
            write_tensors(folder / f"{name}-{kind}", tensors)
            found.append((folder / f"{name}-{kind}").read_bytes())
        else:
            send_tensors(tensors)
            found.append(b"")
    trainee.ranks.wait()
    return found[0], found[1]


def same_bits(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as among:
        for shape in (TIED, UNTIED, ONE_LAYER):
            for optimizer, weights, compute in KINDS:
                choice = Choice(2, 64, optimizer == "muon", optimizer, weights, compute)
                wanted = saved(learned(shape, choice, among), folder, "whole")
                for shard in DIVIDED:
                    trainee = learned(shape, choice.with_(shard=shard), among)
                    assert saved(trainee, folder, shard) == wanted, (shape, choice, shard)


def test_the_bits_of_ranks_that_divide_nothing(tmp_path: Path) -> None:
    """Weights, states and their files; with two ranks, whose sums have only one order."""
    assert ranks(2, same_bits, tmp_path) == [0, 0]


def read_again(folder: Path, choice: Choice) -> None:
    """What one rank has saved is read and saved again, at every level."""
    torch.set_num_threads(1)
    with joined("cpu") as among:
        for shape in (TIED, UNTIED):
            alone = TorchRanks() if among.first else None
            if alone is not None:
                saved(learned(shape, choice, alone), folder, "alone")
            among.wait()
            for shard in DIVIDED:
                trainee = Trainee(shape, choice.with_(shard=shard), RunSettings(), device="cpu", ranks=among)
                trainee.prepare_states()
                read_tensors_into(folder / "alone-weights", trainee.weights())
                read_tensors_into(folder / "alone-states", trainee.states())
                trainee.restored({"loss_scale": 1.0, "good_steps": 0})
                saved(trainee, folder, shard)
                for kind in ("weights", "states"):
                    files = [(folder / f"{name}-{kind}").read_bytes() for name in ("alone", shard)]
                    assert files[0] == files[1], (shape, shard, kind)
                losses = trainee.model.token_losses(
                    {name: torch.arange(32).view(1, 32) for name in ("input_ids", "targets")}
                )
                assert min(losses[0]) > 0


@pytest.mark.parametrize(("optimizer", "weights"), [("adamw8bit", "bf16"), ("muon", "fp32")])
def test_files_are_those_of_one_rank(tmp_path: Path, optimizer: str, weights: str) -> None:
    choice = Choice(2, 64, optimizer=optimizer, weights=weights, compute=weights)
    assert ranks(3, read_again, tmp_path, choice) == [0] * 3
    assert (
        read_header(tmp_path / "weights-weights").tensors.keys()
        == read_header(tmp_path / "alone-weights").tensors.keys()
    )


# Memory.


def silent(shape: Shape, choice: Choice, rank: int, world: int = 2) -> Trainee:
    """One rank of several, which sends nothing."""
    return Trainee(shape, choice, RunSettings(), device="cpu", ranks=TorchRanks(rank, world, silent=True))


def tensor_bytes(*tensors: torch.Tensor) -> int:
    """Of their memory, each once."""
    found = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(found.values())


@pytest.mark.parametrize("shard", DIVIDED)
@pytest.mark.parametrize("name", SHAPES)
def test_states_are_exact(name: str, shard: str) -> None:
    shape = SHAPES[name]
    for optimizer, weights, compute in KINDS:
        choice = Choice(1, 32, False, optimizer, weights, compute, shard=shard)
        for rank in range(2):
            trainee = silent(shape, choice, rank)
            trainee.prepare_states()
            stored = trainee.model.weights
            predicted = state_bytes(shape, choice, world=2, rank=rank)
            masters = [stored.matrices, stored.gains, stored.compute]
            assert predicted["weights"] == tensor_bytes(*masters, *(each.compute for each in stored))
            grads = [*stored.gradients(), *(each.grad for each in stored if each.grad is not None)]
            assert predicted["gradients"] == tensor_bytes(*grads)
            states = {name: each for name, each in trainee.optimizer_tensors().items() if not name.endswith(".step")}
            assert predicted["optimizer"] == tensor_bytes(*states.values())
        most = state_bytes(shape, choice, world=2)
        assert sum(most.values()) == max(sum(state_bytes(shape, choice, world=2, rank=r).values()) for r in range(2))


@pytest.mark.parametrize("shard", DIVIDED)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_needs_no_more_than_before(shard: str, recompute: bool) -> None:
    """Buffers are allocated once: a micro-batch needs what it needs without them."""
    torch.set_num_threads(1)
    for shape in (TIED, UNTIED):
        choice = Choice(2, 32, recompute, shard=shard, reuse=False)
        trainee = silent(shape, choice, 0)
        trainee.reset(1)
        ids = torch.zeros(2, 48, dtype=torch.int64)
        batch = {"input_ids": ids, "targets": ids}
        trainee.learn(batch, 1.0)
        taken = highest(lambda trainee=trainee, batch=batch: trainee.learn(batch, 1.0))
        assert taken == pytest.approx(work_bytes(shape, choice, seq_len=48, device="cpu"), abs=4 * 32 + 8192)


# Plans.

LARGE = Shape(4096, 128, 24, 256, 4)


def made(shape: Shape = LARGE, *, world: int = 4, budget: int = 10**9, **forced: Any) -> Plan:
    return make_plan(Task(shape, min(64, shape.context), 8, Budget(budget), forced=forced), world=world)


def test_what_costs_least_is_divided_first() -> None:
    """From a budget in which everything fits to the smallest: each level in turn, and nothing that changes results."""
    with pytest.raises(BudgetError, match="on each of 4 ranks") as refused:
        made(budget=10**6)
    seen, budget, least = [], 10**9, refused.value.facts["needed"]
    while budget >= least:
        plan = made(budget=budget)
        assert plan.peak <= budget
        if plan.choice.optimizer == "adamw":
            seen.append(plan.choice.shard)
        budget = plan.peak - 1_000_000
    assert made(budget=least).choice.shard == "weights"
    assert sorted(set(seen), key=seen.index) == list(SHARDS)
    assert seen == sorted(seen, key=SHARDS.index)


def test_more_ranks_need_less() -> None:
    peaks = [made(world=world, shard="weights", optimizer="adamw").peak for world in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)
    assert made(world=1) == make_plan(Task(LARGE, 64, 8, Budget(10**9)))


def test_rows_name_the_shares() -> None:
    rows = {name: detail for name, _, detail in made(shard="gradients").table()}
    assert "one of 4 ranks" in rows["optimizer"]
    assert "one of 4 ranks" in rows["gradients"]
    assert "ranks" not in rows["weights"]


def test_every_rank_learns_as_often() -> None:
    """Ten sequences on four ranks, at most two at a time: 3, 3, 2 and 2 of them."""
    plan = make_plan(Task(LARGE, 64, 10, Budget(10**9), forced={"micro_batch": 2, "shard": "weights"}), world=4)
    assert (plan.calls(10), plan.calls(8), plan.calls(1)) == (2, 1, 1)
    assert made().calls(8) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"world": 1, "shard": "states"}, "start them with torchrun"),
        ({"shard": "weights", "compute": "fp8"}, "fp8 products need all weights"),
        ({"shard": "everything"}, "unknown shard"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made(**given)
