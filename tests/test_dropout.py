"""Dropout: the same masks however a step is divided, computed and interrupted, and gradients that belong to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oracles_model import SHAPES, SMALL, closeness, gradients, llama_of, model_of, some_ids
from oracles_training import apart, assert_same_run, losses, make_data, run
from ramlet.engines.plan import Choice
from ramlet.engines.torch.kernels import native, plain
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.engines.torch.step import Trainee
from ramlet.errors import SettingsError
from ramlet.loading.division import Division
from ramlet.model.shape import Shape
from ramlet.training.listener import Listener
from ramlet.training.settings import RunSettings


@pytest.fixture(autouse=True)
def _threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def masks(rate: float, place: int = 0, *, sequences: int = 8, tokens: int = 64, width: int = 96) -> Tensor:
    """(sequences, tokens, width), True where elements are kept."""
    keys = torch.arange(sequences) * 7919
    kept = plain.dropout(torch.ones(sequences * tokens, width), Dropout(keys, rate, place))
    return kept.view(sequences, tokens, width) != 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_column_position_sequence_and_place_is_dropped_equally_often(rate: float) -> None:
    kept = masks(rate, sequences=32, tokens=64, width=128)
    assert kept.float().mean() == pytest.approx(1 - rate, abs=0.005)
    for dimensions in ((0, 1), (0, 2), (1, 2)):
        shares = kept.float().mean(dimensions)
        spread = (rate * (1 - rate) / (kept.numel() / len(shares))) ** 0.5
        assert (shares - (1 - rate)).abs().max() < 5 * spread


def test_masks_are_independent() -> None:
    here = masks(0.5, 3)
    others = [masks(0.5, place) for place in (0, 1, 2, 4, 5)]
    others += [here.roll(1, dimension) for dimension in range(3)]
    for other in others:
        assert (here == other).float().mean() == pytest.approx(0.5, abs=0.01)


def test_what_is_kept_is_scaled_and_a_rate_of_0_keeps_all() -> None:
    x = torch.randn(6, 40)
    assert torch.equal(plain.dropout(x, Dropout(torch.tensor([3]), 0.0)), x)
    kept = plain.dropout(x, Dropout(torch.tensor([3]), 0.75))
    assert torch.equal(kept[kept != 0], 4 * x[kept != 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("sequences", "tokens", "width"), [(1, 1, 1), (2, 3, 15), (3, 5, 16), (1, 7, 33), (2, 500, 96)]
)
def test_the_native_kernel_gives_the_same_bits(dtype: torch.dtype, sequences: int, tokens: int, width: int) -> None:
    x, branch = torch.randn(2, sequences * tokens, width).to(dtype)
    mask = Dropout(torch.arange(sequences) + 2**32 - 2, 0.3, 5)
    added = branch.clone()
    plain.dropout_add_(added, x, mask)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(native.dropout(x, mask), plain.dropout(x, mask))
        got = branch.clone()
        native.dropout_add_(got, x, mask)
        assert torch.equal(got, added)
    assert native.dropout(x[:0], mask).shape == (0, width)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_loss_and_every_gradient(shape: Shape, recompute: bool) -> None:
    """Against transformers' model, with the masks as hooks."""
    model = model_of(shape, chunk=7, recompute=recompute)
    ids, labels = some_ids(shape, 2, 20), some_ids(shape, 2, 20, seed=4)
    dropout = Dropout(torch.tensor([12, 99]), 0.2)
    llama = llama_of(model)

    def at(place: int) -> Any:
        factors = plain.dropout(torch.ones(40, shape.width), dropout._replace(place=place)).view(2, 20, -1)
        return lambda module, given, result: (
            (result[0] * factors, *result[1:]) if isinstance(result, tuple) else result * factors
        )

    llama.model.embed_tokens.register_forward_hook(at(0))
    for number, layer in enumerate(llama.model.layers):
        layer.self_attn.register_forward_hook(at(2 * number + 1))
        layer.mlp.register_forward_hook(at(2 * number + 2))
    model.weights.make_gradients()
    total = model.learn(ids, labels, 1 / labels.numel(), dropout=dropout)
    loss = cross_entropy(llama(ids).logits.view(-1, shape.vocab_size), labels.view(-1), reduction="sum")
    (loss / labels.numel()).backward()
    assert abs(total.item() / loss.item() - 1) < 1e-5
    for name, ours in gradients(model).items():
        assert closeness(ours, llama.get_parameter(name).grad) < 1e-4, name


