"""More than one process: `torchrun --nproc-per-node 2 -m ramlet train ...` trains one model on all of them.

Every rank holds the model and learns from its share of each step's sequences; before the optimizer steps, the
gradients, which are two flat tensors, are summed over the ranks. So every rank makes the same step from the same
gradients, and nothing but the gradients travels. The step is defined first and divided then: any number of ranks,
also after a resume, learns from the same sequences.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from ramlet.engines import Ranks
from ramlet.errors import SettingsError

__all__ = ["TorchRanks", "joined"]


@dataclass(frozen=True)
class TorchRanks(Ranks):
    def sum(self, *tensors: Tensor) -> None:
        """In place, over all ranks."""
        if self.world > 1:
            import torch.distributed

            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank, so that all do the same."""
        if self.world == 1:
            return flag
        import torch
        import torch.distributed

        device = f"cuda:{self.local}" if torch.distributed.get_backend() == "nccl" else "cpu"
        told = torch.tensor([float(flag)], device=device)
        torch.distributed.all_reduce(told)
        return bool(told.item())

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            import torch.distributed

            torch.distributed.barrier()


@contextmanager
def joined(device: str) -> Iterator[TorchRanks]:
    """The ranks that torchrun's variables tell of, or the one process that there is."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield TorchRanks()
        return
    import torch.distributed

    if not torch.distributed.is_available():
        raise SettingsError("this PyTorch cannot train on several processes: run without torchrun")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield TorchRanks(torch.distributed.get_rank(), torch.distributed.get_world_size(), local)
    finally:
        torch.distributed.destroy_process_group()
