"""The choices of an item as rows of a batch: what they have in common is computed once.

    item = scored(item, encoding)
    likelihoods(item, model.token_losses(as_batch(item.rows)))

As in lm-evaluation-harness: a space is between the context and a choice; the ids of a choice are those of both
together, after those of the context alone, whose whitespace at the end belongs to the choice; an empty context is the
token that ends (and so starts) a text; what does not fit into the model's context is cut on the left.

The texts of an item begin alike. A row has what they share once (`SHARED`, engines/__init__.py), then the rest of each
as a document of its own, which sees the beginning too:

    the  capital  of  France | is  Paris | is  Rome         "is" is repeated: it predicts another token in each
    -1   -1       -1  -1     | 0   0     | 1   1            document_ids
     0    1        2   3     | 4   5     | 4   5            position_ids
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramlet.engines import SHARED
from ramlet.errors import BrokenInput, ModelError
from ramlet.loading.batch import IGNORED
from ramlet.runtime.plurals import plural
from ramlet.training.task_file import Item

if TYPE_CHECKING:
    from ramlet.tokenizer.tokenizer import Tokenizer

DELIMITER = " "
"""Between a context and a choice."""
TOKEN_BYTES = 160
"""Of a token of a choice or of the context before it: a number of 40 bytes in the text, and in the rows its position,
its loss, and what refers to them."""
CHOICE_BYTES = 1000
"""Of a choice besides its tokens: its text, lists and tuples."""


@dataclass(frozen=True)
class Encoding:
    """How text becomes ids, for one model."""

    tokenizer: Tokenizer
    start_id: int | None
    """What an empty context is; None if the model has no such token."""
    context: int
    """The model's: the longest sequence."""

    def texts(self, item: Item) -> tuple[list[list[int]], list[int]]:
        """The ids of each choice with its context, and where those of the choice begin."""
        context = item.context.rstrip()
        rest = item.context[len(context) :] + DELIMITER
        if context:
            before = self.tokenizer.encode(context)
        elif self.start_id is not None:
            before = [self.start_id]
        else:
            raise ModelError(
                "the model has no token that ends a text, which stands for an empty question: "
                "its tasks need questions, or a tokenizer with an end of text"
            )
        found, begins = [], []
        for number, choice in enumerate(item.choices, 1):
            if context:
                ids = self.tokenizer.encode(context + rest + choice)
            else:
                ids = [*before, *self.tokenizer.encode(rest + choice)]
            first = min(len(before), len(ids) - 1)
            if len(ids) - first > self.context:
                raise BrokenInput(
                    f"choice {number} in line {item.line:,} of {item.file} has {plural(len(ids) - first, 'token')}, "
                    f"more than the model's context of {self.context:,}: remove the line"
                )
            cut = max(0, len(ids) - self.context - 1)
            found.append(ids[cut:])
            begins.append(first - cut)
        return found, begins

    def memory(self, item: Item) -> int:
        """The most bytes that the texts and rows of an item take; nothing is encoded to know it."""
        before = len(item.context.encode()) + len(DELIMITER)
        longest = tokens = 0
        for choice in item.choices:
            length = before + len(choice.encode())  # a token has at least a byte
            longest = max(longest, length)
            tokens += min(length, self.context) + 1
        encoding = longest * self.tokenizer.engine.MEMORY_PER_BYTE
        return len(item.choices) * CHOICE_BYTES + tokens * TOKEN_BYTES + encoding


@dataclass
class Row:
    """A sequence of a batch: shared tokens, then documents."""

    ids: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """Text, and from where to where it is in the row: its own document, and the shared tokens if they are scored."""

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Sequence[int], begin: int, start: int, end: int, document: int) -> None:
        """The inputs of a text from `start` to `end`; the targets from its choice on, which begins at `begin`."""
        self.ids += ids[start:end]
        self.targets += [ids[at + 1] if at + 1 >= begin else IGNORED for at in range(start, end)]
        self.positions += range(start, end)
        self.documents += [document] * (end - start)


@dataclass(frozen=True)
class Scored:
    """An item with its rows."""

    item: Item
    rows: list[Row]
    owners: list[int]
    """The text of each choice: equal choices are one text."""


def scored(item: Item, encoding: Encoding) -> Scored:
    texts, begins = encoding.texts(item)
    distinct: dict[tuple[int, ...], int] = {}
    owners = [distinct.setdefault((begin, *ids), len(distinct)) for ids, begin in zip(texts, begins)]
    unique = [(list(key[1:]), key[0]) for key in distinct]
    shared = _shared(unique)
    rows: list[Row] = []
    for number, (ids, begin) in enumerate(unique):
        own = len(ids) - 1 - shared
        if not rows or len(rows[-1]) + own > encoding.context:
            rows.append(Row())
            rows[-1].add(ids, begin, 0, shared, SHARED)
        row = rows[-1]
        row.spans += [(number, max(0, begin - 1), shared), (number, len(row), len(row) + own)]
        row.add(ids, begin, shared, len(ids) - 1, number)
    return Scored(item, rows, owners)


def _shared(texts: Sequence[tuple[list[int], int]]) -> int:
    """How many tokens at the beginning have the same input, target and part in the score in all texts."""
    first, begin = texts[0]
    if len(texts) == 1 or any(other != begin for _, other in texts):
        return 0
    alike = 0
    for column in zip(*(ids for ids, _ in texts)):
        if column.count(first[alike]) < len(texts):
            break
        alike += 1
    return max(0, alike - 1)


def likelihoods(given: Scored, losses: Sequence[Sequence[float]]) -> list[float]:
    """Of each choice, from the losses of the rows, in nats."""
    parts: dict[int, list[float]] = {}
    for row, found in zip(given.rows, losses):
        for text, start, end in row.spans:
            parts.setdefault(text, []).extend(found[start:end])
    # Exact, so nothing depends on how the tokens are divided.
    return [-math.fsum(parts[text]) for text in given.owners]


def as_batch(rows: Sequence[Row]) -> dict[str, Any]:
    """The arrays of a batch, (rows, tokens of the longest); what fills a row up is a document of its own."""
    import numpy as np

    length = max(map(len, rows))
    fill = {"input_ids": 0, "targets": IGNORED, "position_ids": 0, "document_ids": (1 << 31) - 1}
    arrays = {name: np.full((len(rows), length), value, np.int64) for name, value in fill.items()}
    for at, row in enumerate(rows):
        for array, values in zip(arrays.values(), (row.ids, row.targets, row.positions, row.documents)):
            array[at, : len(row)] = values
    return arrays
