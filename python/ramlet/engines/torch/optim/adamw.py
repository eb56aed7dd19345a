"""torch's AdamW without torch's compiler; on a GPU, one pass over memory (triton_update.py).

`torch.optim.AdamW.step` imports torch._dynamo, 80 MB of resident memory, in case it is being compiled. The wrapped
function does all the work; here it is called directly.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters
from ramlet.engines.torch.division import Held
from ramlet.engines.torch.kernels import has_triton
from ramlet.engines.torch.optim import param_groups, scalar
from ramlet.engines.torch.weights import Weights

WEIGHTS = ("fp32",)
CAPTURABLE = True

# Unwrapped before any AdamW exists: the first one wraps it again, for profiling.
_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """On a CPU bit-identical to torch's. The states are the same on all devices."""

    @property
    def is_complete(self) -> bool:
        return has_triton(self.param_groups[0]["params"][0].device.type)

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float | Tensor = 1.0) -> Any:
        if self.is_complete:
            for group in self.param_groups:
                self._step_on_gpu(group, grad_scale)
            return None
        if grad_scale != 1.0:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(grad_scale)
        return _step(self, closure)

    def _step_on_gpu(self, group: dict[str, Any], grad_scale: float | Tensor) -> None:
        from ramlet.engines.torch.optim import triton_update

        (weights,) = group["params"]
        state = self.state[weights]
        if not state:
            state["step"] = torch.zeros((), device=weights.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        state["step"] += 1
        triton_update.adamw(
            *(weights, group["products"], weights.grad, (state["exp_avg"], state["exp_avg_sq"]), state["step"]),
            scalar(group["lr"], weights.device),
            scalar(grad_scale, weights.device),
            (*group["betas"], group["eps"], group["weight_decay"]),
        )

    def _accelerator_graph_capture_health_check(self) -> None:
        """The check would initialize the GPU driver, 150 MB, even for a run on the CPU; fused steps can be captured."""

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check
    """Its name until torch 2.8."""


def state_bytes(held: Held, item: int) -> int:
    """Two moments in the precision of the weights."""
    return 2 * (held.matrices * item + held.gains * 4)


def make(weights: Weights, settings: Hyperparameters) -> AdamW:
    return over(param_groups(weights, settings), settings)


def over(groups: list[dict[str, Any]], settings: Hyperparameters) -> AdamW:
    return AdamW(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)
