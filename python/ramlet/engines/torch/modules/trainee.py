"""Any module with its optimizer, as the loop of a run uses it (`Trainee` in ramlet.engines).

    trainee = ModuleTrainee(module, loss, optimizer, device=device, seed=1)
    total += trainee.learn(piece, scale=1 / count)      # a micro-batch
    grad_norm = trainee.update(rate=1e-3, clip=1.0)     # an optimizer step

The module's own tensors are trained, saved and restored: there is no copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ramlet.engines.torch.base_memory import KeptBlocks
from ramlet.engines.torch.modules.batches import placed
from ramlet.engines.torch.modules.losses import Loss, check_loss
from ramlet.engines.torch.modules.optimizers import trainable
from ramlet.engines.torch.modules.seeding import STEP, seed_all
from ramlet.engines.torch.stored import NAMES, Copies, stored
from ramlet.errors import SettingsError
from ramlet.model.tensor_file import Stored


class ModuleTrainee:
    """The trainable parameters of a module, their gradients and an optimizer."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        seed: int,
        kept: KeptBlocks | None = None,
    ) -> None:
        """`kept`: if the allocator keeps freed tensors, as a plan may want on a CPU."""
        self.model = module
        self._kept = kept
        self.optimizer = optimizer
        self._loss, self._device, self._seed = loss, device, seed
        self._parameters = [parameter for _, parameter in trainable(module)]
        # Also of frozen ones: an optimizer of the user's may have states of them.
        self._named = dict(module.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._named.items()}
        rates = self._rates = [group.get("lr") for group in optimizer.param_groups]
        """The user's own, if the optimizer is."""
        self._peak = next((float(rate) for rate in rates if rate), 0.0)
        self._scales = [None if rate is None else float(rate) / self._peak if self._peak else 1.0 for rate in rates]
        """Of each group's learning rate, relative to that of the run; None if the optimizer has its own."""
        self._copies: Copies = {}
        self._learned = 0.0
        """What the micro-batches since the last update counted."""

    @property
    def own_rate(self) -> float | None:
        """The learning rate of the user's optimizer."""
        return self._peak or None

    def return_rates(self) -> None:
        """The optimizer has its own learning rates again: whoever continues with it starts from the same."""
        for group, rate in zip(self.optimizer.param_groups, self._rates):
            if rate is not None:
                group["lr"] = rate

    def learn(self, piece: Any, scale: float) -> Tensor:
        if not piece.expected:
            return torch.zeros((), dtype=torch.float64, device=self._device)  # every target is ignored: no mean
        seed_all(self._device, self._seed, STEP, piece.number)
        loss, count = self._loss(placed(piece.batch, self._device), piece.expected)
        piece.trained = count
        self._learned += count
        if not count and not loss.requires_grad:
            return torch.zeros((), dtype=torch.float64, device=self._device)  # a sum of nothing
        if piece.number == 0:
            check_loss(loss)
        loss.reshape(()).backward() if count * scale == 1.0 else (loss.reshape(()) * (count * scale)).backward()
        if self._kept is not None:
            self._kept.check()
        return loss.detach().reshape(()).double() * count

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Tensor:
        """An optimizer step; returns the gradient norm. On a CPU, a NaN or infinite norm skips the update.

        Without any target that counts there is nothing to learn, and so no step: not even weight decay.
        """
        if not self._learned:
            self.clear_gradients()
            return torch.zeros((), device=self._device)
        grad_norm, factor = self._norm_and_factor(clip or math.inf, correction)
        if self._device.type != "cpu" or math.isfinite(float(grad_norm)):
            self._scale_gradients(factor)
            self._step(rate)
        self.clear_gradients()
        return grad_norm

    def rehearse(self, clip: float) -> None:
        """An update that allocates what a real one does and changes no weight: without gradients, at rate 0."""
        _, factor = self._norm_and_factor(clip or math.inf, 1.0)
        self._scale_gradients(factor)
        for grad in self._gradients():
            grad.zero_()
        self._idle_step()

    def _norm_and_factor(self, clip: float, correction: float) -> tuple[Tensor, Tensor]:
        grads = self._gradients()
        if not grads:
            raise SettingsError("no parameter has a gradient: the loss does not depend on the trainable ones")
        if any(grad.is_sparse for grad in grads):
            raise SettingsError("sparse gradients cannot be clipped or saved: create embeddings with sparse=False")
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(grads)])
        grad_norm = torch.linalg.vector_norm(norms) * correction
        return grad_norm, correction * (clip / (grad_norm + 1e-6)).clamp(max=1.0)

    def _scale_gradients(self, factor: Tensor) -> None:
        with torch.no_grad():
            if self._device.type == "cpu":
                if float(factor) != 1.0:
                    torch._foreach_mul_(self._gradients(), float(factor))
            else:
                torch._foreach_mul_(self._gradients(), factor)

    def _step(self, rate: float) -> None:
        for group, scale in zip(self.optimizer.param_groups, self._scales):
            if scale is not None:
                group["lr"] = rate * scale
        self.optimizer.step()

    def _idle_step(self) -> None:
        """With gradients of 0; what the optimizer keeps in its groups, such as the rate, is as before."""
        groups = self.optimizer.param_groups
        before = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self._step(0.0)
        for group, values in zip(groups, before):
            group.update(values)
        self.clear_gradients()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._learned = 0.0

    def forget_states(self) -> None:
        """As before the first step."""
        self.clear_gradients()
        self.optimizer.state.clear()

    def over_ranks(self, loss: Any, tokens: Any) -> tuple[Any, Any]:
        return loss, tokens

    @property
    def overflow_is_normal(self) -> bool:
        return False

    # Checkpoints.

    def weights(self) -> dict[str, Stored]:
        return stored(named_tensors(self.model), self._copies)

    def states(self) -> dict[str, Stored]:
        return stored({name: value for name, value in self._values() if isinstance(value, Tensor)}, self._copies)

    def _values(self) -> Iterator[tuple[str, Any]]:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                for name, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                    yield f"{self._names[id(parameter)]}.{name}", value

    def state_bytes(self) -> int:
        return sum(value.nbytes for _, value in self._values() if isinstance(value, Tensor))

    def prepare_states(self, held: Collection[str] | None = None) -> None:
        """Allocates the optimizer's states, so that a checkpoint can be read into them: those that it holds, if given.

        A parameter has states from its first gradient on, and some never get one.
        """
        names = self._named if held is None else {name.rpartition(".")[0] for name in held}
        for name, parameter in self._named.items():
            if name not in names:
                self.optimizer.state.pop(parameter, None)
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        if self._gradients():
            self._idle_step()

    def scale_state(self) -> dict[str, Any]:
        """Gradients are not scaled; with it, what an optimizer keeps besides tensors."""
        plain = {name: value for name, value in self._values() if isinstance(value, (int, float, bool))}
        return {"loss_scale": 1.0, "good_steps": 0, "optimizer": plain}

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        for name, value in scale_state.get("optimizer", {}).items():
            parameter, _, state = name.rpartition(".")
            self.optimizer.state[self._named[parameter]][state] = value

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, without gradients; every part of the module has its own mode again afterwards."""
        modes = [(each, each.training) for each in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for each, mode in modes:
                each.training = mode

    def mean_loss(self, batch: Any) -> tuple[float, float]:
        """The mean loss of a micro-batch, and its weight."""
        loss, count = self._loss(placed(batch, self._device))
        return float(loss), count


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; tied ones once, by their first name."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise SettingsError(f"{name} of the module is no tensor, and only tensors can be saved: leave it out")
        if value.dtype not in NAMES or value.layout != torch.strided:
            raise SettingsError(f"{name} of the module is {value.dtype}, which a checkpoint cannot store: convert it")
        if overlaps(value):
            raise SettingsError(
                f"{name} of the module repeats its numbers, as expand does, so no checkpoint can be read into it: "
                "store it with .contiguous()"
            )
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and same in seen:
            continue
        seen.add(same)
        found[name] = value
    return found


def overlaps(tensor: Tensor) -> bool:
    """Whether several elements are one number in memory: then nothing can be written to it."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride()))


def unique_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, tied ones once."""
    found: dict[int, Tensor] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        found.setdefault(tensor.data_ptr() or id(tensor), tensor)
    return list(found.values())
