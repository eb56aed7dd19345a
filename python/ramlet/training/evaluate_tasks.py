"""`ramlet.evaluate_tasks`: questions with choices, and pairs of sentences, scored by likelihood.

    scores = ramlet.evaluate_tasks("my-run", {"capitals": "capitals.jsonl", "grammar": "blimp.jsonl"}, memory="1GB")
    scores["capitals"].acc, scores["capitals"].acc_stderr, scores["capitals"].acc_norm

The model answers with the choice that has the highest likelihood after the question (`acc`), or the highest per
character (`acc_norm`); of a pair, it should give the first sentence the higher one. Numbers are those of
lm-evaluation-harness on the same items (task_rows.py has what that means).

A file is read three times: first all of it is checked, and the item found that takes most; then the longest row, for
which the model is planned; then a window of items at a time is scored, in batches of rows of about the same length.
Neither the window nor what is in a row depends on the budget. If an item takes more than a window (a question with
100,000 choices fits into one line), a budget that is too small for the largest is refused before anything is encoded.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.engines import Model
from ramlet.engines.opening import check_hardware
from ramlet.errors import ModelError, SettingsError, SourceChanged, option
from ramlet.inputs.paths import paths_of
from ramlet.model.folder import find_model
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.runtime.threads import check_threads
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.open_model import Opening
from ramlet.training.task_file import Item, TaskFile
from ramlet.training.task_rows import (
    CHOICE_BYTES,
    TOKEN_BYTES,
    Encoding,
    Row,
    Scored,
    as_batch,
    likelihoods,
    scored,
)

WINDOW_ROWS, WINDOW_TOKENS, WINDOW_TEXT = 256, 1 << 14, 2 << 20
"""Items that are sorted by length together have at most so many rows and tokens, and bytes of text; or are one item."""
WINDOW_BYTES = WINDOW_TOKENS * TOKEN_BYTES + WINDOW_TEXT + (1 << 20)
"""What such a window, and the arrays of a batch, take."""
CACHE_BYTES = 2 << 20
"""Of the tokenizer, for words: little text is encoded here."""

Progress = Callable[[str, int, int], None]
Paths = str | os.PathLike[str]


@dataclass(frozen=True)
class TaskScore:
    """On one task; the names are those of lm-evaluation-harness."""

    items: int
    correct: int
    correct_norm: int | None
    """By likelihood per character; None for pairs of sentences."""

    @property
    def acc(self) -> float:
        return self.correct / self.items

    @property
    def acc_stderr(self) -> float | None:
        """None for a single item."""
        return _stderr(self.correct, self.items)

    @property
    def acc_norm(self) -> float | None:
        return None if self.correct_norm is None else self.correct_norm / self.items

    @property
    def acc_norm_stderr(self) -> float | None:
        return None if self.correct_norm is None else _stderr(self.correct_norm, self.items)

    def to_dict(self) -> dict[str, Any]:
        values = {"acc": self.acc, "acc_stderr": self.acc_stderr}
        if self.correct_norm is not None:
            values |= {"acc_norm": self.acc_norm, "acc_norm_stderr": self.acc_norm_stderr}
        rounded = {name: None if value is None else round(value, 6) for name, value in values.items()}
        return {**rounded, "items": self.items}


def _stderr(correct: int, items: int) -> float | None:
    """The sample's standard deviation / sqrt(items)."""
    share = correct / items
    return math.sqrt(share * (1 - share) / (items - 1)) if items > 1 else None


@dataclass(frozen=True)
class Answered:
    """An item and what the model says about it."""

    item: Item
    likelihoods: list[float]
    """Of each choice, in nats."""

    @property
    def choice(self) -> int:
        return _best(self.likelihoods)

    @property
    def choice_norm(self) -> int:
        return _best([each / len(text) for each, text in zip(self.likelihoods, self.item.choices)])


def _best(numbers: Sequence[float]) -> int:
    """The first of the highest."""
    return max(range(len(numbers)), key=numbers.__getitem__)


