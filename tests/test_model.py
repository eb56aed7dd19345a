"""The model against transformers' Llama with the same weights: logits, losses and every gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from oracles_model import GROUPED, SHAPES, SMALL, closeness, gradients, llama_of, model_of, some_ids
from ramlet.engines.torch import gpt
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.layers import Rotary
from ramlet.engines.torch.sizes import repeats_keys
from ramlet.engines.torch.weights import ALIGNMENT, layout
from ramlet.model.shape import Shape

torch.set_num_threads(1)


def learned(model: GPT, ids: torch.Tensor, labels: torch.Tensor, **options: object) -> torch.Tensor:
    model.weights.make_gradients()
    return model.learn(ids, labels, 1 / labels.numel(), **options)  # type: ignore[arg-type]


def test_evaluation_has_one_place_for_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each chunk, those of a vocabulary of 16,384 left 40 MB of holes in the heap."""
    model = model_of(SMALL, chunk=4)
    ids, labels = some_ids(SMALL, 2, 20), some_ids(SMALL, 2, 20, seed=4)
    at_once = model_of(SMALL, chunk=4096).losses(ids, labels)
    places = []
    cross_entropy_ = model.kernels.cross_entropy_

    def noted(logits: torch.Tensor, *given: object) -> torch.Tensor:
        places.append(logits.data_ptr())
        return cross_entropy_(logits, *given)

    monkeypatch.setattr(model, "kernels", SimpleNamespace(**{**vars(model.kernels), "cross_entropy_": noted}))
    assert torch.equal(model.losses(ids, labels), at_once)
    assert len(places) == 10
    assert len(set(places)) == 1


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_loss_and_every_gradient(shape: Shape, chunk: int, recompute: bool) -> None:
    model = model_of(shape, chunk=chunk, recompute=recompute)
    ids, labels = some_ids(shape, 2, 20), some_ids(shape, 2, 20, seed=4)
    labels[0, 3:6] = -100
    total = learned(model, ids, labels)
    llama = llama_of(model)
    logits = llama(ids).logits
    loss = cross_entropy(logits.view(-1, shape.vocab_size), labels.view(-1), reduction="sum")
    (loss / labels.numel()).backward()
    assert abs(total.item() / loss.item() - 1) < 1e-5
    assert (model.logits(ids) - logits).abs().max() <= 1e-5
    for name, ours in gradients(model).items():
        assert closeness(ours, llama.get_parameter(name).grad) < 1e-4, name
    each = model.losses(ids, labels)
    assert abs(each.sum().item() / loss.item() - 1) < 1e-5
    assert each.view(2, 20)[0, 3:6].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [GROUPED, SHAPES["grouped_qk_norm"]], ids=["grouped", "grouped_qk_norm"])
