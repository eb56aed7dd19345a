"""Runs the stages of the native core, in the process that it is called in, within a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ramlet import _native
from ramlet.inputs.staging_folder import Progress
from ramlet.preparing import tokenizer as prepare_tokenizer
from ramlet.preparing.plan import Planned
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import STAGES
from ramlet.preparing.work import Work
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.open_files import allow_open_files
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES, fitting_threads
from ramlet.tokenizer.encode import TOKEN_BYTES
from ramlet.tokenizer.engines import HfEngine, NativeEngine
from ramlet.tokenizer.model import CHARACTER_BYTES, UNICODE
from ramlet.tokenizer.tokenizer import Tokenizer

LEAST_CACHE = 1 << 20
CACHE_BYTES = 24 << 20
"""The word cache; with GPT-2's vocabulary two threads then take about 90 MB in total."""
ENCODER_BYTES = 1 << 20
"""What each thread's encoder has to itself."""


def memory_needed(settings: PrepareSettings, tokenizer: Tokenizer | None, planned: Planned, threads: int) -> int:
    """The least that the work takes, with the smallest word cache."""
    size = planned.inputs["bytes"]
    longest = settings.largest_whole_file if planned.whole_files else settings.largest_document
    if not planned.decoding and "exclude_ngram" not in planned.plan:
        # No document is longer than its input, except that each byte that is not UTF-8 becomes three.
        longest = min(longest, 3 * size)
    merges = tokenizer is not None and tokenizer.kind not in ("byte", "char")
    bounds = {"max_document_bytes": longest, "max_file_bytes": longest}
    per_thread, shared = _native.least_room(json.dumps({**planned.plan, **bounds}), merges)
    per_thread += ENCODER_BYTES + THREAD_BYTES + planned.decoding
    shared += planned.excluding + NATIVE_CODE + LEAST_CACHE + TOKEN_BYTES * (tokenizer.vocab_size if tokenizer else 0)
    if tokenizer is None:
        # A text has at most as many characters as bytes; a compressed one may have any.
        shared += CHARACTER_BYTES * (UNICODE if planned.decoding else min(UNICODE, size))
    elif tokenizer.kind == "hf":
        # A text is encoded as a whole, short ones in batches.
        shared += HfEngine.MEMORY_PER_BYTE * max(longest, HfEngine.BATCH_CHARACTERS)
    return threads * per_thread + shared


