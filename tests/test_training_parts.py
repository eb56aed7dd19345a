"""The parts of the trainer, each against a slow and obvious version: schedule, settings, step, evaluation, journal."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ramlet
from oracles_model import SMALL as SHAPE
from oracles_model import model_of, some_ids
from oracles_training import make_data, slow_loss, stored_ids
from ramlet.engines import OPTIMIZERS
from ramlet.engines.plan import Choice
from ramlet.engines.torch.gpt import document_mask
from ramlet.engines.torch.step import Trainee
from ramlet.errors import SettingsError
from ramlet.loading.loader import Loader
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.evaluate import EVAL_SEED, EvalSet, byte_lengths, evaluate_model
from ramlet.training.journal import Journal
from ramlet.training.recipe import default_rate
from ramlet.training.schedule import Schedule
from ramlet.training.settings import RunSettings

torch.set_num_threads(1)


# -- the schedule


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_schedules(kind: str, warmup: int) -> None:
    rate = Schedule(peak=2.0, floor=0.5, warmup=warmup, steps=110, kind=kind)
    rates = [rate(step) for step in range(111)]
    assert rates[:warmup] == pytest.approx([2.0 * (step + 1) / warmup for step in range(warmup)])
    assert rates[warmup] == 2.0
    falling = rates[warmup:]
    assert falling == sorted(falling, reverse=True)
    if kind == "constant":
        assert set(falling) == {2.0}
        return
    assert rates[-1] == pytest.approx(0.5)
    assert rate(500) == pytest.approx(0.5)
    for step in range(warmup, 111):
        part = (step - warmup) / (110 - warmup)
        height = {"linear": 1 - part, "cosine": (1 + math.cos(math.pi * part)) / 2}[kind]
        assert rates[step] == pytest.approx(0.5 + 1.5 * height)


def test_a_warm_up_longer_than_the_run_never_reaches_its_rate() -> None:
    rate = Schedule(peak=1.0, floor=0.1, warmup=100, steps=10, kind="cosine")
    assert [rate(step) for step in (0, 9)] == pytest.approx([0.01, 0.1])


def test_default_rates_fall_with_size() -> None:
    for optimizer, most in (("adamw", 2.5e-3), ("muon", 1e-2)):
        rates = [default_rate(parameters, optimizer) for parameters in (1_000, 10**5, 124 * 10**6, 10**9, 10**13)]
        assert rates == sorted(rates, reverse=True)
        assert rates[:2] == [most, most]
    # GPT-3's own.
    for parameters, rate in ((125e6, 6e-4), (1.3e9, 2e-4), (6.7e9, 1.2e-4), (13e9, 1e-4)):
        assert default_rate(int(parameters), "adamw") == pytest.approx(rate, rel=0.25)
    # Measured.
    for parameters, rate in ((10**6, 9e-3), (10**7, 6e-3), (124 * 10**6, 4e-3)):
        assert default_rate(parameters, "muon") == pytest.approx(rate, rel=0.05)


# -- settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"precision": "fp4"}, "precision must be one of auto, fp8, bf16, fp16, fp32, not 'fp4'"),
        ({"optimizer": "sgd"}, "optimizer must be one of auto, adamw, adamw8bit, muon, muon8bit, not 'sgd'"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"device": "npu"}, "device must be one of auto, cpu, cuda, tpu"),
        ({"weights": "fp16"}, "weights must be one of"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"seq_len": -3}, "seq_len must be at least 1, not -3"),
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"lr": float("nan")}, "lr must be at least 0"),
        ({"clip": float("inf")}, "clip must be at least 0"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and below 1"),
        ({"val_fraction": 1.0}, "val_fraction must be at least 0 and below 1"),
        ({"epochs": 0}, "epochs must be above 0"),
        ({"epochs": 1e308}, "epochs must be above 0 and at most 1e+09, not 1e+308"),
        ({"kv_groups": 10**7}, "kv_groups must be between 1 and 1,024, not 10000000"),
        ({"micro_batch": 2**31}, "micro_batch must be between 1 and 1,048,576, not 2147483648"),
        ({"max_steps": 5, "epochs": 2}, "max_steps and epochs both say when to stop: give only one"),
        ({"params": 5000, "config": "a.yaml"}, "params and config both set the model's size"),
        ({"tokens_per_step": 512, "gradient_accumulation_steps": 2}, "is already the size of a step"),
        ({"weights": "bf16", "optimizer": "adamw"}, 'needs optimizer="adamw8bit"'),
        ({"weights": "bf16", "optimizer": "muon"}, 'needs optimizer="muon8bit"'),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RunSettings(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("param", "did you mean params?"),
        ("memmory", "did you mean memory?"),
        ("zzz", "choose from average, batch_size"),
    ],
)
def test_a_setting_that_there_is_not(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"unknown setting {name!r}: {hint}")):
        ramlet.train("data", tmp_path / "run", **{name: "1M"})
    assert list(tmp_path.iterdir()) == []


def test_what_decides_and_what_does_not() -> None:
    one, other = RunSettings(seed=1), RunSettings(seed=1, keep=9, log_every=3, micro_batch=2, tensorboard=True)
    assert one.decisive() == other.decisive()
    assert one.decisive() != RunSettings(seed=2).decisive()
    assert RunSettings.from_dict({**one.decisive(), "no_such": 1}) == one


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        ({"batch_size": 7}, 7),
        ({"batch_size": 7, "gradient_accumulation_steps": 3}, 21),
        ({"tokens_per_step": 1000}, 8),
        ({"tokens_per_step": 1}, 1),
    ],
)
def test_how_large_a_step_is(given: dict[str, Any], sequences: int) -> None:
    assert RunSettings(**given).step_sequences(128) == sequences


# -- a step


def trainee(**changes: Any) -> Trainee:
    names = {"optimizer", "micro_batch", "chunk", "recompute", "weights", "compute"}
    chosen = {"micro_batch": 4, "chunk": 50, **{name: changes.pop(name) for name in names & set(changes)}}
    made = Trainee(SHAPE, Choice(**chosen), RunSettings(**changes), device="cpu")
    made.reset(seed=3)
    return made


def batch(rows: int, seed: int = 3, ignored: int = 0) -> dict[str, torch.Tensor]:
    ids = some_ids(SHAPE, rows, SHAPE.context + 1, seed=seed)
    targets = ids[:, 1:].clone()
    targets[:, :ignored] = -100
    return {"input_ids": ids[:, :-1].contiguous(), "targets": targets}


@pytest.mark.parametrize("micro_batch", [1, 3, 5])
@pytest.mark.parametrize("recompute", [False, True])
def test_accumulating_is_one_large_batch(micro_batch: int, recompute: bool) -> None:
    """12 sequences at once, or in parts with the last one smaller: the same gradients, losses and weights."""
    whole, parts = trainee(), trainee(recompute=recompute)
    everything = batch(12)
    scale = 1.0 / everything["targets"].numel()
    loss = float(whole.learn(everything, scale))
    summed = 0.0
    for start in range(0, 12, micro_batch):
        part = {name: value[start : start + micro_batch] for name, value in everything.items()}
        summed += float(parts.learn(part, scale))
    assert summed == pytest.approx(loss, rel=1e-6)
    for mine, theirs in zip(parts.model.weights.flat, whole.model.weights.flat):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-8)
    assert float(whole.update(1e-3, 1.0)) == pytest.approx(float(parts.update(1e-3, 1.0)), rel=1e-5)
    for mine, theirs in zip(parts.model.weights.flat, whole.model.weights.flat):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6)
        assert mine.grad is not None
        assert not mine.grad.any()


def test_labels_left_out_are_no_part_of_the_mean() -> None:
    """A step is scaled as if every token counted, and corrected when it is known how many did."""
    assumed, exact = trainee(), trainee()
    given = batch(4, ignored=30)
    counted = int((given["targets"] >= 0).sum())
    assert counted == 4 * (SHAPE.context - 30)
    assumed.learn(given, 1.0 / given["targets"].numel())
    exact.learn(given, 1.0 / counted)
    lengths = [
        float(assumed.update(1e-3, 1.0, given["targets"].numel() / counted)),
        float(exact.update(1e-3, 1.0)),
    ]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-5)
    torch.testing.assert_close(assumed.model.weights.matrices, exact.model.weights.matrices, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("clip", [0.0, 0.05, 1000.0])
def test_adamw_is_torchs_own(clip: float) -> None:
    """On the same gradients, with the same clipping; norms do not decay, matrices do."""
    ours = trainee(weight_decay=0.3, beta1=0.8, beta2=0.9, eps=1e-6)
    wanted = {weight.name: weight.master.clone().requires_grad_() for weight in ours.model.weights}
    theirs = torch.optim.AdamW(
        [
            {"params": [value for value in wanted.values() if value.dim() == 2], "weight_decay": 0.3},
            {"params": [value for value in wanted.values() if value.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
    )
    for step in range(4):
        given = batch(4, seed=step)
        ours.learn(given, 1.0 / given["targets"].numel())
        for weight in ours.model.weights:
            assert weight.grad is not None
            wanted[weight.name].grad = weight.grad.clone()
        length = torch.nn.utils.clip_grad_norm_(list(wanted.values()), clip or 1e9)
        rate = 1e-2 * (step + 1)
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
        assert float(ours.update(rate, clip)) == pytest.approx(float(length), rel=1e-5)
        for weight in ours.model.weights:
            torch.testing.assert_close(weight.master, wanted[weight.name].detach(), rtol=1e-5, atol=1e-6)


def test_only_matrices_decay() -> None:
    made = trainee(weight_decay=0.5)
    matrices, gains = (flat.clone() for flat in made.model.weights.flat)
    made.update(0.1, 1.0)  # with no gradient at all, what changes is decay
    torch.testing.assert_close(made.model.weights.matrices, matrices * (1 - 0.1 * 0.5))
    assert torch.equal(made.model.weights.gains, gains)


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    made = trainee()
    before = made.model.weights.matrices.clone()
    grad = made.model.weights.matrices.grad
    assert grad is not None
    grad[7] = float("nan")
    assert math.isnan(float(made.update(1e-3, 1.0)))
    assert torch.equal(made.model.weights.matrices, before)
    assert not grad.any()


def test_a_rank_that_has_nothing_to_learn_takes_part() -> None:
    made = trainee()
    nothing = {name: value[:0] for name, value in batch(1).items()}
    assert float(made.learn(nothing, 1.0)) == 0.0
    assert not any(flat.grad.any() for flat in made.model.weights.flat if flat.grad is not None)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_are_made_without_a_step(optimizer: str) -> None:
    made = trainee(optimizer=optimizer)
    before = made.model.weights.matrices.clone()
    made.prepare_states()
    assert torch.equal(made.model.weights.matrices, before)
    prepared = {name: tuple(value.shape) for name, value in made.optimizer_tensors().items()}
    stepped = trainee(optimizer=optimizer)
    stepped.learn(batch(2), 0.01)
    stepped.update(1e-3, 1.0)
    assert prepared == {name: tuple(value.shape) for name, value in stepped.optimizer_tensors().items()}


# -- documents


def test_document_masks() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    mask = document_mask(documents)
    assert mask is not None
    for row in range(2):
        for place in range(6):
            for other in range(6):
                same = bool(documents[row, place] == documents[row, other])
                assert bool(mask[row, 0, place, other]) == (other <= place and same)
    assert document_mask(None) is None


def test_documents_in_a_row_are_documents_alone() -> None:
    """Under the mask, and with positions reset, a row of three documents loses what the three lose alone."""
    model = model_of(SHAPE)
    ids = some_ids(SHAPE, 1, 30)
    ends = [0, 11, 12, 30]
    documents = torch.zeros(1, 30, dtype=torch.int64)
    positions = torch.zeros(1, 30, dtype=torch.int64)
    for number, (start, end) in enumerate(pairwise(ends)):
        documents[0, start:end] = number
        positions[0, start:end] = torch.arange(end - start)
    labels = torch.roll(ids, -1, 1)
    together = model.losses(ids, labels, positions=positions, mask=document_mask(documents))
    alone = torch.cat([model.losses(ids[:, a:b], labels[:, a:b]) for a, b in pairwise(ends)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


# -- evaluation


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("parts"), lines=200, val_fraction=0.2)


def eval_set(data: Path, **changes: Any) -> EvalSet:
    given = {"name": "val", "data": data, "split": "val", "seq_len": 24, "micro_batch": 4, "tokens": 10**6}
    return EvalSet(**{**given, "lengths": byte_lengths(Tokenizer.load(data / "tokenizer.json")), **changes})


def byte_model() -> Any:
    from dataclasses import replace

    return model_of(replace(SHAPE, vocab_size=257))


def test_a_score_is_that_of_the_slow_way(data: Path) -> None:
    model, ids = byte_model(), stored_ids(data, "val")
    rows = [ids[start : start + 25] for start in range(0, len(ids) - 24, 24)]
    total, count = slow_loss(model, rows)
    score = evaluate_model(model, eval_set(data))
    assert score.tokens == count
    assert score.loss == pytest.approx(total / count, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(total / count), rel=1e-4)
    # Each token but the end of a document, 256, is one byte.
    size = sum(label != 256 for row in rows for label in row[1:])
    assert score.bits_per_byte == pytest.approx(total / math.log(2) / size, rel=1e-5)
    assert set(score.to_dict()) == {"loss", "perplexity", "bits_per_byte", "tokens"}


@pytest.mark.parametrize("micro_batch", [1, 3, 7, 64])
def test_a_score_does_not_depend_on_the_micro_batch(data: Path, micro_batch: int) -> None:
    model = byte_model()
    for tokens in (10**6, 24 * 10, 100, 1):
        usual = evaluate_model(model, eval_set(data, tokens=tokens))
        other = evaluate_model(model, eval_set(data, tokens=tokens, micro_batch=micro_batch))
        assert other.tokens == usual.tokens
        assert other.loss == pytest.approx(usual.loss, rel=1e-5)
        assert usual.tokens <= max(24, tokens)


def test_part_of_a_set_is_spread_over_it(data: Path) -> None:
    """The same sequences every time: those that the loader's permutation begins with."""
    model = byte_model()
    with Loader(data, split="val", seq_len=24, batch_size=1, seed=EVAL_SEED, epochs=1) as loader:
        rows = []
        for one, _ in zip(loader, range(5)):
            rows.append([*one.input_ids[0].tolist(), int(one.targets[0, -1])])
    total, count = slow_loss(model, rows)
    score = evaluate_model(model, eval_set(data, tokens=5 * 24 + 3))
    assert (score.tokens, score.loss) == (count, pytest.approx(total / count, rel=1e-5))
    ids = stored_ids(data, "val")
    assert rows != [ids[start : start + 25] for start in range(0, 5 * 24, 24)]


