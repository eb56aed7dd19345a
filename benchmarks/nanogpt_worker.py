"""Runs nanoGPT's own train.py from where it was checked out, and says at the end what it took.

    python benchmarks/nanogpt_worker.py PATH --device=cpu --compile=False --batch_size=32 ...

The script is run as it is, in this process; afterwards one line of JSON has the most memory that torch's allocator had
reserved on the GPU. On the CPU whoever started this process measures its resident memory.
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
