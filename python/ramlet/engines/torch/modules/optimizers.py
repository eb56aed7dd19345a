"""Optimizers for the parameters of any module: ramlet's own by name, or any torch optimizer.

    optimizer = make("adamw", module, settings, precision="fp32")
    optimizer = make(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), module, settings, ...)

Weight decay applies to matrices, not to biases and gains. `muon` updates the matrices inside the module; embeddings,
the output layer and everything that is no matrix get AdamW, as in ramlet's own models (../optim/muon.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ramlet.engines import Hyperparameters
from ramlet.engines.constants import COEFFICIENTS, MARGIN, ROW_DECAY, TINY, UPDATE_SIZE
from ramlet.engines.torch.optim import native, scalar
from ramlet.engines.torch.optim.adamw import AdamW
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
from ramlet.engines.torch.optim.muon import Muon, Views, packed
from ramlet.engines.torch.sizes import adamw8bit_bytes
from ramlet.errors import SettingsError, option

NAMES = ("adamw", "adamw8bit", "muon")
Given = str | torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer]
"""A name, an optimizer of the module's parameters, or a function that makes one."""


class ModuleAdamW(AdamW):
    """For any number of tensors, with torch's own step on all devices."""

    is_complete = False


class ModuleMuon(Muon):
    """For matrices that are tensors of their own."""

    def __init__(self, matrices: list[Tensor], rest: ModuleAdamW, settings: Hyperparameters, products: str) -> None:
        self._rest = rest
        self._compute = torch.bfloat16 if products == "bf16" else torch.float32
        group = {"params": matrices, "weight_decay": settings.weight_decay}
        torch.optim.Optimizer.__init__(self, [group], {"lr": 0.0})
        rest.state = self.state
        self.param_groups += rest.param_groups

    is_complete = False

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float | Tensor = 1.0) -> Any:
        self._rest.step()
        given = self.param_groups[0]
        views = [self._of(matrix) for matrix in given["params"] if matrix.grad is not None]
        if not views:
            return
        rate, keep = given["lr"], 1 - given["lr"] * given["weight_decay"]
        weights = [each.weights for each in views]
        if weights[0].device.type == "cpu":
            torch._foreach_mul_(weights, keep)
            native.muon_update(
                [(each.weights, each.gradients, each.row_squares) for each in views],
                COEFFICIENTS,
                (MARGIN, ROW_DECAY, TINY, rate * UPDATE_SIZE),
            )
            return
        scalars = [scalar(value, weights[0].device) for value in (rate * UPDATE_SIZE, keep, 1.0)]
        for batch in packed([(each.shape[1], each.shape[2], 1) for each in weights]):
            self._update([views[number] for number, _ in batch], *scalars)

    def _of(self, matrix: Tensor) -> Views:
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
            state["row_squares"] = torch.zeros(len(matrix), device=matrix.device)
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        self._add_to_momentum(gradient, state, 1.0)
        direction = gradient[None]
        return Views(matrix[None], direction, direction, matrix[None], state["row_squares"].view(1, -1, 1))


