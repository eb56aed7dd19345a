"""`ramlet init`: a commented pipeline.yaml for the text and the machine at hand.

    proposal = propose_pipeline(["corpus/"], out="pipeline.yaml", seconds=3600)
    proposal.yaml()      the file, each value with one comment that says why
    write(proposal)

The model is the largest that the text is enough for, that learns what it should (training/course.py) within the time,
and that fits half of the memory that is free. The vocabulary follows from the amount of text, and is no larger than
leaves the model about half of its parameters for its layers. Speed is measured for a second with torch, as `ramlet
plan` does it; without torch it is assumed. Times are estimates.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ramlet.engines import Engine, open_engine
from ramlet.errors import BudgetError, DiskFull, SettingsError, option
from ramlet.inputs.staging import Input, needs_staging
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.pipeline.looking import TextFound, look_at_text, text_in
from ramlet.pipeline.record import NAME as RECORD
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.memory import free_memory
from ramlet.runtime.plurals import plural
from ramlet.training.course import Course, course_for, largest_for
from ramlet.training.machine import Machine, look
from ramlet.training.settings import default_seq_len

__all__ = ["Proposal", "propose_pipeline", "refuse_existing", "write"]

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 60_000_000, 124_000_000, 350_000_000)
LEAST_LENGTH = 8
LEAST_STEPS = 50
"""However short the time is."""
VOCABULARIES = ((1_000_000, 1000), (10_000_000, 2000), (50_000_000, 4000), (500_000_000, 8000), (10**10, 16_000))
LARGEST_VOCABULARY = 32_000
UNKNOWN_VOCABULARY = 16_000
"""Where no one knows how much text there is."""
MOST_EMBEDDING = 0.55
"""The part of the parameters that may be embedding. Of 300k, 4,000 tokens leave one layer of 64, 2,000 two of 80: after
2,500 steps on Python's sources 1.81 and 1.73 bits per byte."""
ASSUMED_FLOPS = 30e9
"""A processor, where torch is not there to measure it."""
TOKENS_A_THREAD = 40_000
"""A second, at most: what a step of the smallest models takes on a CPU besides its products."""
SHORT_TEXT = 40
"""Fewer documents than this, and a tenth of them for validation is a matter of luck."""
UNKNOWN_BYTES_A_TOKEN = 3.8
WAITING = 40_000_000
"""What `ramlet run` keeps of a budget for its own process, at most."""
WORK = "my-model"


@dataclass(frozen=True)
class Proposal:
    out: str
    text: TextFound
    machine: Machine
    memory: int
    memory_asked: bool
    threads: int
    vocab_size: int
    bytes_per_token: float
    tokens: int
    """In the training split, about; 0 where no one knows."""
    params: int
    shape: Shape
    course: Course
    seconds: float
    """About how long training takes."""
    limit: float
    """How long it may take."""
    document_bytes: int | None
    disk_free: int

    @property
    def epochs(self) -> float:
        return self.course.tokens / self.tokens if self.tokens else 0.0

    @property
    def layers(self) -> str:
        """What the model looks like."""
        shape = self.shape
        share = shape.vocab_size * shape.width / shape.parameters
        return f"{plural(shape.layers, 'layer')} of {shape.width}, {share:.0%} embedding"

    def summary(self) -> list[str]:
        """What was chosen, and why, in a few lines."""
        known = f"{format_bytes(self.text.text_bytes)} of text, about {self.tokens:,} tokens to learn from"
        return [
            known if self.tokens else "text of a size that is not known before it is fetched",
            f"model: {_short(self.params)} parameters ({self.layers}), a vocabulary of {self.vocab_size:,}",
            f"training: {plural(self.course.steps, 'step')}, about {_duration(self.seconds)} here; "
            f"--time allows {_duration(self.limit)}, --memory {_size(self.memory)}",
        ]

    def yaml(self) -> str:
        """The file."""
        text, work = self.text, _work_for(self.out)
        inputs = [_beside(self.out, each) for each in text.inputs]
        known = f"about {format_bytes(text.text_bytes)} of text in {plural(text.files, 'file')}"
        where = self.machine.gpu or plural(self.machine.threads, "core")
        whole = f"{self.tokens:,} tokens, {self.epochs:.1f} times through" if self.tokens else "text of unknown size"
        free = format_bytes(self.machine.memory)
        why = "as asked for" if self.memory_asked else "half of what is free now"
        lines = [
            f"# ramlet run {self.out}",
            "#",
            f"# Made for {where}, with {free} of memory and {format_bytes(self.disk_free)} of disk free.",
            "# Change what you like and run it again: only what depends on the change is made anew.",
            "",
            f"memory: {_size(self.memory)}  # {why}; changes how long it takes, never the result",
            f"threads: {self.threads}  # one a core",
            f"work: {_quoted(work)}  # everything goes here: tokenizer/, dataset/, run/, report.html",
            "",
            f"# {known if text.text_bytes else 'its size is not known before it is fetched'}",
            "text:",
            *(f"  - {_quoted(each)}" for each in inputs),
        ]
        if text.text_field != "text":
            lines.append(f"text_field: {_quoted(text.text_field)}  # the longest field of the first line")
        lines += [
            "",
            "tokenizer:",
            f"  vocab_size: {self.vocab_size}  # by the amount of text; about {self.bytes_per_token:.1f} bytes a token",
            '  special_tokens: ["<|endoftext|>"]  # ends every document',
            "",
            "data:",
            "  dedup: doc  # leaves out documents that came before; line is stricter, none keeps all",
            f"  val_fraction: {0.1 if self.tokens < 10_000_000 else 0.01}"
            "  # kept out of training, to measure on; chosen by a hash of the document",
        ]
        if self.document_bytes is not None:
            why = "little text: cut smaller, so that some is kept to measure on"
            lines.append(f"  document_bytes: {self.document_bytes}  # {why}")
        course = self.course
        lines += [
            "",
            "model:",
            f"  params: {_short(self.params)}  # the largest that text, time and memory are enough for: {self.layers}",
            f"  seq_len: {course.seq_len}  # tokens that it looks back",
            "",
            "training:",
            f"  batch_size: {course.sequences}  # sequences a step: {course.step_tokens:,} tokens, whatever the memory",
            f"  max_steps: {course.steps}  # {whole}: about {_duration(self.seconds)} here, "
            f"of {_duration(self.limit)} that --time allows",
            "  # eval: {general: other-dataset/}   a further dataset to measure on",
            '  # sample_prompt: "Once upon a time"',
            "",
            f"report: true  # one page to look at: {work}/report.html",
            "",
        ]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """What the user should know of it."""
        need = self.tokens * 2 + self.params * 40
        notes = []
        if need > self.disk_free:
            notes.append(f"this takes about {format_bytes(need)} of disk, and {format_bytes(self.disk_free)} are free")
        if find_spec("torch") is None:
            notes.append("training needs PyTorch: pip install 'ramlet[train]'; the time is a guess without it")
        if self.tokens and self.tokens < 100_000:
            notes.append(
                f"{plural(self.tokens, 'token is', 'tokens are')} little: expect a model that knows them by heart"
            )
        return notes


