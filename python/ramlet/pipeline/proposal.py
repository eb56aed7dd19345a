"""What `ramlet init` writes: a commented pipeline.yaml, each value with a comment that says why (chosen in init.py).

proposal = propose_pipeline(["corpus/"], out="pipeline.yaml")
proposal.yaml(), proposal.summary(), proposal.notes()
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from ramlet.errors import SettingsError
from ramlet.inputs.named import Input, needs_staging
from ramlet.model.shape import Shape
from ramlet.pipeline.looking import TextFound
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural
from ramlet.training.course import Course
from ramlet.training.machine import Machine

WORK = "my-model"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that could be trained on the text."""

    params: int
    shape: Shape
    bytes_per_token: float
    tokens: int
    """In the training split, approximately; 0 if unknown."""
    course: Course
    step_seconds: float
    """How long a step takes, approximately."""

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    @property
    def seconds(self) -> float:
        """How long training takes, approximately."""
        return self.course.steps * self.step_seconds


@dataclass(frozen=True, kw_only=True)
class Proposal(Candidate):
    out: str
    text: TextFound
    machine: Machine
    memory: int
    memory_given: bool
    threads: int
    engine: str
    limit: float
    """How long training may take, in seconds."""
    document_bytes: int | None
    disk_free: int

    @property
    def epochs(self) -> float:
        return self.course.tokens / self.tokens if self.tokens else 0.0

    @property
    def layers(self) -> str:
        """The shape of the model."""
        shape = self.shape
        share = shape.vocab_size * shape.width / shape.parameters
        return f"{plural(shape.layers, 'layer')} of width {shape.width}, {share:.0%} embedding"

    def summary(self) -> list[str]:
        """What was chosen, and why, in a few lines."""
        known = f"{format_bytes(self.text.text_bytes)} of text, about {self.tokens:,} training tokens"
        return [
            known if self.tokens else "text whose size is unknown until it is fetched",
            f"model: {_short(self.params)} parameters ({self.layers}), a vocabulary of {self.vocab_size:,}",
            f"training: {plural(self.course.steps, 'step')}, about {_duration(self.seconds)} on this machine "
            f"(time limit {_duration(self.limit)}, memory {_size(self.memory)})",
        ]

    def yaml(self) -> str:
        """The file."""
        text, course, work = self.text, self.course, work_for(self.out)
        inputs = [_relative_to(self.out, each) for each in text.inputs]
        known = f"about {format_bytes(text.text_bytes)} of text in {plural(text.files, 'file')}"
        where = self.machine.gpu or plural(self.machine.threads, "core")
        epochs = f"{self.tokens:,} tokens, {self.epochs:.1f} epochs" if self.tokens else "text of unknown size"
        free = format_bytes(self.machine.memory)
        why = "as given" if self.memory_given else "half of what is free now"
        lines = [
            f"# ramlet run {self.out}",
            "#",
            f"# Made for {where}, with {free} of memory and {format_bytes(self.disk_free)} of disk free.",
            "# Change anything and run it again: only what depends on the change is rebuilt.",
            "",
            f"memory: {_size(self.memory)}  # {why}; changes how long it takes, never the result",
            f"threads: {self.threads}  # one per core",
            f"work: {_quoted(work)}  # everything goes here: tokenizer/, dataset/, run/, report.html",
            "",
            f"# {known if text.text_bytes else 'its size is unknown until it is fetched'}",
            "text:",
            *(f"  - {_quoted(each)}" for each in inputs),
        ]
        if text.text_field != "text":
            lines.append(f"text_field: {_quoted(text.text_field)}  # the longest field of the first line")
        lines += [
            "",
            "tokenizer:",
            f"  vocab_size: {self.vocab_size}  # by the amount of text; {self.bytes_per_token:.1f} bytes per token",
            '  special_tokens: ["<|endoftext|>"]  # ends every document',
            "",
            "data:",
            "  dedup: doc  # drops duplicate documents; line is stricter, none keeps everything",
            f"  val_fraction: {0.1 if self.tokens < 10_000_000 else 0.01}"
            "  # held out for validation; chosen by a hash of the document",
        ]
        if self.document_bytes is not None:
            why = "little text: split into smaller documents, so that some are held out"
            lines.append(f"  document_bytes: {self.document_bytes}  # {why}")
        lines += [
            "",
            "model:",
            f"  params: {_short(self.params)}  # the largest for this text, time and memory: {self.layers}",
            f"  seq_len: {course.seq_len}  # context length in tokens",
            "",
            "training:",
            f"  batch_size: {course.sequences}  # sequences per step, {course.step_tokens:,} tokens, at any memory",
            f"  max_steps: {course.steps}  # {epochs}: about {_duration(self.seconds)} on this machine "
            f"(time limit {_duration(self.limit)})",
            *([f"  engine: {self.engine}  # as given"] if self.engine != "auto" else []),
            "  # eval: {general: other-dataset/}   another dataset to evaluate on",
            '  # sample_prompt: "Once upon a time"',
            "",
            f"report: true  # one page to look at: {work}/report.html",
            "",
        ]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """What the user should know about it."""
        need = self.tokens * 2 + self.params * 40
        notes = []
        if need > self.disk_free:
            notes.append(f"this needs about {format_bytes(need)} of disk, and {format_bytes(self.disk_free)} is free")
        if self.tokens and self.tokens < 100_000:
            notes.append(f"{plural(self.tokens, 'token is', 'tokens are')} very little: the model will memorize them")
        return notes


def work_for(out: str) -> str:
    """The folder for the results: one per file, or two files would move each other's results aside.

    >>> work_for("pipeline.yaml"), work_for("models/tales.yaml")
    ('my-model', 'tales-model')
    """
    name = os.path.splitext(os.path.basename(out))[0]
    # Not the name alone: tales.yaml is often made for text that is called tales.
    return WORK if name == "pipeline" else f"{name}-model"


def _relative_to(out: str, path: str) -> str:
    """A path as the file names it."""
    folder = os.path.dirname(out)
    if not folder or os.path.isabs(path) or needs_staging(Input(path)):
        return path
    return os.path.relpath(path, folder)


_NOT_STRINGS = ("yes", "no", "on", "off", "true", "false", "null", "y", "n", "~")


def _quoted(text: str) -> str:
    """In quotes if YAML could read it as something else."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", text) and text.lower() not in _NOT_STRINGS
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"the name {text!r} is not UTF-8, so no config file can have it: rename it") from None
    return text if plain else json.dumps(text)


def _size(count: int) -> str:
    """Rounded down to two digits.

    >>> _size(8_321_000_000), _size(512_345_678)
    ('8300MB', '510MB')
    """
    millions = count // 10**6
    unit = 10 ** max(0, len(str(millions)) - 2)
    rounded = millions // unit * unit
    return f"{rounded // 1000}GB" if rounded % 1000 == 0 else f"{rounded}MB"


def _short(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size and number % (size // 1000) == 0:
            return f"{number / size:.4g}{unit}"
    return str(number)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
