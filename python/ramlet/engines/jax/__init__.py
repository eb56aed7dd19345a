"""JAX: TPUs, GPUs, meshes of devices, and a CPU.

engine.py                            the engine (the contract is in ramlet.engines); device.py, mesh.py, ranks.py where
                                     it runs
loading.py                           imports JAX, with little memory, and sets its compilation cache
gpt.py  layers.py  loss.py           the model with its backward pass; weights.py its tree of weights
step.py  optim/                      a training step as one program; the optimizers, as optax transformations
plan.py  probe.py                    the choices of a plan, by formulas; corrected by XLA and by a real step
continuing.py                        generation: token by token, with a KV cache
stored.py                            arrays to files and back; batches.py a loader's arrays on the devices of a mesh
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramlet.engines import Engine

__all__ = ["open_engine"]


def open_engine(device: str, threads: int | None) -> Engine:
    from ramlet.engines.jax.loading import load_jax

    load_jax(device, threads)
    from ramlet.engines.jax.engine import JaxEngine

    return JaxEngine(device, threads)