def propose_pipeline(
    inputs: Sequence[str],
    *,
    out: str,
    params: int | None = None,
    seconds: float = 3600.0,
    memory: int | None = None,
    threads: int | None = None,
    force: bool = False,
) -> Proposal:
    """Looks at text and machine; nothing is written. A file that is there is refused, unless `force`."""
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder):
        raise SettingsError(f"there is no folder {folder}: make it, or give another {option('out')}")
    text = look_at_text(_closely(inputs, out))
    refuse_existing(out, force=force)
    engine = _engine(threads)
    machine = look(engine)
    allowed = memory or int(min(free_memory(), machine.memory) / 2)
    chosen = _Choice(text, machine).chosen(seconds, allowed, params, fits=engine is not None)
    course, a_step = chosen.course, chosen.a_step
    steps = int(float(f"{max(LEAST_STEPS, min(course.steps, int(seconds / a_step))):.1e}"))
    cut = None
    if text.formats == ("text",) and text.parts < SHORT_TEXT and text.text_bytes:
        cut = max(1024, min(1 << 16, text.text_bytes // 100))
    return Proposal(
        out=out,
        text=text,
        machine=machine,
        memory=allowed,
        memory_asked=memory is not None,
        threads=threads or machine.threads,
        vocab_size=chosen.shape.vocab_size,
        bytes_per_token=chosen.bytes_per_token,
        tokens=chosen.tokens,
        params=chosen.params,
        shape=chosen.shape,
        course=replace(course, steps=steps),
        seconds=steps * a_step,
        limit=seconds,
        document_bytes=cut,
        disk_free=shutil.disk_usage(folder).free,
    )


def refuse_existing(out: str, *, force: bool) -> None:
    """Stops before a file that is there, unless it is to be replaced."""
    if os.path.lexists(out) and not force:
        raise SettingsError(f"{out} is there already: {option('force')} replaces it, or give another {option('out')}")


def write(proposal: Proposal, *, force: bool = False) -> None:
    """Writes the file; one that is there only with `force`."""
    try:
        with hold(proposal.out, "init", makes_folder=False):
            refuse_existing(proposal.out, force=force)
            with replacing(proposal.out, streams=True) as file:
                file.write(proposal.yaml())
    except DiskFull:
        raise
    except OSError as error:
        raise SettingsError(f"cannot write {proposal.out}: {error.strerror}") from None


def _work_for(out: str) -> str:
    """The folder of the results: one a file, or two files would move each other's results aside.

    >>> _work_for("pipeline.yaml"), _work_for("models/tales.yaml")
    ('my-model', 'tales-model')
    """
    name = os.path.splitext(os.path.basename(out))[0]
    # Not the name alone: tales.yaml is often made for text that is called tales.
    return WORK if name == "pipeline" else f"{name}-model"


def _closely(inputs: Sequence[str], out: str) -> list[str]:
    """The inputs; a folder that the results will lie in becomes what is in it now."""
    folder = os.path.dirname(out) or "."
    results = [str(each.parent) for each in Path(folder).glob(f"*/{RECORD}")]
    found: list[str] = []
    for each in inputs or [folder]:
        if each == "-":
            raise SettingsError("a pipeline reads its text more than once: write standard input to a file first")
        if not os.path.isdir(each) or needs_staging(Input(each)):
            found.append(each)
        elif os.path.realpath(each) == os.path.realpath(folder):
            found += text_in(each, without=[out, os.path.join(folder, _work_for(out)), *results])
        elif not os.path.relpath(os.path.realpath(folder), os.path.realpath(each)).startswith(".."):
            raise SettingsError(
                f"the results would lie in {each}, among the text: give {option('out')} a place outside of it"
            )
        else:
            found.append(each)
    return found


def _engine(threads: int | None) -> Engine | None:
    return None if find_spec("torch") is None else open_engine(threads=threads)


@dataclass(frozen=True)
class _Candidate:
    """A model that could be trained on the text."""

    params: int
    shape: Shape
    bytes_per_token: float
    tokens: int
    course: Course
    a_step: float
    """About how many seconds a step takes."""


class _Choice:
    """The models that a text and a machine are good for."""

    def __init__(self, text: TextFound, machine: Machine) -> None:
        self._text = text
        self._machine = machine
        self._bytes_per_token: dict[int, float] = {}

    def chosen(self, seconds: float, memory: int, params: int | None, *, fits: bool) -> _Candidate:
        """The one of so many `params`, or the largest that is learned in time and fits."""
        if params is not None:
            return self._candidate(params)
        possible: list[_Candidate] = []
        for size in SIZES:
            found = self._candidate(size)
            enough = not found.tokens or size <= largest_for(found.tokens)
            quick = found.course.steps * found.a_step <= seconds
            if possible and not (enough and quick):
                break
            if fits:
                try:
                    _plan(size, found.shape.vocab_size, memory, found.course)
                except BudgetError:
                    if not possible:
                        raise
                    break
            possible.append(found)
        return possible[-1]

    def _candidate(self, params: int) -> _Candidate:
        vocab = self._vocabulary(params)
        each = self._measured(vocab)
        tokens = int(self._text.text_bytes / each * 0.9)
        seq_len = 128 if 0 < tokens < 1_000_000 else default_seq_len(params)
        while tokens and seq_len > LEAST_LENGTH and 4 * seq_len > tokens:
            seq_len //= 2
        course = course_for(params, text=tokens, seq_len=seq_len)
        shape = shape_for(params, vocab_size=vocab, context=seq_len)
        a_step = _seconds(self._machine, shape.step_flops(course.step_tokens))
        if self._machine.device == "cpu":
            a_step = max(a_step, course.step_tokens / (TOKENS_A_THREAD * self._machine.threads))
        return _Candidate(params, shape, each, tokens, course, a_step)

    def _vocabulary(self, params: int) -> int:
        """By the amount of text, but with room for layers; the smallest where no other leaves it."""
        size = self._text.text_bytes
        most = next((vocab for most, vocab in VOCABULARIES if size < most), LARGEST_VOCABULARY)
        most = most if size else UNKNOWN_VOCABULARY
        known = [vocab for _, vocab in VOCABULARIES if vocab <= most]
        for vocab in sorted({*known, most}, reverse=True):
            with suppress(SettingsError):  # the vocabulary alone is larger than the model
                shape = shape_for(params, vocab_size=vocab, context=default_seq_len(params))
                if vocab * shape.width <= MOST_EMBEDDING * shape.parameters:
                    return vocab
        return VOCABULARIES[0][1]

    def _measured(self, vocab: int) -> float:
        if not self._text.text_bytes:
            return UNKNOWN_BYTES_A_TOKEN
        if vocab not in self._bytes_per_token:
            self._bytes_per_token[vocab] = self._text.bytes_per_token(vocab)
        return self._bytes_per_token[vocab]


def _plan(params: int, vocab: int, memory: int, course: Course) -> None:
    """BudgetError where training would be refused; `ramlet run` takes a part of the budget for itself."""
    from ramlet.training.propose import plan

    try:
        own = WAITING if memory > 2 * WAITING else 0
        plan(params=params, vocab_size=vocab, memory=memory - own, batch_size=course.sequences, seq_len=course.seq_len)
    except BudgetError as error:
        raise BudgetError(
            f"{error.sentence}; and {format_bytes(WAITING)} for the pipeline's own process", **error.facts
        ) from None


def _seconds(machine: Machine, flops: float) -> float:
    return machine.seconds(flops) or flops / (ASSUMED_FLOPS * machine.threads)


def _beside(out: str, path: str) -> str:
    """As the file names it."""
    folder = os.path.dirname(out)
    if not folder or os.path.isabs(path) or needs_staging(Input(path)):
        return path
    return os.path.relpath(path, folder)


def _quoted(text: str) -> str:
    """In quotes where YAML could take it for something else."""
    return text if re.fullmatch(r"[A-Za-z_./][\w./-]*", text) and text.lower() not in _OTHERWISE else json.dumps(text)


_OTHERWISE = ("yes", "no", "on", "off", "true", "false", "null", "y", "n", "~")


def _size(count: int) -> str:
    """To two digits, down.

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
