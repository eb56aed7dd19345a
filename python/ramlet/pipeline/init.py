"""`ramlet init`: a commented pipeline.yaml for this text and this machine.

    proposal = propose_pipeline(["corpus/"], out="pipeline.yaml", seconds=3600)
    write(proposal)

The model is the largest for which the text is enough, that can be trained as long as it should be (training/course.py)
within the time limit, and that fits half of the free memory. The vocabulary follows from the amount of text, and is
small enough to leave about half of the parameters for the layers. Speed is measured for a second, as in `ramlet plan`.
Times are estimates.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ramlet.engines.opening import open_engine
from ramlet.errors import BudgetError, DiskFull, SettingsError, option
from ramlet.inputs.named import Input, needs_staging
from ramlet.model.sizing import shape_for
from ramlet.pipeline.looking import TextFound, look_at_text, text_in
from ramlet.pipeline.proposal import Candidate, Proposal, work_for
from ramlet.pipeline.record import NAME as RECORD
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.memory import free_memory
from ramlet.training.course import Course, course_for, largest_for
from ramlet.training.machine import Machine, look
from ramlet.training.recipe import QK_NORM, step_flops
from ramlet.training.settings import default_seq_len

__all__ = ["Proposal", "propose_pipeline", "write"]

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 60_000_000, 124_000_000, 350_000_000)
SHORTEST_SEQUENCE = 8
FEWEST_STEPS = 50
"""However short the time limit is."""
VOCABULARIES = ((1_000_000, 1000), (10_000_000, 2000), (50_000_000, 4000), (500_000_000, 8000), (10**10, 16_000))
LARGEST_VOCABULARY = 32_000
UNKNOWN_VOCABULARY = 16_000
"""If the amount of text is unknown."""
MOST_EMBEDDING = 0.55
"""The largest share of the parameters for the embedding. With 300k parameters, 4,000 tokens leave one layer of width
64, 2,000 leave two of 80: after 2,500 steps on Python's sources, 1.81 and 1.73 bits per byte."""
TOKENS_PER_THREAD = 40_000
"""Per second, at most: the overhead of a step of the smallest models on a CPU, besides its matrix products."""
FEW_DOCUMENTS = 40
"""With fewer than this, it is a matter of luck whether any are held out for validation."""
UNKNOWN_BYTES_PER_TOKEN = 3.8
WAITING = 32_000_000
"""What `ramlet run` uses of a budget for its own process, at most."""


