"""What the engine finds here, told by a process of its own: `python -m ramlet.training.self_check BUDGET`.

    {"torch": "2.11.0", "device": "cpu", "precision": "fp32", "gpus": [], "largest": {"params": 124000000, ...}, ...}

A process of its own, so that whoever asks (`ramlet doctor`) stays small, and hears of a torch that crashes as of one
that is missing. BUDGET is that of RAM, in bytes; on a GPU the device's own default is used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ramlet.engines import open_engine
from ramlet.training.propose import propose

__all__ = ["check"]


def check(budget: int) -> dict[str, Any]:
    """The device, its precision, the GPUs, and the sizes of model that fit, with about how long they take."""
    engine = open_engine()
    # No folder to find datasets in: the sizes are to follow from the machine alone.
    told = propose(memory=budget if engine.kind == "cpu" else None, device=engine.kind, folder=os.devnull)
    fitting = [row for row in told.rows if row.plan is not None]
    quick = [row for row in fitting if row.seconds is not None and row.seconds <= 86400]
    return {
        **engine.versions,
        "device": engine.kind,
        "precision": engine.precision("auto"),
        "threads": engine.threads,
        "flops": told.machine.flops,
        "budget": told.budget,
        "gpus": engine.gpus(),
        "largest": _row(fitting[-1]) if fitting else None,
        "in_a_day": _row(quick[-1]) if quick else None,
        "all_fit": len(fitting) == len(told.rows),
    }


def _row(row: Any) -> dict[str, Any]:
    return {"params": row.params, "peak": row.plan.peak, "tokens": row.course.tokens, "seconds": row.seconds}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(int(sys.argv[1]))) + "\n")
