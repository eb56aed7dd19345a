"""HF's trainer, in memory, on the documents that ramlet would read: for `ramlet tokenizer compare`.

    python -m ramlet.tokenizer.hf_training SETTINGS.json

It runs in its own process, so that its memory can be measured. The settings file has the inputs, the pattern, the
vocabulary size and where to write the merges and the seconds of the training call. Documents are passed in parts of
64 kB, split where the pattern splits them anyway: with whole files, HF's library takes 72 bytes per byte of text and
uses one thread. The counts are the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramlet import _native
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.tokenizer.engines import NativeEngine
from ramlet.tokenizer.model import byte_model


def main(path: str) -> None:
    """Trains with the settings in the file."""
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
    tokenizer.train_from_iterator(_document_parts(settings), trainer)
    seconds = time.perf_counter() - began
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in learned]
    result = {"version": tokenizers.__version__, "call_seconds": seconds, "merges": merges}
    Path(settings["result"]).write_text(json.dumps(result))


def _document_parts(settings: dict[str, Any]) -> Iterator[str]:
    reading = ReadSettings(**settings["reading"])
    bytes_only = replace(byte_model(), pattern=settings["pattern"])
    reader = _native.Reader(
        (source.spec() for source in sources.expand(settings["inputs"], format=reading.format)),
        reading.reading(),
        encoder=NativeEngine(bytes_only, cache_bytes=0).encoder,
        block_bytes=1 << 16,
        window_bytes=64 << 20,
        spill_dir=settings["scratch"],
    )
    while (batch := reader.next_batch()) is not None:
        yield from (text for text, _ in batch)


if __name__ == "__main__":
    main(sys.argv[1])
