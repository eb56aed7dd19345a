"""Data-parallel training: torchrun starts the processes, which train one model together.

Every rank trains on its share of each step's sequences. If the whole model fits every rank, they sum the gradients, two
flat tensors, before the optimizer step. So every rank makes the same step; Muon divides its work among the ranks, which
then send each other the weights. If it does not fit, they divide it (exchange.py). A step is defined first and divided
afterwards: any number of ranks, even after resuming, trains on the same sequences.

Tensors are sent as bytes, because gloo does not know all dtypes. Ranks must make the same calls in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ramlet.engines import Ranks
from ramlet.errors import SettingsError


class Sent(Protocol):
    """On its way; after `wait` it has arrived."""

    def wait(self) -> object: ...


class _Arrived:
    def wait(self) -> None:
        pass


@dataclass(frozen=True)
class TorchRanks(Ranks):
    silent: bool = False
    """Sends nothing, to try what one rank needs; sums are then those of this rank alone."""

    @property
    def _talks(self) -> bool:
        return self.world > 1 and not self.silent

    @property
    def device(self) -> str:
        """Where tensors must be to be sent."""
        if not self._talks:
            return "cpu"
        import torch.distributed

        return f"cuda:{self.local}" if torch.distributed.get_backend() == "nccl" else "cpu"

    def sum(self, *tensors: Tensor) -> None:
        """In place, over all ranks."""
        if self._talks:
            import torch.distributed

            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def spread(self, parts: Sequence[Tensor]) -> None:
        """In place: all ranks get the part with the number of a rank from that rank. Flat and contiguous."""
        for each in [self.send_to_all(part, rank) for rank, part in enumerate(parts) if part.numel()]:
            each.wait()

    def send_to_all(self, tensor: Tensor, rank: int) -> Sent:
        """Begins to copy a tensor of this rank to all others, in place. Flat and contiguous."""
        if not self._talks:
            return _Arrived()
        import torch.distributed

        sent: Sent = torch.distributed.broadcast(tensor.view(torch.uint8), src=rank, async_op=True)
        return sent

    def sum_at(self, tensor: Tensor, rank: int) -> Sent:
        """Begins to sum a tensor over all ranks, in place at this one; elsewhere its contents are lost."""
        if not self._talks:
            return _Arrived()
        import torch.distributed

        sent: Sent = torch.distributed.reduce(tensor, dst=rank, async_op=True)
        return sent

    def pass_to_first(self, tensor: Tensor, rank: int) -> None:
        """Copies a tensor of this rank to the first, in place; others need not call it."""
        if not self._talks or rank == 0:
            return
        import torch.distributed

        if self.first:
            torch.distributed.recv(tensor.view(torch.uint8), src=rank)
        else:
            torch.distributed.send(tensor.view(torch.uint8), dst=0)

    def every(self, number: int) -> list[int]:
        if not self._talks:
            return [number]
        import torch.distributed

        numbers = torch.zeros(self.world, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        torch.distributed.all_reduce(numbers)
        return [int(each) for each in numbers.tolist()]

    def wait(self) -> None:
        if self._talks:
            import torch.distributed

            torch.distributed.barrier()


@contextmanager
def joined(device: str) -> Iterator[TorchRanks]:
    """The ranks from torchrun's environment variables, or this process alone."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield TorchRanks()
        return
    import torch.distributed

    if not torch.distributed.is_available():
        raise SettingsError("this build of PyTorch has no torch.distributed: run without torchrun")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield TorchRanks(torch.distributed.get_rank(), torch.distributed.get_world_size(), local)
    finally:
        torch.distributed.destroy_process_group()
