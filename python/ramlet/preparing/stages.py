"""The stages that the native core runs, as a whole or one part at a time, and the memory that they need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ramlet import _native
from ramlet.inputs.staging_folder import Progress
from ramlet.preparing.plan import Planned
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES
from ramlet.tokenizer.encode import TOKEN_BYTES
from ramlet.tokenizer.engines import NativeEngine
from ramlet.tokenizer.model import CHARACTER_BYTES, UNICODE
from ramlet.tokenizer.tokenizer import Tokenizer

NEEDS_TOKENIZER = ("write", "near")
"""Stages that encode or decode."""
UNITS = {"comparing": "hashes", "pairing": "partitions", "comparing texts": "documents", "sharding": "tokens"}
"""What the stages count, by their names for users; the others count bytes."""
LEAST_CACHE = 1 << 20
CACHE_BYTES = 24 << 20
"""The word cache; with GPT-2's vocabulary two threads then take about 90 MB in total."""
HF_CHARACTER_BYTES = 200
"""What Hugging Face's library takes per character of the document that it encodes."""
ENCODER_BYTES = 1 << 20
"""What each thread's encoder has to itself."""


class Need(NamedTuple):
    per_thread: int
    shared: int

    def total(self, threads: int) -> int:
        return threads * self.per_thread + self.shared


def memory_needed(settings: PrepareSettings, tokenizer: Tokenizer | None, planned: Planned) -> Need:
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
    shared += NATIVE_CODE + LEAST_CACHE + TOKEN_BYTES * (tokenizer.vocab_size if tokenizer else 0)
    if tokenizer is None:
        # A text has at most as many characters as bytes; a compressed one may have any.
        shared += CHARACTER_BYTES * (UNICODE if planned.decoding else min(UNICODE, size))
    elif tokenizer.kind == "hf":
        shared += HF_CHARACTER_BYTES * settings.largest_document
    return Need(per_thread, shared)


def run_stage(
    work: Path,
    out: str | os.PathLike[str],
    stage: str,
    tokenizer: Tokenizer | None,
    *,
    memory: int,
    threads: int,
    total: int = 0,
    progress: Progress | None = None,
    part: int | None = None,
) -> None:
    """Runs what is not done yet; the core encodes by itself, or calls back for tokenizers that it does not support."""
    encoder, decode = decoder_of(tokenizer)
    foreign = None if tokenizer is None or encoder is not None else tokenizer.engine
    _native.run_prepare_stage(
        work,
        out,
        stage,
        encoder=encoder,
        encode=None if foreign is None else lambda texts: foreign.encode_batch(texts, [], threads, True),
        decode=decode,
        memory=memory,
        threads=threads,
        total=total,
        progress=progress,
        part=part,
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


def run_part(
    out: str | os.PathLike[str],
    stage: str,
    index: int,
    *,
    memory: Budget | str | int | None = "auto",
    threads: int = 1,
) -> None:
    """One part of one stage of an unfinished run, here or on any machine that sees the folder and the inputs.

    It depends only on the plan in OUT/.work and the index: `scan`, `write` and `near` have one part per task, `settle`
    and `pair` one per partition. A part that is done is not repeated; each stage needs all parts of the one before, and
    a part of `near` all those before it.
    """
    work = Path(out) / ".work"
    budget = Budget.parse(memory)
    tokenizer = Tokenizer.load(work / "tokenizer.json") if stage in NEEDS_TOKENIZER else None
    run_stage(work, out, stage, tokenizer, memory=budget.available(), threads=threads, part=index)
