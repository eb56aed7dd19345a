"""HF's trainer on the documents that ramlet would read: the in-memory way, for `ramlet tokenizer compare`.

    python -m ramlet.tokenizer.hf_training SETTINGS.json

A process of its own, so that its memory can be told. The settings name inputs, pattern, vocabulary size
and where to write the merges and the seconds that the training call took. Documents are handed
over in stretches of 64 kB, cut where pieces are cut anyway: given whole files, HF's library holds 72
bytes for each byte of text and uses one thread. The counts are the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramlet import _native
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings

__all__ = ["main"]


def main(path: str) -> None:
    """Trains as the file of settings says."""
    import tokenizers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    settings = json.loads(Path(path).read_text())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=settings["pattern"] == "gpt2")
    tokenizer = Tokenizer(models.BPE())
    if settings["pattern"] == "gpt2":
        tokenizer.pre_tokenizer = byte_level
    else:
        regex = Regex(_native.pattern_regex(settings["pattern"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(regex, "isolated"), byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=settings["vocab_size"],
        min_frequency=settings["min_frequency"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    began = time.perf_counter()
    tokenizer.train_from_iterator(_stretches(settings), trainer)
    seconds = time.perf_counter() - began
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in learned]
    result = {"version": tokenizers.__version__, "call_seconds": seconds, "merges": merges}
    Path(settings["result"]).write_text(json.dumps(result))


def _stretches(settings: dict[str, Any]) -> Iterator[str]:
    reading = ReadSettings(**settings["reading"])
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    encoder = _native.Encoder.bpe(
        tokens,
        [],
        pattern_name=settings["pattern"],
        ignore_merges=False,
        rank_by_id=False,
        nfc=False,
        added=[],
        cache_bytes=0,
    )
    reader = _native.Reader(
        (source.spec() for source in sources.expand(settings["inputs"], format=reading.format)),
        reading.reading(),
        encoder=encoder,
        block_bytes=1 << 16,
        window_bytes=64 << 20,
        spill_dir=settings["scratch"],
    )
    while (batch := reader.next_batch()) is not None:
        yield from (text for text, _ in batch)


if __name__ == "__main__":
    main(sys.argv[1])
