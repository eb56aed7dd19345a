"""Runs nanoGPT's own train.py from its checkout, and reports its GPU memory at the end.

    python benchmarks/nanogpt_worker.py PATH --device=cpu --compile=False --batch_size=32 ...

The script runs unchanged, in this process. Afterwards it prints one line of JSON with the peak memory that torch's
allocator reserved on the GPU. On the CPU the parent process measures the resident memory.
"""

from __future__ import annotations

import json
import os
import runpy
import sys


def main() -> None:
    path, *arguments = sys.argv[1:]
    os.chdir(path)
    sys.path.insert(0, path)
    sys.argv = ["train.py", *arguments]
    runpy.run_path("train.py", run_name="__main__")
    import torch

    report = {"reserved": 0, "allocated": 0}
    if torch.cuda.is_available():
        report = {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
