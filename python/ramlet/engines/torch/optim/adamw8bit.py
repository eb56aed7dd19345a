"""AdamW with two 8-bit moments: 2.03 bytes of state per parameter instead of 8.

    optimizer = AdamW8bit(model.parameters(), lr=3e-4, weight_decay=0.1)
    loss.backward()
    optimizer.step(grad_scale=1 / batches)      # or a clipping factor: no separate pass over the gradients

A torch optimizer like any other: parameter groups, schedulers and state_dict work. Tensors of 4,096 elements or more
are quantized, whatever their shape, in blocks of 256; smaller ones keep 32 bits. Parameters are float32 or bfloat16;
bfloat16 is rounded stochastically, by a hash of seed, parameter, step and index, so runs are reproducible and there is
no generator to save.

Per parameter, a step is one call of the native core (CPU), one Triton kernel (CUDA) or a loop over tiles in plain torch
(any other device), with scratch memory of fixed size. Results are bit-identical for any number of threads, and on
devices that round square roots correctly. A NaN or infinity in a gradient makes its weight NaN, and with the next step
its block of 256. The reasons, and what was tried: docs/design/adamw8bit.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any, overload

import torch

from ramlet.engines import Hyperparameters
from ramlet.engines.torch.division import Held
from ramlet.engines.torch.kernels import has_triton
from ramlet.engines.torch.optim import native, param_groups, tiled
from ramlet.engines.torch.optim.factors import Factors, rounding_key
from ramlet.engines.torch.optim.state import Moments, new_state
from ramlet.engines.torch.sizes import SMALLEST_QUANTIZED, adamw8bit_bytes, flat_elements
from ramlet.engines.torch.weights import Weights
from ramlet.errors import SettingsError

WEIGHTS = ("fp32", "bf16")


def state_bytes(held: Held, item: int) -> int:
    return adamw8bit_bytes(held.matrices, flat_elements(held.shape)[0]) + adamw8bit_bytes(held.gains)


def make(weights: Weights, settings: Hyperparameters) -> AdamW8bit:
    return over(param_groups(weights, settings), settings)


def over(groups: list[dict[str, Any]], settings: Hyperparameters) -> AdamW8bit:
    return AdamW8bit(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.eps, seed=settings.seed)


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with 8-bit moments: two bytes per parameter instead of eight.

        optimizer = ramlet.AdamW8bit(model.parameters(), lr=3e-4, weight_decay=0.1)

    The default betas are the usual ones for language models; torch's are (0.9, 0.999).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        seed: int = 0,
    ) -> None:
        self._seed = seed
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like torch's, for float32 or bfloat16 parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for name in ("lr", "eps", "weight_decay"):
            if not group[name] >= 0:
                raise SettingsError(f"{name} must be at least 0, not {group[name]}")
        for beta in group["betas"]:
            if not 0 <= beta < 1:
                raise SettingsError(f"betas must be at least 0 and below 1, not {group['betas']}")
        for parameter in group["params"]:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise SettingsError(
                    f"AdamW8bit supports float32 and bfloat16 parameters, not {parameter.dtype}: "
                    "convert the model with .float() or .bfloat16()"
                )

    @overload
    def step(self, closure: None = None, *, grad_scale: float | torch.Tensor = 1.0) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, grad_scale: float | torch.Tensor = 1.0) -> float: ...

    @torch.no_grad()
    def step(
        self, closure: Callable[[], float] | None = None, *, grad_scale: float | torch.Tensor = 1.0
    ) -> float | None:
        """Updates every parameter that has a gradient; gradients are multiplied by `grad_scale`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, number, group, float(grad_scale))
                number += 1
        return loss

    def _step_parameter(self, parameter: torch.Tensor, number: int, group: dict[str, Any], grad_scale: float) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise SettingsError("AdamW8bit does not support sparse gradients: create the embedding with sparse=False")
        state = self.state[parameter]
        is_small = group.get("whole", parameter.numel()) < SMALLEST_QUANTIZED
        if not state:
            state.update(new_state(parameter, quantized=not is_small))
        state["step"] += 1
        step = int(state["step"])
        factors = Factors.of(
            step,
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            grad_scale=grad_scale,
        )
        key = rounding_key(self._seed, number, step)
        if is_small:
            _step_small(parameter, gradient, state, factors, key)
            return
        run = loops_for(parameter.device.type).step
        for weights, gradients, moments, first_index in _flat_parts(parameter, gradient, Moments.of(state)):
            run(weights, gradients, moments, factors, key, group.get("first", 0) + first_index)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict() returned; as with torch's optimizers, tensors are not copied."""
        # The parent would cast all tensors to the parameter's dtype: codes to floats.
        super().load_state_dict({**state_dict, "state": {}})
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(saved, parameters):
            if number in state_dict["state"]:
                self.state[parameter] = _fitting(state_dict["state"][number], parameter, number)


def _fitting(state: dict[str, Any], parameter: torch.Tensor, number: int) -> dict[str, torch.Tensor]:
    """The state on the parameter's device; refuses one of another size or optimizer."""
    with torch.device("meta"):
        wanted = new_state(torch.empty(parameter.shape), quantized=parameter.numel() >= SMALLEST_QUANTIZED)
    fits = state.keys() == wanted.keys() and all(
        isinstance(state[name], torch.Tensor) and (state[name].shape, state[name].dtype) == (like.shape, like.dtype)
        for name, like in wanted.items()
    )
    if not fits:
        raise SettingsError(
            f"the optimizer state of parameter {number} is not that of AdamW8bit for {parameter.numel()} elements: "
            "load the state that was saved with this model"
        )
    return {
        name: tensor.cpu() if name == "step" else tensor.to(parameter.device).contiguous()
        for name, tensor in state.items()
    }


@functools.cache
def loops_for(device: str) -> ModuleType:
    """The module with the loops over elements."""
    if device == "cpu":
        return native
    if has_triton(device):
        from ramlet.engines.torch.optim import triton_kernel

        return triton_kernel
    return tiled


def _flat_parts(
    parameter: torch.Tensor, gradient: torch.Tensor, moments: Moments
) -> Iterator[tuple[torch.Tensor, torch.Tensor, Moments, int]]:
    """Weights and gradients as flat tensors in the order of elements, and their first index.

    One part without a copy, or tiles that are copied out and back if a tensor is not contiguous.
    """
    if parameter.is_contiguous() and gradient.is_contiguous():
        yield parameter.view(-1), gradient.view(-1), moments, 0
        return
    for start in range(0, parameter.numel(), tiled.TILE):
        index = torch.arange(start, min(start + tiled.TILE, parameter.numel()), device=parameter.device)
        end = start + index.numel()
        weights = parameter.take(index)
        yield weights, gradient.take(index), moments.part(start, end), start
        parameter.put_(index, weights)


def _step_small(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], factors: Factors, key: int
) -> None:
    """The same step with 32-bit moments."""
    gradient = gradient.float()
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.mul_(factors.first_decay).add_(gradient, alpha=factors.first_gain)
    second.mul_(factors.root_decay**2).addcmul_(gradient, gradient, value=factors.root_gain**2)
    update = (first * factors.rate).div_(second.sqrt().add_(factors.eps))
    stepped = parameter.float() * factors.keep - update
    if parameter.dtype == torch.bfloat16:
        stepped = tiled.round_stochastically(stepped, key, 0)
    parameter.copy_(stepped)
