"""The short form of benchmarks/same_result.py: each command with its smallest budget, on one thread, killed and not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).parent.parent / "benchmarks" / "same_result.py"


def test_every_command_leaves_the_same_bytes() -> None:
    done = subprocess.run([sys.executable, str(HARNESS), "--short"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("0 different results") == 5