def evaluate_tasks(
    run: Paths,
    tasks: Paths | Sequence[Paths] | Mapping[str, Paths],
    *,
    device: str | None = "auto",
    engine: str | None = "auto",
    precision: str | None = "auto",
    memory: Budget | str | int | None = "auto",
    threads: int | None = None,
    meter: Meter | None = None,
    progress: Progress | None = None,
    answered: Callable[[str, Answered], None] | None = None,
) -> dict[str, TaskScore]:
    """The scores of a model by the name of the task; tasks without a name have that of their file.

        scores = ramlet.evaluate_tasks("my-run", ["capitals.jsonl", "blimp.jsonl"])
        scores["blimp"].acc, scores["blimp"].acc_stderr

    A task is a file with a JSON object per line: a question with choices and the answer, or a pair of sentences
    (docs/evaluating.md). `run` is a run, one of its checkpoints or a Llama or Qwen3 folder of transformers. `progress`
    is called with the task, the items done so far, and the total; `answered` with the task and each item.
    """
    check_hardware(device, precision, engine)
    check_threads(threads)
    files = {name: TaskFile.open(path) for name, path in named_tasks(tasks).items()}
    found = find_model(run)
    shape = found.shape()
    tokenizer = Tokenizer.load(found.tokenizer_file)
    tokenizer.limit_cache(CACHE_BYTES)
    end_ids = found.end_ids()
    encoding = Encoding(tokenizer, min(end_ids) if end_ids else tokenizer.end_of_text, shape.context)
    opening = Opening(
        found,
        document_mask=True,
        device=device or "auto",
        engine=engine or "auto",
        precision=precision or "auto",
        memory=memory,
        threads=threads,
        meter=meter,
    )
    counts, largest = dict.fromkeys(files, 0), ("", 0, 0)
    for name, file in files.items():
        for item in file:
            counts[name] += 1
            if (needed := encoding.memory(item)) > largest[1]:
                what = f"line {item.line:,} of {file.path} with {plural(len(item.choices), 'choice')}"
                largest = what, needed, min(encoding.context, needed // TOKEN_BYTES)
    what, needed, most = largest
    division = None
    if needed > WINDOW_BYTES:
        # It holds for all items: what remains of this one in the heap would be counted twice later.
        division = opening.division(most, {what: WINDOW_BYTES + needed})
    longest = max(
        (len(row) for file in files.values() for item in file for row in scored(item, encoding).rows), default=1
    )
    if division is None:
        division = opening.division(longest, {"the items of the tasks": WINDOW_BYTES + needed})
    model = opening.load(longest, division)
    scores = {}
    for name, file in files.items():
        correct = correct_norm = done = 0
        for one in answers(model, file, encoding, division.micro_batch * longest):
            if not all(map(math.isfinite, one.likelihoods)):
                raise ModelError(
                    f"the model's loss on line {one.item.line:,} of {file.path} is NaN or infinite: its weights are "
                    f"damaged, or need {option('precision', 'fp32')}"
                )
            correct += one.choice == one.item.answer
            correct_norm += one.choice_norm == one.item.answer
            done += 1
            if progress is not None:
                progress(name, done, counts[name])
            if answered is not None:
                answered(name, one)
        if done != counts[name]:
            raise SourceChanged(f"{file.path} changed while it was read: run the same command again")
        scores[name] = TaskScore(done, correct, None if file.pairs else correct_norm)
    return scores


def named_tasks(tasks: Paths | Sequence[Paths] | Mapping[str, Paths]) -> dict[str, Paths]:
    if isinstance(tasks, Mapping):
        named = dict(tasks)
    else:
        listed = paths_of(tasks)
        named = {Path(path).stem: path for path in listed}
        if len(named) < len(listed):
            raise SettingsError("two tasks have the same file name: give them names, as in {'one': path, 'two': path}")
    if not named:
        raise SettingsError("give at least one task to evaluate on")
    paths_of(named.values())
    return named


def answers(model: Model, items: Iterable[Item], encoding: Encoding, most: int) -> Iterator[Answered]:
    """Every item in its order, in batches of at most `most` tokens."""
    for window in _windows(scored(item, encoding) for item in items):
        rows = [row for one in window for row in one.rows]
        found = _losses(model, rows, most)
        at = 0
        for one in window:
            yield Answered(one.item, likelihoods(one, found[at : at + len(one.rows)]))
            at += len(one.rows)


def _windows(items: Iterable[Scored]) -> Iterator[list[Scored]]:
    window: list[Scored] = []
    rows = tokens = text = 0
    for one in items:
        window.append(one)
        rows += len(one.rows)
        tokens += sum(map(len, one.rows))
        text += sys.getsizeof(one.item.context) + sum(map(sys.getsizeof, one.item.choices))
        text += CHOICE_BYTES * len(one.item.choices)
        if rows >= WINDOW_ROWS or tokens >= WINDOW_TOKENS or text >= WINDOW_TEXT:
            yield window
            window, rows, tokens, text = [], 0, 0, 0
    if window:
        yield window


def _losses(model: Model, rows: Sequence[Row], most: int) -> list[list[float]]:
    """The losses of each row; rows of about the same length are a batch."""
    order = sorted(range(len(rows)), key=lambda at: -len(rows[at]))
    found: list[list[float]] = [[] for _ in rows]
    start = 0
    while start < len(order):
        batch = order[start : start + max(1, most // max(1, len(rows[order[start]])))]
        for at, losses in zip(batch, model.token_losses(as_batch([rows[at] for at in batch]))):
            found[at] = losses
        start += len(batch)
    return found
