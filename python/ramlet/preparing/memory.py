"""How much memory `prepare` needs: for each thread, and for what all threads share."""

from __future__ import annotations

import json
from typing import NamedTuple

from ramlet import _native
from ramlet.preparing.plan import Planned
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES
from ramlet.tokenizer.encode import TOKEN_BYTES
from ramlet.tokenizer.model import CHARACTER_BYTES, UNICODE
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["CACHE_BYTES", "ENCODER_BYTES", "LEAST_CACHE", "Need", "memory_needed"]

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
    if not planned.decoding:
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
