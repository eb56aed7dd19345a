"""Runs nanoGPT's own train.py from its checkout, and reports its GPU memory at the end.

    python benchmarks/nanogpt_worker.py PATH --device=cpu --compile=False --batch_size=32 ...
    python benchmarks/nanogpt_worker.py --seed=2 PATH ...

The script runs unchanged, in this process. Afterwards it prints one line of JSON with the peak memory that torch's
allocator reserved on the GPU (on the CPU the parent process measures the resident memory), and how long its evaluations
took: from the line before one to its own, except for the first one, which also compiles and counts as much as the last.
It always uses the same seed; --seed adds to it, less 1.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import runpy
import sys
import time
from typing import Any


def main() -> None:
    seed = 1
    arguments = sys.argv[1:]
    if arguments[0].startswith("--seed="):
        seed = int(arguments.pop(0).removeprefix("--seed="))
    path, *arguments = arguments
    os.chdir(path)
    sys.path.insert(0, path)
    sys.argv = ["train.py", *arguments]
    import torch

    set_seed = torch.manual_seed
    torch.manual_seed = lambda number: set_seed(number + seed - 1)
    printed: list[tuple[float, str]] = []
    show = builtins.print

    def noted(*words: Any, **options: Any) -> None:
        printed.append((time.perf_counter(), " ".join(map(str, words))))
        show(*words, **options)

    builtins.print = noted
    runpy.run_path("train.py", run_name="__main__")
    report: dict[str, Any] = {"reserved": 0, "allocated": 0}
    if torch.cuda.is_available():
        report = {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}
    show(json.dumps({**report, "evaluating_seconds": round(evaluating(printed), 2)}), flush=True)


def evaluating(printed: list[tuple[float, str]]) -> float:
    """Seconds of all evaluations, from the lines that were printed and when."""
    took = [
        moment - before
        for (before, _), (moment, line) in itertools.pairwise(printed)
        if line.startswith("step ") and "val loss" in line
    ]
    return sum(took[1:]) + took[-1] if len(took) > 1 else 0.0


if __name__ == "__main__":
    main()
