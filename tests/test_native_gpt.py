"""The native model against the torch engine, and against itself: memory, threads and micro-batches change no bit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from conftest import alone
from ramlet._native import NativeGPT
from ramlet.engines import Hyperparameters
from ramlet.engines.plan import Choice
from ramlet.engines.torch.rotary import RotaryTables
from ramlet.engines.torch.step import Trainee
from ramlet.errors import SettingsError
from ramlet.model.shape import Shape
from ramlet.training.settings import RunSettings

SEQ_LEN = 24
ROWS = 4
SETTINGS: Hyperparameters = RunSettings(seed=5, weight_decay=0.1)
HYPER = (SETTINGS.beta1, SETTINGS.beta2, SETTINGS.eps, SETTINGS.weight_decay)
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
    "I8": torch.int8,
}
Batch = dict[str, npt.NDArray[np.int64]]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def shape(**changes: Any) -> Shape:
    given = {"vocab_size": 100, "width": 48, "layers": 2, "heads": 4, "feed_forward": 96, "context": 64}
    return Shape(**{**given, **changes})


def arguments(**changes: Any) -> dict[str, Any]:
    given = {
        "micro_batch": ROWS,
        "seq_len": SEQ_LEN,
        "chunk": 16,
        "recompute": False,
        "optimizer": "adamw",
        "weights": "fp32",
        "compute": "fp32",
        "dropout": 0.0,
        "document_mask": False,
        "held": 0,
        "unit": 0,
        "training": True,
        "threads": 1,
    }
    return {**given, **changes}


def with_tables(model: Shape) -> dict[str, Any]:
    cos, sin = RotaryTables(model, torch.device("cpu")).of(model.context)
    return {**model.to_dict(), "cos": cos.numpy().tobytes(), "sin": sin.numpy().tobytes()}


def native(model: Shape, **changes: Any) -> NativeGPT:
    made = NativeGPT(with_tables(model), **arguments(**changes))
    made.initialize(3)
    return made


def named(described: list[tuple[str, str, tuple[int, ...], tuple[int, int]]]) -> dict[str, Tensor]:
    """The model's own memory."""
    found = {}
    for name, dtype, size, (address, count) in described:
        memory = (ctypes.c_char * count).from_address(address)
        found[name] = torch.frombuffer(memory, dtype=DTYPES[dtype]).view(size)
    return found


def copies(described: list[tuple[str, str, tuple[int, ...], tuple[int, int]]]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in named(described).items()}


def twin(model: Shape, one: NativeGPT, **changes: Any) -> Trainee:
    """A trainee of the torch engine with the same weights."""
    given = arguments(**changes)
    choice = Choice(
        given["micro_batch"],
        given["chunk"],
        given["recompute"],
        given["optimizer"],
        given["weights"],
        given["compute"],
        dropout=given["dropout"],
    )
    trainee = Trainee(model, choice, SETTINGS, device="cpu")
    trainee.reset(1)
    for name, tensor in named(one.tensors()).items():
        trainee.model.weights[name].master.copy_(tensor)
    trainee.model.weights.refresh()
    return trainee


def batch(number: int = 0, rows: int = ROWS, *, documents: bool = False, ignored: bool = False) -> Batch:
    generator = np.random.default_rng(number)
    ids = generator.integers(0, 100, (rows, SEQ_LEN + 1))
    found = {"input_ids": np.ascontiguousarray(ids[:, :-1]), "targets": np.ascontiguousarray(ids[:, 1:])}
    if ignored:
        found["targets"][generator.random(found["targets"].shape) < 0.3] = -100
    if documents:
        starts = generator.random((rows, SEQ_LEN)) < 0.2
        starts[:, 0] = True
        found["document_ids"] = starts.cumsum(axis=1)
        at = np.arange(SEQ_LEN)
        found["position_ids"] = at - np.maximum.accumulate(np.where(starts, at, 0), axis=1)
    return found


def some(given: Batch, start: int, end: int) -> Batch:
    return {name: np.ascontiguousarray(array[start:end]) for name, array in given.items()}


