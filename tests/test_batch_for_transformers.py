"""`model(**batch)` with a real model of transformers: the loss is that of the next token, and ramlet's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from oracles_model import llama_of, model_of
from oracles_training import make_data, sentences
from ramlet.engines.torch.gpt import document_mask
from ramlet.errors import SettingsError
from ramlet.loading.batch import IGNORED, Batch
from ramlet.loading.loader import Loader
from ramlet.loading.stream_loader import StreamLoader
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

SHAPE = Shape(vocab_size=257, context=32, layers=2, width=32, heads=4, feed_forward=80)
GIVEN: dict[str, Any] = {"seq_len": 32, "batch_size": 5, "seed": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("batches"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("packed"), pack=32)


def batch_of(data: Path, way: str, **changes: Any) -> Batch:
    if way == "stream":
        text = data.parent / "stream.txt"
        text.write_text(sentences(60))
        tokenizer = Tokenizer.load(data / "tokenizer.json")
        return next(iter(StreamLoader(text, tokenizer=tokenizer, documents="line", **GIVEN, **changes)))
    return next(iter(Loader(data, **GIVEN, **changes)))


@pytest.fixture(params=["dataset", "packed", "stream"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(way: str, data: Path, packed: Path) -> Path:
    return packed if way == "packed" else data


@pytest.fixture(params=["eager", "sdpa"])
def llama(request: pytest.FixtureRequest) -> Any:
    made = llama_of(model_of(SHAPE))
    made.set_attn_implementation(request.param)
    return made


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_a_model_that_shifts_is_that_of_the_next_token(
    source: Path, way: str, llama: Any, masked: bool
) -> None:
    batch = batch_of(source, way, as_torch=True, document_mask=masked)
    given = model_of(SHAPE)
    mine = given.losses(
        batch.input_ids, batch.targets, positions=batch.position_ids, mask=document_mask(batch.document_ids)
    ).view(batch.targets.shape)
    with torch.no_grad():
        answer = llama(**batch)
        logits = llama(**{**batch, "labels": None}).logits
    wanted = batch.targets.clone()
    wanted[:, -1] = IGNORED  # the token after the window is no label
    by_hand = cross_entropy(logits.view(-1, SHAPE.vocab_size), wanted.view(-1))
    counted = wanted >= 0
    assert counted.sum() > 80
    torch.testing.assert_close(answer.loss, by_hand)
    torch.testing.assert_close(answer.loss, mine[counted].mean(), atol=2e-5, rtol=1e-5)


def test_with_shift_labels_no_token_is_lost(data: Path, llama: Any) -> None:
    batch = batch_of(data, "dataset", as_torch=True)
    with torch.no_grad():
        answer = llama(**batch, shift_labels=batch.targets)
    mine = model_of(SHAPE).losses(batch.input_ids, batch.targets)
    torch.testing.assert_close(answer.loss, mine.mean(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("as_torch", [False, True])
def test_labels_are_the_inputs_and_targets_what_follows(source: Path, way: str, as_torch: bool) -> None:
    batch = batch_of(source, way, as_torch=as_torch, document_mask=True)
    inputs, labels, targets = (np.asarray(batch[name]) for name in ("input_ids", "labels", "targets"))
    assert np.array_equal(labels[:, 0], inputs[:, 0])
    assert np.array_equal(labels[:, 1:], targets[:, :-1])
    kept = labels != IGNORED
    assert kept.any()
    assert not kept.all()
    assert np.array_equal(labels[kept], inputs[kept])
    assert batch.labels is batch["labels"]  # so that what a user writes into them stays


def test_it_is_a_mapping_of_what_a_model_takes(data: Path) -> None:
    batch = batch_of(data, "dataset", as_torch=True, document_mask=True)
    assert isinstance(batch, Mapping)
    assert [name for name, _ in batch.items()] == list(batch) == ["input_ids", "labels", "position_ids", "use_cache"]
    assert len(batch) == 4
    assert not batch["use_cache"]
    plain = batch_of(data, "dataset")
    assert list(plain) == ["input_ids", "labels"]
    assert len(plain) == 2
    assert {name: value.shape for name, value in plain.items()} == {"input_ids": (5, 32), "labels": (5, 32)}
    assert plain["targets"] is plain.targets
    assert plain.get("position_ids") is None
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert torch.equal(again.labels, batch.labels)


def test_it_moves_to_a_device(data: Path) -> None:
    batch = batch_of(data, "dataset", as_torch=True, document_mask=True)
    batch.labels[0, 5] = IGNORED
    moved = batch.to("meta")
    assert {value.device.type for value in moved.values()} == {"meta"}
    assert batch.to("cpu").labels[0, 5] == IGNORED
    assert moved.step_sequences == batch.step_sequences
    with pytest.raises(SettingsError, match="as_torch=True"):
        batch_of(data, "dataset").to("cpu")
