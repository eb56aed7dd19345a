"""PyTorch, on a CPU or a GPU.

engine.py                            the engine (the contract is in ramlet.engines); device.py, ranks.py where it runs
base_memory.py                       loads torch with as little resident memory as possible
gpt.py  layers.py  weights.py        the model; kernels/ everything except matrix products and attention
step.py  captured.py  optim/         a training step; captured as a CUDA graph; the optimizers
blocks.py                            the memory of each block of a layer
predict.py  forward_memory.py        the memory of a training step; of evaluation and generation
plan.py  probe.py  trial.py          the choices of a plan; a few real steps correct the prediction (CPU, GPU)
continuing.py  sampling.py  cache.py generation: token by token, sampling, the KV cache
modules/                             any nn.Module, for ramlet.fit
stored.py  model_files.py            tensors to files and back; batches.py a loader's arrays as tensors
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramlet.engines import Engine

__all__ = ["open_engine"]


def open_engine(device: str, threads: int | None) -> Engine:
    from ramlet.engines.torch.base_memory import load_torch

    load_torch(threads)
    from ramlet.engines.torch.engine import TorchEngine

    return TorchEngine.on(device)
