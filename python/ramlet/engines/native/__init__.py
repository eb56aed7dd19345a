"""The native core, on a CPU: needs no PyTorch.

engine.py              the engine (the contract is in ramlet.engines)
gpt.py                 the model: the only code that calls `NativeGPT`, the Rust core's (rust/gpt/)
trainee.py             a model with its optimizer
tensors.py             its tensors, to write to files and read into; rotary.py the tables of its positions
plan.py                what a plan chooses, and its memory: the arena, to the byte, and what is resident before
continuing.py          generation: the loop, with the decoder; sampling.py chooses tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramlet.engines import Engine

__all__ = ["open_engine"]


def open_engine(device: str, threads: int | None) -> Engine:
    from ramlet.engines.native.engine import NativeEngine

    assert device != "cuda"  # `choose_engine` refuses it
    return NativeEngine.open(threads)
