"""The setting `input` of `ramlet train`: prepares text as a dataset inside the run, before training on it.

Up to 16 MB every character is a token: a vocabulary learned from so little text would be mostly noise, and a small
model has better uses for its parameters. Larger texts get their own byte-level BPE with 8,192 tokens (16,384 from 256
MB on).

A document belongs to the training or the validation split as a whole, so a small text is cut into about 64 documents:
as a single one it would be entirely in the training split, without validation, or one time in ten entirely in the
validation split, without training data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import NAME
from ramlet.engines.opening import is_first_process
from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.sources import expand, survey
from ramlet.preparing.settings import WHOLE_FILE_BYTES, PrepareSettings
from ramlet.runtime.meter import Meter
from ramlet.training.run_folder import RunFolder

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
    reading: Mapping[str, Any] | None = None,
    threads: int | None = None,
    val_fraction: float = 0.1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Prepares the inputs as a dataset in RUN/data; does nothing if that is done already.

    `reading` are settings of ReadSettings.
    """
    made = run / "data" / "dataset"
    if not is_first_process():
        # Only the first rank prepares; if it fails, the launcher ends the ranks that wait.
        while not (made / NAME).exists():
            time.sleep(0.1)
        return made
    RunFolder(run).refuse_foreign()
    from ramlet.preparing.run import prepare_to

    how = ReadSettings(**(reading or {}))
    chosen = tokenizer or _tokenizer_for(inputs, run, how, meter, threads, progress)
    settings = PrepareSettings(
        tokenizer=chosen, val_fraction=val_fraction, document_bytes=_part_bytes(inputs, how), **vars(how)
    )
    try:
        prepare_to(list(inputs), made, settings, meter=meter, threads=threads, progress=progress)
    # Neither `append` nor `allow_empty` are settings here.
    except SettingsError as error:
        if "append" not in error.settings:
            raise
        raise SettingsError(
            f"{run} was begun with other text, or the text has changed since: choose another {option('out')}"
        ) from None
    except SourceError as error:
        if "allow_empty" not in error.settings:
            raise
        raise SourceError(f"{error.facts['why']}: give other text to train on") from None
    return made


def _part_bytes(inputs: Sequence[str], reading: ReadSettings) -> int | None:
    """The longest document of a small text; None if the default yields enough documents, or the size is unknown."""
    from ramlet.inputs.staging import needs_staging

    if reading.documents == "line" or any(needs_staging(name) for name in inputs):
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
    reading: ReadSettings,
    meter: Meter,
    threads: int | None,
    progress: Callable[[str, int, int], None] | None,
) -> str:
    size = survey(list(inputs)).total_bytes
    if size <= CHARACTERS_UP_TO:
        return "char"
    from ramlet.tokenizer.folder import train_to_folder
    from ramlet.tokenizer.settings import TrainSettings

    settings = TrainSettings(vocab_size=16_384 if size >= LARGE_FROM else 8_192, special_tokens=(END,), **vars(reading))
    folder = run / "data" / "tokenizer"
    train_to_folder(list(inputs), folder, settings, meter=meter, threads=threads, progress=progress)
    return str(folder)
