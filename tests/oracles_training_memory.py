"""The real peak memory of a step, from torch's record of every allocation; and kernels that allocate only results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from ramlet.engines.torch.kernels import plain

LIBRARY = ("aten::mm", "aten::addmm", "aten::_scaled_dot_product")
LARGE = 64
"""Smaller allocations are scalars, which the predictions ignore."""


def highest(work: Callable[[], object]) -> int:
    """Peak memory in bytes of the tensors that `work` allocates.

    Scratch memory that a library allocates and frees within one matrix product or attention does not count: it is
    bounded whatever the tensors' size, and predicted as overhead.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events: list[tuple[int, int, int, int]] = []

    def walk(node: Any, within: int) -> None:
        if node.typed[0] == _EventType.Allocation:
            events.append((node.start_time_ns, node.typed[1].alloc_size, node.typed[1].ptr, within))
        for child in node.children:
            walk(child, node.id if not within and node.name.startswith(LIBRARY) else within)

    for root in recorded.profiler.kineto_results.experimental_event_tree():
        walk(root, 0)
    events.sort()
    scratch = _freed_within(events)
    live = peak = 0
    for _, size, pointer, within in events:
        if abs(size) >= LARGE and (pointer, within) not in scratch:
            live += size
            peak = max(peak, live)
    return peak


def _freed_within(events: list[tuple[int, int, int, int]]) -> set[tuple[int, int]]:
    """Address and operation of everything that was allocated and freed within the same library operation."""
    allocated_in: dict[int, int] = {}
    found = set()
    for _, size, pointer, within in events:
        if size > 0:
            allocated_in[pointer] = within
        elif within and allocated_in.get(pointer) == within:
            found.add((pointer, within))
    return found


def lean_kernels() -> ModuleType:
    """Stand-ins for the native kernels: each allocates its result, in its input's dtype, and nothing else."""
    lean = ModuleType("lean_kernels")

    def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        return torch.empty_like(x).copy_(x)

    def norm_backward(dy: Tensor, x: Tensor, gain: Tensor, eps: float, gain_grad: Tensor, *given: Any) -> Tensor:
        return torch.empty_like(x).copy_(dy)

    def rotate_(qkv: Tensor, *given: Any, **named: Any) -> None:
        pass

    def qk_norm(qkv: Tensor, heads: plain.Heads) -> Tensor:
        return qkv.new_empty((len(qkv), heads.columns)).copy_(qkv[:, : heads.columns])

    def qk_norm_backward(grads: Sequence[Tensor], *given: Any) -> Tensor:
        return torch.cat(list(grads), dim=1)

    def gate(gate_up: Tensor) -> Tensor:
        return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2)).zero_()

    def gate_backward_(gate_up: Tensor, d_act: Tensor) -> Tensor:
        return torch.empty_like(d_act).zero_()

    def dropout(x: Tensor, mask: plain.Dropout) -> Tensor:
        return torch.empty_like(x).copy_(x)

    def dropout_add_(branch: Tensor, x: Tensor, mask: plain.Dropout) -> None:
        branch += x

    def cross_entropy_(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
        return torch.zeros(len(logits))

    def accumulate_(grad: Tensor, dy: Tensor, x: Tensor, unit: int = 0) -> None:
        if grad.dtype == dy.dtype:
            grad.addmm_(dy.t(), x)
        else:
            dy.t() @ x

    made = (norm, norm_backward, rotate_, qk_norm, qk_norm_backward, gate, gate_backward_, cross_entropy_, accumulate_)
    made = (*made, dropout, dropout_add_)
    for function in made:
        setattr(lean, function.__name__, function)
    return lean