class Core:
    """The native core at work on one run."""

    def __init__(
        self,
        work: Work,
        meter: Meter,
        threads: int | None,
        tokenizer: Tokenizer | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.work = work
        self.meter = meter
        self.budget = meter.budget or Budget.parse("auto")
        self.tokenizer = tokenizer
        self.progress = progress
        if work.settings.near is not None:
            allow_open_files(len(work.plan["cache_listing"]))  # what earlier runs kept stays open
        what = "at work, with the encoder"
        if tokenizer is not None and tokenizer.kind == "hf":
            what += ", which takes a document as a whole"
        self.threads = fitting_threads(self.budget, threads, self._least, what, peak=meter.peak)
        self._working = self._least(self.threads) - LEAST_CACHE
        """Bytes that the work takes, without the word cache."""

    def _least(self, threads: int) -> int:
        return memory_needed(self.work.settings, self.tokenizer, self.work.planned, threads)

    def run(self, stage: str, parts: Sequence[int]) -> None:
        """Runs those of the parts that are not done yet."""
        name = STAGES[stage].reports
        self.meter.stage(name)
        tokenizer = self.load_tokenizer() if STAGES[stage].encodes else None
        if stage == "decide":
            self.require_bits()
        # The word cache fills during the stage, so it is not resident yet.
        native = stage == "write" and tokenizer is not None and tokenizer.kind != "hf"
        cache = CACHE_BYTES + self.threads * ENCODER_BYTES if native else 0
        if stage == "write" and tokenizer is not None:
            spare = self.budget.available() - self._working
            tokenizer.limit_cache(min(max(spare // 2, LEAST_CACHE), CACHE_BYTES))
        free = self.budget.available()
        if stage in ("scan", "write"):
            free = max(0, free - self.threads * self.work.planned.decoding)
        run_native(
            self.work.folder.work,
            self.work.folder.out,
            stage,
            parts,
            tokenizer,
            memory=free - min(cache, free // 3),
            threads=self.threads,
            total=self._total(stage, len(parts)),
            progress=None if stage in _UNREPORTED else self._progress_of(name),
        )

    def require_bits(self) -> None:
        """Refuses a budget without the memory of one bit for each document, by which near-duplicates are decided."""
        documents = self._compared()
        if documents // 8 > LEAST_CACHE:  # fewer are covered by what every run is granted
            bits = {f"one bit for each of {documents:,} documents": documents // 8}
            self.budget.grant({"comparing texts": self._least(1) - LEAST_CACHE, **bits})

    def load_tokenizer(self) -> Tokenizer:
        """That of the run; a character vocabulary is learned once the text is scanned."""
        if self.tokenizer is None:
            path = self.work.folder.work / "tokenizer.json"
            self.tokenizer = Tokenizer.load(path) if path.exists() else self._learn_characters(path)
        return self.tokenizer

    def _learn_characters(self, path: Path) -> Tokenizer:
        """From the notes of all tasks, so that every process that does it learns the same."""
        plan = self.work.plan
        notes = self.work.folder.notes("scan", plan["tasks"], characters=str)
        learned = prepare_tokenizer.from_characters(self.work.settings, (note["characters"] for note in notes))
        plan["end_id"] = next(iter(learned.special_tokens.values()), None)
        plan["wide"] = learned.vocab_size > 1 << 16
        self.work.folder.save(plan)
        learned.save(path, format="json")
        return learned

    def _total(self, stage: str, count: int) -> int:
        """What all parts together have to do; of a few of them nobody asks."""
        folder, plan = self.work.folder, self.work.plan
        if count < STAGES[stage].parts(plan):
            return 0
        if stage in ("scan", "write"):
            return int(self.work.planned.inputs["bytes"])
        if stage == "settle":
            return sum(note["units"] for note in folder.notes("scan", plan["tasks"], units=int))
        if stage == "compare":
            return self._compared()
        return int(plan["near"]["partitions"]) if stage == "pair" else 0

    def _compared(self) -> int:
        """How many documents are compared with each other."""
        notes = self.work.folder.notes("tokens", self.work.plan["tasks"], near_documents=int)
        return sum(note["near_documents"] for note in notes)

    def _progress_of(self, name: str) -> Progress | None:
        """Reports under the name of the stage here, whatever the core calls it."""
        progress = self.progress
        return None if progress is None else lambda _, done, total: progress(name, done, total)


_UNREPORTED = ("decide", "near", "layout")
"""They take little time, and count other things than the stage that they are shown with."""


def run_native(
    work: Path,
    out: Path,
    stage: str,
    parts: Sequence[int],
    tokenizer: Tokenizer | None,
    *,
    memory: int,
    threads: int,
    total: int = 0,
    progress: Progress | None = None,
) -> None:
    """The core encodes by itself, or calls back for tokenizers that it does not support."""
    encoder, decode = decoder_of(tokenizer)
    foreign = None if tokenizer is None or encoder is not None else tokenizer.engine
    _native.run_prepare_stage(
        work,
        out,
        stage,
        list(parts),
        encoder=encoder,
        encode=None if foreign is None else lambda texts: foreign.encode_batch(texts, [], threads, True),
        decode=decode,
        memory=memory,
        threads=threads,
        total=total,
        progress=progress,
    )


def decoder_of(
    tokenizer: Tokenizer | None,
) -> tuple[_native.Encoder | None, Callable[[list[int]], bytes] | None]:
    """What turns ids into text: the native encoder, or a function."""
    if tokenizer is None:
        return None, None
    if isinstance(tokenizer.engine, NativeEngine):
        return tokenizer.engine.encoder, None
    return None, tokenizer.decode_bytes