def make(given: Given, module: nn.Module, settings: Hyperparameters, *, precision: str) -> torch.optim.Optimizer:
    """The optimizer of the module's trainable parameters."""
    trained = trainable(module)
    if isinstance(given, torch.optim.Optimizer):
        own = {id(parameter) for group in given.param_groups for parameter in group["params"]}
        if not own <= {id(parameter) for parameter in module.parameters()}:  # without a gradient, frozen ones stay
            raise SettingsError(
                f"{type(given).__name__} has parameters that are none of the module's: create it from "
                f"module.parameters(), after the module is on its device, or give {option('optimizer')} as a function"
            )
        return _checked(given)
    if not isinstance(given, str):
        return _made(given, module)
    if given not in NAMES:
        raise SettingsError(f"unknown optimizer {given!r}: use {', '.join(NAMES)}, or give a torch optimizer")
    betas: Any = (settings.beta1, settings.beta2)
    if given == "muon":
        matrices = hidden_matrices(module)
        hidden = {id(matrix) for matrix in matrices}
        rest = [parameter for _, parameter in trained if id(parameter) not in hidden]
        others = ModuleAdamW([{"params": rest, "weight_decay": 0.0}], lr=0.0, betas=betas, eps=settings.eps, fused=True)
        return ModuleMuon(matrices, others, settings, precision)
    groups = [
        {"params": [each for _, each in trained if each.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [each for _, each in trained if each.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if given == "adamw8bit":
        return AdamW8bit(groups, lr=0.0, betas=betas, eps=settings.eps, seed=settings.seed)
    return ModuleAdamW(groups, lr=0.0, betas=betas, eps=settings.eps, fused=True)


def _made(given: Any, module: nn.Module) -> torch.optim.Optimizer:
    """By the user's function."""
    return _checked(given([parameter for _, parameter in trainable(module)]) if callable(given) else given)


def _checked(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingsError(
            f"{option('optimizer')} gave a {type(optimizer).__name__}: give {', '.join(NAMES)}, "
            "a torch.optim.Optimizer, or a function from parameters to one"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SettingsError("LBFGS computes the loss several times per step, which cannot be divided: use another one")
    return optimizer


def state_bytes(given: Given, module: nn.Module) -> int:
    """The memory of its states; 0 if only a step can tell."""
    sizes = [(parameter.numel(), parameter.element_size()) for _, parameter in trainable(module)]
    if given == "adamw":
        return sum(2 * count * item for count, item in sizes)
    if given == "adamw8bit":
        return sum(adamw8bit_bytes(count) for count, _ in sizes)
    if given == "muon":
        saved = sum(each.numel() * 4 - len(each) * 4 for each in hidden_matrices(module))
        return sum(2 * count * item for count, item in sizes) - saved
    return 0


def scratch_bytes(given: Given, module: nn.Module, device: torch.device, precision: str) -> int:
    """The scratch memory of a step, if it grows with the module."""
    if given != "muon":
        return 0
    sizes = [(int(each.shape[0]), int(each.shape[1])) for each in hidden_matrices(module)]
    if device.type == "cpu":
        return native.muon_scratch_bytes(sizes, torch.get_num_threads())
    item = 2 if precision == "bf16" else 4
    batches = packed([(*size, 1) for size in sizes])
    elements = ([math.prod(sizes[number]) + min(sizes[number]) ** 2 for number, _ in batch] for batch in batches)
    return max(2 * item * sum(each) for each in elements)


def name_of(given: Given, module: nn.Module) -> str:
    """For the plan and settings.yaml: a name of ours, or the class of what the user's function makes."""
    if isinstance(given, str):
        return given
    return type(given if isinstance(given, torch.optim.Optimizer) else _made(given, module)).__name__


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Every trainable parameter once, with its first name."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """What Muon updates: matrices of the innermost modules, except embeddings and the output layer."""
    embeddings = {id(each.weight) for each in module.modules() if isinstance(each, (nn.Embedding, nn.EmbeddingBag))}
    head = _output_layer(module)
    found = {id(each): each for each in _leaf_matrices(module) if id(each) not in embeddings}
    if head is not None:
        found.pop(id(head.weight), None)
    if not found:
        raise SettingsError(
            "muon updates the matrices between the embeddings and the output layer, and this module has none that are "
            f"float32 and trainable: use {option('optimizer', 'adamw')}"
        )
    return list(found.values())


def _leaf_matrices(module: nn.Module) -> Iterator[Tensor]:
    for each in module.modules():
        if any(True for _ in each.children()):
            continue
        for parameter in each.parameters(recurse=False):
            matrix = parameter.dim() == 2 and min(parameter.shape) > 1
            if matrix and parameter.dtype == torch.float32 and parameter.is_contiguous() and parameter.requires_grad:
                yield parameter


def _output_layer(module: nn.Module) -> Any:
    known: Any = getattr(module, "get_output_embeddings", lambda: None)()
    linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return known if known is not None else (linear[-1] if len(linear) > 1 else None)