def test_byte_lengths_are_those_of_the_text(tmp_path: Path) -> None:
    text = "ein süßer Käse, 日本 and more of the same and more of the same"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train([tmp_path / "text.txt"], vocab_size=300, special_tokens=["<|endoftext|>"], memory="8GB")
    lengths = byte_lengths(tokenizer)
    assert lengths is not None
    ids = tokenizer.encode(text)
    assert int(lengths[torch.tensor(ids)].sum()) == len(text.encode())
    assert lengths[tokenizer.special_tokens["<|endoftext|>"]] == 0


# -- the journal


def test_the_journal_is_cut_back_and_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(1, loss=1.0, sample="grüße")
    place = journal.position
    journal.write(2, loss=0.5)
    journal.close()
    again = Journal(tmp_path, position=place)
    assert again.position == place
    again.write(2, loss=0.25)
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == [{"step": 1, "loss": 1.0, "sample": "grüße"}, {"step": 2, "loss": 0.25}]


def test_a_rank_that_is_not_the_first_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, writes=False, tensorboard=True)
    journal.write(1, loss=1.0)
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal = Journal(tmp_path, tensorboard=True)
    journal.write(1, loss=2.5, tokens=10)
    journal.write(2, loss=1.5, eval={"val": {"loss": 1.25, "bits_per_byte": None}})
    journal.write(2, sample="some text")
    journal.close()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(each.step, each.value) for each in read.Scalars("loss")] == [(1, 2.5), (2, 1.5)]
    assert [each.value for each in read.Scalars("eval/val/loss")] == [1.25]
    assert np.isin(["loss", "tokens", "eval/val/loss"], read.Tags()["scalars"]).all()
