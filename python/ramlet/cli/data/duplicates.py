"""`ramlet data duplicates`."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.color import bold, colored
from ramlet.cli.data.options import DatasetPath
from ramlet.cli.options import Json, print_json
from ramlet.cli.parameters import Option
from ramlet.cli.passage import token_text
from ramlet.runtime.plurals import plural

if TYPE_CHECKING:
    from ramlet.dataset.duplicates import Cluster, Document, Marked, Pair

SIDE_BY_SIDE = 100
"""Columns that two texts next to each other need."""
BETWEEN = " | "
SHOWN_CHARACTERS = 2000
CLUSTER_CHARACTERS = 80
MARKS = {"dropped": ("[-", "-]", "31"), "kept": ("{+", "+}", "32")}
"""What marks a difference: without color as in `git diff --word-diff`, and the color."""


def duplicates(
    dataset: DatasetPath,
    limit: Annotated[
        int,
        Option("--limit", "-n", metavar="N", min=0, help="Number of pairs, and of groups of near-duplicates, to show."),
    ] = 10,
    json: Json = False,
) -> None:
    """Show near-duplicates that `prepare --near` dropped, next to what was kept, and the texts with the most of them.

    What differs is in color, or in [-brackets-] and {+braces+}.

      ramlet data duplicates my-dataset --limit 3
    """
    from ramlet.dataset.duplicates import Pair, examples, largest

    pairs: list[Pair] = []
    clusters: list[Cluster] = []
    in_all = 0
    for each in examples(dataset):
        if not isinstance(each, Pair):
            clusters = largest([*clusters, each], limit)
            continue
        in_all += 1
        if len(pairs) < limit:
            pairs.append(each)
    if json:
        print_json(
            {"pairs": [_pair_json(each) for each in pairs], "clusters": [_cluster_json(each) for each in clusters]}
        )
        return
    for number, pair in enumerate(pairs, 1):
        print(bold(f"pair {number:,} of {in_all:,}: similarity {pair.similarity:.3f}", sys.stdout))
        for line in _shown(pair):
            print(line)
        print()
    if clusters:
        print(bold("texts with the most near-duplicates", sys.stdout))
        for each in clusters:
            text = token_text(" ".join(each.kept.text.split())[:CLUSTER_CHARACTERS].encode(errors="replace"))
            print(f"  {each.documents:>11,} dropped  {_place(each.kept)}: {text}")
    if not in_all and not clusters:
        print("no near-duplicates were dropped")
    elif in_all > len(pairs):
        print(f"{plural(in_all - len(pairs), 'pair')} more: --limit {in_all} shows all")


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {"dropped": pair.dropped._asdict(), "kept": pair.kept._asdict(), "similarity": pair.similarity}


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    return {"cluster": cluster.kept._asdict(), "documents": cluster.documents}


def _place(document: Document) -> str:
    return f"{document.source}, document {document.document:,}"


def _shown(pair: Pair) -> Iterator[str]:
    from ramlet.dataset.duplicates import differences

    width = shutil.get_terminal_size((SIDE_BY_SIDE, 24)).columns
    column = max(20, (width - len(BETWEEN)) // 2 if width >= SIDE_BY_SIDE else width)
    marked = differences(pair.dropped.text[:SHOWN_CHARACTERS], pair.kept.text[:SHOWN_CHARACTERS])
    sides = [
        [*_wrapped([(f"{kind}: {_place(document)}", False)], kind, column), *_wrapped(parts, kind, column)]
        for kind, document, parts in zip(MARKS, (pair.dropped, pair.kept), marked)
    ]
    if width < SIDE_BY_SIDE:
        for side in sides:
            yield from (line.rstrip() for line in side)
        return
    for left, right in zip_longest(*sides, fillvalue=""):
        yield f"{left or ' ' * column}{BETWEEN}{right}".rstrip()


def _wrapped(parts: Marked, kind: str, column: int) -> list[str]:
    """Lines that fill a column exactly, with marks around what differs."""
    start, end, code = MARKS[kind]
    in_color = colored(sys.stdout)
    lines, line, used, open_mark = [], "", 0, False

    def finish() -> None:
        nonlocal line, used
        lines.append(line + ("\x1b[0m" if open_mark else "") + " " * (column - used))
        line, used = f"\x1b[{code}m" if open_mark else "", 0

    for text, differs in parts:
        if differs and in_color:
            open_mark = True
            line += f"\x1b[{code}m"
        for character in f"{start}{text}{end}" if differs and not in_color else text:
            if character == "\n":
                finish()
                continue
            shown = token_text(character.expandtabs(4).encode(errors="replace"))
            cells = sum(map(_cells, shown))
            if used + cells > column:
                finish()
            line += shown
            used += cells
        if open_mark:
            open_mark = False
            line += "\x1b[0m"
    if line or not lines:
        finish()
    return lines


def _cells(character: str) -> int:
    """Columns of a terminal that a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
