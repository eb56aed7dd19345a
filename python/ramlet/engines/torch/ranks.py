"""Data-parallel training: torchrun starts the processes, which train one model together.

Every rank has the whole model and trains on its share of each step's sequences; before the optimizer step the
gradients, two flat tensors, are summed over the ranks. So every rank makes the same step; Muon divides its work among
the ranks, which then send each other the weights. A step is defined first and divided afterwards: any number of ranks,
even after resuming, trains on the same sequences.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from ramlet.engines import Ranks
from ramlet.errors import SettingsError


@dataclass(frozen=True)
class TorchRanks(Ranks):
    def sum(self, *tensors: Tensor) -> None:
        """In place, over all ranks."""
        if self.world > 1:
            import torch.distributed

            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def spread(self, parts: Sequence[Tensor]) -> None:
        """In place: all ranks get the part with the number of a rank from that rank. Flat and contiguous."""
        if self.world > 1:
            import torch
            import torch.distributed

            # As bytes, because gloo does not know all dtypes.
            sent = [
                torch.distributed.broadcast(part.view(torch.uint8), src=rank, async_op=True)
                for rank, part in enumerate(parts)
                if part.numel()
            ]
            for each in sent:
                each.wait()

    def any(self, flag: bool) -> bool:
        if self.world == 1:
            return flag
        import torch
        import torch.distributed

        device = f"cuda:{self.local}" if torch.distributed.get_backend() == "nccl" else "cpu"
        raised = torch.tensor([float(flag)], device=device)
        torch.distributed.all_reduce(raised)
        return bool(raised.item())

    def wait(self) -> None:
        if self.world > 1:
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
