"""What PyTorch finds here, told by a process of its own: `python -m ramlet.engines.torch.self_check BUDGET`.

    {"torch": "2.11.0", "device": "cpu", "precision": "fp32", "gpus": [], "largest": {"params": 124000000, ...}, ...}

A process of its own, so that whoever asks (`ramlet doctor`) stays small, and hears of a torch that crashes as of one
that is missing. BUDGET is that of RAM, in bytes; on a GPU the device's own default is used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["check"]


def check(budget: int) -> dict[str, Any]:
    """The device, its precision, the GPUs, and the sizes of model that fit, with about how long they take."""
    from ramlet.engines.torch.base_memory import load_torch

    torch = load_torch()
    from ramlet.engines.torch.device import choose_device
    from ramlet.training.propose import propose

    chosen = choose_device("auto")
    # No folder to find datasets in: the sizes are to follow from the machine alone.
    told = propose(memory=budget if chosen.kind == "cpu" else None, device=chosen.kind, folder=os.devnull)
    fitting = [row for row in told.rows if row.plan is not None]
    quick = [row for row in fitting if row.seconds is not None and row.seconds <= 86400]
    return {
        "torch": torch.__version__,
        "device": chosen.kind,
        "precision": chosen.precision("auto"),
        "threads": torch.get_num_threads(),
        "flops": told.machine.flops,
        "budget": told.budget,
        "gpus": [_gpu(torch, index) for index in range(torch.cuda.device_count() if chosen.kind == "cuda" else 0)],
        "largest": _row(fitting[-1]) if fitting else None,
        "in_a_day": _row(quick[-1]) if quick else None,
        "all_fit": len(fitting) == len(told.rows),
    }


def _row(row: Any) -> dict[str, Any]:
    return {"params": row.params, "peak": row.plan.peak, "tokens": row.course.tokens, "seconds": row.seconds}


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"name": torch.cuda.get_device_name(index), "memory": total, "free": free, "bf16": bool(bf16)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(int(sys.argv[1]))) + "\n")
