"""PyTorch, on a CPU or a GPU.

engine.py                            the engine, as ramlet.engines describes one; device.py, ranks.py where it works
base_memory.py                       torch, loaded with as little resident memory as it can do with
gpt.py  layers.py  weights.py        the model; kernels/ all of it that is no product and no attention
step.py  captured.py  optim/         one step of training; recorded on a GPU; the optimizers
order.py                             the order of sums, by which results are the same whatever fits
predict.py  forward_memory.py        what a step of training takes, and a model that only reads
ladder.py  probe.py  trial.py        the choices there are; a few real steps that correct the prediction, on CPU and GPU
continuing.py  choosing.py  cache.py ids after ids
stored.py  model_files.py            tensors to a file and back; batches.py tensors of a loader
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
