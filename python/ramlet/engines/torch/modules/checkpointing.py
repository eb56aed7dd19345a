"""Activation checkpointing for any module: its repeated blocks keep only their inputs.

    checkpointing = Checkpointing(module)
    checkpointing.possible                  whether it has such blocks
    checkpointing.enable(); checkpointing.disable()

A block is one of several children of the same class in the same place (a ModuleList, a Sequential, attributes) that has
children itself: a single Linear keeps little more than its input anyway. Blocks with batch statistics are left alone,
because computing them again would update the statistics twice. Models of transformers do it themselves, where they
support it; they also know what must not be cached meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointing:
    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own = bool(getattr(module, "supports_gradient_checkpointing", False))
        self.was_on = bool(getattr(module, "is_gradient_checkpointing", False))
        """Enabled by the user, so it stays."""
        self.blocks = repeated_blocks(module)

    @property
    def possible(self) -> bool:
        return not self.was_on and bool(self._own or self.blocks)

    def enable(self) -> None:
        if self._own:
            module: Any = self._module
            module.gradient_checkpointing_enable({"use_reentrant": False})
            return
        for block in self.blocks:
            block.forward = _recomputing(block, block.forward)

    def disable(self) -> None:
        if self.was_on:
            return
        if self._own:
            module: Any = self._module
            module.gradient_checkpointing_disable()
            return
        for block in self.blocks:
            block.__dict__.pop("forward", None)


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """The outermost repeated blocks."""
    found: list[nn.Module] = []

    def look(parent: nn.Module) -> None:
        kinds = Counter(type(child) for child in parent.children())
        for child in parent.children():
            if kinds[type(child)] > 1 and _is_block(child):
                found.append(child)
            else:
                look(child)

    look(module)
    return found


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether a sample's result depends on the others of its micro-batch."""
    return any(isinstance(each, nn.modules.batchnorm._BatchNorm) and each.training for each in module.modules())


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or not any(True for _ in module.children()):
        return False
    own = "forward" in module.__dict__  # replaced by someone else
    statistics = any(isinstance(each, nn.modules.batchnorm._NormBase) for each in module.modules())
    return not own and not statistics and any(True for _ in module.parameters())


def _recomputing(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def recomputing(*args: Any, **kwargs: Any) -> Any:
        if block.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return recomputing
