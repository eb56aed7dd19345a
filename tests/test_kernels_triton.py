"""The Triton kernels give what the plain ones give, on a machine without a GPU.

Triton decides when it is imported whether kernels are compiled or interpreted, so the tests of this file run in a
process of their own: `test_the_kernels_under_the_interpreter` starts it, and there all the others are found.
`benchmarks/kernels_cuda.py` does the same at real sizes on a real GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles_triton import mend_interpreter
from ramlet.engines.torch.kernels import kernels_for, plain

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FEW = settings(max_examples=10)  # interpreted kernels are slow
WIDTHS = st.sampled_from([1, 2, 16, 31, 64, 100, 768, 1100])

if not importlib.util.find_spec("triton"):
    pytest.skip("Triton is not published for this system", allow_module_level=True)
torch.set_num_threads(1)


def close(got: torch.Tensor, wanted: torch.Tensor, widest: float = 1.0) -> None:
    """Within one rounding of the type; `widest` is the size of the numbers that were summed."""
    step = torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(got, wanted, rtol=2 * step, atol=widest * max(1e-6, step / 64), equal_nan=True)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


if not INTERPRETED:

    def test_the_kernels_under_the_interpreter() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout

    def test_each_device_gets_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def name(device: torch.device | str) -> str:
            kernels_for.cache_clear()
            return kernels_for(device).__name__.rpartition(".")[2]

        monkeypatch.setenv("CC", "cc")
        assert name("cuda") == name("cuda:1") == name(torch.device("cuda", 0)) == "fused"
        assert name("mps") == name(torch.device("meta")) == "plain"
        assert name("cpu") in ("native", "plain")
        # Triton without a C compiler cannot launch anything.
        monkeypatch.delenv("CC")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert name("cuda") == "plain"
        kernels_for.cache_clear()

    def test_the_kernels_are_the_same_functions() -> None:
        names = {name for name in vars(plain) if callable(getattr(plain, name)) and name[0].islower()}
        fused = importlib.import_module("ramlet.engines.torch.kernels.fused")
        assert names
        assert all(callable(getattr(fused, name)) for name in names)

else:
    SUMS = "ramlet.engines.torch.kernels.fused_sums"

    @pytest.fixture(scope="module")
    def fused() -> Iterator[ModuleType]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            mend_interpreter(monkeypatch)
            # An interpreted tile costs its size, even where it is empty: few rows, and more columns than a GPU gets.
            monkeypatch.setattr(f"{SUMS}._ROWS", 8)
            monkeypatch.setattr(f"{SUMS}._COLUMNS", 32)
            yield importlib.import_module("ramlet.engines.torch.kernels.fused")

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(tokens=st.integers(0, 9), width=WIDTHS, size=st.sampled_from([1e-3, 1.0, 1e3]))
    def test_fp8(fused: ModuleType, dtype: torch.dtype, tokens: int, width: int, size: float) -> None:
        x, gain = normal(1, tokens, width) * size, normal(2, width)
        x = x.to(dtype)
        with pytest.MonkeyPatch.context() as monkeypatch:
            # The interpreter makes 4 of 7.9 in fp8: the numbers before they are rounded. A GPU rounds them right.
            for module in (plain, importlib.import_module("ramlet.engines.torch.kernels.fused_fp8")):
                monkeypatch.setattr(module, "FP8", torch.float32)
            close(fused.to_fp8(x, 16.0), plain.to_fp8(x, 16.0))
            close(fused.norm_fp8(x, gain, 1e-5, 16.0), plain.norm_fp8(x, gain, 1e-5, 16.0), widest=64.0)

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(tokens=st.integers(0, 9), width=WIDTHS, gain_dtype=st.sampled_from(DTYPES))
    def test_norm(fused: ModuleType, dtype: torch.dtype, tokens: int, width: int, gain_dtype: torch.dtype) -> None:
        x, gain = normal(1, tokens, width, dtype=dtype), normal(2, width, dtype=gain_dtype)
        close(fused.norm(x, gain, 1e-5), plain.norm(x, gain, 1e-5))

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(tokens=st.integers(0, 9), width=WIDTHS, grad_dtype=st.sampled_from(DTYPES))
    def test_norm_backward(
        fused: ModuleType, dtype: torch.dtype, tokens: int, width: int, grad_dtype: torch.dtype
    ) -> None:
        dy, x = normal(1, tokens, width, dtype=dtype), normal(2, tokens, width, dtype=dtype)
        gain, before = normal(3, width), normal(4, width, dtype=grad_dtype)
        got, wanted = before.clone(), before.float()
        close(fused.norm_backward(dy, x, gain, 1e-5, got), plain.norm_backward(dy, x, gain, 1e-5, wanted), 4.0)
        close(got, wanted.to(grad_dtype), 16.0)
        added = normal(5, tokens, width, dtype=dtype)
        close(
            fused.norm_backward(dy, x, gain, 1e-5, got, added=added),
            plain.norm_backward(dy, x, gain, 1e-5, wanted, added=added),
            256.0,  # plain rounds twice
        )

    def test_norm_backward_of_more_rows_than_programs(fused: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        # Width 300: four rows a tile, so that each program has several tiles and the last one is not full.
        monkeypatch.setattr(fused, "GAIN_PROGRAMS", 3)
        # The sums in tiles of the size that a GPU gets.
        monkeypatch.setattr(f"{SUMS}._ROWS", 1024)
        monkeypatch.setattr(f"{SUMS}._COLUMNS", 8)
        dy, x, gain = normal(1, 41, 300), normal(2, 41, 300), normal(3, 300)
        got, wanted = torch.zeros(300), torch.zeros(300)
        close(fused.norm_backward(dy, x, gain, 1e-5, got), plain.norm_backward(dy, x, gain, 1e-5, wanted), 4.0)
        close(got, wanted, 16.0)

    def test_sums_of_more_programs_than_a_tile_has_rows(fused: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        # 150 programs of a row each, against tiles of 128 in the second kernel.
        monkeypatch.setattr(f"{SUMS}._ROWS", 128)
        dy, x, gain = normal(1, 150, 2048), normal(2, 150, 2048), normal(3, 2048)
        got, wanted = torch.ones(2048), torch.ones(2048)
        fused.norm_backward(dy, x, gain, 1e-5, got)
        plain.norm_backward(dy, x, gain, 1e-5, wanted)
        close(got, wanted, 64.0)

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(
        sequences=st.integers(1, 3),
        seq_len=st.integers(0, 4),
        width=WIDTHS,
        rate=st.sampled_from([0.0, 0.1, 0.7, 0.999]),
        place=st.sampled_from([0, 1, 25]),
        key=st.integers(0, 2**32 - 1),
    )
    def test_dropout(
        fused: ModuleType,
        dtype: torch.dtype,
        sequences: int,
        seq_len: int,
        width: int,
        rate: float,
        place: int,
        key: int,
    ) -> None:
        x, branch = (normal(seed, sequences * seq_len, width, dtype=dtype) for seed in (1, 2))
        mask = plain.Dropout((torch.arange(sequences) * 77777 + key) % 2**32, rate, place)
        got, wanted = fused.dropout(x, mask), plain.dropout(x, mask)
        assert torch.equal(got == 0, wanted == 0)
        close(got, wanted)  # the interpreter rounds bf16 towards 0
        got, wanted = branch.clone(), branch.clone()
        fused.dropout_add_(got, x, mask)
        plain.dropout_add_(wanted, x, mask)
        close(got, wanted, 4 * mask.scale)

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(
        tokens=st.integers(0, 5),
        half=st.sampled_from([1, 3, 8, 32, 40]),
        heads=st.integers(1, 7),
        rest=st.integers(0, 3),
        inverse=st.booleans(),
        index=st.sampled_from([torch.int32, torch.int64]),
    )
    def test_rotate(
        fused: ModuleType,
        dtype: torch.dtype,
        tokens: int,
        half: int,
        heads: int,
        rest: int,
        inverse: bool,
        index: torch.dtype,
    ) -> None:
        qkv = normal(1, tokens, (heads + rest) * 2 * half, dtype=dtype)
        angles = normal(2, 11, half)
        positions = torch.randint(0, 11, (tokens,), generator=torch.Generator().manual_seed(3)).to(index)
        got, wanted = qkv.clone(), qkv.clone()
        fused.rotate_(got, angles.cos(), angles.sin(), positions, heads, inverse)
        plain.rotate_(wanted, angles.cos(), angles.sin(), positions, heads, inverse)
        close(got, wanted)
        kept = slice(heads * 2 * half, None)
        assert torch.equal(got[:, kept], qkv[:, kept])

    def test_rotate_more_heads_than_a_tile_has(fused: ModuleType) -> None:
        got = normal(1, 2, 40 * 128)
        wanted, angles, positions = got.clone(), normal(2, 3, 64), torch.tensor([2, 1])
        fused.rotate_(got, angles.cos(), angles.sin(), positions, 37)
        plain.rotate_(wanted, angles.cos(), angles.sin(), positions, 37)
        close(got, wanted)

    @pytest.mark.parametrize("dtype", DTYPES)
    @settings(max_examples=12)
    @given(
        tokens=st.integers(1, 5),
        half=st.sampled_from([1, 3, 32]),
        heads=st.integers(1, 3),
        kv_heads=st.integers(1, 2),
    )
    def test_qk_norm_and_back(
        fused: ModuleType, dtype: torch.dtype, tokens: int, half: int, heads: int, kv_heads: int
    ) -> None:
        qkv = normal(1, tokens, (heads + 2 * kv_heads) * 2 * half, dtype=dtype)
        gains, angles = normal(2, 2, 2 * half), normal(3, 11, half)
        positions = torch.randint(0, 11, (tokens,), generator=torch.Generator().manual_seed(4))
        given_heads = plain.Heads(*gains, 1e-5, angles.cos(), angles.sin(), positions, heads, kv_heads)
        close(fused.qk_norm(qkv, given_heads), plain.qk_norm(qkv, given_heads), 4.0)
        # The keys' gradient has rows that lie apart.
        q, k, v = normal(5, *qkv.shape, dtype=dtype).split(
            [count * 2 * half for count in (heads, kv_heads, kv_heads)], 1
        )
        grads, got_gains, wanted_gains = (q.contiguous(), k, v), torch.ones(2, 2 * half), torch.ones(2, 2 * half)
        got = fused.qk_norm_backward(grads, qkv, given_heads, *got_gains)
        wanted = plain.qk_norm_backward(grads, qkv, given_heads, *wanted_gains)
        # One head of two numbers has hardly a gradient: what is left are roundings of large terms.
        close(got, wanted, 64.0)
        close(got_gains, wanted_gains, 64.0)

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(tokens=st.integers(0, 4), width=WIDTHS)
    def test_gate_and_back(fused: ModuleType, dtype: torch.dtype, tokens: int, width: int) -> None:
        gate_up, d_act = normal(1, tokens, 2 * width, dtype=dtype) * 3, normal(2, tokens, width, dtype=dtype)
        close(fused.gate(gate_up), plain.gate(gate_up), 4.0)
        got, wanted = gate_up.clone(), gate_up.clone()
        close(fused.gate_backward_(got, d_act), plain.gate_backward_(wanted, d_act), 4.0)
        close(got, wanted, 8.0)

    @pytest.mark.parametrize("dtype", DTYPES)
    @FEW
    @given(
        tokens=st.integers(0, 4),
        vocab=st.sampled_from([1, 2, 17, 300, 8192, 8200]),
        padding=st.sampled_from([0, 1, 63, 8192]),
        size=st.sampled_from([0.0, 1.0, 30.0]),
        data=st.data(),
    )
    def test_cross_entropy(
        fused: ModuleType,
        dtype: torch.dtype,
        tokens: int,
        vocab: int,
        padding: int,
        size: float,
        data: st.DataObject,
    ) -> None:
        label = st.one_of(st.just(plain.IGNORE), st.integers(0, vocab - 1))
        labels = torch.tensor(data.draw(st.lists(label, min_size=tokens, max_size=tokens)), dtype=torch.int64)
        logits = normal(1, tokens, vocab + padding, dtype=dtype) * size
        logits[:, vocab:] = 1000.0  # would drown all others if it took part
        got, wanted = logits.clone(), logits.clone()
        close(fused.cross_entropy_(got, labels, vocab, 0.37), plain.cross_entropy_(wanted, labels, vocab, 0.37), 16.0)
        close(got, wanted)
        assert not got[labels == plain.IGNORE].any()
        assert not got[:, vocab:].any()

    def test_cross_entropy_where_some_logits_are_ruled_out(fused: ModuleType) -> None:
        logits = normal(1, 2, 9000)
        logits[:, :8500] = -torch.inf
        got, wanted, labels = logits.clone(), logits.clone(), torch.tensor([8999, 8500])
        close(fused.cross_entropy_(got, labels, 9000, 1.0), plain.cross_entropy_(wanted, labels, 9000, 1.0), 16.0)
        close(got, wanted)

    def test_nan_is_not_lost(fused: ModuleType) -> None:
        logits = normal(1, 1, 40)
        logits[0, 3] = torch.nan
        assert fused.cross_entropy_(logits, torch.tensor([5]), 40, 1.0).isnan().all()
        assert logits.isnan().all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_accumulate(fused: ModuleType, dtype: torch.dtype) -> None:
        dy, x, grad = normal(1, 6, 5, dtype=dtype), normal(2, 6, 7, dtype=dtype), normal(3, 5, 7)
        wanted = grad + dy.float().t() @ x.float()
        fused.accumulate_(grad, dy, x)
        # The way without fp32 sums rounds the product once.
        torch.testing.assert_close(grad, wanted, rtol=0, atol=16 * torch.finfo(dtype).eps)
