"""The commands of the demo, in order, and how large everything is.

    script = Script(Path("ramlet-demo"), FULL, memory="1GB", threads=None)
    script.tokenizer      # the arguments of `ramlet tokenizer train`, as a list

The demo is nothing but these commands, each in a process of its own; a user who copies them gets the same files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.runtime.settled import REPORT_BYTES
from ramlet.settings.owners import command_line

TEXT = "python.jsonl"
END = "<|endoftext|>"
DOCUMENT_BYTES = 1 << 18
"""More than the sources of the standard library have, and a quarter of the default, which would need 50 MB more."""
STAGE_BYTES = REPORT_BYTES
"""Enough for each command: `report` needs the most, `prepare` asks for 60 MB and `train` for 53."""


@dataclass(frozen=True)
class Size:
    """How much is done."""

    text: int | None
    """Bytes of text, approximately; None for all of it."""
    vocabulary: int
    params: str
    seq_len: int
    batch_size: int
    steps: int
    least_steps: int
    seconds: float
    """How long training may take: a slower machine makes fewer steps."""
    samples: int
    sample_tokens: int
    """Of the texts that are judged at the end."""


FULL = Size(
    text=None,
    vocabulary=2048,
    params="1M",
    seq_len=256,
    batch_size=4,
    steps=2200,
    least_steps=200,
    seconds=75.0,
    samples=64,
    sample_tokens=240,
)
QUICK = Size(
    text=2_000_000,
    vocabulary=1024,
    params="300k",
    seq_len=128,
    batch_size=8,
    steps=500,
    least_steps=100,
    seconds=20.0,
    samples=16,
    sample_tokens=120,
)


class Script:
    """Where everything goes, and the arguments of each command after `ramlet`."""

    def __init__(self, folder: Path, size: Size, memory: str, threads: int | None = None, engine: str = "auto") -> None:
        self.size = size
        self.text = folder / TEXT
        self.dataset = folder / "dataset"
        self.run = folder / "run"
        self.page = folder / "report.html"
        tokenizer = folder / "tokenizer"
        self._limits: dict[str, Any] = {"memory": memory, "threads": threads}
        self._model = {
            "data": self.dataset,
            "params": size.params,
            "seq_len": size.seq_len,
            "batch_size": size.batch_size,
            "device": "cpu",
            **({} if engine == "auto" else {"engine": engine}),
        }
        vocabulary = {"vocab_size": size.vocabulary, "special_tokens": [END]}
        self.tokenizer = command_line("tokenizer train", self.text, **vocabulary, out=tokenizer, **self._limits)
        self.prepare = command_line(
            "prepare",
            self.text,
            tokenizer=tokenizer,
            val_fraction=0.05,
            document_bytes=DOCUMENT_BYTES,
            out=self.dataset,
            **self._limits,
        )
        self.plan = command_line("plan", **self._model, **self._limits)
        self.report = command_line("report", self.run, out=self.page, memory=memory)
        self.judged: dict[str, Any] = {
            "run": str(self.run),
            "dataset": str(self.dataset),
            "untrained": str(folder / "untrained"),
            "samples": size.samples,
            "tokens": size.sample_tokens,
            "memory": memory,
            "engine": engine,
        }
        """The arguments of `ramlet.demo.judge`."""

    def train(self, steps: int) -> list[str]:
        half = max(1, steps // 2)
        often = {"max_steps": steps, "eval_every": half, "sample_every": half, "sample_tokens": 120}
        return command_line("train", **self._model, **often, out=self.run, **self._limits)


def refuse_foreign(folder: Path) -> None:
    """Refuses a folder with something else in it, among which the results would be lost; a demo's own has its text."""
    if (folder / TEXT).exists() or not folder.exists():
        return
    if not folder.is_dir():
        raise SettingsError(f"{folder} is a file: give a folder for the demo")
    other = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if other:
        raise SettingsError(
            f"{folder} holds something else ({other[0]} is in it): choose another {option('out')}, or an empty folder"
        )


def steps_in(size: Size, tokens_per_second: float | None) -> int:
    """The steps of this size, or fewer if a machine of this speed needs more than its time; then a multiple of ten.

    >>> steps_in(FULL, 1e6), steps_in(FULL, 8000.0), steps_in(FULL, 1.0), steps_in(FULL, None)
    (2200, 580, 200, 2200)
    """
    if not tokens_per_second:
        return size.steps
    possible = int(size.seconds * tokens_per_second / (size.seq_len * size.batch_size)) // 10 * 10
    return max(size.least_steps, min(size.steps, possible))


def begun_steps(run: Path) -> int | None:
    """The steps of an existing run, finished or not."""
    import yaml

    try:
        recorded = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
        return int(recorded["all_settings"]["max_steps"])
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return None
