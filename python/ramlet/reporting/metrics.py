"""metrics.jsonl, read as far as it is written: curves, scores and samples.

    metrics = Metrics(run / "metrics.jsonl")
    metrics.read()              all of it; called again, only what has come since
    metrics.loss.points(), metrics.scores["val"], metrics.samples

10 million lines take no more memory than a thousand (curves.py), and some 8 s a million of them.
A line that is half written is read the next time. One that is damaged is counted and passed over. A run that went
on from a checkpoint has cut the file back: then it is read from its beginning.
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
from ramlet.reporting.markup import MOST_SHOWN
from ramlet.runtime.small_files import open_regular

__all__ = ["Metrics", "Sample"]

NAME = "metrics.jsonl"
LARGEST = 16_000_000_000
"""Some 80 million lines: ten minutes' reading."""
LONGEST_LINE = 1 << 20
SETS = 24
"""More named sets than a chart can tell apart are not drawn."""
SAMPLES = 33
SAMPLE_CHARACTERS = 6_000
TAIL = 256
"""Bytes before the place where reading stopped; when they differ, the file is another one."""
TELL_EVERY = 20_000


@dataclass(frozen=True)
class Sample:
    step: int
    text: str
    characters: int
    """Of the whole text, of which `text` is the beginning."""


class Metrics:
    """What a run has told so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.loss, self.rate, self.gradient, self.speed = Curve(), Curve(), Curve(), Curve()
        self.memory = Curve()
        """Over seconds, the others over steps."""
        self.losses: dict[str, Curve] = {}
        """Of each set that is evaluated on."""
        self.forgetting: dict[str, Curve] = {}
        self.scores: dict[str, dict[str, Any]] = {}
        """The last evaluation."""
        self._kept: dict[int, Sample] = {}
        self._last_sample: Sample | None = None
        self._apart = 1  # samples from one that is kept to the next
        self._sampled = 0
        self.step = self.tokens = 0
        self.seconds = 0.0
        self.lines = self.broken = 0
        self._place = 0
        self._tail = b""

    def read(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Takes in what was written since the last call; `progress` is told bytes done and in all."""
        try:
            with BufferedReader(open_regular(self.path, ModelError)) as file:
                if os.fstat(file.fileno()).st_size > LARGEST:
                    raise ModelError(
                        f"{self.path} is larger than {LARGEST / 1e9:g} GB, which no run writes: it is damaged"
                    )
                if not self._goes_on(file):
                    self._forget()
                file.seek(self._place)
                self._take_lines(file, progress)
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            raise ModelError(f"cannot read {self.path}: {error.strerror}") from None
        if self.broken and self.broken == self.lines:
            raise ModelError(f"{self.path} is damaged: none of its lines can be read")

    def _goes_on(self, file: IO[bytes]) -> bool:
        if os.fstat(file.fileno()).st_size < self._place:
            return False
        file.seek(self._place - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _take_lines(self, file: IO[bytes], progress: Callable[[int, int], None] | None) -> None:
        total = os.fstat(file.fileno()).st_size
        skipping = False
        place = self._place
        while line := file.readline(LONGEST_LINE):
            place += len(line)
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    break  # half written
                skipping = True
                continue
            self.lines += 1
            if skipping or not self._take(line):
                self.broken += 1
            skipping = False
            self._place, self._tail = place, (self._tail + line)[-TAIL:]
            if progress is not None and self.lines % TELL_EVERY == 0:
                progress(place, total)

    def _take(self, line: bytes) -> bool:
        try:
            record = json.loads(line)
            step = record["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if not _is_number(step):
            return False
        self.step = max(self.step, int(step))
        if "loss" in record:
            self._take_step(step, record)
        if isinstance(record.get("eval"), Mapping):
            self._take_evaluation(step, record)
        if isinstance(record.get("sample"), str):
            self._take_sample(int(step), record["sample"])
        return True

    def _take_step(self, step: float, record: Mapping[str, Any]) -> None:
        for name, curve in (
            ("loss", self.loss),
            ("lr", self.rate),
            ("grad_norm", self.gradient),
            ("tokens_per_second", self.speed),
        ):
            if _is_number(record.get(name)):
                curve.add(step, record[name])
        if _is_number(record.get("tokens")):
            self.tokens = int(record["tokens"])
        if _is_number(record.get("seconds")):
            self.seconds = record["seconds"]
            if _is_number(record.get("memory")):
                self.memory.add(self.seconds, record["memory"])

    def _take_evaluation(self, step: float, record: Mapping[str, Any]) -> None:
        for name, score in record["eval"].items():
            if not isinstance(score, Mapping) or not _is_number(score.get("loss")):
                continue
            if name in self.losses or len(self.losses) < SETS:
                self.losses.setdefault(name, Curve()).add(step, score["loss"])
                self.scores[name] = {key: value for key, value in score.items() if _is_number(value)}
        rises = record.get("forgetting")
        for name, rise in rises.items() if isinstance(rises, Mapping) else ():
            if _is_number(rise) and (name in self.forgetting or len(self.forgetting) < SETS):
                self.forgetting.setdefault(name, Curve()).add(step, rise)

    def _take_sample(self, step: int, text: str) -> None:
        self._last_sample = Sample(step, text[:SAMPLE_CHARACTERS], len(text))
        if self._sampled % self._apart == 0:
            self._kept[self._sampled] = self._last_sample
        self._sampled += 1
        if len(self._kept) > SAMPLES:
            self._apart *= 2
            self._kept = {number: sample for number, sample in self._kept.items() if number % self._apart == 0}

    @property
    def samples(self) -> list[Sample]:
        """The first and the last, and of those between as many as fit, evenly spread."""
        kept = list(self._kept.values())
        return kept if self._last_sample is None or self._last_sample in kept else [*kept, self._last_sample]


def _is_number(value: Any) -> bool:
    """A finite one: losses that went wrong are written as NaN, and whole numbers may have any number of digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < MOST_SHOWN
