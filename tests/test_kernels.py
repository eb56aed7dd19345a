"""The kernels of a step: each implementation against the plain one, its gradients against autograd in float64."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramlet import _native
from ramlet.engines.torch.kernels import native, plain

IMPLEMENTATIONS = [native]
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5

# (rows, width): one row, the narrowest, around 16 and 64 lanes, enough bytes for two threads and many portions.
SHAPES = [(1, 2), (1, 64), (3, 15), (5, 16), (2, 17), (7, 63), (64, 65), (65, 130), (130, 768), (2500, 66)]

implementations = pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__.split(".")[-1])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


@pytest.fixture(autouse=True)
def _fixed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def assert_close(got: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """fp32 to a few units in the last place; bf16 to one step, where sums in another order round apart.

    `scale` is how large the terms are whose difference the numbers are.
    """
    assert got.dtype is expected.dtype
    assert got.shape == expected.shape
    relative = 2.0**-20 if got.dtype is torch.float32 else 2.0**-7
    absolute = scale * 2.0**-20
    torch.testing.assert_close(got, expected, rtol=relative, atol=absolute, equal_nan=True)


def mostly_equal(got: Tensor, expected: Tensor) -> None:
    """bf16 hides errors of fp32: nearly all numbers must be the same ones."""
    if got.dtype is torch.bfloat16 and got.numel() > 1000:
        assert (got == expected).float().mean() > 0.99


def rows(shape: tuple[int, int], dtype: torch.dtype, spread: float = 2.0) -> Tensor:
    return (torch.randn(shape) * spread).to(dtype)


def angles(context: int, half: int) -> tuple[Tensor, Tensor]:
    turns = torch.arange(context)[:, None] * 10000.0 ** -(torch.arange(half) / half)
    return turns.cos(), turns.sin()


def softmax_loss(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
    """`cross_entropy_` in float64, for finite logits: the plain one loses all digits where logits are huge."""
    chances = torch.log_softmax(logits[:, :vocab].double(), -1)
    slope = chances.exp() - torch.nn.functional.one_hot(labels, vocab)
    logits[:, :vocab] = (slope * scale).to(logits.dtype)
    logits[:, vocab:] = 0
    return -chances.gather(1, labels[:, None])[:, 0].float()


@implementations
@dtypes
@shapes
def test_norm(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, gain = rows(shape, dtype), torch.randn(shape[1])
    got, expected = kernels.norm(x, gain, EPS), plain.norm(x, gain, EPS)
    assert_close(got, expected)
    mostly_equal(got, expected)


@implementations
@dtypes
@shapes
def test_norm_backward(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, dy, gain = rows(shape, dtype), rows(shape, dtype), torch.randn(shape[1])
    first, second = torch.randn(2, 1, shape[1]).expand(2, 2, -1).clone()
    got = kernels.norm_backward(dy, x, gain, EPS, first[0])
    expected = plain.norm_backward(dy, x, gain, EPS, second[0])
    second[0] += first[1] - second[1]
    # x of one column is its own direction: all of dx cancels.
    assert_close(got, expected, scale=16)
    assert_close(first[0], second[0], scale=4 * shape[0])
    if shape[1] > 2:
        mostly_equal(got, expected)


@implementations
@pytest.mark.parametrize("shape", [(3, 7), (66, 40)])
def test_norm_gradients_are_those_of_autograd(kernels: ModuleType, shape: tuple[int, int]) -> None:
    x, dy, gain = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    gain_grad = torch.zeros(shape[1])
    dx = kernels.norm_backward(dy, x, gain, EPS, gain_grad)
    wide, wide_gain = x.double().requires_grad_(), gain.double().requires_grad_()
    (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * wide_gain).backward(dy.double())
    assert wide.grad is not None
    assert wide_gain.grad is not None
    assert_close(dx, wide.grad.float(), scale=8)
    assert_close(gain_grad, wide_gain.grad.float(), scale=8 * shape[0])


@implementations
@dtypes
@pytest.mark.parametrize("positions", [torch.int64, torch.int32], ids=["int64", "int32"])
@pytest.mark.parametrize(("heads", "extra", "half"), [(1, 0, 1), (3, 2, 5), (2, 6, 16), (4, 32, 24), (3, 1, 33)])
@pytest.mark.parametrize("count", [1, 9, 700])
def test_rotate(
    kernels: ModuleType, dtype: torch.dtype, positions: torch.dtype, heads: int, extra: int, half: int, count: int
) -> None:
    cos, sin = angles(50, half)
    qkv = rows((count, heads * 2 * half + extra), dtype)
    where = torch.randint(0, 50, (count,), dtype=positions)
    for inverse in (False, True):
        got, expected = qkv.clone(), qkv.clone()
        kernels.rotate_(got, cos, sin, where, heads, inverse)
        plain.rotate_(expected, cos, sin, where, heads, inverse)
        assert_close(got, expected, scale=8)
        assert torch.equal(got[:, heads * 2 * half :], qkv[:, heads * 2 * half :])
        mostly_equal(got, expected)
    there_and_back = qkv.float()
    kernels.rotate_(there_and_back, cos, sin, where, heads)
    kernels.rotate_(there_and_back, cos, sin, where, heads, inverse=True)
    assert_close(there_and_back, qkv.float(), scale=8)


def heads_of(heads: int, kv_heads: int, half: int, count: int) -> plain.Heads:
    gains = torch.rand(2, 2 * half) + 0.5
    return plain.Heads(*gains, EPS, *angles(50, half), torch.randint(0, 50, (count,)), heads, kv_heads)


QK_SIZES = [(1, 1, 1), (3, 1, 5), (4, 2, 16), (2, 2, 24), (6, 3, 33)]


@implementations
@dtypes
@pytest.mark.parametrize(("heads", "kv_heads", "half"), QK_SIZES)
@pytest.mark.parametrize("count", [1, 9, 700])
def test_qk_norm(kernels: ModuleType, dtype: torch.dtype, heads: int, kv_heads: int, half: int, count: int) -> None:
    given = heads_of(heads, kv_heads, half, count)
    qkv = rows((count, (heads + 2 * kv_heads) * 2 * half), dtype)
    got, expected = kernels.qk_norm(qkv, given), plain.qk_norm(qkv, given)
    assert got.shape == (count, given.columns)
    assert_close(got, expected, scale=8)
    mostly_equal(got, expected)
    grads = rows(tuple(qkv.shape), dtype)
    got_gains, expected_gains = torch.ones(2, 2 * half), torch.ones(2, 2 * half)
    got = kernels.qk_norm_backward([grads], qkv, given, *got_gains, unit=8)
    expected = plain.qk_norm_backward([grads], qkv, given, *expected_gains, unit=8)
    assert_close(got, expected, scale=16)
    assert_close(got_gains, expected_gains, scale=8 * count)
    assert torch.equal(got[:, given.columns :], grads[:, given.columns :])


@implementations
@pytest.mark.parametrize(("heads", "kv_heads", "half"), QK_SIZES)
def test_qk_norm_is_that_of_autograd(kernels: ModuleType, heads: int, kv_heads: int, half: int) -> None:
    given = heads_of(heads, kv_heads, half, 20)
    qkv, grads = torch.randn(20, (heads + 2 * kv_heads) * 2 * half), torch.randn(20, given.columns)
    wide = qkv.double().requires_grad_()
    gains = [gain.double().requires_grad_() for gain in given[:2]]
    parts = []
    for head in range(heads + kv_heads):
        x = wide[:, head * 2 * half : (head + 1) * 2 * half]
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gains[head >= heads]
        c, s = given.cos.double()[given.positions], given.sin.double()[given.positions]
        parts += [x[:, :half] * c - x[:, half:] * s, x[:, half:] * c + x[:, :half] * s]
    result = torch.cat(parts, dim=1)
    result.backward(grads.double())
    assert wide.grad is not None
    assert_close(kernels.qk_norm(qkv, given), result.detach().float(), scale=8)
    gain_grads = torch.zeros(2, 2 * half)
    got = kernels.qk_norm_backward([grads, torch.zeros(20, kv_heads * 2 * half)], qkv, given, *gain_grads)
    assert_close(got, wide.grad.float(), scale=16)
    for found, gain in zip(gain_grads, gains):
        assert gain.grad is not None
        assert_close(found, gain.grad.float(), scale=200)


@implementations
@dtypes
def test_qk_norm_in_units_and_threads(kernels: ModuleType, dtype: torch.dtype) -> None:
    """The same bits for rows at once or unit by unit, on any number of threads."""
    given = heads_of(4, 2, 16, 600)
    qkv, grads = rows((600, 256), dtype), rows((600, 256), dtype)
    found = []
    for threads, at_once in ((1, 600), (2, 600), (2, 200), (3, 100)):
        torch.set_num_threads(threads)
        gain_grads, made = torch.zeros(2, 32), torch.zeros_like(grads)
        for first in range(0, 600, at_once):
            part = given._replace(positions=given.positions[first : first + at_once])
            some = slice(first, first + at_once)
            made[some] = kernels.qk_norm_backward([grads[some]], qkv[some], part, *gain_grads, unit=100)
        found.append((made, gain_grads))
    for made, gain_grads in found[1:]:
        assert torch.equal(made, found[0][0])
        assert torch.equal(gain_grads, found[0][1])


@implementations
def test_rotate_pairs_a_dimension_with_the_one_half_a_head_on(kernels: ModuleType) -> None:
    row = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    kernels.rotate_(row, torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([0]), 1)
    assert row.tolist() == [[-3.0, -4.0, 1.0, 2.0, 5.0]]


@implementations
@dtypes
@shapes
def test_gate(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    gate_up = rows((shape[0], 2 * shape[1]), dtype, spread=4)
    got, expected = kernels.gate(gate_up), plain.gate(gate_up)
    assert_close(got, expected)
    mostly_equal(got, expected)


@implementations
@dtypes
@shapes
def test_gate_backward(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    got = rows((shape[0], 2 * shape[1]), dtype, spread=4)
    expected, d_act = got.clone(), rows(shape, dtype)
    assert_close(kernels.gate_backward_(got, d_act), plain.gate_backward_(expected, d_act))
    assert_close(got, expected, scale=8)
    mostly_equal(got, expected)


@implementations
def test_gate_gradients_are_those_of_autograd(kernels: ModuleType) -> None:
    gate_up, d_act = torch.randn(9, 46) * 3, torch.randn(9, 23)
    wide = gate_up.double().requires_grad_()
    first, second = wide.chunk(2, dim=-1)
    act = torch.nn.functional.silu(first) * second
    act.backward(d_act.double())
    assert wide.grad is not None
    assert_close(kernels.gate(gate_up), act.detach().float())
    assert_close(kernels.gate_backward_(gate_up, d_act), act.detach().float())
    assert_close(gate_up, wide.grad.float(), scale=4)


@implementations
@dtypes
@pytest.mark.parametrize(("count", "vocab", "padding"), [(1, 1, 0), (1, 2, 0), (3, 17, 15), (5, 64, 0), (40, 5003, 5)])
def test_cross_entropy(kernels: ModuleType, dtype: torch.dtype, count: int, vocab: int, padding: int) -> None:
    got = rows((count, vocab + padding), dtype, spread=4)
    got[:, vocab:] = float("nan")
    expected = got.clone()
    labels = torch.randint(0, vocab, (count,))
    labels[count // 2 :: 3] = plain.IGNORE
    losses = kernels.cross_entropy_(got, labels, vocab, 0.25)
    assert_close(losses, plain.cross_entropy_(expected, labels, vocab, 0.25), scale=16)
    assert_close(got, expected)
    mostly_equal(got, expected)
    assert not got[:, vocab:].any()
    assert not got[labels == plain.IGNORE].any()
    assert not losses[labels == plain.IGNORE].any()


@implementations
def test_cross_entropy_gradient_is_that_of_autograd(kernels: ModuleType) -> None:
    logits, labels = torch.randn(12, 300) * 5, torch.randint(0, 300, (12,))
    labels[3] = plain.IGNORE
    wide = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, labels, ignore_index=plain.IGNORE, reduction="none")
    (expected.sum() * 0.125).backward()
    assert wide.grad is not None
    assert_close(kernels.cross_entropy_(logits, labels, 300, 0.125), expected.detach().float(), scale=16)
    assert_close(logits, wide.grad.float())


@implementations
@dtypes
def test_cross_entropy_where_all_is_ignored(kernels: ModuleType, dtype: torch.dtype) -> None:
    logits = torch.full((4, 33), float("nan"), dtype=dtype)
    assert not kernels.cross_entropy_(logits, torch.full((4,), plain.IGNORE), 32, 1.0).any()
    assert not logits.any()


INF, NAN = float("inf"), float("nan")


HUGE = [
    [3e38, -3e38, 0, 1],
    [3e38, 3e38, 3e38, 3e38],
    [-3e38, -3e38, -3e38, -3e38],
    [90, 89, -90, 0],
    [1e4, 0, -1e4, 5],
    [-INF, 2, 1, -INF],
    [-INF, -INF, -INF, 1],
]
UNBOUNDED = [
    [-INF, -INF, -INF, -INF],
    [INF, 1, 2, -INF],
    [INF, INF, 2, 3],
    [0, NAN, 2, 3],
    [INF, NAN, 2, 3],
    [-INF, NAN, -INF, -INF],
    [NAN, NAN, NAN, NAN],
]


@implementations
@dtypes
@pytest.mark.parametrize("row", HUGE + UNBOUNDED, ids=str)
@pytest.mark.parametrize("width", [4, 40])
def test_cross_entropy_of_extreme_logits(kernels: ModuleType, dtype: torch.dtype, row: list[float], width: int) -> None:
    """In one vector and spread over several; with the label on each of the four."""
    got = torch.full((4, width), -INF)
    columns = torch.tensor([0, width // 3, width // 2, width - 1])
    got[:, columns] = torch.tensor(row, dtype=torch.float32)
    got = got.to(dtype)
    expected = got.clone()
    losses = kernels.cross_entropy_(got, columns, width, 2.0)
    wanted = (softmax_loss if row in HUGE else plain.cross_entropy_)(expected, columns, width, 2.0)
    assert_close(losses, wanted)
    assert_close(got, expected, scale=2)


EXTREMES = [0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 88.0, -88.0, 120.0, -120.0, 3e38, -3e38, INF, -INF, NAN]


@implementations
@dtypes
def test_gate_of_extreme_values(kernels: ModuleType, dtype: torch.dtype) -> None:
    first, second = torch.cartesian_prod(torch.tensor(EXTREMES), torch.tensor(EXTREMES)).T
    got = torch.cat([first, second])[None].to(dtype)
    assert_close(kernels.gate(got), plain.gate(got))
    for slope in (0.0, 1.0, INF, NAN):
        mine, theirs, d_act = got.clone(), got.clone(), torch.full((1, len(first)), slope, dtype=dtype)
        assert_close(kernels.gate_backward_(mine, d_act), plain.gate_backward_(theirs, d_act))
        assert_close(mine, theirs)


@implementations
@dtypes
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e18, 1e30, INF, NAN])
def test_norm_of_extreme_values(kernels: ModuleType, dtype: torch.dtype, value: float) -> None:
    x = rows((3, 50), dtype)
    x[1] = value
    x[2, 17] = value
    gain, dy = torch.randn(50), rows((3, 50), dtype)
    assert_close(kernels.norm(x, gain, EPS), plain.norm(x, gain, EPS))
    mine, theirs = torch.zeros(50), torch.zeros(50)
    got, expected = kernels.norm_backward(dy, x, gain, EPS, mine), plain.norm_backward(dy, x, gain, EPS, theirs)
    assert_close(got, expected, scale=16 / EPS**0.5 if abs(value) < 1 else 16)
    assert_close(mine, theirs, scale=16)


@implementations
@dtypes
def test_nothing_to_do(kernels: ModuleType, dtype: torch.dtype) -> None:
    none, gain = torch.empty(0, 8, dtype=dtype), torch.ones(8)
    gain_grad = torch.ones(8)
    assert kernels.norm(none, gain, EPS).shape == (0, 8)
    assert kernels.norm_backward(none, none, gain, EPS, gain_grad).shape == (0, 8)
    assert gain_grad.tolist() == [1.0] * 8
    kernels.rotate_(none, *angles(4, 2), torch.empty(0, dtype=torch.int64), 2)
    assert kernels.gate(none).shape == (0, 4)
    assert kernels.gate_backward_(none, torch.empty(0, 4, dtype=dtype)).shape == (0, 4)
    assert kernels.cross_entropy_(none, torch.empty(0, dtype=torch.int64), 8, 1.0).shape == (0,)


@implementations
@dtypes
def test_rotates_no_heads(kernels: ModuleType, dtype: torch.dtype) -> None:
    qkv = rows((3, 8), dtype)
    before = qkv.clone()
    kernels.rotate_(qkv, *angles(4, 2), torch.arange(3), 0)
    assert torch.equal(qkv, before)


@implementations
@dtypes
def test_takes_what_only_plain_can(kernels: ModuleType, dtype: torch.dtype) -> None:
    """Strided activations, fp16, gains in bf16."""
    gain = torch.randn(32)
    wide = rows((6, 64), dtype)
    assert_close(kernels.norm(wide[:, ::2], gain, EPS), plain.norm(wide[:, ::2].contiguous(), gain, EPS))
    assert_close(kernels.gate(wide.T[:32].T), plain.gate(wide[:, :32].contiguous()))
    half = wide.half()
    assert kernels.gate(half).dtype is torch.float16
    assert_close(
        kernels.norm(wide[:, :32].contiguous(), gain.bfloat16(), EPS), plain.norm(wide[:, :32], gain.bfloat16(), EPS)
    )


def everything(kernels: ModuleType, dtype: torch.dtype, threads: int) -> list[Tensor]:
    """What all kernels make of the same inputs, large enough to be shared among threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(3)
    x, dy, gain, gain_grad = rows((3001, 130), dtype), rows((3001, 130), dtype), torch.randn(130), torch.randn(130)
    qkv, gate_up, d_act = rows((900, 200), dtype), rows((900, 600), dtype), rows((900, 300), dtype)
    logits, labels = rows((50, 6001), dtype), torch.randint(0, 6001, (50,))
    made = [kernels.norm(x, gain, EPS), kernels.norm_backward(dy, x, gain, EPS, gain_grad), gain_grad]
    kernels.rotate_(qkv, *angles(900, 25), torch.arange(900), 3)
    made += [qkv, kernels.gate(gate_up), kernels.gate_backward_(gate_up, d_act), gate_up]
    return [*made, kernels.cross_entropy_(logits, labels, 6001, 1.0), logits]


