"""`ramlet train --input FILE`: text becomes a dataset inside the run before it is trained on.

Up to 16 MB every character is a token: a vocabulary learned from so little would be mostly noise, and a small model has
better uses for its parameters. Larger texts get a byte-level BPE of their own, of 8,192 tokens (16,384 from 256 MB on).

A document goes to training or to validation as a whole, so a small text is cut into some 64 of them: as one it would be
all in training, with nothing to measure by, or one time in ten all in validation, with nothing to learn from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ramlet.dataset.manifest import NAME
from ramlet.inputs.sources import expand, survey
from ramlet.preparing.settings import WHOLE_FILE_BYTES, PrepareSettings
from ramlet.runtime.meter import Meter
from ramlet.training.run_folder import RunFolder

__all__ = ["prepare_own"]

CHARACTERS_UP_TO = 16_000_000
LARGE_FROM = 256_000_000
PARTS = 64
SMALLEST_PART = 256
END = "<|endoftext|>"


def prepare_own(
    inputs: Sequence[str],
    run: Path,
    *,
    meter: Meter,
    tokenizer: str | None = None,
    threads: int | None = None,
    val_fraction: float = 0.1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """The dataset made of the inputs, in RUN/data; the same inputs again are not read again."""
    made = run / "data" / "dataset"
    if os.environ.get("RANK", "0") != "0":
        return _made_by_the_first(made)
    RunFolder(run).refuse_foreign()
    from ramlet.preparing.run import prepare_to

    chosen = tokenizer or _tokenizer_for(inputs, run, meter, threads, progress)
    settings = PrepareSettings(tokenizer=chosen, val_fraction=val_fraction, document_bytes=_part_bytes(inputs))
    prepare_to(list(inputs), made, settings, meter=meter, threads=threads, progress=progress)
    return made


def _made_by_the_first(dataset: Path) -> Path:
    """Of several processes one prepares; when it fails, torchrun ends those that wait."""
    while not (dataset / NAME).exists():
        time.sleep(0.1)
    return dataset


def _part_bytes(inputs: Sequence[str]) -> int | None:
    """The longest document of a small text; None where the usual length makes enough of them, or no one knows yet."""
    from ramlet.inputs.staging import needs_staging

    if any(needs_staging(name) for name in inputs):
        return None
    size = 0
    for source in expand(list(inputs)):
        size += source.size or 0
        if source.format != "text" or source.size is None or size >= PARTS * WHOLE_FILE_BYTES:
            return None
    return max(SMALLEST_PART, size // PARTS)


def _tokenizer_for(
    inputs: Sequence[str],
    run: Path,
    meter: Meter,
    threads: int | None,
    progress: Callable[[str, int, int], None] | None,
) -> str:
    size = survey(list(inputs)).total_bytes
    if size <= CHARACTERS_UP_TO:
        return "char"
    from ramlet.tokenizer.folder import train_to_folder
    from ramlet.tokenizer.settings import TrainSettings

    settings = TrainSettings(vocab_size=16_384 if size >= LARGE_FROM else 8_192, special_tokens=(END,))
    folder = run / "data" / "tokenizer"
    train_to_folder(list(inputs), folder, settings, meter=meter, threads=threads, progress=progress)
    return str(folder)
