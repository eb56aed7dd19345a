"""The JAX engine on a GPU or TPU: steps, files, an evaluation and a sample, to compare with those of a CPU.

    python benchmarks/jax_device.py cuda
    python benchmarks/jax_device.py cpu         # the losses in fp32 must be the same up to rounding

It needs jax, optax, numpy and the package, but neither a dataset nor the command line. For every optimizer and
precision it prints the plan and the memory in use, six losses with their gradient norms, and the next step of the
trainee itself and of one that has read its files: these two must be equal.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ramlet.engines.opening import DEVICES, open_engine
from ramlet.engines.plan import Task
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import read_tensors_into, write_tensors
from ramlet.runtime.meter import Meter
from ramlet.training.settings import RunSettings

SHAPE = Shape(2048, 256, 4, 256, 4, kv_heads=2, qk_norm=True)
KINDS = (
    ("muon8bit", "fp32", "fp32"),
    ("adamw", "fp32", "fp32"),
    ("muon", "bf16", "fp32"),
    ("muon8bit", "bf16", "bf16"),
)
"""Optimizer, precision of products, and of weights."""
ROWS, TOKENS = 16, 256


def step(trainee: Any, number: int) -> tuple[float, float]:
    """The loss and the gradient norm of a step in two micro-batches."""
    ids = np.random.default_rng(number).integers(0, SHAPE.vocab_size, (ROWS, TOKENS + 1))
    half = ROWS // 2
    for start in (0, half):
        rows = ids[start : start + half]
        batch = {"input_ids": rows[:, :-1], "targets": rows[:, 1:], "samples": range(start, start + half)}
        loss = trainee.learn(batch, 1 / (ROWS * TOKENS))
    grad_norm = trainee.update(6e-3, 1.0)
    return float(loss) / (ROWS * TOKENS), float(grad_norm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=DEVICES)
    given = parser.parse_args()
    engine: Any = open_engine(given.device, name="jax")
    from ramlet.engines.jax.plan import OneSample

    print(engine.name, engine.versions, engine.precision("auto"), engine.gpus(), flush=True)
    settings = RunSettings(params=1_000_000, seed=3)
    with Meter() as meter, tempfile.TemporaryDirectory() as folder:
        for optimizer, precision, weights in KINDS:
            forced = {"optimizer": optimizer, "weights": weights, "micro_batch": ROWS // 2}
            budget, resident = engine.budget("2GB"), engine.resident()
            task = Task(SHAPE, TOKENS, ROWS, budget, precision, forced=forced, resident=resident)
            began = time.perf_counter()
            plan = engine.fit(task, settings, meter)
            seconds = time.perf_counter() - began
            trainee = engine.trainee(SHAPE, plan.choice, settings, seq_len=TOKENS)
            trainee.reset(1)
            found = [step(trainee, number % 2) for number in range(6)]
            peak = engine.peak(meter)
            print(f"{optimizer}, {precision}, {weights}: {seconds:.1f} s, plan {plan.peak:,}, peak {peak:,}")
            print("  ", " ".join(f"{loss:.5f}/{grad_norm:.4f}" for loss, grad_norm in found))
            write_tensors(Path(folder, "model"), trainee.weights())
            write_tensors(Path(folder, "states"), trainee.states())
            other = engine.trainee(SHAPE, plan.choice, settings, seq_len=TOKENS)
            other.prepare_states()
            read_tensors_into(Path(folder, "model"), other.weights())
            read_tensors_into(Path(folder, "states"), other.states())
            print("   next", step(trainee, 7), step(other, 7))
            ids = np.arange(3 * TOKENS).reshape(3, TOKENS) % SHAPE.vocab_size
            losses = trainee.model.token_losses({"input_ids": ids, "targets": ids})
            greedy = OneSample(12, temperature=0.0)
            sample = [row[0] for row in trainee.model.continuation([1, 2, 3], greedy, end_ids=())]
            print("   evaluation", sum(map(sum, losses)) / ids.size, "sample", sample, flush=True)


if __name__ == "__main__":
    main()
