"""The stages of `prepare`, their numbered parts, and which of these are done.

    plan      the inputs as a list of tasks that depends only on the inputs and the settings
    exclude   the n-grams of the evaluation set                                  with exclude
    scan      each task: read, clean, compare with them, hash                    with exclude or dedup, or for a
                                                                                 character vocabulary
    settle    each partition of the hashes: find the duplicates                  with dedup
    write     each task: read, clean, drop duplicates, tokenize
    pair      each partition of the band keys: documents that may be similar     with near
    compare   each task: compare them with those before them                     with near
    decide    which of them are dropped, in the order of the input               with near
    near      each task: write down what is dropped of it                        with near
    layout    which tokens go into which shard
    assemble  each shard: its tokens, in order
    finish    tokenizer.json, stats.json and, last, the manifest

Each stage needs all parts of the one before it; the parts of a stage are independent of each other. That a part is done
is shown by a file that it writes last.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ramlet.errors import DatasetError, SettingsError, option
from ramlet.runtime.small_files import read_json_object

Json = dict[str, Any]
UNITS = {"comparing": "hashes", "pairing": "partitions", "comparing texts": "documents", "sharding": "tokens"}
"""What the stages count, by their names for users; the others count bytes."""


class Stage(NamedTuple):
    parts: Callable[[Json], int]
    """How many it has under a plan; 0 if the plan does not need it."""
    folder: str
    mark: str
    """The file that shows that it is done, or the ending of one for each part."""
    reports: str = ""
    """What it is called while it runs."""
    encodes: bool = False
    """Whether it needs the tokenizer, which takes memory."""


def _scanned(plan: Json) -> int:
    needed = plan["unit"] or plan["characters"] or "exclude_ngram" in plan
    return int(plan["tasks"]) if needed else 0


def _paired(plan: Json) -> int:
    return int(plan["near"]["partitions"]) if "near" in plan else 0


def _compared(plan: Json) -> int:
    return int(plan["tasks"]) if "near" in plan else 0


STAGES: dict[str, Stage] = {
    "plan": Stage(lambda _: 1, "", "plan.json"),
    "exclude": Stage(lambda plan: int("exclude_ngram" in plan), "exclude", "set.json", "excluding"),
    "scan": Stage(_scanned, "scan", ".json", "scanning"),
    "settle": Stage(lambda plan: int(plan["partitions"]), "drops", ".drops", "comparing"),
    "write": Stage(lambda plan: int(plan["tasks"]), "tokens", ".json", "tokenizing", encodes=True),
    "pair": Stage(_paired, "near_pairs", ".pairs", "pairing"),
    "compare": Stage(_compared, "near", ".similar", "comparing texts", encodes=True),
    "decide": Stage(lambda plan: int("near" in plan), "near", "decided.json", "comparing texts", encodes=True),
    "near": Stage(_compared, "near", ".json", "comparing texts", encodes=True),
    "layout": Stage(lambda _: 1, "shards", "layout.json", "sharding"),
    "assemble": Stage(lambda _: 0, "shards", ".json", "sharding"),
    "finish": Stage(lambda _: 1, "", "", encodes=True),
}
NAMES = tuple(STAGES)
CORE = tuple(name for name in NAMES if name not in ("plan", "exclude", "finish"))
"""Those that the native core runs, in parts."""


def parts(work: Path, plan: Json, stage: str) -> int:
    """How many parts a stage has."""
    if stage != "assemble":
        return STAGES[stage].parts(plan)
    path = work / "shards/layout.json"
    try:
        return int(read_json_object(path, DatasetError)["shards"])
    except FileNotFoundError:
        raise SettingsError(
            f"assemble needs layout, which is not done: run {option('stage', 'layout')} first"
        ) from None
    except (KeyError, TypeError, ValueError):
        raise DatasetError(f"{path} is damaged: remove {work} and run the same command again") from None


def unfinished(work: Path, plan: Json, stage: str) -> list[int]:
    """The parts of a stage that are not done. One listing of its folder, because a folder may be on a network."""
    count, mark = parts(work, plan, stage), STAGES[stage].mark
    folder = work / STAGES[stage].folder
    if not mark.startswith("."):
        return [] if (folder / mark).exists() else list(range(count))
    done = bytearray(count)
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            number = entry.name.removesuffix(mark)
            if number != entry.name and number.isdigit() and int(number) < count:
                done[int(number)] = 1
    return [index for index in range(count) if not done[index]]


def require_ready(work: Path, plan: Json, stage: str) -> None:
    """Refuses a stage of which an earlier one is not finished."""
    for before in reversed(NAMES[1 : NAMES.index(stage)]):
        if before == "assemble" or STAGES[before].parts(plan):
            left = unfinished(work, plan, before)
            if left:
                count = parts(work, plan, before)
                of = "which is not done" if count == 1 else f"of which {len(left):,} of {count:,} parts are not done"
                raise SettingsError(f"{stage} needs {before}, {of}: run {option('stage', before)} first")
            return
