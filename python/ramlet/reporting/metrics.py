"""Reads metrics.jsonl, also while it is being written: curves, scores and samples.

    metrics = Metrics(run / "metrics.jsonl")
    metrics.read()              all of it; called again, only what was added since
    metrics.curves["loss"].points(), metrics.scores["val"], metrics.samples

10 million lines take no more memory than a thousand (curves.py), and about 8 s per million. A half-written line is read
the next time. A damaged one is counted and skipped. A run that resumed from a checkpoint has truncated the file: then
it is read from the beginning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from ramlet.errors import ModelError
from ramlet.reporting.curves import Curve
from ramlet.reporting.markup import is_number
from ramlet.runtime.small_files import open_regular

NAME = "metrics.jsonl"
LARGEST = 16_000_000_000
"""About 80 million lines: ten minutes of reading."""
LONGEST_LINE = 1 << 20
CURVES = ("loss", "lr", "grad_norm", "tokens_per_second")
"""What is drawn over steps; a key of the lines that steps write."""
SETS = 24
"""Evaluation sets at most: a chart cannot show more of them apart."""
SAMPLES = 33
SAMPLE_CHARACTERS = 6_000
TAIL = 256
"""Bytes before the position where reading stopped; if they differ, the file was rewritten."""
PROGRESS_EVERY = 20_000


@dataclass(frozen=True)
class Sample:
    step: int
    text: str
    characters: int
    """Length of the whole text, of which `text` is the start."""


class Metrics:
    """What a run has logged so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reset()

    def _reset(self) -> None:
        self.curves = {name: Curve() for name in CURVES}
        self.memory = Curve()
        """Over seconds; the others are over steps."""
        self.losses: dict[str, Curve] = {}
        """Of each evaluation set."""
        self.forgetting: dict[str, Curve] = {}
        self.scores: dict[str, dict[str, Any]] = {}
        """The last evaluation."""
        self._kept: dict[int, Sample] = {}
        self._last_sample: Sample | None = None
        self._every = 1  # which samples are kept
        self._sampled = 0
        self.step = self.tokens = 0
        self.unit = "tokens"
        """What the run counts: those of a module may be samples."""
        self.seconds = 0.0
        self.lines = self.broken = 0
        self._position = 0
        self._tail = b""

    def read(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads what was written since the last call; `progress` gets the bytes done and in total."""
        try:
            with BufferedReader(open_regular(self.path, ModelError)) as file:
                if os.fstat(file.fileno()).st_size > LARGEST:
                    raise ModelError(f"{self.path} is damaged: no run writes more than {LARGEST / 1e9:g} GB")
                if not self._continues(file):
                    self._reset()
                file.seek(self._position)
                self._read_lines(file, progress)
        except FileNotFoundError:
            self._reset()
        except OSError as error:
            raise ModelError(f"cannot read {self.path}: {error.strerror}") from None
        if self.broken and self.broken == self.lines:
            raise ModelError(f"{self.path} is damaged: none of its lines can be read")

    def _continues(self, file: IO[bytes]) -> bool:
        if os.fstat(file.fileno()).st_size < self._position:
            return False
        file.seek(self._position - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _read_lines(self, file: IO[bytes], progress: Callable[[int, int], None] | None) -> None:
        total = os.fstat(file.fileno()).st_size
        skipping = False
        position = self._position
        while line := file.readline(LONGEST_LINE):
            position += len(line)
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    break  # half-written
                skipping = True
                continue
            self.lines += 1
            if skipping or not self._add(line):
                self.broken += 1
            skipping = False
            self._position, self._tail = position, (self._tail + line)[-TAIL:]
            if progress is not None and self.lines % PROGRESS_EVERY == 0:
                progress(position, total)

    def _add(self, line: bytes) -> bool:
        try:
            record = json.loads(line)
            step = record["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if not is_number(step):
            return False
        self.step = max(self.step, int(step))
        if "loss" in record:
            self._add_step(step, record)
        if isinstance(record.get("eval"), Mapping):
            self._add_evaluation(step, record)
        if isinstance(record.get("sample"), str):
            self._add_sample(int(step), record["sample"])
        return True

    def _add_step(self, step: float, record: Mapping[str, Any]) -> None:
        self.unit = "samples" if "samples" in record else "tokens"
        for name, curve in self.curves.items():
            value: Any = record.get(name.replace("tokens", self.unit))
            if is_number(value):
                curve.add(step, value)
        if is_number(record.get(self.unit)):
            self.tokens = int(record[self.unit])
        if is_number(record.get("seconds")):
            self.seconds = record["seconds"]
            if is_number(record.get("memory")):
                self.memory.add(self.seconds, record["memory"])

    def _add_evaluation(self, step: float, record: Mapping[str, Any]) -> None:
        for name, score in record["eval"].items():
            if not isinstance(score, Mapping) or not is_number(score.get("loss")):
                continue
            if name in self.losses or len(self.losses) < SETS:
                self.losses.setdefault(name, Curve()).add(step, score["loss"])
                self.scores[name] = {key: value for key, value in score.items() if is_number(value)}
        rises = record.get("forgetting")
        for name, rise in rises.items() if isinstance(rises, Mapping) else ():
            if is_number(rise) and (name in self.forgetting or len(self.forgetting) < SETS):
                self.forgetting.setdefault(name, Curve()).add(step, rise)

    def _add_sample(self, step: int, text: str) -> None:
        self._last_sample = Sample(step, text[:SAMPLE_CHARACTERS], len(text))
        if self._sampled % self._every == 0:
            self._kept[self._sampled] = self._last_sample
        self._sampled += 1
        if len(self._kept) > SAMPLES:
            self._every *= 2
            self._kept = {number: sample for number, sample in self._kept.items() if number % self._every == 0}

    @property
    def samples(self) -> list[Sample]:
        """The first, the last, and as many in between as fit, evenly spread."""
        kept = list(self._kept.values())
        return kept if self._last_sample is None or self._last_sample in kept else [*kept, self._last_sample]
