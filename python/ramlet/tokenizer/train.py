"""Tokenizer training, from top to bottom: budget -> sources -> native core -> a model and statistics.

    corpus = Corpus(settings, inputs=["corpus/"])
    with Meter(Budget.parse("2GB")) as meter:
        model, statistics = learn(corpus, settings, meter=meter, work_dir=Path("work"))

The whole process stays within the budget: with 128 MB and two threads, the interpreter takes about 25 MB, the native
core gets the rest minus a reserve, and the result (32,000 tokens: 8 MB of Python objects) is created after the core has
freed most of its memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ramlet import __version__, _native
from ramlet.errors import BrokenInput, SettingsError, SourceError, TokenizerError, option
from ramlet.inputs import sources
from ramlet.runtime.budget import Budget
from ramlet.runtime.digest import digest
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES, fitting_threads
from ramlet.tokenizer.model import (
    CHARACTER_BYTES,
    UNICODE,
    CharacterTokens,
    TokenizerModel,
    byte_model,
    check_names,
)
from ramlet.tokenizer.settings import TrainSettings

UNKNOWN = "<unk>"

CHECKPOINT_SECONDS = 30.0
"""The most counting that an interruption can lose."""

LEAST_BLOCK = 1 << 16
BLOCKS_PER_THREAD = 6
"""In memory while reading."""

Progress = Callable[[str, int, int], None]
Count = Callable[[], dict[str, Any]]
Inputs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def learn(
    corpus: Corpus,
    settings: TrainSettings,
    *,
    meter: Meter,
    work_dir: Path,
    threads: int | None = None,
    progress: Progress | None = None,
    count: Count | None = None,
) -> tuple[TokenizerModel, dict[str, Any]]:
    """The tokenizer and its statistics, within the budget of the meter.

    `count` counts the pieces elsewhere, into `work_dir`, and returns their totals.
    """
    began = time.monotonic()
    budget = meter.budget or Budget.parse("auto")
    watch = _watch(meter, progress)
    measured: dict[str, Any] = {}
    if settings.kind == "byte":
        budget.grant({"the vocabulary and its file": LEAST_BLOCK})
        model = _with_specials(byte_model().tokens, [], settings, pattern="whole")
    elif settings.kind == "char":
        model, measured = _learn_characters(corpus, settings, budget, threads, work_dir, watch)
    else:
        model, measured = _learn_bpe(corpus, settings, budget, threads, work_dir, watch, count)
    statistics = {
        "ramlet": __version__,
        "settings": asdict(settings),
        "inputs": {"fingerprint": corpus.fingerprint, "passed_over": corpus.passed_over},
        "tokenizer": {
            "fingerprint": model.fingerprint,
            "vocab_size": model.size,
            "merges": len(model.merges),
            "special_tokens": model.specials,
        },
        **measured,
        "seconds": round(time.monotonic() - began, 3),
        "memory": meter.summary(),
    }
    return model, statistics


class Corpus:
    """The training text: files that can be identified and read again, or texts that come once."""

    def __init__(
        self,
        settings: TrainSettings,
        *,
        inputs: Inputs | None = None,
        texts: Iterable[str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """`without` are real paths of what is not read, even if it is inside an input folder: where the result goes."""
        if (inputs is None) == (texts is None):
            raise SettingsError("give either inputs (files, folders, globs) or texts")
        self._inputs = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs or ())
        self._texts = texts
        self._format = settings.format
        self._without = without
        self.passed_over: dict[str, int] = {}
        # Texts come once, like standard input: they have no identity to compare.
        found = sources.Survey(0, lasting=False, fingerprint="")
        if texts is None:
            found = sources.survey(
                self._inputs, format=settings.format, text_field=settings.text_field, without=without
            )
        self.total_bytes = found.total_bytes
        self.decoding = found.decoding
        self.fingerprint = found.fingerprint
        self.lasting = found.lasting
        """Whether the same command reads the same text again."""
        once = "" if self.lasting else f"{os.getpid()} {time.time_ns()}"
        self.signature = digest(iter([*settings.counting_parts(), self.fingerprint.encode(), once.encode()]))

    def files(self) -> Iterator[tuple[str, str, str, int, int]] | None:
        """For the native core, which takes them one by one."""
        if self._texts is not None:
            return None
        return (source.spec() for source in self._expand(self.passed_over))

    def _expand(self, skipped: dict[str, int]) -> Iterator[sources.Source]:
        return sources.expand(self._inputs, format=self._format, skipped=skipped, without=self._without)

    def samples(self) -> list[tuple[str, int]]:
        """Path and size of some files, each in another folder, by which another machine shows that it sees them."""
        found: dict[str, tuple[str, int]] = {}
        for source in self._expand({}):
            if source.size is not None:
                found.setdefault(os.path.dirname(source.path), (os.path.abspath(source.path), source.size))
            if len(found) == sources.SAMPLES:
                break
        return list(found.values())

    def batches(self) -> Iterator[list[str]] | None:
        """Texts in lists of about a quarter of a megabyte."""
        return None if self._texts is None else self._batches(self._texts)

    @staticmethod
    def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        characters = 0
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be str, not {type(text).__name__}")
            batch.append(text)
            characters += len(text)
            if characters >= 1 << 18:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


def _learn_bpe(
    corpus: Corpus,
    settings: TrainSettings,
    budget: Budget,
    threads: int | None,
    work_dir: Path,
    watch: Progress,
    count: Count | None,
) -> tuple[TokenizerModel, dict[str, Any]]:
    assert settings.vocab_size is not None
    wanted = settings.vocab_size - len(settings.special_tokens)
    least = partial(_native.least_memory, tokens=wanted, decoding=corpus.decoding)
    threads = fitting_threads(budget, threads, least, f"learning {wanted:,} tokens")
    totals = {} if count is None else count()
    try:
        learned = _native.train_bpe(
            files=corpus.files() if count is None else None,
            texts=corpus.batches(),
            counted=None if count is None else work_dir,
            total_bytes=corpus.total_bytes,
            read=settings.reading(),
            pattern_name=settings.pattern,
            specials=settings.special_tokens,
            tokens=wanted,
            min_frequency=settings.min_frequency,
            max_token_bytes=1 << 30 if settings.max_token_bytes is None else settings.max_token_bytes,
            tie_break=settings.tie_break,
            threads=threads,
            # Never less than was just granted: another page may have become resident since.
            memory=max(budget.available(), least(threads)),
            decoding=corpus.decoding,
            resident_limit=budget.total,
            work_dir=str(work_dir),
            signature=corpus.signature,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            progress=watch,
        )
    except UnicodeEncodeError as error:
        raise BrokenInput(f"a text has a lone surrogate at character {error.start}: UTF-8 cannot encode it") from None
    learned |= totals
    _require_text(learned["read"])
    tokens, merges = learned.pop("tokens"), learned.pop("merges")
    check_names(settings.special_tokens, tokens)
    measured = {"threads": threads, **learned, "stages": _stages(learned.pop("seconds"))}
    return _with_specials(tokens, merges, settings, pattern=settings.pattern), measured


def _learn_characters(
    corpus: Corpus, settings: TrainSettings, budget: Budget, threads: int | None, work_dir: Path, watch: Progress
) -> tuple[TokenizerModel, dict[str, Any]]:
    most = None
    if settings.vocab_size is not None:
        most = settings.vocab_size - len(settings.special_tokens) - (settings.unknown == "unk")
    least = partial(_least_for_characters, corpus)
    threads = fitting_threads(budget, threads, least, "counting characters")
    began = time.monotonic()
    files = corpus.files()
    if files is not None:
        share = (budget.available() - least(threads)) // threads
        work_dir.mkdir(parents=True, exist_ok=True)
        found, chosen, read = _native.count_characters(
            files,
            settings.reading(),
            most=most,
            threads=threads,
            block_bytes=min(max(share // 64, LEAST_BLOCK), 1 << 20),
            window_bytes=min(max(share // 8, 8 << 20), 128 << 20),
            spill_dir=str(work_dir),
            total_bytes=corpus.total_bytes,
            progress=watch,
        )
    else:
        found, chosen, read = _count_texts(corpus.batches() or iter(()), most)
    _require_text(read)
    if len(chosen) < len(found) and settings.unknown == "error":
        raise SettingsError(
            f"the text has {len(found):,} different characters, but the vocabulary size allows {most:,}: give no size, "
            f"or map the others to <unk> ({option('unknown', 'unk')})"
        )
    if (surrogate := re.search("[\ud800-\udfff]", chosen)) is not None:
        raise BrokenInput(f"a text has a lone surrogate, U+{ord(surrogate[0]):04X}: UTF-8 cannot encode it")
    tokens = CharacterTokens(chosen)
    unknown = (UNKNOWN, len(tokens)) if settings.unknown == "unk" else None
    for name in settings.special_tokens:
        if (len(name) == 1 and name in found) or (unknown and name == UNKNOWN):
            raise TokenizerError(f"the special token {name!r} is an ordinary token of this vocabulary: choose another")
    first = len(tokens) + (unknown is not None)
    specials = {name: first + at for at, name in enumerate(settings.special_tokens)}
    measured = {
        "threads": threads,
        "read": read,
        "distinct_characters": len(found),
        "stages": _stages({"counting": time.monotonic() - began}),
    }
    return TokenizerModel(tokens, specials=specials, characters=True, unknown=unknown), measured


def _least_for_characters(corpus: Corpus, threads: int) -> int:
    """A table and blocks per thread, or one table and the characters in all forms that they go through.

    Plain text has no more characters than bytes; a compressed file may have any number.
    """
    characters = UNICODE if corpus.decoding or not corpus.lasting else min(UNICODE, corpus.total_bytes)
    # A small text touches few pages of the table.
    table = min(8 * UNICODE, 4096 * characters)
    counting = threads * (table + BLOCKS_PER_THREAD * LEAST_BLOCK + corpus.decoding)
    return NATIVE_CODE + threads * THREAD_BYTES + max(counting, table + CHARACTER_BYTES * characters)


def _count_texts(batches: Iterator[list[str]], most: int | None) -> tuple[str, str, dict[str, Any]]:
    from collections import Counter

    counts: Counter[str] = Counter()
    documents = size = 0
    for batch in batches:
        documents += len(batch)
        for text in batch:
            size += len(text.encode("utf-8", "surrogatepass"))
            counts.update(text)
    found = "".join(sorted(counts))
    chosen = found
    if most is not None and most < len(found):
        chosen = "".join(sorted(sorted(found, key=lambda character: (-counts[character], character))[:most]))
    return found, chosen, {"documents": documents, "text_bytes": size}


def _with_specials(
    tokens: Sequence[bytes | None], merges: list[tuple[int, int, int]], settings: TrainSettings, pattern: str
) -> TokenizerModel:
    specials = {name: len(tokens) + at for at, name in enumerate(settings.special_tokens)}
    name = pattern if pattern == "whole" else _native.recognise_pattern(_native.pattern_regex(pattern)) or pattern
    return TokenizerModel(tokens, merges, name, specials)


def _watch(meter: Meter, progress: Progress | None) -> Progress:
    """Reports the stage to the meter, and the progress to the caller."""
    current = ""

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal current
        if stage != current:
            current = stage
            meter.stage(stage)
        if progress is not None:
            progress(stage, done, total)

    return watch


def _require_text(read: dict[str, Any]) -> None:
    if not read["text_bytes"]:
        raise SourceError("the input has no text: there is nothing to train on")


def _stages(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    return {stage: {"seconds": round(value, 3)} for stage, value in seconds.items()}
