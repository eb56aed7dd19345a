"""nanoGPT's meta.pkl: the vocabulary beside train.bin and val.bin, for its train.py and sample.py.

    {"vocab_size": 66, "itos": {0: "\\n", 1: " ", ...}, "stoi": {"\\n": 0, " ": 1, ...}}

train.py takes the vocabulary's size from it, sample.py its characters: it encodes a prompt character by character, and
joins what ids stand for. Of a vocabulary of characters that is all there is; of others whatever is one token each, and
bytes that are no whole character are shown as U+FFFD. Without the file sample.py takes ids for GPT-2's, so there
GPT-2's own need none. It is pickled because nanoGPT unpickles it: numbers and strings in plain dictionaries.
"""

from __future__ import annotations

import pickle
from typing import IO

from ramlet.dataset.manifest import Manifest
from ramlet.tokenizer.files.gpt2 import FINGERPRINT
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["MEMORY_FACTOR", "needs_meta", "write_meta"]

MEMORY_FACTOR = 2
"""The vocabulary as text, twice over, takes less than the tokenizer itself."""


def needs_meta(manifest: Manifest) -> bool:
    return manifest.tokenizer.fingerprint != FINGERPRINT


def write_meta(tokenizer: Tokenizer, file: IO[bytes]) -> None:
    texts = {number: token.decode("utf-8", "replace") for number, token in tokenizer.vocabulary.items()}
    ids: dict[str, int] = {}
    for number, text in texts.items():
        ids.setdefault(text, number)
    pickler = pickle.Pickler(file, protocol=4)
    pickler.fast = True  # no table of what was written, which would be as large again
    pickler.dump({"vocab_size": tokenizer.vocab_size, "itos": texts, "stoi": ids})
