"""The near-duplicates that `prepare --near` dropped, as its examples in DATASET/near_duplicates.jsonl show them.

A line of the file is a pair, or a text with many copies:

    {"dropped": {"source": "a.jsonl", "document": 5, "text": "..."}, "kept": {...}, "similarity": 0.87}
    {"cluster": {"source": "a.jsonl", "document": 2, "text": "..."}, "documents": 1204}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError
from ramlet.runtime.small_files import open_regular

FILE = "near_duplicates.jsonl"
"""Of a dataset: some of the pairs, and the largest clusters."""
LINE_BYTES = 1 << 20
"""No line of ours is longer."""

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


class Document(NamedTuple):
    source: str
    document: int
    text: str
    """A bounded piece of it."""


class Pair(NamedTuple):
    dropped: Document
    kept: Document
    similarity: float


class Cluster(NamedTuple):
    kept: Document
    documents: int
    """How many near-duplicates of it were dropped."""


Marked = list[tuple[str, bool]]
"""Parts of a text, and whether the other text lacks them."""


def examples(dataset: str | os.PathLike[str]) -> Iterator[Pair | Cluster]:
    """Every line of the file, in order."""
    Manifest.read(Path(dataset))  # says what is wrong if this is not a dataset
    path = Path(dataset) / FILE
    try:
        file = open_regular(path, DatasetError)
    except FileNotFoundError:
        raise DatasetError(f"{dataset} has no {FILE}: it was prepared without `ramlet prepare --near`") from None
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from None
    with file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            try:
                yield _example(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DatasetError(f"{path} is damaged in line {number:,}: prepare the dataset again") from None


def _example(line: Any) -> Pair | Cluster:
    if "cluster" in line:
        return Cluster(_document(line["cluster"]), int(line["documents"]))
    return Pair(_document(line["dropped"]), _document(line["kept"]), float(line["similarity"]))


def _document(given: Any) -> Document:
    return Document(str(given["source"]), int(given["document"]), str(given["text"]))


def largest(clusters: list[Cluster], count: int) -> list[Cluster]:
    return sorted(clusters, key=lambda each: -each.documents)[:count]


def differences(one: str, other: str) -> tuple[Marked, Marked]:
    """Both texts in parts, by word: what the other one lacks is marked, with the blanks between two such words.

    >>> differences("on May 3.", "on June 4.")
    ([('on ', False), ('May 3', True), ('.', False)], [('on ', False), ('June 4', True), ('.', False)])
    """
    from difflib import SequenceMatcher  # only here: `prepare` needs the name of the file

    left, right = _PIECES.findall(one), _PIECES.findall(other)
    found = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    marked: tuple[Marked, Marked] = ([], [])
    for at, (kind, i1, i2, j1, j2) in enumerate(found):
        between = 0 < at < len(found) - 1 and "".join(left[i1:i2]).isspace()
        for parts, text in zip(marked, ("".join(left[i1:i2]), "".join(right[j1:j2]))):
            _append(parts, text, kind != "equal" or between)
    return marked


def _append(parts: Marked, text: str, differs: bool) -> None:
    if parts and parts[-1][1] == differs:
        parts[-1] = (parts[-1][0] + text, differs)
    elif text:
        parts.append((text, differs))
