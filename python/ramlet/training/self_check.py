"""What the engine finds on this machine, as JSON: `python -m ramlet.training.self_check BUDGET`.

    {"torch": "2.11.0", "device": "cpu", "precision": "fp32", "gpus": [], "largest": {"params": 124000000, ...}, ...}

A separate process, so that the caller (`ramlet doctor`) stays small and survives an engine that crashes. BUDGET is that
of RAM, in bytes; on a GPU the device's own default is used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ramlet.engines.opening import open_engine
from ramlet.training.propose import propose


def check(budget: int) -> dict[str, Any]:
    """The device, its precision, the GPUs, and the model sizes that fit, with approximate training times."""
    engine = open_engine()
    # No folder with datasets: the sizes should depend on the machine alone.
    proposal = propose(memory=budget if engine.uses_host_memory else None, device=engine.kind, folder=os.devnull)
    fitting = [row for row in proposal.rows if row.plan is not None]
    quick = [row for row in fitting if row.seconds <= 86400]
    return {
        **engine.versions,
        "device": engine.kind,
        "precision": engine.precision("auto"),
        "threads": engine.threads,
        "flops": proposal.machine.flops,
        "budget": proposal.budget,
        "gpus": engine.gpus(),
        "largest": _row(fitting[-1]) if fitting else None,
        "in_a_day": _row(quick[-1]) if quick else None,
        "all_fit": len(fitting) == len(proposal.rows),
    }


def _row(row: Any) -> dict[str, Any]:
    return {"params": row.params, "peak": row.plan.peak, "tokens": row.course.tokens, "seconds": row.seconds}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(int(sys.argv[1]))) + "\n")