def test_keys_that_are_repeated_for_a_gpu(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in fp32 on CUDA, where torch has no kernel for grouped keys that does not need all scores in memory."""
    ids, labels = some_ids(shape, 2, 20), some_ids(shape, 2, 20, seed=4)
    seen: list[bool] = []

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append(q.shape == k.shape == v.shape and "enable_gqa" not in options)
        return scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]

    plain, repeated = model_of(shape), model_of(shape)
    total = learned(plain, ids, labels)
    monkeypatch.setattr(gpt, "recomputes_qk_norm", lambda *_, **__: False)
    monkeypatch.setattr(gpt, "repeats_keys", lambda *_, **__: True)
    monkeypatch.setattr(gpt, "scaled_dot_product_attention", attention)
    assert abs(learned(repeated, ids, labels).item() / total.item() - 1) < 1e-6
    assert seen == [True] * shape.layers
    for name, ours in gradients(plain).items():
        assert closeness(gradients(repeated)[name], ours) < 1e-5, name
    assert [repeats_keys(shape, "cuda", mask, fp32=fp32) for mask in (False, True) for fp32 in (False, True)] == [
        False, True, True, True
    ]  # fmt: skip
    assert not repeats_keys(shape, "cpu", True, fp32=True)
    assert not repeats_keys(SMALL, "cuda", True, fp32=True)


def test_rows_that_fill_up_the_vocabulary_learn_nothing() -> None:
    model = model_of(SMALL)
    learned(model, some_ids(SMALL, 2, 20), some_ids(SMALL, 2, 20, seed=4))
    rows = model.weights["embedding"]
    assert rows.grad is not None
    assert rows.master.shape == (192, 32)
    assert not rows.grad[SMALL.vocab_size :].any()
    assert model.logits(some_ids(SMALL, 1, 5)).shape == (1, 5, SMALL.vocab_size)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_two_half_batches_are_one(shape: Shape) -> None:
    ids, labels = some_ids(shape, 4, 16), some_ids(shape, 4, 16, seed=4)
    whole, halves = model_of(shape), model_of(shape)
    total = learned(whole, ids, labels)
    halves.weights.make_gradients()
    parts = [halves.learn(ids[rows], labels[rows], 1 / labels.numel()) for rows in (slice(0, 2), slice(2, 4))]
    assert torch.allclose(total, parts[0] + parts[1], rtol=1e-6)
    theirs = gradients(whole)
    for name, ours in gradients(halves).items():
        assert closeness(ours, theirs[name]) < 1e-5, name
    halves.weights.clear_gradients()
    assert not any(tensor.any() for tensor in gradients(halves).values())


@pytest.mark.parametrize("shape", [SMALL, GROUPED], ids=["small", "grouped"])
def test_masked_documents_are_documents_alone(shape: Shape) -> None:
    """Three documents in one row, each seeing only itself and counting its positions from 0."""
    lengths = (5, 1, 10)
    ids, labels = some_ids(shape, 1, 16), some_ids(shape, 1, 16, seed=4)
    number = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    mask = ((number[:, None] == number[None, :]) & torch.ones(16, 16).tril().bool())[None, None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    together, alone = model_of(shape), model_of(shape)
    logits = together.logits(ids, positions=positions, mask=mask)
    total = learned(together, ids, labels, positions=positions, mask=mask)
    alone.weights.make_gradients()
    start, loss = 0, torch.zeros((), dtype=torch.float64)
    for length in lengths:
        part = slice(start, start + length)
        assert torch.allclose(logits[:, part], alone.logits(ids[:, part]), atol=1e-5)
        loss += alone.learn(ids[:, part], labels[:, part], 1 / 16)
        start += length
    assert torch.allclose(total, loss, rtol=1e-6)
    theirs = gradients(alone)
    for name, ours in gradients(together).items():
        assert closeness(ours, theirs[name]) < 1e-4, name


@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16])
def test_fewer_bits_are_near(compute: torch.dtype) -> None:
    exact, rough = model_of(GROUPED), model_of(GROUPED, compute=compute)
    ids, labels = some_ids(GROUPED, 2, 40), some_ids(GROUPED, 2, 40, seed=4)
    assert closeness(rough.logits(ids).float(), exact.logits(ids)) < 0.03
    total, near = learned(exact, ids, labels), learned(rough, ids, labels)
    assert abs(near.item() / total.item() - 1) < 0.01
    theirs = gradients(exact)
    for name, ours in gradients(rough).items():
        assert ours.dtype == torch.float32
        assert closeness(ours, theirs[name]) < 0.06, name


@pytest.mark.parametrize("name", ["qk_norm", "grouped_qk_norm"])
def test_queries_and_keys_that_are_kept_give_the_same_gradients(name: str) -> None:
    again, kept = model_of(SHAPES[name]), model_of(SHAPES[name], keeps_qk=True)
    ids, labels = some_ids(SHAPES[name], 2, 20), some_ids(SHAPES[name], 2, 20, seed=4)
    assert learned(again, ids, labels) == learned(kept, ids, labels)
    for name, grad in gradients(again).items():
        assert torch.equal(grad, gradients(kept)[name]), name


def test_recomputing_changes_no_bit() -> None:
    kept, again = model_of(GROUPED), model_of(GROUPED, recompute=True)
    ids, labels = some_ids(GROUPED, 2, 40), some_ids(GROUPED, 2, 40, seed=4)
    assert torch.equal(learned(kept, ids, labels), learned(again, ids, labels))
    theirs = gradients(kept)
    for name, ours in gradients(again).items():
        assert torch.equal(ours, theirs[name]), name


def test_what_is_kept_for_the_way_back_is_what_the_layers_say() -> None:
    """Per token and layer: x, qkv, attended and the middle, gate and up; nothing of the vocabulary's size."""
    model = model_of(SMALL)
    kept: dict[int, int] = {}
    ids = some_ids(SMALL, 2, 24)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model.hidden(ids)
    assert hidden.requires_grad
    width, forward = SMALL.width, SMALL.feed_forward
    floats = SMALL.layers * (width + 3 * width + width + width + 2 * forward) + width
    # The ids, and what attention notes of each head and row.
    slack = ids.numel() * (8 + SMALL.layers * SMALL.heads * 8) + 1024
    assert floats * ids.numel() * 4 <= sum(kept.values()) <= floats * ids.numel() * 4 + slack


def test_without_gradients_it_says_so() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        model_of(SMALL).learn(some_ids(SMALL, 1, 4), some_ids(SMALL, 1, 4), 1.0)


class TestWeights:
    def test_the_same_on_every_start_and_as_deep_as_it_is(self) -> None:
        first, again, other = GPT(GROUPED), GPT(GROUPED), GPT(GROUPED)
        first.weights.initialize(5)
        again.weights.initialize(5)
        other.weights.initialize(6)
        assert torch.equal(first.weights.matrices, again.weights.matrices)
        assert not torch.equal(first.weights.matrices, other.weights.matrices)
        assert first.weights["layers.0.qkv"].master.std().item() == pytest.approx(0.02, rel=0.1)
        assert first.weights["layers.0.out"].master.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.1)
        assert not first.weights["embedding"].master[GROUPED.vocab_size :].any()
        assert set(first.weights["norm"].master.tolist()) == {1.0}

    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_every_weight_has_its_own_place(self, shape: Shape) -> None:
        weights = GPT(shape).weights
        for number, weight in enumerate(weights, 1):
            weight.master.fill_(number)
        for number, weight in enumerate(weights, 1):
            assert (weight.master == number).all()
            assert weight.master.storage_offset() % ALIGNMENT == 0
        sizes = sum(torch.Size(size).numel() for _, size in layout(shape))
        filled = (shape.padded_vocab - shape.vocab_size) * shape.width * (1 if shape.tied else 2)
        assert sizes - filled == shape.parameters

    def test_the_copy_for_products_follows(self) -> None:
        weights = model_of(SMALL, compute=torch.bfloat16).weights
        weights.matrices.mul_(2)
        assert not torch.equal(weights.compute, weights.matrices.bfloat16())
        weights.refresh()
        assert torch.equal(weights.compute, weights.matrices.bfloat16())
        same = GPT(SMALL).weights
        assert same.compute is same.matrices


def test_turning_back_undoes_the_turn() -> None:
    model = model_of(SMALL)
    turn = Rotary(*model._rotary.of(20), torch.arange(20))
    rows = torch.randn(20, SMALL.qkv_width)
    turned = rows.clone()
    heads = SMALL.heads + SMALL.kv_heads
    model.kernels.rotate_(turned, turn.cos, turn.sin, turn.positions, heads)
    assert torch.equal(turned[:, SMALL.width * 2 :], rows[:, SMALL.width * 2 :])
    assert not torch.allclose(turned[1:, : SMALL.width], rows[1:, : SMALL.width])
    model.kernels.rotate_(turned, turn.cos, turn.sin, turn.positions, heads, inverse=True)
    assert torch.allclose(turned, rows, atol=1e-6)
