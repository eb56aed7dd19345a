"""Sections about repeated text: near-duplicates that were dropped, and what is repeated in a dataset."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ramlet.dataset.duplicates import Cluster, Marked, Pair, differences, examples, largest
from ramlet.dataset.repetition import saved
from ramlet.errors import RamletError
from ramlet.reporting.found import DatasetFound
from ramlet.reporting.markup import escape, share, table

PAIRS = 3
CLUSTERS = 5
PAIR_CHARACTERS = 600
CLUSTER_CHARACTERS = 120


def near_duplicates(dataset: DatasetFound) -> str:
    """A few pairs with what differs marked, and the texts with the most copies."""
    pairs: list[Pair] = []
    clusters: list[Cluster] = []
    with suppress(RamletError):  # most datasets have none
        for each in examples(dataset.path):
            if isinstance(each, Cluster):
                clusters = largest([*clusters, each], CLUSTERS)
            elif len(pairs) < PAIRS:
                pairs.append(each)
    rows = []
    for pair in pairs:
        texts = (pair.dropped.text[:PAIR_CHARACTERS], pair.kept.text[:PAIR_CHARACTERS])
        left, right = (_with_marks(parts) for parts in differences(*texts))
        rows.append((f"{pair.similarity:.3f}", left, right))
    drawn = table(("similarity", "dropped", "kept"), rows, numbers=(0,)) if rows else ""
    copies = [
        (escape(" ".join(each.kept.text.split())[:CLUSTER_CHARACTERS]), f"{each.documents:,}") for each in clusters
    ]
    return drawn + (table(("text with near-duplicates", "dropped"), copies, numbers=(1,)) if copies else "")


def _with_marks(parts: Marked) -> str:
    return "".join(f"<mark>{escape(text)}</mark>" if differs else escape(text) for text, differs in parts)


def repetition(dataset: DatasetFound) -> str:
    """Copies among the documents, frequent lines and n-grams, if `data inspect --repetition` has measured them."""
    found = saved(dataset.path, dataset.manifest)
    if found is None:
        return ""
    drawn = ""
    with suppress(KeyError, TypeError, ValueError, AttributeError):  # a damaged file
        documents = found["documents"]
        estimated = ", estimated" if documents["sampled"] < documents["total"] else ""
        copies = share(documents["copies"], documents["sampled"])
        drawn = f"<p>{copies} of the documents are copies of another{estimated}.</p>"
        if near := found.get("near_duplicates"):
            what = f"near-duplicates (similarity {float(near['similarity'])} or more)"
            drawn += f"<p>About {float(near['share']):.1%} are {what} of an earlier one.</p>"
        for title, part in (("most frequent lines", "lines"), (f"most frequent {found['ngram']}-grams", "ngrams")):
            drawn += _frequent(title, found[part])
    return drawn


def _frequent(title: str, found: Any) -> str:
    rows = [(escape(str(each["text"])[:CLUSTER_CHARACTERS]), f"{each['count']:,}") for each in found["most_frequent"]]
    return table((title, f"of {found['total']:,}"), rows, numbers=(1,)) if rows else ""
