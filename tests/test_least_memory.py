"""The smallest budget that `generate` and `eval` name is enough, also for a model larger than Python itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import RunRamlet
from oracles_training import make_data, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, and a run of 8 million parameters."""
    folder = tmp_path_factory.mktemp("least")
    make_data(folder)
    run(folder / "data", folder / "run", params="8M", max_steps=1, seq_len=16, batch_size=1, eval_every=0)
    return folder


@pytest.mark.parametrize("command", ["generate", "eval"])
def test_the_least_that_is_named_is_kept(ramlet: RunRamlet, trained: Path, command: str) -> None:
    words = [command, str(trained / "run"), "--device", "cpu", "--threads", "1", "--json"]
    if command == "generate":
        words += ["--prompt", "the", "--max-tokens", "40", "--num-samples", "4", "--seed", "1"]
    else:
        words += ["--data", str(trained / "data"), "--tokens", "2000", "--seq-len", "16"]
    refused = ramlet(*words, "--memory", "20MB")
    assert refused.returncode == 1
    least = re.search(r"needs at least (\d+)MB: .* for weights", json.loads(refused.stdout)["error"]["message"])
    assert least is not None
    done = ramlet(*words, "--memory", f"{least[1]}MB")
    assert done.returncode == 0, done.stderr
    memory = json.loads(done.stdout)["memory"]
    assert memory["peak"] <= memory["budget"] == int(least[1]) * 10**6
