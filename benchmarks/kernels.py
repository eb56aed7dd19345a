"""The CPU kernels of a training step: native, plain, and torch's own versions, in one run.

    python benchmarks/kernels.py                # both dtypes, all threads
    python benchmarks/kernels.py --threads 1

Every result is first compared with the plain version's. Times are the best of --repeats, in turns; GB/s counts each
operand once, read or written, so a copy (the last row) is the upper bound. The last lines time a block of a model with
matrix products between the kernels, which would show threads that get in each other's way.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as torch_own
from torch import Tensor

from ramlet.engines.torch.kernels import native, plain

TOKENS, WIDTH, HIDDEN, HEADS, VOCAB, CONTEXT = 4096, 768, 2048, 12, 32768, 512
LOGIT_ROWS = 512
EPS = 1e-5

Versions = dict[str, Callable[[], object]]


def best_of(versions: Versions, repeats: int) -> dict[str, float]:
    """The shortest time of each, in turns, so that a busy moment affects all of them."""
    best = dict.fromkeys(versions, float("inf"))
    for _ in range(repeats):
        for name, version in versions.items():
            start = time.perf_counter()
            version()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def report(name: str, gigabytes: float, versions: Versions, repeats: int) -> None:
    best = best_of(versions, repeats)
    cells = [f"{1e3 * best[key]:9.3f}" if key in best else f"{'':9}" for key in ("plain", "torch", "native")]
    print(f"| {name:22} | {' | '.join(cells)} | {gigabytes / best['native']:6.1f} |", flush=True)


def same(got: Tensor, expected: Tensor) -> None:
    step = 2.0**-7 if got.dtype is torch.bfloat16 else 2.0**-17
    torch.testing.assert_close(got, expected, rtol=step, atol=step * float(expected.abs().mean()))


def rows_of(dtype: torch.dtype, repeats: int) -> None:
    kind, size = str(dtype).split(".")[1], dtype.itemsize / 1e9
    x, dy = torch.randn(2, TOKENS, WIDTH).to(dtype)
    gain, gain_grad = torch.randn(WIDTH), torch.zeros(WIDTH)
    same(native.norm(x, gain, EPS), plain.norm(x, gain, EPS))
    same(native.norm_backward(dy, x, gain, EPS, gain_grad), plain.norm_backward(dy, x, gain, EPS, gain_grad))
    versions: Versions = {
        "plain": lambda: plain.norm(x, gain, EPS),
        "torch": lambda: torch_own.rms_norm(x, (WIDTH,), gain.to(dtype), EPS),
        "native": lambda: native.norm(x, gain, EPS),
    }
    report(f"norm {kind}", 2 * size * x.numel(), versions, repeats)
    versions = {
        "plain": lambda: plain.norm_backward(dy, x, gain, EPS, gain_grad),
        "native": lambda: native.norm_backward(dy, x, gain, EPS, gain_grad),
    }
    report(f"norm_backward {kind}", 3 * size * x.numel(), versions, repeats)

    half = WIDTH // HEADS // 2
    qkv, positions = torch.randn(TOKENS, 3 * WIDTH).to(dtype), torch.arange(TOKENS) % CONTEXT
    turns = torch.randn(CONTEXT, half)
    cos, sin = turns.cos(), turns.sin()
    mine, theirs = qkv.clone(), qkv.clone()
    native.rotate_(mine, cos, sin, positions, 2 * HEADS)
    plain.rotate_(theirs, cos, sin, positions, 2 * HEADS)
    same(mine, theirs)
    versions = {
        "plain": lambda: plain.rotate_(qkv, cos, sin, positions, 2 * HEADS),
        "native": lambda: native.rotate_(qkv, cos, sin, positions, 2 * HEADS),
    }
    report(f"rotate_ {kind}", 4 * size * TOKENS * WIDTH, versions, repeats)

    gate_up, d_act = torch.randn(TOKENS, 2 * HIDDEN).to(dtype), torch.randn(TOKENS, HIDDEN).to(dtype)
    same(native.gate(gate_up), plain.gate(gate_up))
    versions = {
        "plain": lambda: plain.gate(gate_up),
        "torch": lambda: torch_own.silu(gate_up[:, :HIDDEN]) * gate_up[:, HIDDEN:],
        "native": lambda: native.gate(gate_up),
    }
    report(f"gate {kind}", 3 * size * d_act.numel(), versions, repeats)
    versions = {
        "plain": lambda: plain.gate_backward_(gate_up.clone(), d_act),
        "native": lambda: native.gate_backward_(gate_up, d_act),
    }
    report(f"gate_backward_ {kind}", 6 * size * d_act.numel(), versions, repeats)

    logits, labels = torch.randn(LOGIT_ROWS, VOCAB).to(dtype), torch.randint(0, VOCAB, (LOGIT_ROWS,))
    mine, theirs = logits.clone(), logits.clone()
    same(native.cross_entropy_(mine, labels, VOCAB, 1.0), plain.cross_entropy_(theirs, labels, VOCAB, 1.0))
    same(mine, theirs)
    leaf = logits.clone().requires_grad_()
    versions = {
        "plain": lambda: plain.cross_entropy_(theirs, labels, VOCAB, 1.0),
        "torch": lambda: torch.autograd.grad(torch_own.cross_entropy(leaf, labels), leaf),
        "native": lambda: native.cross_entropy_(mine, labels, VOCAB, 1.0),
    }
    report(f"cross_entropy_ {kind}", 2 * size * logits.numel(), versions, repeats)

    total, part = torch.zeros(x.numel()), x.flatten()
    versions = {"torch": lambda: total.add_(part), "native": lambda: native.accumulate_(total, part)}
    report(f"accumulate_ {kind}", (8e-9 + size) * total.numel(), versions, repeats)


def block(dtype: torch.dtype, repeats: int) -> None:
    """Norm, product, gate, product: with few tokens, where waiting for threads matters, and with many."""
    gain = torch.ones(WIDTH)
    up, down = torch.randn(2 * HIDDEN, WIDTH).to(dtype), torch.randn(WIDTH, HIDDEN).to(dtype)
    for tokens in (64, 1024):
        x = torch.randn(tokens, WIDTH).to(dtype)
        times = best_of(
            {
                "products alone": lambda x=x: [x @ up.T, x.new_ones(len(x), HIDDEN) @ down.T],  # type: ignore[misc]
                "native": lambda x=x: native.gate(native.norm(x, gain, EPS) @ up.T) @ down.T,  # type: ignore[misc]
                "plain": lambda x=x: plain.gate(plain.norm(x, gain, EPS) @ up.T) @ down.T,  # type: ignore[misc]
            },
            4 * repeats,
        )
        print(f"block {dtype}, {tokens} tokens: " + ", ".join(f"{key} {1e3 * t:.3f} ms" for key, t in times.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"| {options.threads} threads, ms | plain     | torch     | native    | GB/s   |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        rows_of(dtype, options.repeats)
    source, target = torch.zeros(2, 1 << 24)
    report("copy", 8e-9 * source.numel(), {"native": lambda: target.copy_(source)}, options.repeats)
    small, gain = torch.randn(4, 64), torch.ones(64)
    calls: Versions = {"native": lambda: [native.norm(small, gain, EPS) for _ in range(1000)]}
    print(f"a call with 4 x 64 numbers: {1e3 * best_of(calls, options.repeats)['native']:.1f} us")
    for dtype in (torch.float32, torch.bfloat16):
        block(dtype, options.repeats)


if __name__ == "__main__":
    main()
