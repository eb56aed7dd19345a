"""nanoGPT: train.bin and val.bin, ids without a header; meta.pkl, the vocabulary for its train.py and sample.py.

    {"vocab_size": 66, "itos": {0: "\\n", 1: " ", ...}, "stoi": {"\\n": 0, " ": 1, ...}}

Ids are uint16, or uint32 if the vocabulary needs it. train.py reads the vocabulary size from meta.pkl; sample.py
encodes a prompt character by character, and decodes by joining the strings of the ids. That is exact for a vocabulary
of characters; of others it has the strings that are one token each, and bytes that are not a whole character become
U+FFFD. Without the file sample.py assumes GPT-2's ids, so GPT-2's own tokenizer needs none. It is a pickle because
nanoGPT unpickles it: numbers and strings in plain dictionaries.
"""

from __future__ import annotations

import pickle

from ramlet.dataset.export.run import Export
from ramlet.dataset.manifest import Manifest
from ramlet.tokenizer.files.gpt2 import FINGERPRINT


def tokens_loaded(manifest: Manifest) -> int:
    """Twice its tokens: the vocabulary as text, in both directions, takes less than the tokenizer itself."""
    return 0 if manifest.tokenizer.fingerprint == FINGERPRINT else 2 * manifest.vocab_size


def write(job: Export) -> None:
    for split in job.splits:
        with job.open(f"{split}.bin") as file:
            job.copy_ids(split, file)
    if tokens_loaded(job.dataset.manifest):
        _write_meta(job)
    if job.dataset.manifest.dtype == "uint32":
        job.notes.append(
            "the ids are uint32, as uint16 cannot hold the vocabulary: change nanoGPT's np.uint16 to match"
        )


def _write_meta(job: Export) -> None:
    tokenizer = job.dataset.tokenizer
    texts = {number: token.decode("utf-8", "replace") for number, token in tokenizer.vocabulary.items()}
    ids: dict[str, int] = {}
    for number, text in texts.items():
        ids.setdefault(text, number)
    with job.open("meta.pkl") as file:
        pickler = pickle.Pickler(file, protocol=4)
        pickler.fast = True  # without the table of written objects, which would be as large again
        pickler.dump({"vocab_size": tokenizer.vocab_size, "itos": texts, "stoi": ids})
