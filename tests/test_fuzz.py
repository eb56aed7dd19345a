"""The short form of benchmarks/fuzz.py: every kind of file that is read back, spoiled in a few ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


def test_spoiled_files_are_told_in_a_sentence(tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, "--cases", "62", "--seed", "7", "--no-models", "--save", tmp_path / "failed"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["all", "62"]
