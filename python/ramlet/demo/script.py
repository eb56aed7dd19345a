"""The commands that the demo stands for, in their order, and how large everything is.

    script = Script(Path("ramlet-demo"), FULL, memory="1GB", threads=None)
    script.tokenizer      # ["tokenizer", "train", "ramlet-demo/python.jsonl", "--vocab-size", "2048", ...]

The demo is nothing but these commands, each a process of its own; a user who copies them gets the same files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FULL", "QUICK", "Script", "Size", "begun_steps", "steps_in"]

END = "<|endoftext|>"


@dataclass(frozen=True)
class Size:
    """How much is done."""

    text: int | None
    """Bytes of text, about; None for all there is."""
    vocabulary: int
    params: str
    seq_len: int
    batch_size: int
    steps: int
    least_steps: int
    seconds: float
    """What training may take: a machine on which the steps would take longer makes fewer."""
    samples: int
    sample_tokens: int
    """Of the texts that are judged at the end."""


FULL = Size(
    text=None,
    vocabulary=2048,
    params="1M",
    seq_len=256,
    batch_size=8,
    steps=1800,
    least_steps=200,
    seconds=200.0,
    samples=32,
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


@dataclass(frozen=True)
class Script:
    """The commands' words, without `ramlet` itself."""

    folder: Path
    size: Size
    memory: str
    threads: int | None = None

    @property
    def text(self) -> Path:
        return self.folder / "python.jsonl"

    @property
    def dataset(self) -> Path:
        return self.folder / "dataset"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def untrained(self) -> Path:
        return self.folder / "untrained"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def tokenizer(self) -> list[str]:
        size, out = str(self.size.vocabulary), str(self.folder / "tokenizer")
        return ["tokenizer", "train", str(self.text), "--vocab-size", size, "--special-token", END, *self._to(out)]

    @property
    def prepare(self) -> list[str]:
        tokenizer = str(self.folder / "tokenizer")
        return ["prepare", str(self.text), "--tokenizer", tokenizer, "--val-fraction", "0.05", *self._to(self.dataset)]

    @property
    def plan(self) -> list[str]:
        return ["plan", "--data", str(self.dataset), *self._model, *self._limits]

    def train(self, steps: int) -> list[str]:
        half = str(max(1, steps // 2))
        every = [*("--eval-every", half), *("--sample-every", half), *("--sample-tokens", "120")]
        length = ["--max-steps", str(steps)]
        return ["train", "--data", str(self.dataset), *self._model, *length, *every, *self._to(self.run)]

    @property
    def report(self) -> list[str]:
        return ["report", str(self.run), "--out", str(self.page), "--memory", self.memory]

    @property
    def _model(self) -> list[str]:
        size = self.size
        return [
            *("--params", size.params),
            *("--seq-len", str(size.seq_len)),
            *("--batch-size", str(size.batch_size)),
            *("--device", "cpu"),
        ]

    @property
    def _limits(self) -> list[str]:
        return ["--memory", self.memory, *([] if self.threads is None else ["--threads", str(self.threads)])]

    def _to(self, out: Path | str) -> list[str]:
        return ["--out", str(out), *self._limits]


def steps_in(size: Size, tokens_per_second: float | None) -> int:
    """The steps of the size, or as many as a machine of this speed makes in its time; a multiple of ten.

    >>> steps_in(FULL, 1e6), steps_in(FULL, 8000.0), steps_in(FULL, 1.0), steps_in(FULL, None)
    (1800, 780, 200, 1800)
    """
    if not tokens_per_second:
        return size.steps
    possible = int(size.seconds * tokens_per_second / (size.seq_len * size.batch_size)) // 10 * 10
    return max(size.least_steps, min(size.steps, possible))


def begun_steps(run: Path) -> int | None:
    """The steps of a run that is there already, finished or not."""
    import yaml

    try:
        noted = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
        return int(noted["all_settings"]["max_steps"])
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return None