def propose_pipeline(
    inputs: Sequence[str],
    *,
    out: str,
    params: int | None = None,
    seconds: float = 3600.0,
    memory: int | None = None,
    threads: int | None = None,
    engine: str = "auto",
    force: bool = False,
) -> Proposal:
    """Examines text and machine, and writes nothing. An existing file is refused, unless `force`."""
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder):
        raise SettingsError(f"there is no folder {folder}: create it, or give another {option('out')}")
    text = look_at_text(_without_results(inputs, out))
    _refuse_existing(out, force=force)
    machine = look(open_engine(threads=threads, name=engine))
    allowed = memory or int(min(free_memory(), machine.memory) / 2)
    chosen = _Choice(text, machine).chosen(seconds, allowed, params, engine)
    steps = max(FEWEST_STEPS, min(chosen.course.steps, int(seconds / chosen.step_seconds)))
    steps = int(float(f"{steps:.1e}"))
    document_bytes = None
    if text.formats == ("text",) and text.parts < FEW_DOCUMENTS and text.text_bytes:
        document_bytes = max(1024, min(1 << 16, text.text_bytes // 100))
    return Proposal(
        **vars(replace(chosen, course=replace(chosen.course, steps=steps))),
        out=out,
        text=text,
        machine=machine,
        memory=allowed,
        memory_given=memory is not None,
        threads=threads or machine.threads,
        engine=engine,
        limit=seconds,
        document_bytes=document_bytes,
        disk_free=shutil.disk_usage(folder).free,
    )


def write(proposal: Proposal, *, force: bool = False) -> None:
    """Writes the file; an existing one is only replaced with `force`."""
    try:
        with hold(proposal.out, "init", makes_folder=False):
            _refuse_existing(proposal.out, force=force)
            with replacing(proposal.out, streams=True) as file:
                file.write(proposal.yaml())
    except DiskFull:
        raise
    except OSError as error:
        raise SettingsError(f"cannot write {proposal.out}: {error.strerror}") from None


def _refuse_existing(out: str, *, force: bool) -> None:
    if os.path.lexists(out) and not force:
        raise SettingsError(f"{out} already exists: {option('force')} replaces it, or give another {option('out')}")


def _without_results(inputs: Sequence[str], out: str) -> list[str]:
    """The inputs; a folder that will also hold the results is replaced by what is in it now."""
    folder = os.path.dirname(out) or "."
    results = [str(each.parent) for each in Path(folder).glob(f"*/{RECORD}")]
    found: list[str] = []
    for each in inputs or [folder]:
        if each == "-":
            raise SettingsError("a pipeline reads its text more than once: write standard input to a file first")
        if not os.path.isdir(each) or needs_staging(Input(each)):
            found.append(each)
        elif os.path.realpath(each) == os.path.realpath(folder):
            found += text_in(each, without=[out, os.path.join(folder, work_for(out)), *results])
        elif not os.path.relpath(os.path.realpath(folder), os.path.realpath(each)).startswith(".."):
            raise SettingsError(
                f"the results would be inside {each}, among the text: give an {option('out')} outside of it"
            )
        else:
            found.append(each)
    return found


class _Choice:
    """Chooses a model for a text and a machine."""

    def __init__(self, text: TextFound, machine: Machine) -> None:
        self._text = text
        self._machine = machine
        self._bytes_per_token: dict[int, float] = {}

    def chosen(self, seconds: float, memory: int, params: int | None, engine: str) -> Candidate:
        """The one with this many `params`, or the largest that can be trained in time and fits."""
        if params is not None:
            return self._candidate(params)
        possible: list[Candidate] = []
        for size in SIZES:
            found = self._candidate(size)
            enough = not found.tokens or size <= largest_for(found.tokens)
            if possible and not (enough and found.seconds <= seconds):
                break
            try:
                _plan(size, found.vocab_size, memory, found.course, engine)
            except BudgetError:
                if not possible:
                    raise
                break
            possible.append(found)
        return possible[-1]

    def _candidate(self, params: int) -> Candidate:
        machine, vocab_size = self._machine, self._vocab_size(params)
        bytes_per_token = self._measured(vocab_size)
        # 0 would be an unknown amount.
        tokens = max(min(1, self._text.text_bytes), int(self._text.text_bytes / bytes_per_token * 0.9))
        seq_len = 128 if 0 < tokens < 1_000_000 else default_seq_len(params)
        while tokens and seq_len > SHORTEST_SEQUENCE and 4 * seq_len > tokens:
            seq_len //= 2
        course = course_for(params, text=tokens, seq_len=seq_len)
        shape = shape_for(params, vocab_size=vocab_size, context=seq_len, qk_norm=QK_NORM)
        flops = step_flops(shape, course.step_tokens, seq_len)
        step_seconds = machine.seconds(flops)
        if machine.device == "cpu":
            step_seconds = max(step_seconds, course.step_tokens / (TOKENS_PER_THREAD * machine.threads))
        return Candidate(
            params=params,
            shape=shape,
            bytes_per_token=bytes_per_token,
            tokens=tokens,
            course=course,
            step_seconds=step_seconds,
        )

    def _vocab_size(self, params: int) -> int:
        """By the amount of text, as long as it leaves enough parameters for layers; the smallest if none does."""
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

    def _measured(self, vocab_size: int) -> float:
        if not self._text.text_bytes:
            return UNKNOWN_BYTES_PER_TOKEN
        if vocab_size not in self._bytes_per_token:
            self._bytes_per_token[vocab_size] = self._text.bytes_per_token(vocab_size)
        return self._bytes_per_token[vocab_size]


def _plan(params: int, vocab: int, memory: int, course: Course, engine: str) -> None:
    """BudgetError if training would be refused; `ramlet run` uses a part of the budget for itself."""
    from ramlet.training.propose import plan

    try:
        own = WAITING if memory > 2 * WAITING else 0
        plan(
            params=params,
            vocab_size=vocab,
            memory=memory - own,
            engine=engine,
            batch_size=course.sequences,
            seq_len=course.seq_len,
        )
    except BudgetError as error:
        raise BudgetError(
            f"{error.sentence}; and {format_bytes(WAITING)} for the pipeline's own process", **error.facts
        ) from None