def learn(model: NativeGPT, given: Batch, keys: npt.NDArray[np.int64] | None = None, scale: float = 0.01) -> float:
    documents = (given.get("position_ids"), given.get("document_ids"))
    return model.learn(given["input_ids"], given["targets"], *documents, keys, scale)


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    most = float(theirs.abs().max())
    assert float((ours - theirs).abs().max()) <= tolerance * most, name


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "QK-norm": ({"qk_norm": True}, {}, {}),
    "wide heads": ({"qk_norm": True, "head_width": 20}, {}, {}),
    "grouped queries": ({"kv_heads": 2}, {}, {}),
    "grouped queries, QK-norm": ({"kv_heads": 1, "qk_norm": True}, {}, {}),
    "untied": ({"tied": False}, {}, {}),
    "documents": ({}, {"document_mask": True}, {"documents": True}),
    "documents, QK-norm": ({"qk_norm": True}, {"document_mask": True}, {"documents": True}),
    "dropout": ({}, {"dropout": 0.2}, {}),
    "dropout, QK-norm, recompute": ({"qk_norm": True}, {"dropout": 0.1, "recompute": True}, {}),
    "ignored labels": ({}, {}, {"ignored": True}),
    "recompute": ({}, {"recompute": True}, {}),
    "narrow feed-forward": ({"feed_forward": 16}, {"dropout": 0.1}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch(case: str) -> None:
    changes, chosen, data = CASES[case]
    model = shape(**changes)
    ours = native(model, **chosen)
    theirs = twin(model, ours, **chosen)
    given = batch(**data)
    dropping = chosen.get("dropout", 0.0) > 0
    keys = theirs._dropout_keys(range(10, 10 + ROWS)).numpy() if dropping else None
    loss = learn(ours, given, keys)
    wanted = float(theirs.learn({**given, "samples": range(10, 10 + ROWS)}, 0.01))
    assert loss == pytest.approx(wanted, rel=1e-5)
    for name, grad in named(ours.gradients()).items():
        expected = theirs.model.weights[name].grad
        assert expected is not None
        assert_near(grad, expected, 1e-5, name)
    plain = {name: torch.as_tensor(array) for name, array in given.items()}
    each = ours.losses(given["input_ids"], given["targets"], given.get("position_ids"), given.get("document_ids"))
    expected = torch.tensor(theirs.model.token_losses(plain)).flatten()
    assert_near(torch.tensor(each), expected, 1e-5, "losses")
    evaluated = native(model, training=False)
    for name, tensor in named(evaluated.tensors()).items():
        tensor.copy_(named(ours.tensors())[name])
    assert each == evaluated.losses(
        given["input_ids"], given["targets"], given.get("position_ids"), given.get("document_ids")
    )


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "muon", "muon8bit"])
@pytest.mark.parametrize("large", [False, True])
def test_ten_steps_follow_torch(optimizer: str, large: bool) -> None:
    # The gains of the small one have 32-bit states in the 8-bit optimizers.
    model = shape(width=64 if large else 48, layers=16 if large else 2, feed_forward=32, qk_norm=large)
    ours = native(model, optimizer=optimizer)
    theirs = twin(model, ours, optimizer=optimizer)
    for step in range(3 if large else 10):
        given = batch(step % 3, ignored=True)
        loss, wanted = learn(ours, given, scale=1 / 96), float(theirs.learn(given, 1 / 96))
        assert loss == pytest.approx(wanted, rel=1e-3)
        norm = ours.update(3e-3, 0.5, 1.1, HYPER, SETTINGS.seed)
        assert norm == pytest.approx(float(theirs.update(3e-3, 0.5, 1.1)), rel=1e-3)
        assert all(not grad.any() for grad in named(ours.gradients()).values())
    states, expected = named(ours.states()), theirs.optimizer_tensors()
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in states.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in expected.items()
    }
    for name, tensor in states.items():
        if optimizer == "adamw" or name.endswith("step"):
            assert_near(tensor.float(), expected[name].float(), 1e-4, name)  # exact steps: the next test


def test_the_first_step_of_adamw_is_that_of_torch() -> None:
    model = shape(qk_norm=True)
    ours = native(model)
    theirs = twin(model, ours)
    for step in range(2):
        given = batch(step)
        learn(ours, given)
        theirs.learn(given, 0.01)
        for name, grad in named(ours.gradients()).items():
            grad.copy_(theirs.model.weights[name].grad)
        ours.update(1e-3, 1.0, 1.0, HYPER, 0)
        theirs.update(1e-3, 1.0)
        for name, tensor in named(ours.tensors()).items():
            tensor.copy_(theirs.model.weights[name].master)
    for name, state in named(ours.states()).items():
        assert_near(state, theirs.optimizer_tensors()[name], 1e-6, name)