@implementations
@dtypes
def test_threads_change_no_bit(kernels: ModuleType, dtype: torch.dtype) -> None:
    alone = everything(kernels, dtype, 1)
    for threads in (2, 3):
        for mine, theirs in zip(alone, everything(kernels, dtype, threads)):
            assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_wait_for_threads_it_has_not() -> None:
    gate_up, out = torch.ones(2000, 256), torch.zeros(2000, 128).share_memory_()
    everything(native, torch.float32, 2)
    # Nothing but the kernel: torch's own operators would wait for ever.
    work = (False, gate_up.data_ptr(), out.data_ptr(), 2000, 128, 2)
    child = multiprocessing.get_context("fork").Process(target=_native.kernel_gate, args=work)
    child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0
    assert torch.equal(out, plain.gate(gate_up))


def test_labels_and_positions_out_of_range_are_refused() -> None:
    logits, qkv = torch.ones(2, 8), torch.ones(2, 8)
    for bad in (8, 7, -1, 2**62):
        with pytest.raises(IndexError, match=f"label {bad} is outside the vocabulary of 7"):
            native.cross_entropy_(logits, torch.tensor([0, bad]), 7, 1.0)
    for bad in (4, -1, 2**62):
        with pytest.raises(IndexError, match=f"position {bad} is outside the context of 4"):
            native.rotate_(qkv, *angles(4, 2), torch.tensor([0, bad]), 2)
    assert torch.equal(logits, torch.ones(2, 8))
    assert torch.equal(qkv, torch.ones(2, 8))


