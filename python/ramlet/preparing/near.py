"""How near-duplicates are found: the bands of a threshold, and what they can be expected to find.

    near = bands_for(0.8)
    near.recall(0.85)        0.994: the share of pairs with this similarity that are compared

Two documents are compared if they agree in all rows of a band (docs/design/near.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ramlet import _native
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.digest import digest

BANDS = 16
MOST_ROWS = 8
"""16 bands of 8 rows are 128 hash functions: all that the native core has."""
LEAST_RECALL = 0.94
"""At the threshold itself, if any number of rows reaches it."""

SHOWN_PAIRS = 200
SHOWN_CLUSTERS = 20


class Bands(NamedTuple):
    bands: int
    rows: int

    def recall(self, similarity: float) -> float:
        """The expected share of pairs with this similarity that share a band."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def bands_for(threshold: float) -> Bands:
    """As many rows as possible, because more rows mean fewer comparisons in vain."""
    choices = [Bands(BANDS, rows) for rows in range(MOST_ROWS, 0, -1)]
    return next((each for each in choices if each.recall(threshold) >= LEAST_RECALL), choices[-1])


def for_plan(threshold: float | None, total_bytes: int) -> dict[str, Any] | None:
    """What the native core needs to know."""
    if threshold is None:
        return None
    bands = bands_for(threshold)
    partitions = _native.near_partitions(total_bytes, bands.bands)
    return {"threshold": threshold, **bands._asdict(), "partitions": partitions}


def statistics(threshold: float) -> dict[str, Any]:
    """For stats.json: how documents were compared, and the expected recall."""
    bands = bands_for(threshold)
    above = min(1.0, threshold + 0.05)
    return {
        "threshold": threshold,
        **bands._asdict(),
        "expected_recall": [
            {"similarity": round(each, 4), "recall": round(bands.recall(each), 4)}
            for each in sorted({threshold, above})
        ],
    }


def write_examples(new: Path, path: Path, *, append: bool) -> None:
    """The pairs and clusters of a run, with `append` added to those of the dataset; at most as many as of one run.

    Running it twice changes nothing. Which pairs stay is decided by a hash of their lines.
    """
    lines = dict.fromkeys(new.read_bytes().splitlines())
    if append and path.exists():
        lines = dict.fromkeys([*path.read_bytes().splitlines(), *lines])
    found = [(line, json.loads(line)) for line in lines]
    pairs = [line for line, value in found if "similarity" in value]
    clusters = [(line, value["documents"]) for line, value in found if "documents" in value]
    if len(pairs) > SHOWN_PAIRS:
        chosen = set(sorted(pairs, key=lambda line: digest([line]))[:SHOWN_PAIRS])
        pairs = [line for line in pairs if line in chosen]
    clusters = sorted(clusters, key=lambda each: -each[1])[:SHOWN_CLUSTERS]
    with replacing(path, binary=True) as file:
        file.writelines(line + b"\n" for line in (*pairs, *(line for line, _ in clusters)))
