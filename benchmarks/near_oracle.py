"""Compares all pairs of documents on their shingles, and judges what `ramlet prepare --near` made of them.

    python benchmarks/near_oracle.py planted.jsonl DATASET --threshold 0.8 --bands 16 --rows 8

A shingle is what docs/design/near.md says: five consecutive units, where a unit is a run of letters, marks and numbers
in lower case, or one of them alone in a script without spaces. They are made here by Python, faster than but as in
tests/oracles_near.py, and compared by Python's own 64-bit hashes: nothing of ramlet is trusted.

The dataset must have the bytes of the documents as they are (`--tokenizer byte --end-token none --no-normalize
--no-filter --val-fraction 0`), so that it can be told which are left. An inverted index counts the common shingles of
every document with every one before it: 20,000 documents take a few minutes on one core. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prepare_worker import lines_of

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from oracles_near import SPACELESS, UNITS

FAR = 0.5  # pairs below are not looked at
WIDTH = 0.05


@cache
def _unit_pattern() -> re.Pattern[str]:
    alone, word = [], []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "LMN":
            (alone if any(first <= code <= last for first, last in SPACELESS) else word).append(code)

    def ranges(codes: list[int]) -> str:
        starts = [code for code, before in zip(codes, [-2, *codes]) if code != before + 1]
        ends = [code for code, after in zip(codes, [*codes[1:], -2]) if code + 1 != after]
        return "".join(f"\\U{start:08x}-\\U{end:08x}" for start, end in zip(starts, ends))

    return re.compile(f"[{ranges(alone)}]|[{ranges(word)}]+")


def units(text: str) -> list[str]:
    # str.lower has one rule that looks at the neighbors, that of the final sigma.
    lower = "".join(map(str.lower, text)) if "Σ" in text else text.lower()
    return _unit_pattern().findall(lower)


def shingles(text: str) -> Any:
    """The hashes of the set of shingles, an array."""
    found = units(text)
    together = {hash(" ".join(found[at : at + UNITS])) for at in range(len(found) - UNITS + 1)}
    return np.fromiter(together, dtype=np.int64, count=len(together))


@dataclass(frozen=True)
class Pair:
    earlier: int
    later: int
    common: int
    union: int

    @property
    def similarity(self) -> float:
        return self.common / self.union


def near_pairs(sets: list[Any], least: float) -> list[Pair]:
    """All pairs of at least this similarity, by the later document, then by the earlier one."""
    sizes = np.array([len(one) for one in sets], dtype=np.int64)
    _, ids = np.unique(np.concatenate(sets), return_inverse=True)
    # The documents of each shingle, ascending, and for each entry of a document its place among them.
    order = np.argsort(ids, kind="stable")
    place = np.empty(len(ids), dtype=np.int64)
    place[order] = np.arange(len(ids))
    first = np.searchsorted(ids[order], np.arange(ids.max(initial=-1) + 1))[ids]
    holders = np.repeat(np.arange(len(sets)), sizes)[order]
    del order, ids
    found = []
    start = 0
    for later, size in enumerate(sizes.tolist()):
        own = slice(start, start + size)
        start += size
        lengths = place[own] - first[own]
        total = int(lengths.sum())
        if not total:
            continue
        before = np.cumsum(lengths) - lengths
        chosen = np.arange(total) + np.repeat(first[own] - before, lengths)
        common = np.bincount(holders[chosen], minlength=later)
        union = sizes[:later] + size - common
        near = np.flatnonzero(common >= least * union).tolist()
        found += [Pair(earlier, later, int(common[earlier]), int(union[earlier])) for earlier in near]
    return found


def promised(similarity: float, bands: int, rows: int) -> float:
    """The probability that documents of this similarity meet in a band."""
    return 1 - (1 - similarity**rows) ** bands


def judge(texts: list[str], kept: list[bool], threshold: float, bands: int, rows: int) -> dict[str, Any]:
    """Precision and recall, relative to the documents that are kept: only these can be a reason."""
    first: dict[str, int] = {}
    copies = [first.setdefault(text, number) != number for number, text in enumerate(texts)]
    sets = [np.empty(0, dtype=np.int64) if copy else shingles(text) for text, copy in zip(texts, copies)]
    pairs = near_pairs(sets, FAR)
    reasons: dict[int, list[Pair]] = {}
    for pair in pairs:
        if kept[pair.earlier] and pair.similarity >= threshold:
            reasons.setdefault(pair.later, []).append(pair)
    dropped = [number for number, stays in enumerate(kept) if not stays and not copies[number]]
    unfounded = [number for number in dropped if number not in reasons]
    best = {later: max(pair.similarity for pair in found) for later, found in reasons.items()}
    above = [pair for found in reasons.values() for pair in found if pair.similarity >= threshold + WIDTH]
    near = [later for later, similarity in best.items() if similarity >= threshold + WIDTH]
    spread = Counter(int(pair.similarity * 20) for pair in pairs)
    gone = Counter(int(pair.similarity * 20) for pair in pairs if kept[pair.earlier] and not kept[pair.later])
    eligible = Counter(int(pair.similarity * 20) for pair in pairs if kept[pair.earlier])
    return {
        "documents": len(texts),
        "exact_copies": sum(copies),
        "exact_copies_kept": sum(kept[number] for number, copy in enumerate(copies) if copy),
        "dropped": len(dropped),
        "dropped_below": len(unfounded),
        "dropped_below_examples": unfounded[:20],
        "similar_to_a_kept_one": len(best),
        "promised": sum(promised(similarity, bands, rows) for similarity in best.values()),
        "promised_by_any": sum(
            1 - float(np.prod([1 - promised(pair.similarity, bands, rows) for pair in found]))
            for found in reasons.values()
        ),
        "found": sum(not kept[later] for later in best),
        "well_above": len(near),
        "well_above_found": sum(not kept[later] for later in near),
        "pairs_well_above": len(above),
        "pairs_well_above_found": sum(not kept[pair.later] for pair in above),
        "missed_examples": [
            {"earlier": pair.earlier, "later": pair.later, "similarity": pair.similarity}
            for pair in above
            if kept[pair.later]
        ][:20],
        "by_similarity": {
            f"{step / 20:.2f}": {
                "pairs": spread[step],
                "with_a_kept_one": eligible[step],
                "of_these_dropped": gone[step],
            }
            for step in sorted(spread)
        },
    }


def left(texts: list[str], dataset: Path) -> list[bool]:
    """Which documents a dataset still has; the first of equal ones stands for them."""
    first: dict[bytes, int] = {}
    for number, text in enumerate(texts):
        first.setdefault(text.encode(), number)
    kept = [False] * len(texts)
    last = -1
    for document in lines_of(dataset):
        number = first[document]
        if number <= last:
            raise SystemExit(f"document {number} comes after document {last}: the order of the input is not kept")
        kept[number], last = True, number
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--bands", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    with options.source.open("rb") as file:
        texts = [json.loads(line)["text"] for line in file]
    kept = left(texts, options.dataset)
    print(json.dumps(judge(texts, kept, options.threshold, options.bands, options.rows)))


if __name__ == "__main__":
    main()