def learned(choice: Choice, parts: list[range], threads: int = 1, seed: int = 1) -> Tensor:
    """The weights after a step over these sequences of 64 tokens."""
    torch.set_num_threads(threads)
    trainee = Trainee(SMALL64, choice, RunSettings(seed=seed), device="cpu")
    trainee.reset(seed=3)
    ids = some_ids(SMALL64, 16, 65)
    for part in parts:
        rows = ids[list(part)]
        batch = {"input_ids": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous(), "samples": part}
        trainee.learn(batch, 1 / 1024)
    trainee.update(1e-2, 1.0)
    return trainee.model.weights.matrices.clone()


SMALL64 = Shape(vocab_size=131, context=64, layers=2, width=32, heads=4, feed_forward=80)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_same_bits_however_a_step_is_divided(compute: str) -> None:
    whole = Choice(16, 32, compute=compute, dropout=0.2)
    expected = learned(whole, [range(16)])
    halves = whole.with_(micro_batch=8, held=1024)
    assert torch.equal(learned(halves, [range(8), range(8, 16)], threads=2), expected)
    quarters = halves.with_(micro_batch=4, recompute=True)
    assert torch.equal(learned(quarters, [range(at, at + 4) for at in (0, 4, 8, 12)]), expected)
    assert not torch.equal(learned(whole, [range(16)], seed=2), expected)
    assert not torch.equal(learned(whole.with_(dropout=0.0), [range(16)]), expected)


def test_ranks_know_the_numbers_of_their_sequences() -> None:
    def numbers(**division: int) -> list[list[int]]:
        pieces = Division(batch_size=6, **division).pieces(12, 24)
        return [list(piece.samples) for piece in pieces]

    assert numbers() == [list(range(12, 18)), list(range(18, 24))]
    assert numbers(rank=1, world=2, micro_batch=2) == [[13, 15], [17], [19, 21], [23]]
    of_four = [number for rank in range(4) for piece in numbers(rank=rank, world=4) for number in piece]
    assert sorted(of_four) == list(range(12, 24))


class _KilledAt(Listener):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("dropout"), lines=60)


def test_an_interrupted_run_ends_like_one_that_was_not(data: Path, tmp_path: Path) -> None:
    """Several epochs, each with sequences that are cut elsewhere, and resumed with another micro-batch."""
    settings = {"dropout": 0.2, "shift": True, "max_steps": 20, "batch_size": 16}
    run(data, tmp_path / "whole", **settings)
    assert apart(lambda: run(data, tmp_path / "cut", listener=_KilledAt(17), **settings)) == -signal.SIGKILL
    run(data, tmp_path / "cut", micro_batch=8, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    run(data, tmp_path / "plain", **{**settings, "dropout": 0.0})
    assert losses(tmp_path / "plain") != losses(tmp_path / "whole")
    assert (tmp_path / "plain/config.json").read_text() == (tmp_path / "whole/config.json").read_text()
    with pytest.raises(SettingsError, match=r"has a run with dropout 0.2, not 0.1: choose another"):
        run(data, tmp_path / "whole", **{**settings, "dropout": 0.1})


def test_without_dropout_nothing_is_asked_of_a_batch() -> None:
    assert RunSettings().dropout == 0.0
    trainee = Trainee(SMALL, Choice(2, 8), RunSettings(), device="cpu")
    trainee.reset(1)
    ids = some_ids(SMALL, 2, 9)
    trainee.learn({"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}, 1.0)


@pytest.mark.parametrize("rate", [1, 1.5, -0.1, "nan"])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(SettingsError, match="must be at least 0 and below 1, not"):
        RunSettings(dropout=rate)
