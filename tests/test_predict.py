"""The closed form of a step's memory against what torch's allocator was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles_training_memory import highest, lean_kernels
from ramlet.engines.plan import PARTS, Choice, Correction
from ramlet.engines.torch import gpt
from ramlet.engines.torch.blocks import layer_blocks, sizes_of
from ramlet.engines.torch.kernels import kernels_for
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.engines.torch.optim import optimizer_module
from ramlet.engines.torch.predict import predict, state_bytes, work_bytes
from ramlet.engines.torch.weights import Weights
from ramlet.errors import SettingsError
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.training.settings import RunSettings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHAPES = {
    "usual": Shape(2048, 256, 4, 128, 4),
    "grouped": Shape(512, 256, 3, 128, 4, 2, feed_forward=128),
    "untied": Shape(8192, 256, 1, 64, 2, tied=False),
    "deep": Shape(512, 256, 8, 64, 2, feed_forward=512),
    "qk_norm": Shape(2048, 256, 4, 128, 4, qk_norm=True),
    "attention": Shape(256, 256, 1, 128, 4, feed_forward=64, qk_norm=True),
    "grouped_qk_norm": Shape(512, 256, 3, 128, 4, 2, feed_forward=128, qk_norm=True),
    "wide_heads": Shape(512, 256, 3, 64, 4, 2, feed_forward=64, head_width=64),
    "wide_heads_qk_norm": Shape(512, 256, 2, 64, 8, feed_forward=64, head_width=64, qk_norm=True),
    "narrow_heads_qk_norm": Shape(512, 256, 3, 128, 4, 2, feed_forward=128, head_width=8, qk_norm=True),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def held(shape: Shape, choice: Choice, seq_len: int, masked: bool) -> int:
    """What a step really holds beside weights, gradients and its batch."""
    model = gpt.GPT(
        shape,
        dtype=DTYPES[choice.weights],
        compute=DTYPES[choice.compute],
        chunk=choice.chunk,
        recompute=choice.recompute,
        keeps_qk=choice.keeps_qk,
    )
    model.weights.initialize(1)
    model.weights.make_gradients()
    rows = choice.micro_batch
    ids = torch.randint(0, shape.vocab_size, (rows, seq_len))
    mask = torch.ones(rows, 1, seq_len, seq_len, dtype=torch.bool).tril() if masked else None
    positions = torch.arange(seq_len).repeat(rows, 1)
    dropout = Dropout(torch.arange(rows), choice.dropout) if choice.dropout else None
    model.learn(ids, ids, 1e-3, positions=positions, mask=mask, dropout=dropout)
    return highest(lambda: model.learn(ids, ids, 1e-3, positions=positions, mask=mask, dropout=dropout))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("compute", "weights"), [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16")])
@pytest.mark.parametrize(("rows", "seq_len", "chunk"), [(1, 256, 1024), (4, 128, 64)])
def test_the_work_of_a_micro_batch_is_exact(
    name: str, recompute: bool, compute: str, weights: str, rows: int, seq_len: int, chunk: int, monkeypatch
) -> None:
    lean = lean_kernels()
    monkeypatch.setattr(gpt, "kernels_for", lambda device: lean)
    choice = Choice(rows, chunk, recompute, "adamw", weights, compute, reuse=False)
    predicted = work_bytes(SHAPES[name], choice, seq_len=seq_len, device="cpu")
    # Losses of a chunk, and what autograd notes about itself.
    assert predicted == pytest.approx(held(SHAPES[name], choice, seq_len, masked=False), abs=4 * chunk + 2048)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("compute", "rows", "real"), [("fp32", 2, False), ("bf16", 1, False), ("bf16", 4, True)])
def test_dropout_is_counted(name: str, recompute: bool, compute: str, rows: int, real: bool, monkeypatch) -> None:
    kernels = kernels_for("cpu") if real else lean_kernels()
    monkeypatch.setattr(gpt, "kernels_for", lambda device: kernels)
    choice = Choice(rows, 64, recompute, "adamw", "fp32", compute, reuse=False, dropout=0.1)
    predicted = work_bytes(SHAPES[name], choice, seq_len=128, device="cpu")
    assert predicted == pytest.approx(held(SHAPES[name], choice, 128, masked=False), abs=4 * 64 + 8192 * real + 2048)


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.qk_norm])
def test_queries_and_keys_that_are_kept_are_counted(name: str, monkeypatch) -> None:
    lean = lean_kernels()
    monkeypatch.setattr(gpt, "kernels_for", lambda device: lean)
    choice = Choice(4, 64, False, "adamw", "fp32", "bf16", reuse=False, keeps_qk=True)
    predicted = work_bytes(SHAPES[name], choice, seq_len=128, device="cpu")
    assert predicted == pytest.approx(held(SHAPES[name], choice, 128, masked=False), abs=4 * 64 + 2048)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_document_mask_is_counted(recompute: bool, monkeypatch) -> None:
    lean = lean_kernels()
    monkeypatch.setattr(gpt, "kernels_for", lambda device: lean)
    choice = Choice(3, 64, recompute, "adamw", "fp32", "bf16", reuse=False)
    predicted = work_bytes(SHAPES["usual"], choice, seq_len=128, device="cpu", document_mask=True)
    assert predicted == pytest.approx(held(SHAPES["usual"], choice, 128, masked=True), abs=4 * 64 + 2048)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("compute", "masked"), [("fp32", False), ("bf16", False), ("bf16", True)])
def test_a_pass_without_gradients_is_exact(name: str, compute: str, masked: bool) -> None:
    shape, rows, seq_len = SHAPES[name], 4, 128
    model = gpt.GPT(shape, dtype=DTYPES[compute])
    model.weights.initialize(1)
    ids = torch.randint(0, shape.vocab_size, (rows, seq_len))
    mask = torch.ones(rows, 1, seq_len, seq_len, dtype=torch.bool).tril() if masked else None
    positions = torch.arange(seq_len).repeat(rows, 1)

    @torch.no_grad()
    def work() -> None:
        model.hidden(ids, positions=positions, mask=mask)

    work()
    choice = Choice(rows, 1, compute=compute)
    sizes = sizes_of(shape, choice, seq_len, "cpu", masked)
    predicted = layer_blocks(shape, choice, sizes, "cpu").forward_only
    # The logsumexp of the attention, and the mask in the precision of the products, are freed within it.
    assert predicted - sizes.log_sums - sizes.mask <= highest(work) <= predicted


@settings(max_examples=12)
@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    head=st.sampled_from([16, 32]),
    wider=st.sampled_from([1, 1, 2, 8]),
    qk_norm=st.booleans(),
    feed_forward=st.integers(32, 400),
    vocab=st.integers(100, 3000),
    rows=st.integers(1, 4),
    seq_len=st.integers(1, 96),
    chunk=st.integers(1, 200),
    recompute=st.booleans(),
    compute=st.sampled_from(["fp32", "bf16"]),
)
def test_the_real_kernels_take_no_more(
    layers, heads, head, wider, qk_norm, feed_forward, vocab, rows, seq_len, chunk, recompute, compute
) -> None:
    sizes = {"feed_forward": feed_forward, "head_width": wider * head, "qk_norm": qk_norm}
    shape = Shape(vocab, 96, layers, heads * head, heads, **sizes)
    choice = Choice(rows, chunk, recompute, "adamw", "fp32", compute, reuse=False)
    assert kernels_for("cpu").__name__.endswith("native")
    predicted = work_bytes(shape, choice, seq_len=seq_len, device="cpu")
    assert predicted == pytest.approx(held(shape, choice, seq_len, masked=False), abs=4 * chunk + 8192)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("optimizer", "weights", "compute"),
    [
        ("adamw", "fp32", "fp32"),
        ("adamw", "fp32", "bf16"),
        ("adamw8bit", "fp32", "fp32"),
        ("adamw8bit", "fp32", "bf16"),
        ("adamw8bit", "bf16", "bf16"),
        ("muon", "fp32", "bf16"),
        ("muon8bit", "fp32", "bf16"),
        ("muon8bit", "bf16", "bf16"),
    ],
)
def test_states_are_exact(name: str, weights: str, compute: str, optimizer: str) -> None:
    made = Weights(SHAPES[name], dtype=DTYPES[weights], compute=DTYPES[compute])
    made.make_gradients()
    stepped = optimizer_module(optimizer).make(made, RunSettings())
    stepped.step()
    kept = {id(flat): flat for flat in (*made.flat, made.compute)}.values()
    predicted = state_bytes(SHAPES[name], Choice(1, 1, False, optimizer, weights, compute))
    assert predicted["weights"] == sum(flat.nbytes for flat in kept)
    assert predicted["gradients"] == sum(flat.grad.nbytes for flat in made.flat)
    states = [value for state in stepped.state.values() for name, value in state.items() if name != "step"]
    assert predicted["optimizer"] == sum(value.nbytes for value in states)


def test_the_parts_add_up_and_a_correction_is_in_them() -> None:
    shape = shape_for(10_000_000, vocab_size=8192, context=256)
    choice = Choice(8, 512, compute="bf16")
    plain = predict(shape, choice, seq_len=256, base=300, loader_bytes=7)
    assert tuple(plain.parts) == PARTS
    assert plain.peak == sum(plain.parts.values())
    assert min(plain.parts.values()) >= 0
    work = work_bytes(shape, choice, seq_len=256, device="cpu")
    taught = predict(shape, choice, seq_len=256, base=300, loader_bytes=7, correction=Correction(1.5, 1000))
    assert taught.peak - plain.peak == pytest.approx(work / 2 + 1000, abs=2)


def test_more_of_anything_is_never_less() -> None:
    shape = shape_for(3_000_000, vocab_size=4096, context=512)

    def peak(**changes) -> int:
        return predict(shape, Choice(2, 128, compute="bf16").with_(**changes), seq_len=256).peak

    assert peak() <= peak(micro_batch=3)
    assert peak() <= peak(chunk=256)
    assert peak(recompute=True) <= peak()
    assert peak(reuse=False) <= peak()
    assert peak(optimizer="adamw8bit", weights="bf16") <= peak(optimizer="adamw8bit") <= peak()


@pytest.mark.parametrize(
    "wrong", [{"optimizer": "sgd"}, {"weights": "fp16"}, {"compute": "int8"}, {"micro_batch": 0}, {"chunk": 0}]
)
def test_a_choice_that_is_none_is_refused(wrong: dict) -> None:
    with pytest.raises(SettingsError):
        Choice(**{"micro_batch": 1, "chunk": 1, **wrong})


def test_predicting_needs_no_torch() -> None:
    program = (
        "import sys; from ramlet.engines.torch.plan import make_plan; from ramlet.training import machine; "
        "sys.exit('torch' in sys.modules)"
    )
    folder = Path(__file__).parent.parent / "python"
    assert subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(folder)}).returncode == 0
