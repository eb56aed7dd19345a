"""The Triton kernels on a GPU: correctness at real sizes, and speed compared with plain torch and torch.compile.

    python benchmarks/kernels_cuda.py                 # check, then time; a few minutes, mostly for torch.compile
    python benchmarks/kernels_cuda.py --check         # only check: exits with 1 if a kernel is wrong
    python benchmarks/kernels_cuda.py --tune          # times other tile sizes and warps than those in fused.py

16,384 tokens, width 768, feed-forward 2048, 50,304 columns of logits of which 50,257 are real. Times are medians with
the L2 cache flushed between runs (triton.testing.do_bench); GB/s counts every value that a fused kernel has to read
or write, the logits twice read and once written. `host` is the time one call takes in Python, without the GPU.

`--quick` skips torch.compile. Needs only torch with Triton, and this repository.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from measure import markdown_table
from ramlet.engines.torch.kernels import fused, fused_sums, kernels_for, plain

TOKENS, WIDTH, FORWARD, COLUMNS, VOCAB = 16_384, 768, 2048, 50_304, 50_257
HEADS, HALF, CONTEXT, EPS, SCALE = 12, 32, 1024, 1e-5, 1.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


@dataclass
class Case:
    """A kernel with its input: `call(module, *fresh input)` returns everything that it computes or overwrites."""

    name: str
    values: float  # read or written by a fused kernel
    inputs: Callable[[int, torch.dtype], tuple[Any, ...]]
    call: Callable[..., tuple[torch.Tensor, ...]]


def rotated(kernels: Any, qkv: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    kernels.rotate_(qkv, *rest, 2 * HEADS)
    return (qkv,)


def rotate_inputs(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    angles = normal(CONTEXT, HALF)
    return normal(tokens, 3 * WIDTH, dtype=dtype), angles.cos(), angles.sin(), torch.arange(tokens).cuda() % CONTEXT


def cross_entropy_inputs(tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
    labels = torch.randint(0, VOCAB, (tokens,), device="cuda")
    labels[::10] = plain.IGNORE
    return normal(tokens, COLUMNS, dtype=dtype), labels


CASES = [
    Case(
        "norm",
        2 * TOKENS * WIDTH,
        lambda tokens, dtype: (normal(tokens, WIDTH, dtype=dtype), normal(WIDTH)),
        lambda kernels, x, gain: (kernels.norm(x, gain, EPS),),
    ),
    Case(
        "norm_backward",
        3 * TOKENS * WIDTH,
        lambda tokens, dtype: (
            normal(tokens, WIDTH, dtype=dtype),
            normal(tokens, WIDTH, dtype=dtype),
            normal(WIDTH),
            normal(WIDTH),
        ),
        lambda kernels, dy, x, gain, grad: (kernels.norm_backward(dy, x, gain, EPS, grad), grad),
    ),
    Case("rotate_", 4 * TOKENS * WIDTH, rotate_inputs, rotated),
    Case(
        "gate",
        3 * TOKENS * FORWARD,
        lambda tokens, dtype: (normal(tokens, 2 * FORWARD, dtype=dtype),),
        lambda kernels, gate_up: (kernels.gate(gate_up),),
    ),
    Case(
        "gate_backward_",
        6 * TOKENS * FORWARD,
        lambda tokens, dtype: (normal(tokens, 2 * FORWARD, dtype=dtype), normal(tokens, FORWARD, dtype=dtype)),
        lambda kernels, gate_up, d_act: (kernels.gate_backward_(gate_up, d_act), gate_up),
    ),
    Case(
        "cross_entropy_",
        3 * TOKENS * COLUMNS,
        cross_entropy_inputs,
        lambda kernels, logits, labels: (kernels.cross_entropy_(logits, labels, VOCAB, SCALE), logits),
    ),
]


def copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(given.clone() for given in inputs)


def worst(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, in units of the dtype's precision at the number's or the mean magnitude, if larger."""
    largest = 0.0
    kind = torch.finfo(wanted.dtype)
    mean = wanted.float().abs().mean()
    for some, others in zip(got.split(1024), wanted.split(1024)):  # in pieces, because logits are large
        step = kind.eps * (others.float().abs().maximum(mean) + kind.tiny)
        largest = max(largest, ((some.float() - others.float()).abs() / step).max().item())
        if not torch.equal(some.isfinite(), others.isfinite()):
            return float("inf")
    return largest


