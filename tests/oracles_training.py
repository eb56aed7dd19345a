"""Small datasets and runs, the files a run leaves, and slow, obvious versions of what the trainer does."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramlet
from conftest import AMPLE
from ramlet.cli.wording import as_flag
from ramlet.errors import RamletError
from ramlet.training.entry import train

SMALL: dict[str, Any] = {
    "params": 40_000,
    "seq_len": 32,
    "batch_size": 6,
    "max_steps": 12,
    "lr": 3e-3,
    "device": "cpu",
    "precision": "fp32",
    "optimizer": "adamw",
    "seed": 5,
    "log_every": 1,
    "eval_every": 4,
    "eval_tokens": 640,
    "checkpoint_every": 3,
    "sample_every": 0,
    "schedule": "cosine",
}
"""A run of a second."""
MEMORY = AMPLE
TIMES = ("tokens_per_second", "memory", "seconds")
"""The fields of metrics.jsonl that differ between two runs."""

_WORDS = [
    *("the", "a", "one", "red", "old", "small", "house", "tree", "river", "road"),
    *("sees", "finds", "keeps", "leaves", "under", "over", "near", "behind"),
]


def sentences(count: int, seed: int = 0, words: list[str] | None = None) -> str:
    """Lines of a small language that can be learned a little."""
    chance = random.Random(seed)
    known = words or _WORDS
    return "\n".join(" ".join(chance.choice(known) for _ in range(chance.randint(4, 12))) for _ in range(count))


def make_data(folder: Path, name: str = "data", *, lines: int = 400, seed: int = 0, **settings: Any) -> Path:
    """A dataset of bytes, one document per line."""
    words = settings.pop("words", None)
    text = folder / f"{name}.txt"
    text.write_text(sentences(lines, seed, words))
    given = {"tokenizer": "byte", "documents": "line", "dedup": "none", "tokens_per_shard": 4000, **settings}
    ramlet.prepare([text], folder / name, memory=MEMORY, threads=1, **given)
    return folder / name


def run(data: Any, out: Path, **changes: Any) -> Any:
    """`ramlet.train` with the settings above; settings that are None are not passed."""
    given = {**SMALL, "memory": MEMORY, "threads": 1, **changes}
    return train(data, out, **{name: value for name, value in given.items() if value is not None})


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without TIMES."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in metrics(out) if "loss" in line]


def steps_kept(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in (out / "checkpoints").glob("step_*"))


def last_checkpoint(out: Path) -> Path:
    return out / "checkpoints" / f"step_{steps_kept(out)[-1]:06}"


def write_state(file: Path, state: dict[str, Any]) -> None:
    """A changed state.json, as an older version could have written it: without a checksum of its own."""
    state.pop("crc32", None)
    file.write_text(json.dumps(state))


def left_behind(out: Path) -> dict[str, Any]:
    """Everything in a finished run that must not depend on interruptions: every byte except times."""
    last = last_checkpoint(out)
    state = json.loads((last / "state.json").read_text())
    # The length of metrics.jsonl depends on the number of digits in the times.
    journal = state.pop("journal")
    assert journal == (out / "metrics.jsonl").stat().st_size
    state["progress"].pop("seconds")
    state.pop("crc32")
    return {
        "model": (out / "model.safetensors").read_bytes(),
        "weights": (last / "model.safetensors").read_bytes(),
        "optimizer": (last / "optimizer.safetensors").read_bytes(),
        "state": state,
        "metrics": metrics(out),
        "checkpoints": steps_kept(out),
        "files": sorted(path.name for path in out.iterdir()),
    }


def assert_same_run(out: Path, other: Path) -> None:
    mine, theirs = left_behind(out), left_behind(other)
    assert mine["metrics"] == theirs["metrics"]
    assert mine["state"] == theirs["state"]
    assert mine["files"] == theirs["files"]
    assert [name for name in mine if mine[name] != theirs[name]] == []


def apart(work: Callable[..., None], *arguments: Any) -> int:
    """Runs `work` in a separate process and returns its exit code, or the negative number of a signal.

    Forked, because loading torch takes seconds; torch's threads are idle, since no run is active in this process.
    """
    return _exit_code(_started(work, *arguments))


def ranks(world: int, work: Callable[..., None], *arguments: Any) -> list[int]:
    """The same in `world` processes, as torchrun would start them; returns the exit code of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def one(rank: int) -> None:
        env = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        os.environ.update({name: str(value) for name, value in env.items()})
        work(*arguments)

    return [_exit_code(child) for child in [_started(one, rank) for rank in range(world)]]


def _started(work: Callable[..., None], *arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(300)  # a process that hangs ends, even if nobody waits for it
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 - the child ends here, whatever the error
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def slow_loss(model: Any, rows: list[list[int]]) -> tuple[float, int]:
    """Total loss of sequences of ids, and the number of predicted tokens: row by row, token by token, in fp64."""
    import torch

    total, count = 0.0, 0
    for row in rows:
        logits = model.logits(torch.tensor([row[:-1]]))[0].double()
        for place, wanted in enumerate(row[1:]):
            scores = logits[place].tolist()
            top = max(scores)
            total += math.log(sum(math.exp(score - top) for score in scores)) + top - scores[wanted]
            count += 1
    return total, count


def stored_ids(data: Path, split: str) -> list[int]:
    """All ids of a split, in order."""
    import numpy as np

    note = json.loads((data / "dataset_metadata.json").read_text())
    ids: list[int] = []
    for shard in note["splits"][split]["shards"]:
        ids += np.fromfile(data / shard["file"], dtype=f"<{note['dtype'].replace('uint16', 'u2')}").tolist()
    return ids


def refused(kind: type[RamletError], *words: str, data: Any, out: Path, **changes: Any) -> str:
    """A run that ends with this error, in one sentence with these words; the sentence."""
    with pytest.raises(kind) as caught:
        run(data, out, **changes)
    said = caught.value.render(as_flag)
    assert "\n" not in said
    for word in words:
        assert word in said, said
    return said
