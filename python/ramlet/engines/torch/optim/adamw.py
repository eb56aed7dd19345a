"""torch's AdamW without torch's compiler.

`torch.optim.AdamW.step` imports torch._dynamo, 80 MB of resident memory, to tell it something in case it is compiling.
The step that is wrapped in this does all the work; here it is called as it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

__all__ = ["AdamW"]

# Found before any AdamW exists: the first one wraps it again, to record profiles.
_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """The same to the bit."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return _step(self, closure)

    def _cuda_graph_capture_health_check(self) -> None:
        """No step is recorded; asking whether one is wakes the GPU's driver, 150 MB, also for a run on the CPU."""