@pytest.mark.parametrize(
    ("optimizer", "weights"),
    [("adamw", "fp32"), ("muon", "fp32"), ("adamw8bit", "bf16"), ("muon8bit", "bf16")],
)
def test_bf16_is_within_its_rounding(optimizer: str, weights: str) -> None:
    model = shape(qk_norm=True, kv_heads=2)
    chosen = {"optimizer": optimizer, "weights": weights, "compute": "bf16"}
    ours = native(model, **chosen)
    theirs = twin(model, ours, **chosen)
    for step in range(10):
        given = batch(step % 3)
        loss, wanted = learn(ours, given), float(theirs.learn(given, 0.01))
        assert loss == pytest.approx(wanted, rel=1e-2)
        if step == 0:
            for name, grad in named(ours.gradients()).items():
                expected = theirs.model.weights[name].grad
                assert expected is not None
                assert_near(grad, expected.float(), 0.03, name)
        ours.update(1e-3, 1.0, 1.0, HYPER, SETTINGS.seed)
        theirs.update(1e-3, 1.0)
    difference = max(
        float((tensor.float() - theirs.model.weights[name].master.float()).abs().max())
        for name, tensor in named(ours.tensors()).items()
    )
    assert difference < 0.02


def learned(model: Shape, rows: int, micro_batch: int, **changes: Any) -> dict[str, Tensor]:
    """Weights and states after two steps, and their losses."""
    ours = native(model, micro_batch=micro_batch, **changes)
    left: dict[str, Tensor] = {}
    for step in range(2):
        given = batch(step, rows, documents=changes.get("document_mask", False), ignored=True)
        keys = np.arange(rows, dtype=np.int64) * 7919 + step
        total = 0.0
        for start in range(0, rows, micro_batch):
            end = min(rows, start + micro_batch)
            total += learn(ours, some(given, start, end), keys[start:end], scale=1 / 96)
        left[f"loss {step}"] = torch.tensor(total)
        left[f"norm {step}"] = torch.tensor(ours.update(1e-2, 0.5, 1.0, HYPER, 1))
    return {**left, **copies(ours.tensors()), **copies(ours.states())}


@pytest.mark.parametrize(
    ("optimizer", "weights", "compute"),
    [("adamw", "fp32", "fp32"), ("muon", "fp32", "bf16"), ("adamw8bit", "bf16", "bf16"), ("muon8bit", "bf16", "bf16")],
)
@pytest.mark.parametrize("tied", [True, False])
def test_memory_and_threads_change_no_bit(optimizer: str, weights: str, compute: str, tied: bool) -> None:
    model = shape(qk_norm=tied, kv_heads=2, tied=tied)
    rows = 6  # groups of 4, and a last one that is smaller
    chosen = {"optimizer": optimizer, "weights": weights, "compute": compute, "dropout": 0.1, "document_mask": tied}
    wanted = learned(model, rows, 4, **chosen)
    held = 4 * SEQ_LEN if tied else 0
    for micro_batch, chunk, threads, recompute in [(1, 7, 2, False), (2, 96, 3, True), (4, 1, 2, True)]:
        also = {"chunk": chunk, "threads": threads, "recompute": recompute, "held": 0 if micro_batch == 4 else held}
        found = learned(model, rows, micro_batch, **chosen, **also)
        assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == [], (micro_batch, also)


def test_shorter_and_fewer_sequences_than_there_is_memory_for() -> None:
    model = shape(qk_norm=True)
    given = some(batch(), 0, 2)
    short = {name: np.ascontiguousarray(array[:, :10]) for name, array in given.items()}
    large, exact = native(model), native(model, micro_batch=2, seq_len=10, chunk=20)
    assert learn(large, short) == learn(exact, short)
    ours, theirs = copies(large.gradients()), copies(exact.gradients())
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_gradient_that_is_not_finite_leaves_the_weights() -> None:
    for optimizer in ("adamw", "adamw8bit", "muon", "muon8bit"):
        ours = native(shape(), optimizer=optimizer)
        before = {**copies(ours.tensors()), **copies(ours.states())}
        learn(ours, batch())
        named(ours.gradients())["layers.1.qkv"][3, 4] = float("inf")
        assert ours.update(1e-3, 1.0, 1.0, HYPER, 0) == float("inf")
        after = {**copies(ours.tensors()), **copies(ours.states())}
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(not grad.any() for grad in named(ours.gradients()).values())


