"""What an interrupted `prepare` leaves, and who takes it up; `test_kills.py` kills it at its changes of the disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ramlet.dataset.verify import verify
from test_prepare_same_bytes import files

# Prepares, with tasks of a few kilobytes; what is appended comes as a second run. Ctrl-C comes at the start of the
# stage that is named, if one is.
CHILD = """
import json, sys, threading, os, signal
from pathlib import Path
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
task = json.loads(sys.argv[1])
class Interrupting(Meter):
    def stage(self, name):
        super().stage(name)
        if name == task.get("interrupted"):
            signal.raise_signal(signal.SIGINT)
print("ready", flush=True)
with Interrupting(Budget(1_000_000_000)) as meter:
    made = prepare_to(task["inputs"], Path(task["out"]), PrepareSettings(**task["settings"]), meter=meter,
                      threads=2, append=task["append"], own_tokenizer=task["append"], task_bytes=task["task_bytes"])
print("done", made.already_done, flush=True)
"""


def corpus(folder: Path) -> Path:
    folder.mkdir()
    chance = random.Random(0)
    for n in range(8):
        lines = (" ".join(chance.choice("abcdefgh") * chance.randint(1, 4) for _ in range(12)) for _ in range(250))
        (folder / f"{n}.txt").write_text("\n".join(lines))
    return folder


def task(inputs: Path, out: Path, settings: dict[str, Any], append: bool = False) -> dict[str, Any]:
    return {
        "inputs": str(inputs),
        "out": str(out),
        "settings": {"tokenizer": "byte", **settings},
        "append": append,
        "task_bytes": 12_000,
    }


def start(work: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, json.dumps(work)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def undisturbed(work: dict[str, Any]) -> None:
    process = start(work)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def test_ctrl_c_then_other_settings(tmp_path: Path) -> None:
    """Work of another plan is of no use, and none of it stays."""
    inputs = corpus(tmp_path / "in")
    out = tmp_path / "out"
    work = task(inputs, out, {"documents": "line", "tokens_per_shard": 300})
    for stage in ("scanning", "tokenizing", "sharding", "finishing"):
        process = start({**work, "interrupted": stage})
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (-signal.SIGINT, 1), errors
        assert "KeyboardInterrupt" in errors
        assert not (out / "dataset_metadata.json").exists()
    assert any((out / "train").glob("*.bin")), "the last was interrupted behind its shards"
    undisturbed(task(inputs, out, {"documents": "line"}))
    undisturbed(task(inputs, tmp_path / "calm", {"documents": "line"}))
    assert files(out) == files(tmp_path / "calm")


def test_what_a_killed_run_left_in_the_splits_goes(tmp_path: Path) -> None:
    """Shards that were renamed but not noted yet, and temporary ones, of a plan that no one goes on with."""
    inputs = corpus(tmp_path / "in")
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    (out / "train").mkdir()
    for name in ("shard_00007.bin", "shard_00007.idx", ".shard_00008.bin.1234.ramlet-tmp"):
        (out / "train" / name).write_bytes(b"half")
    undisturbed(task(inputs, out, {"documents": "line"}))
    assert sorted(os.listdir(out / "train")) == ["shard_00000.bin", "shard_00000.idx"]


def test_an_unfinished_append_outlasts_the_first_command(tmp_path: Path) -> None:
    """Which has nothing to do, and must not forget whose the shards are that no manifest has yet."""
    inputs = corpus(tmp_path / "in")
    settings = {"documents": "line", "tokens_per_shard": 300}
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
        first = task(inputs / "0.txt", tmp_path / name / "out", settings)
        more = task(inputs, tmp_path / name / "out", settings, append=True)
        undisturbed(first)
        if name == "killed":
            process = start(more)
            notes = tmp_path / name / "out/.work/shards"
            while process.poll() is None and not any(notes.glob("*.json")):
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=120)
            undisturbed(first)
        undisturbed(more)
    assert files(tmp_path / "killed/out") == files(tmp_path / "calm/out")
    assert verify(tmp_path / "killed/out").problems == []
