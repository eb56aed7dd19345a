"""AdamW with 8-bit states against torch's AdamW: identical results everywhere, time, bytes, and final loss.

    python benchmarks/adamw8bit.py                   # CPU, 10 million parameters
    python benchmarks/adamw8bit.py --device cuda     # 124 million
    python benchmarks/adamw8bit.py --loss            # 2,000 steps of a small transformer, 8-bit against 32-bit states

The parameters are one flat tensor, as in training, and the list of tensors of a GPT of about that size. The optimizers
take turns, and the numbers are medians over --rounds; every step is timed separately, on a GPU with synchronization.
torch's AdamW runs with its defaults, with foreach=True, and with fused=True, its fastest version.

Identical results means: after five steps, weights, codes and scales have the same bits as those of the native core on
the CPU; plain torch may have codes off by one where its square root is not correctly rounded, as on a CPU.

Prints Markdown tables and the checks with measured value and limit; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from adamw8bit_loss import final_losses
from bpe_train import check, print_checks
from measure import machine, markdown_table, median
from ramlet.engines.torch.optim import native, tiled
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
from ramlet.engines.torch.optim.factors import Factors, rounding_key
from ramlet.engines.torch.optim.state import Moments, new_state

HERE = Path(__file__).resolve().parent
SIZES = {"cpu": 10_000_000, "cuda": 124_000_000}
BARS = {"cpu": 1.5, "cuda": 1.1}
WIDTHS = {"cpu": (384, 4, 8_000), "cuda": (768, 12, 50_257)}
"""Width, layers and vocabulary of the GPT."""

PEERS: dict[str, Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]] = {
    "AdamW8bit": AdamW8bit,
    "AdamW": torch.optim.AdamW,
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


def shapes_of_gpt(device: str) -> list[tuple[int, ...]]:
    width, layers, vocabulary = WIDTHS[device]
    layer: list[tuple[int, ...]] = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    return [(vocabulary, width)] + layers * [*layer, (width,), (width,)] + [(width,)]


def make_parameters(shapes: list[tuple[int, ...]], device: str, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    parameters = []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.randn(shape, device=device).to(dtype))
        parameter.grad = (torch.randn(shape, device=device) * 1e-3).to(dtype)
        parameters.append(parameter)
    return parameters


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_steps(shapes: list[tuple[int, ...]], device: str, dtype: torch.dtype, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step of each optimizer."""
    optimizers = {name: make(make_parameters(shapes, device, dtype)) for name, make in PEERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for round_number in range(rounds + 2):
        for name, optimizer in optimizers.items():
            wait_for(device)
            start = time.perf_counter()
            optimizer.step()
            wait_for(device)
            if round_number >= 2:  # the first steps create the states and compile the kernel
                seconds[name].append(time.perf_counter() - start)
    return seconds


def held_bytes(shapes: list[tuple[int, ...]], device: str) -> float:
    """Bytes of state per parameter."""
    parameters = make_parameters(shapes, device, torch.float32)
    optimizer = AdamW8bit(parameters)
    optimizer.step()
    held = sum(t.numel() * t.element_size() for state in optimizer.state.values() for t in state.values())
    return held / sum(parameter.numel() for parameter in parameters)


def engine_of(device: str) -> Any:
    if device == "cpu":
        return native
    from ramlet.engines.torch.optim import triton_kernel

    return triton_kernel


def differing(device: str, dtype: torch.dtype, other: Any, other_device: str) -> dict[str, float]:
    """Five steps on the device and with another implementation: the fraction of numbers whose bits differ."""
    count = 1_000_003
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(count, generator=draw).to(dtype)
    runs = [(engine_of(device), device), (other, other_device)]
    weights = [start.to(place, copy=True) for _, place in runs]
    moments = [Moments.of(new_state(tensor, quantized=True)) for tensor in weights]
    for step in range(1, 6):
        noise = torch.randn(2, count, generator=draw)
        gradient = (noise[0] * torch.exp(2 * noise[1]) * 1e-3).to(dtype)
        factors = Factors.of(step, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_scale=0.5)
        for (engine, place), tensor, state in zip(runs, weights, moments):
            engine.step(tensor, gradient.to(place), state, factors, rounding_key(1, 0, step), 0)
    names = ["first codes", "first scales", "root codes", "root scales"]
    pairs = {"weights": (weights[0], weights[1]), **dict(zip(names, zip(*map(astuple, moments))))}
    return {name: (one.cpu() != two.cpu()).double().mean().item() for name, (one, two) in pairs.items()}


def compare_and_time(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    device, dtype = options.device, getattr(torch, options.dtype)
    checks = []
    same = {"plain torch": differing(device, dtype, tiled, device)}
    if device == "cuda":
        same["the CPU"] = differing(device, dtype, native, "cpu")
    for name, shares in same.items():
        limit = 1e-3 if device == "cpu" else 0.0
        print(f"bits that differ from {name}: " + ", ".join(f"{key} {share:.1e}" for key, share in shares.items()))
        codes = max(shares["first codes"], shares["root codes"])
        checks.append(check(f"codes that differ from {name}", f"{codes:.1e}", f"at most {limit}", codes <= limit))

    results: dict[str, Any] = {"not the bits of": same, "seconds": {}}
    layouts = {"flat": [(SIZES[device],)], "gpt": shapes_of_gpt(device)}
    rows = []
    for layout, shapes in layouts.items():
        seconds = time_steps(shapes, device, dtype, options.rounds)
        results["seconds"][layout] = seconds
        ours = median(seconds["AdamW8bit"])
        for name, times in seconds.items():
            row = [layout, name, f"{median(times) * 1e3:.2f}", f"{min(times) * 1e3:.2f}", f"{ours / median(times):.2f}"]
            rows.append(row)
        held = held_bytes(shapes, device)
        results[f"bytes of {layout}"] = held
        checks.append(check(f"{layout}: bytes of state per parameter", round(held, 3), "at most 2.1", held <= 2.1))
        peer = "AdamW" if device == "cpu" else "AdamW, fused"
        ratio = ours / median(seconds[peer])
        if device == "cpu" or layout == "flat":
            claim, limit = f"{layout}: time / {peer}'s", BARS[device]
            checks.append(check(claim, round(ratio, 2), f"at most {limit}", ratio <= limit))
    print("\n" + markdown_table(["parameters", "optimizer", "median ms", "min ms", "AdamW8bit / it"], rows) + "\n")
    return results, checks


def reach_losses(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    losses = final_losses(PEERS["AdamW8bit"], PEERS["AdamW"], options.device, options.steps)
    rows = [
        [str(seed), f"{ours:.4f}", f"{theirs:.4f}", f"{ours / theirs:.4f}"] for seed, (ours, theirs) in losses.items()
    ]
    print(markdown_table(["seed", "8 bits", "32 bits", "ratio"], rows) + "\n")
    worst = max(ours / theirs for ours, theirs in losses.values())
    met = check("loss with 8 bits / loss with 32 bits, worst seed", round(worst, 4), "at most 1.01", worst <= 1.01)
    return {"losses": losses}, [met]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of the parameters")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loss", action="store_true", help="train a small model instead")
    parser.add_argument("--steps", type=int, default=2_000, help="steps of --loss")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results, checks = reach_losses(options) if options.loss else compare_and_time(options)
    print_checks(checks)
    if not options.no_results:
        today = datetime.date.today().isoformat()
        target = HERE / "results" / f"{today}-adamw8bit.json"
        kept: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"date": today}
        part = f"{options.device}, {'loss' if options.loss else options.dtype}"
        place = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        kept[part] = {"machine": machine(), "device": place, "torch": torch.__version__, "checks": checks, **results}
        kept[part]["settings"] = {"threads": options.threads, "rounds": options.rounds, "steps": options.steps}
        target.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}")


if __name__ == "__main__":
    main()