def test_what_is_out_of_range_is_refused_before_anything_changes() -> None:
    ours = native(shape())
    for name, value in [("input_ids", 100), ("input_ids", -1), ("targets", 100), ("targets", -1)]:
        given = batch()
        given[name][1, 2] = value
        with pytest.raises(IndexError, match=f"{value} is outside the vocabulary of 100"):
            learn(ours, given)
    given = batch(documents=True)
    given["position_ids"][0, 1] = SEQ_LEN
    with pytest.raises(IndexError, match="outside the context of 24"):
        learn(ours, given)
    assert all(not grad.any() for grad in named(ours.gradients()).values())
    with pytest.raises(SettingsError, match="does not fit"):
        learn(ours, batch(rows=ROWS + 1))
    with pytest.raises(SettingsError, match="8-bit optimizer"):
        native(shape(), optimizer="muon", weights="bf16")
    with pytest.raises(SettingsError, match="without training"):
        learn(native(shape(), training=False), batch())


def test_first_weights() -> None:
    model = shape(vocab_size=2000, width=128, layers=2, head_width=64, heads=2, qk_norm=True)
    first, second = native(model), native(model, weights="bf16", optimizer="adamw8bit", threads=3)
    tensors, again = named(first.tensors()), named(second.tensors())
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            tensor = tensor[: model.vocab_size]
            deviation = 0.01 if name.endswith((".out", ".down")) else 0.02
            assert float(tensor.std()) == pytest.approx(deviation, rel=0.03), name
            assert abs(float(tensor.mean())) < deviation / 30
            assert not tensors[name][len(tensor) :].any(), "padding rows are 0"
            assert torch.equal(again[name][: len(tensor)], tensor.bfloat16())
        else:
            assert (tensor == (1.25 if name.endswith(("_q", "_k")) else 1.0)).all()
    assert not torch.equal(tensors["layers.0.qkv"], tensors["layers.1.qkv"])
    other = NativeGPT(with_tables(model), **arguments())
    other.initialize(4)
    assert not torch.equal(named(other.tensors())["embedding"], tensors["embedding"])


def test_parts_add_up() -> None:
    model = shape(qk_norm=True)
    sizes = arguments()
    parts = NativeGPT.parts(model.to_dict(), **sizes)
    assert list(parts) == ["weights", "gradients", "optimizer", "activations", "logits"]
    gradients = sum(count for *_, (_, count) in native(model).gradients())
    assert gradients <= parts["gradients"] <= gradients + 4 * 256 * 20
    small = NativeGPT.parts(model.to_dict(), **{**sizes, "recompute": True})
    assert small["activations"] < parts["activations"]
    only = NativeGPT.parts(model.to_dict(), **{**sizes, "training": False})
    assert only["gradients"] == only["optimizer"] == 0
    assert only["activations"] < small["activations"]
    big = NativeGPT.parts(model.to_dict(), **{**sizes, "chunk": 96, "micro_batch": 100})
    assert big["logits"] == 0, "they fit into memory that the backward pass needs"


@alone
def test_steps_take_no_memory_but_the_arena() -> None:
    import gc

    from ramlet.runtime.memory import resident_memory

    model = shape(vocab_size=1000, width=64, feed_forward=176, qk_norm=True)
    warm = native(shape(), micro_batch=1, optimizer="muon8bit", threads=2)
    learn(warm, batch(rows=1))
    warm.update(1e-3, 1.0, 1.0, HYPER, 0)
    tables = with_tables(model)
    for optimizer in ("adamw", "muon8bit"):
        sizes = arguments(micro_batch=1, optimizer=optimizer, threads=2)
        parts = NativeGPT.parts(tables, **sizes)
        gc.collect()
        before = resident_memory()
        ours = NativeGPT(tables, **sizes)
        ours.initialize(1)
        for step in range(20):
            learn(ours, batch(step, 1))
            ours.update(1e-3, 1.0, 1.0, HYPER, 0)
        grown = resident_memory() - before
        assert grown <= sum(parts.values()) + 1_000_000, (optimizer, grown, parts)
        del ours
        gc.collect()
        assert resident_memory() - before < 1_000_000, "the memory is returned"
