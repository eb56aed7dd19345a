"""The loss of a micro-batch, and how much it counts.

A step's loss is the mean over the whole batch, however the batch is divided. Each micro-batch has a mean of its own, so
they are weighted by what it divides by: where targets are class or token ids, by the number of those that are not
ignored (-100, or the criterion's `ignore_index`), or the sum of their class weights; else by the number of samples. A
loss that averages in another way returns a pair (sum, count), which is always exact.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ramlet.engines.torch.modules.batches import IGNORED, rows, targets_of
from ramlet.errors import SettingsError, option

LossFunction = Callable[[Any, Any], Any]


class Loss:
    """Of a module, by what the user gave: nothing, a criterion of torch.nn, or a function of module and batch."""

    def __init__(self, module: nn.Module, loss: LossFunction | nn.Module | None, precision: str) -> None:
        self._module, self._loss, self._precision = module, loss, precision
        self._shifts = loss is None and _is_causal(module)
        self._accepted = _accepted(module) if loss is None else None
        self._ignored = _ignored_by(loss)
        self._class_weights = _class_weights(loss)
        if isinstance(loss, type):
            raise SettingsError(
                f"{option('loss')} is the class {loss.__name__}: give an object of it, {loss.__name__}()"
            )
        if getattr(loss, "reduction", "mean") != "mean":
            raise SettingsError(
                f"{type(loss).__name__} must have reduction='mean', because a step is the mean over its batch, "
                "however it is divided"
            )
        if loss is not None and not callable(loss):
            raise SettingsError(
                f"{option('loss')} must be a function of the module and a batch, not {type(loss).__name__}"
            )

    def __call__(self, batch: Any, counted: float | None = None) -> tuple[Tensor, float]:
        """The mean over a micro-batch, and its weight: `counted`, if it is known. Counting on a GPU waits for it."""
        found = self._found(batch)
        if _is_sum(found):
            count = _count_of(found[1])
            return found[0] / (count or 1.0), count
        return found, self.count(batch) if counted is None else counted

    def differentiable(self, batch: Any) -> Tensor:
        """What the backward pass starts from, up to a factor, without reading any number."""
        found = self._found(batch)
        value: Tensor = found[0] if _is_sum(found) else found
        return value

    def _found(self, batch: Any) -> Any:
        with self._cast():
            return self._value(batch)

    def _cast(self) -> AbstractContextManager[Any]:
        device = next(self._module.parameters()).device.type
        known = self._precision == "bf16" and device in ("cpu", "cuda")
        return torch.autocast(device, torch.bfloat16) if known else nullcontext()

    def _value(self, batch: Any) -> Any:
        if self._loss is None:
            return self._own_loss(batch)
        if isinstance(self._loss, nn.Module):
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise SettingsError(
                    f"{type(self._loss).__name__} compares outputs with targets, so a batch must be a pair of both: "
                    f"give pairs, or a {option('loss')} that is a function of the module and a batch"
                )
            return self._loss(self._module(batch[0]), batch[1])
        return self._loss(self._module, batch)

    def _own_loss(self, batch: Any) -> Any:
        """That of a model that computes it, such as those of transformers."""
        if isinstance(batch, Mapping):
            given = {name: value for name, value in batch.items() if self._accepted is None or name in self._accepted}
            found = self._module(**given)
        else:
            found = self._module(*batch) if isinstance(batch, (tuple, list)) else self._module(batch)
        loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", found)
        if not isinstance(loss, Tensor):
            raise SettingsError(
                f"{type(self._module).__name__} returned no loss: give {option('loss')}, a function of the module and "
                "a batch, or batches with labels"
            )
        return loss

    def count(self, batch: Any) -> float:
        """The weight of a micro-batch, before its loss is known."""
        targets = targets_of(batch)
        if targets is None or targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            return float(rows(batch))
        if self._shifts and targets.dim() > 1:
            targets = targets[:, 1:]  # the model never sees a target for its last position
        if self._ignored is None:
            return float(targets.numel())
        counted = targets != self._ignored
        if self._class_weights is None:
            return float(counted.sum())
        return float(self._class_weights.to(targets.device)[targets[counted].long()].sum())

    def unit(self, batch: Any) -> str:
        """What is counted: tokens, if every sample has several targets."""
        targets = targets_of(batch)
        several = targets is not None and targets.dim() > 1 and not targets.is_floating_point()
        return "tokens" if several else "samples"


def _is_sum(found: Any) -> bool:
    """Whether it is a pair (sum, count)."""
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor)


def _count_of(given: Any) -> float:
    """The second of a pair; of other pairs, such as (loss, logits), it is no count."""
    try:
        # What has a gradient is another loss.
        count = math.nan if isinstance(given, Tensor) and given.requires_grad else float(given)
    except (TypeError, ValueError, RuntimeError):
        count = math.nan
    if not 0 <= count < math.inf:
        what = f"a {type(given).__name__}" if math.isnan(count) else f"{count:g}"
        raise SettingsError(
            f"{option('loss')} returned a pair whose second part is {what}, not a count: return the mean alone, or "
            "(sum, count)"
        )
    return count


def check_loss(loss: Any) -> None:
    """Refuses what cannot be trained on, before the first step."""
    if not isinstance(loss, Tensor):
        raise SettingsError(
            f"the loss is a {type(loss).__name__}: {option('loss')} must return a scalar tensor, or (sum, count)"
        )
    if loss.numel() != 1:
        raise SettingsError(
            f"the loss is no scalar, it has the shape {tuple(loss.shape)}: return its mean, or (sum, count)"
        )
    if loss.is_complex():
        raise SettingsError("the loss is a complex number, which has no order: return its real part or its magnitude")
    if not loss.requires_grad:
        raise SettingsError(
            "the loss has no gradient: compute it from the module's output, without detach(), item() or no_grad()"
        )
    if not bool(torch.isfinite(loss)):
        raise SettingsError(
            f"the loss of the first batch is {float(loss.detach())}: check the data and the module's initial weights"
        )


def _ignored_by(loss: Any) -> int | None:
    """The target that it ignores; None if it is one of torch's for which every number is a target."""
    known = isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn.")
    ignored: int | None = getattr(loss, "ignore_index", None if known else IGNORED)
    return ignored


def _class_weights(loss: Any) -> Tensor | None:
    """Those of a criterion, on average 1: about as much is counted as without them, and the mean is the same."""
    if not isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) or loss.weight is None:
        return None
    weights = loss.weight.detach().double()
    return weights / weights.mean()


def _is_causal(module: nn.Module) -> bool:
    """Whether a model of transformers shifts its labels by one."""
    return any(part in type(module).__name__ for part in ("CausalLM", "LMHeadModel", "DoubleHeads"))


def _accepted(module: nn.Module) -> frozenset[str] | None:
    """The arguments of its forward; None if it takes any."""
    parameters = inspect.signature(module.forward).parameters
    if not hasattr(module, "config") and any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return frozenset(parameters)
