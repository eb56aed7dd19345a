"""Trains one BPE vocabulary with one of the other tools; bpe_train.py runs it as a separate process, in their venv.

    python benchmarks/train_worker.py gigatoken benchmarks/data/nat.txt 32256 benchmarks/data/out.json

Writes {"tokens": [...], "merges": [[left, right], ...] or null} in GPT-2's byte alphabet, and prints one JSON line:
the seconds of the training call alone, and the version and settings used. Each tool is called in the fastest way that
its documentation describes; all get the same text. gigatoken reads the file itself. The others take an iterator of
strings: the file in pieces of about 64 kB, split only between an ASCII letter and a newline, where the GPT-2 pattern
always ends a piece, so that splitting changes no count. (HF tokenizers, given a whole file as one item, used 72 bytes
of memory for each byte of it, and one thread.)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from text_pieces import BEFORE_NEWLINE, cut_stream

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PIECE = 1 << 16

Harvest = Callable[[], tuple[list[str], list[tuple[str, str]] | None]]
"""Returns the result, (tokens, merges if the tool reports them), outside the measured call."""


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


ALPHABET = byte_alphabet()


def spelled(token: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in token)


def pieces(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for piece in cut_stream(file, PIECE, BEFORE_NEWLINE):
            yield piece.decode()


def train_gigatoken(path: Path, vocab_size: int) -> tuple[Harvest, dict[str, Any]]:
    import gigatoken

    vocabulary, merges = gigatoken.train_bpe(path, vocab_size, [])

    def harvest() -> tuple[list[str], list[tuple[str, str]]]:
        return [spelled(token) for token in vocabulary.values()], [(spelled(a), spelled(b)) for a, b in merges]

    return harvest, {"input": "path", "tie_breaking": "huggingface"}


def train_hf(path: Path, vocab_size: int) -> tuple[Harvest, dict[str, Any]]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(pieces(path), trainer)

    def harvest() -> tuple[list[str], list[tuple[str, str]]]:
        model = json.loads(tokenizer.to_str())["model"]
        return list(model["vocab"]), [(left, right) for left, right in model["merges"]]

    return harvest, {"input": "iterator of 64 kB pieces", "pre_tokenizer": "ByteLevel(add_prefix_space=False)"}


def train_rustbpe(path: Path, vocab_size: int) -> tuple[Harvest, dict[str, Any]]:
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(pieces(path), vocab_size, buffer_size=256, pattern=GPT2_PATTERN)

    def harvest() -> tuple[list[str], None]:
        return [spelled(bytes(token)) for token, _ in tokenizer.get_mergeable_ranks()], None

    return harvest, {"input": "iterator of 64 kB pieces", "buffer_size": 256}


def train_bpeasy(path: Path, vocab_size: int) -> tuple[Harvest, dict[str, Any]]:
    import bpeasy

    vocabulary = bpeasy.train_bpe(pieces(path), GPT2_PATTERN, 128, vocab_size, batch_size=256)

    def harvest() -> tuple[list[str], None]:
        return [spelled(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)], None

    return harvest, {"input": "iterator of 64 kB pieces", "max_token_length": 128, "batch_size": 256}


TRAINERS = {
    "gigatoken": (train_gigatoken, "gigatoken"),
    "hf": (train_hf, "tokenizers"),
    "rustbpe": (train_rustbpe, "rustbpe"),
    "bpeasy": (train_bpeasy, "bpeasy"),
}


def main() -> None:
    peer, source, vocab_size, target = sys.argv[1:]
    train, package = TRAINERS[peer]
    __import__(package)
    start = time.perf_counter()
    harvest, settings = train(Path(source), int(vocab_size))
    seconds = time.perf_counter() - start
    tokens, merges = harvest()
    Path(target).write_text(json.dumps({"tokens": tokens, "merges": merges}, ensure_ascii=False))
    print(json.dumps({"call_seconds": seconds, "version": f"{package} {version(package)}", "settings": settings}))


if __name__ == "__main__":
    main()