def check() -> bool:
    """Every kernel against the plain one, twice for identical bits, and in a CUDA graph."""
    rows, right = [], True
    for name, dtype in DTYPES.items():
        # Long sums in fp32 differ in their last bits, depending on the order of the terms.
        allowed = 256.0 if dtype == torch.float32 else 2.0
        for case in CASES:
            given = case.inputs(TOKENS, dtype)
            began = time.perf_counter()
            got = case.call(fused, *copies(given))
            torch.cuda.synchronize()
            first_call = time.perf_counter() - began
            again = case.call(fused, *copies(given))
            same = all(torch.equal(one, other) for one, other in zip(got, again))
            del again
            wanted = case.call(plain, *copies(given))
            # Sums over all tokens are fp32, whatever the dtype.
            errors = [
                worst(one, other) / (256.0 if other.dtype == torch.float32 else allowed)
                for one, other in zip(got, wanted)
            ]
            good = same and max(errors) <= 1
            right &= good
            verdict = "ok" if good else "WRONG" if same else "NOT DETERMINISTIC"
            rows.append([case.name, name, ", ".join(f"{e:.3f}" for e in errors), f"{first_call:.2f} s", verdict])
            del got, wanted, given
            torch.cuda.empty_cache()
    right &= check_far_rows(rows)
    right &= check_small_vocabularies(rows)
    right &= check_graph(rows)
    right &= check_accumulate(rows)
    print(markdown_table(["kernel", "dtype", "error / allowed", "first call", ""], rows), flush=True)
    return right


def check_far_rows(rows: list[list[str]]) -> bool:
    """Logits with more elements than an int32 can count: the last rows must be correct."""
    tokens = 2**31 // COLUMNS + 2048
    logits, labels = cross_entropy_inputs(tokens, torch.bfloat16)
    tail = logits[-1024:].clone()
    wanted = plain.cross_entropy_(tail, labels[-1024:], VOCAB, SCALE)
    losses = fused.cross_entropy_(logits, labels, VOCAB, SCALE)
    error = max(worst(losses[-1024:], wanted) / 256, worst(logits[-1024:], tail) / 2)
    verdict = "ok" if error <= 1 else "WRONG"
    rows.append([f"cross_entropy_, {tokens:,} tokens", "bf16", f"{error:.3f}", "", verdict])
    return error <= 1


