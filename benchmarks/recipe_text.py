"""The text for recipe.py: C, Python, prose in forty languages and documentation, from Debian packages (corpora.py).

    python benchmarks/recipe.py text                   # data/recipe/mix.jsonl.xz, and a dataset for each vocabulary
    python benchmarks/recipe.py text --vocab 50257     # only that one

The compressed text is the only input of the datasets, so a machine without apt only needs that file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

from corpora import DATA, describe, documents_of, write_atomically
from measure import measure
from recipe_runs import Ramlet

FOLDER = DATA / "recipe"
SHARES = {"code": 0.2, "python": 1.0, "nat": 0.7, "docs": 1.0}
"""Of each corpus, by the hash of its documents; together 108.6 M tokens with the larger vocabulary."""
VOCABULARIES = (50257, 8192)
"""For 124M and 10M parameters."""
PIECE = 1 << 16
"""Documents are split into pieces of this many bytes; some are as long as a dictionary."""


def documents(shares: dict[str, float], sizes: dict[str, int], origins: list[str]) -> Iterator[bytes]:
    """Lines of JSON; `sizes` and `origins` are filled."""
    for name, share in shares.items():
        made_from, texts = documents_of(name)
        origins += made_from
        for text in texts:
            if int.from_bytes(hashlib.sha256(text).digest()[:4], "big") < share * 2**32:
                sizes[name] = sizes.get(name, 0) + len(text)
                yield json.dumps({"text": text.decode(), "kind": name}, ensure_ascii=False).encode() + b"\n"


def mix(shares: dict[str, float]) -> Path:
    target = FOLDER / "mix.jsonl.xz"
    if not target.exists():
        sizes: dict[str, int] = {}
        origins: list[str] = []
        compressor = lzma.LZMACompressor(preset=6)

        def compressed() -> Iterator[bytes]:
            yield from map(compressor.compress, documents(shares, sizes, origins))
            yield compressor.flush()

        size, digest = write_atomically(target, compressed())
        describe(target, size, digest, [*origins, *(f"{name}: {count:,} bytes" for name, count in sizes.items())])
    return target


def dataset(text: Path, vocab: int) -> Path:
    now, out, tokenizer = Ramlet.now(), FOLDER / f"mix-{vocab}", FOLDER / f"tokenizer-{vocab}"
    if not (out / "dataset_metadata.json").exists():
        train = ["tokenizer", "train", text, "--vocab-size", vocab, "--special-token", "<|endoftext|>"]
        measure(now.command(*train, "--out", tokenizer, "--quiet"), now.environment)
        prepare = ["prepare", text, "--tokenizer", tokenizer, "--document-bytes", PIECE, "--val-fraction", 0.02]
        measure(now.command(*prepare, "--out", out, "--quiet"), now.environment)
    return out


def make(given: argparse.Namespace) -> None:
    shares = {name: share * given.share for name, share in SHARES.items()}
    text = mix(shares)
    print(text)
    for vocab in given.vocab or VOCABULARIES:
        made = dataset(text, vocab)
        splits = json.loads((made / "dataset_metadata.json").read_text())["splits"]
        print(f"{made}: {splits['train']['tokens']:,} tokens, {splits['val']['tokens']:,} for validation")


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("text", help="the texts and datasets", description=__doc__)
    parser.set_defaults(run=lambda given, records: make(given))
    parser.add_argument("--vocab", type=int, action="append", help="only this vocabulary; can be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual size, to try the script")
