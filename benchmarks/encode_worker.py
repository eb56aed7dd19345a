"""Encodes one text in batches with one library and GPT-2's vocabulary; encode.py runs it as a separate process.

    python benchmarks/encode_worker.py gigatoken benchmarks/data/gpt2.json < benchmarks/data/nat.txt

Reads standard input in batches of 8 MB, each a list of documents of about 16 kB (bytes; str for libraries that accept
nothing else and for those whose name says so), split where the pattern always ends a piece. Only the encoding call is
timed, not reading, splitting and decoding the batch or checking the ids. Prints one JSON line: bytes, seconds, a digest
of the ids of each batch, and (bytes, resident bytes) over time. The process is pinned to --threads cores, so that no
library can use more.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from text_pieces import BEFORE_BLANK, cut_documents, cut_stream

BATCH, DOCUMENT = 8_000_000, 16_000
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

Encode = Callable[[Any], Any]
Flatten = Callable[[Any], Any]
"""Converts the result of a call into one flat array of ids, for the digest; not timed."""


def load_ramlet(vocabulary: str, threads: int) -> tuple[Encode, Flatten]:
    import ramlet

    tokenizer = ramlet.Tokenizer.load("gpt2")

    def flatten(result: Any) -> Any:
        ids = result[0]
        assert ids.dtype == np.uint16, ids.dtype
        return ids

    return tokenizer.encode_batch, flatten


def load_gigatoken(vocabulary: str, threads: int) -> tuple[Encode, Flatten]:
    import awkward
    import gigatoken

    return gigatoken.Tokenizer(vocabulary).encode_batch, lambda result: np.asarray(awkward.flatten(result))


def load_gigatoken_buffer(vocabulary: str, threads: int) -> tuple[Encode, Flatten]:
    """The batch as one buffer of bytes, which gigatoken's documentation calls its fastest input."""
    import awkward
    import gigatoken

    tokenizer = gigatoken.Tokenizer(vocabulary)
    return (
        lambda buffer: tokenizer.encode_batch(gigatoken.BytesSource(buffer)),
        lambda result: np.asarray(awkward.flatten(result)),
    )


def load_tiktoken(vocabulary: str, threads: int) -> tuple[Encode, Flatten]:
    import tiktoken

    from train_worker import ALPHABET

    byte_of = {character: byte for byte, character in enumerate(ALPHABET)}
    with open(vocabulary, encoding="utf-8") as file:
        vocab = json.load(file)["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items() if rank < 50256}
    encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return (
        lambda documents: encoding.encode_ordinary_batch(documents, num_threads=threads),
        lambda result: np.concatenate([np.asarray(ids, dtype=np.uint32) for ids in result]),
    )


def load_hf(vocabulary: str, threads: int) -> tuple[Encode, Flatten]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(vocabulary)
    return (
        lambda documents: tokenizer.encode_batch_fast(documents, add_special_tokens=False),
        lambda result: np.concatenate([np.asarray(encoding.ids, dtype=np.uint32) for encoding in result]),
    )


LIBRARIES = {
    "ramlet": (load_ramlet, "ramlet"),
    "ramlet-str": (load_ramlet, "ramlet"),
    "ramlet-buffer": (load_ramlet, "ramlet"),
    "gigatoken": (load_gigatoken, "gigatoken"),
    "gigatoken-str": (load_gigatoken, "gigatoken"),
    "gigatoken-buffer": (load_gigatoken_buffer, "gigatoken"),
    "tiktoken": (load_tiktoken, "tiktoken"),
    "hf": (load_hf, "tokenizers"),
}


def digest(ids: Any) -> str:
    """SHA-256 of the ids as 32-bit numbers, computed in small steps so that it hardly affects the measured memory."""
    hashed = hashlib.sha256()
    for start in range(0, len(ids), 1 << 16):
        hashed.update(ids[start : start + (1 << 16)].astype("<u4").tobytes())
    return hashed.hexdigest()


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("vocabulary", help="GPT-2's tokenizer.json, for the other libraries")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="encode only every n-th batch (for slow libraries)")
    parser.add_argument("--digest-every", type=int, default=1, help="save a digest of every n-th batch's ids")
    parser.add_argument("--stop-at", type=int, default=0, help="stop if RSS exceeds this many bytes")
    options = parser.parse_args()

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    load, package = LIBRARIES[options.library]
    encode, flatten = load(options.vocabulary, options.threads)
    total, seconds = 0, 0.0
    digests: dict[int, str] = {}
    memory = [(0, resident())]
    for number, text in enumerate(cut_stream(sys.stdin.buffer, BATCH, BEFORE_BLANK)):
        if number % options.every:
            continue
        if options.library.endswith("-buffer"):
            batch: Any = text if options.library.startswith("gigatoken") else [text]
        else:
            batch = list(cut_documents(text, DOCUMENT, BEFORE_BLANK))
            if options.library not in {"ramlet", "gigatoken"}:
                batch = [document.decode() for document in batch]
        start = time.perf_counter()
        result = encode(batch)
        seconds += time.perf_counter() - start
        total += len(text)
        if number % options.digest_every == 0:
            digests[number] = digest(flatten(result))
        del result, batch
        memory.append((total, resident()))
        if options.stop_at and memory[-1][1] > options.stop_at:
            break
    gc.collect()
    if len(memory) > 1000:
        memory = [*memory[:: len(memory) // 500], memory[-1]]
    report = {"bytes": total, "seconds": seconds, "digests": digests, "memory": memory}
    print(json.dumps({**report, "version": f"{package} {version(package)}"}))


if __name__ == "__main__":
    main()