def check_small_vocabularies(rows: list[list[str]]) -> bool:
    """Where most threads of a program have no logit, or few."""
    right = True
    for vocab in (3, 257, 4000, 8192, 9000):
        labels = torch.randint(0, vocab, (64,), device="cuda")
        logits = normal(64, -(-vocab // 64) * 64, dtype=torch.bfloat16)
        given = logits.clone()
        wanted = plain.cross_entropy_(given, labels, vocab, SCALE)
        losses = fused.cross_entropy_(logits, labels, vocab, SCALE)
        error = max(worst(losses, wanted) / 256, worst(logits, given) / 2)
        right &= error <= 1
        rows.append(
            [f"cross_entropy_, vocabulary of {vocab}", "bf16", f"{error:.3f}", "", "ok" if error <= 1 else "WRONG"]
        )
    return right


def check_graph(rows: list[list[str]]) -> bool:
    """All kernels captured in a CUDA graph and replayed with other values."""
    right = True
    for case in CASES:
        fixed = case.inputs(512, torch.bfloat16)
        given = copies(fixed)
        wanted = case.call(fused, *copies(given))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = case.call(fused, *fixed)
        for place, value in zip(fixed, given):
            place.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        same = all(torch.equal(one, other) for one, other in zip(got, wanted))
        right &= same
        rows.append([f"{case.name} in a CUDA graph", "bf16", "", "", "ok" if same else "WRONG"])
    return right


def check_accumulate(rows: list[list[str]]) -> bool:
    right = True
    for name, dtype in DTYPES.items():
        dy, x, grad = normal(4096, 2304, dtype=dtype), normal(4096, WIDTH, dtype=dtype), normal(2304, WIDTH)
        wanted = grad.double() + dy.double().t() @ x.double()
        try:
            fused.accumulate_(grad, dy, x)
        except RuntimeError as error:
            rows.append(["accumulate_", name, "", "", f"FAILS: {str(error).splitlines()[0]}"])
            right = False
            continue
        difference = (grad - wanted).abs().max().item()
        # Sums of 4096 products of magnitude 1 have magnitude 64; fp32 (or TF32 inputs) is far more precise than 1/2.
        good = difference < 0.5
        right &= good
        rows.append(["accumulate_", name, f"{difference:.1e}", "", "ok" if good else "WRONG"])
    return right


def milliseconds(call: Callable[[], object]) -> float:
    return float(do_bench(call, warmup=50, rep=200, return_mode="median"))


def host_microseconds(call: Callable[[], object]) -> float:
    for _ in range(20):
        call()
    runs = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            call()
        runs.append((time.perf_counter() - began) / 50 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(runs)


def time_all(with_compile: bool) -> None:
    rows = []
    for name, dtype in DTYPES.items():
        for case in CASES:
            given = case.inputs(TOKENS, dtype)
            few = case.inputs(16, dtype)
            size = case.values * torch.finfo(dtype).bits / 8
            ways: dict[str, Callable[..., object]] = {
                "ramlet": lambda *given, case=case: case.call(fused, *given),
                "plain": lambda *given, case=case: case.call(plain, *given),
            }
            if with_compile:
                torch._dynamo.reset()
                ways["compiled"] = torch.compile(ways["plain"], dynamic=False)
            fastest = 0.0
            for way, call in ways.items():
                began = time.perf_counter()
                try:
                    call(*given)
                except Exception as error:  # noqa: BLE001 (a peer that fails is a row of the table)
                    rows.append([case.name, name, way, "fails", str(error).splitlines()[0][:60], "", "", ""])
                    continue
                torch.cuda.synchronize()
                first = time.perf_counter() - began
                took = milliseconds(lambda call=call, given=given: call(*given))  # type: ignore[misc]
                host = "" if way == "compiled" else f"{host_microseconds(lambda call=call, few=few: call(*few)):.0f}"  # type: ignore[misc]
                fastest = fastest or took
                rate = f"{size / took / 1e6:,.0f}"
                rows.append(
                    [case.name, name, way, f"{took * 1e3:,.1f}", rate, f"{took / fastest:.2f}", host, f"{first:.2f}"]
                )
            del given, few
            torch.cuda.empty_cache()
    print(markdown_table(["kernel", "dtype", "version", "µs", "GB/s", "time / ours", "host µs", "first call s"], rows))
    print(flush=True)


def time_accumulate() -> None:
    rows = []
    for out, into in ((3 * WIDTH, WIDTH), (2 * FORWARD, WIDTH), (WIDTH, FORWARD), (COLUMNS, WIDTH)):
        for name, dtype in DTYPES.items():
            dy, x = normal(TOKENS, out, dtype=dtype), normal(TOKENS, into, dtype=dtype)
            grad = torch.zeros(out, into, device="cuda")
            ways: dict[str, Callable[[], object]] = {
                "accumulate_": lambda grad=grad, dy=dy, x=x: fused.accumulate_(grad, dy, x),  # type: ignore[misc]
                "grad.add_(dy.t() @ x)": lambda grad=grad, dy=dy, x=x: grad.add_(dy.t() @ x),  # type: ignore[misc]
                "dy.t() @ x alone": lambda dy=dy, x=x: dy.t() @ x,  # type: ignore[misc]
            }
            for way, call in ways.items():
                try:
                    took = milliseconds(call)
                except RuntimeError as error:
                    rows.append([f"{out} x {into}", name, way, "fails", str(error).splitlines()[0][:60]])
                    continue
                flops = 2 * TOKENS * out * into / took / 1e9
                rows.append([f"{out} x {into}", name, way, f"{took * 1e3:,.1f}", f"{flops:,.0f}"])
    print(markdown_table(["gradient", "dtype", "version", "µs", "TFLOP/s"], rows))
    print(flush=True)


def tune() -> None:
    """Times other tile sizes, in bf16."""
    rows: list[list[str]] = []

    def row(kernel: str, choice: str, call: Callable[[], object]) -> None:
        try:
            rows.append([kernel, choice, f"{milliseconds(call) * 1e3:,.1f}"])
        except Exception as error:  # noqa: BLE001 (a choice that does not compile is a row of the table)
            rows.append([kernel, choice, f"fails: {str(error).splitlines()[0][:60]}"])

    dy, x = normal(TOKENS, WIDTH, dtype=torch.bfloat16), normal(TOKENS, WIDTH, dtype=torch.bfloat16)
    gain, grad, out = normal(WIDTH), normal(WIDTH), torch.empty_like(x)
    columns = triton.next_power_of_2(WIDTH)
    for height, warps in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (4, 8)):
        grid = (triton.cdiv(TOKENS, height),)

        def norm(grid: Any = grid, height: int = height, warps: int = warps) -> None:
            fused._norm_kernel[grid](x, gain, out, TOKENS, WIDTH, EPS, height, columns, num_warps=warps)

        row("norm", f"{height} rows, {warps} warps", norm)
    for programs in (256, 512, 1024):
        sums = torch.empty(programs, WIDTH, device="cuda")
        for height, stages, warps in (
            (1, 1, 2), (1, 1, 4), (2, 1, 4), (4, 1, 4), (4, 1, 8), (8, 1, 8),
            (1, 2, 4), (1, 3, 4), (2, 2, 4), (2, 3, 4), (4, 2, 8), (4, 3, 8),
        ):  # fmt: skip

            def backward(programs: int = programs, sums: Any = sums, choice: Any = (height, stages, warps)) -> None:
                fused._norm_backward_kernel[(programs,)](
                    *(dy, x, gain, dy, out, sums, TOKENS, WIDTH, EPS, True, choice[0], columns, choice[1]),
                    num_warps=choice[2],
                )

            row("norm_backward", f"{programs} programs, {height} rows, {stages} stages, {warps} warps", backward)
        for height, wide in ((128, 16), (256, 16), (512, 8), (1024, 8), (1024, 16)):

            def add_sums(programs: int = programs, sums: Any = sums, choice: Any = (height, wide)) -> None:
                grid = (triton.cdiv(WIDTH, choice[1]), 1)
                fused_sums._add_sums_kernel[grid](grad, grad, sums, programs, WIDTH, *choice, num_warps=8)

            row("its column sums", f"{programs} programs, {height} x {wide}", add_sums)
    gate_up, d_act = normal(TOKENS, 2 * FORWARD, dtype=torch.bfloat16), normal(TOKENS, FORWARD, dtype=torch.bfloat16)
    act = torch.empty_like(d_act)
    for wide, warps in ((512, 2), (1024, 2), (1024, 4), (1024, 8), (2048, 4), (2048, 8)):
        grid2 = (TOKENS, triton.cdiv(FORWARD, wide))

        def gate(grid: Any = grid2, wide: int = wide, warps: int = warps) -> None:
            fused._gate_kernel[grid](gate_up, act, FORWARD, wide, num_warps=warps)

        def gate_back(grid: Any = grid2, wide: int = wide, warps: int = warps) -> None:
            fused._gate_backward_kernel[grid](gate_up, d_act, act, FORWARD, wide, num_warps=warps)

        row("gate", f"{wide} columns, {warps} warps", gate)
        row("gate_backward_", f"{wide} columns, {warps} warps", gate_back)
    qkv, cos, sin, positions = rotate_inputs(TOKENS, torch.bfloat16)
    for heads, warps in ((8, 1), (8, 2), (16, 2), (32, 2), (32, 4), (32, 8)):
        grid2 = (TOKENS, triton.cdiv(2 * HEADS, heads))

        def rotate(grid: Any = grid2, heads: int = heads, warps: int = warps) -> None:
            fused._rotate_kernel[grid](
                qkv, cos, sin, positions, 3 * WIDTH, 2 * HEADS, 1.0, HALF, heads, HALF, num_warps=warps
            )

        row("rotate_", f"{heads} heads, {warps} warps", rotate)
    logits, labels = cross_entropy_inputs(TOKENS, torch.bfloat16)
    losses = torch.empty(TOKENS, device="cuda")
    for height, wide, warps in (
        (2, 1024, 4), (4, 1024, 4), (8, 1024, 4), (2, 2048, 8), (4, 2048, 8), (8, 2048, 8),
        (1, 4096, 16), (2, 4096, 16), (4, 4096, 16), (1, 8192, 32), (2, 8192, 32),
    ):  # fmt: skip

        def entropy(choice: Any = (height, wide), warps: int = warps) -> None:
            fused._cross_entropy_kernel[(TOKENS,)](
                logits, labels, losses, VOCAB, COLUMNS, SCALE, *choice, num_warps=warps
            )

        row("cross_entropy_", f"{height} x {wide}, {warps} warps", entropy)
    print(markdown_table(["kernel", "choice", "µs"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check")
    parser.add_argument("--tune", action="store_true", help="only time other tile sizes")
    parser.add_argument("--quick", action="store_true", help="skip torch.compile")
    wanted = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device found")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"kernels_for('cuda') is {kernels_for('cuda').__name__}\n", flush=True)
    if wanted.tune:
        tune()
        return
    right = check()
    print(flush=True)
    if not wanted.check:
        time_all(with_compile=not wanted.quick)
        time_accumulate()
    if not right:
        sys.exit(1)


if __name__ == "__main__":
    main()
