"""Generation and evaluation on a GPU, which replay CUDA graphs: the ids and losses of the CPU, and the speed.

    python benchmarks/generation_cuda.py              # exits with 1 if an id differs

Greedy ids in fp32 for small models of all shapes of the tests: one and several samples, also longer than the context,
and the losses of batches that are evaluated again and again. Then tokens per second of 10M and 124M in bf16.
Needs only torch with Triton, and this repository.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from measure import markdown_table
from oracles_model import SHAPES, model_of
from ramlet.engines.torch.continuing import Continuation
from ramlet.engines.torch.gpt import GPT
from ramlet.generation import SampleSettings
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for

PROMPT = [5, 7, 9, 11]
LOSS_ERROR = 1e-4


def written(model: GPT, settings: SampleSettings) -> list[list[int | None]]:
    """The ids of every step."""
    return list(Continuation(model, PROMPT, settings))


def on_gpu(model: GPT) -> GPT:
    copy = GPT(model.shape, device="cuda")
    copy.weights.matrices.copy_(model.weights.matrices)
    copy.weights.gains.copy_(model.weights.gains)
    copy.weights.refresh()
    return copy


def check(name: str, shape: Shape) -> list[str]:
    cpu = model_of(shape)
    gpu = on_gpu(cpu)
    wrong = 0
    for samples, tokens in ((1, 20), (3, 20), (2, 3 * shape.context)):
        settings = SampleSettings(max_tokens=tokens, temperature=0.0, seed=4, num_samples=samples)
        wrong += written(cpu, settings) != written(gpu, settings)
    ids = torch.randint(0, shape.vocab_size, (4, shape.context // 2)).numpy()
    worst = 0.0
    for given in (ids, ids, ids[:, ::-1].copy(), ids[:2], ids):
        batch = {"input_ids": given, "targets": given}
        losses = [torch.tensor(model.token_losses(batch)) for model in (cpu, gpu)]
        worst = max(worst, float((losses[0] - losses[1]).abs().max()))
    return [name, str(wrong), f"{worst:.1e}", "ok" if not wrong and worst < LOSS_ERROR else "WRONG"]


def speed(params: int, samples: int, tokens: int = 300) -> list[str]:
    shape = shape_for(params, vocab_size=50_257, context=1024, qk_norm=True)
    model = GPT(shape, device="cuda", dtype=torch.bfloat16)
    model.weights.initialize(1)
    settings = SampleSettings(max_tokens=tokens, temperature=0.8, seed=4, num_samples=samples)
    written(model, settings)
    began = time.perf_counter()
    written(model, settings)
    return [f"{params // 10**6}M", str(samples), f"{tokens / (time.perf_counter() - began):,.0f}"]


def main() -> int:
    rows = [check(name, shape) for name, shape in SHAPES.items()]
    print(markdown_table(["model", "different texts", "largest error of a loss", ""], rows))
    times = [speed(params, samples) for params in (10**7, 124 * 10**6) for samples in (1, 8)]
    print(markdown_table(["parameters", "samples", "tokens/s of each"], times))
    return int(any(row[-1] != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