@dtypes
@pytest.mark.parametrize("count", [0, 1, 17, 8192, 100_003])
def test_accumulate(dtype: torch.dtype, count: int) -> None:
    total, part = torch.randn(count), torch.randn(count).to(dtype)
    expected = total + part.float()
    native.add_(total, part)
    assert torch.equal(total, expected)


def test_accumulate_of_strides() -> None:
    total = torch.zeros(4, 6)
    native.add_(total[:, ::2], torch.ones(4, 3, dtype=torch.bfloat16))
    assert total.sum() == 12
    native.add_(total, torch.ones(6, 4).T)
    assert total.sum() == 36


@implementations
@dtypes
@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 5), width=st.integers(1, 70), data=st.data())
def test_any_rows(kernels: ModuleType, dtype: torch.dtype, count: int, width: int, data: st.DataObject) -> None:
    """Small matrices of numbers that go together badly."""
    values = st.sampled_from([0.0, -1.0, 0.5, 3.0, -30.0, 1e-20, 1e4, -1e4, 100.0])
    drawn = data.draw(st.lists(values, min_size=2 * count * width, max_size=2 * count * width))
    gate_up = torch.tensor(drawn).view(count, 2 * width).to(dtype)
    x, gain = gate_up[:, :width].contiguous(), torch.linspace(-1, 2, width)
    assert_close(kernels.gate(gate_up), plain.gate(gate_up))
    assert_close(kernels.norm(x, gain, EPS), plain.norm(x, gain, EPS))
    labels = torch.arange(count) % width
    expected = x.clone()
    losses = kernels.cross_entropy_(x, labels, width, 1.0)
    assert_close(losses, softmax_loss(expected, labels, width, 1.0), scale=16)
    assert_close(x, expected)
