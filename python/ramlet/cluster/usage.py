"""What the workers of a job used, noted in its folder by each of them: WORK/workers/NODE-PID.json.

    worker = Worker(work, "node7")
    worker.begins("scan", [3])
    worker.ends(parts=1, peak=...)
    by_node(work)        [{"node": "node7", "workers": 2, "parts": 120, "peak": 512000000}]

Notes are not synced: they are for people, and for naming what was running when a worker was killed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramlet.errors import RamletError
from ramlet.runtime.small_files import read_json_object

FOLDER = "workers"


class Worker:
    """One process that works on a job."""

    def __init__(self, work: Path, node: str, node_id: str = "") -> None:
        name = re.sub(r"[^\w.]+", "-", f"{node}-{node_id[:8]}" if node_id else node)[:120]
        self._path = work / FOLDER / f"{name}-{os.getpid()}.json"
        self._noted: dict[str, Any] = {"node": node, "node_id": node_id, "parts": 0, "peak": 0, "running": None}
        with suppress(OSError, RamletError, KeyError, TypeError):
            noted = read_json_object(self._path, RamletError)
            self._noted |= {key: int(noted[key]) for key in ("parts", "peak")}

    @property
    def parts(self) -> int:
        """How many it has run."""
        return int(self._noted["parts"])

    def begins(self, stage: str, parts: Sequence[int]) -> None:
        self._noted |= {"running": [stage, parts[0] if parts else 0], "oom_kills": oom_kills()}
        self._write()

    def ends(self, parts: int, peak: int) -> None:
        self._noted |= {"running": None, "parts": self._noted["parts"] + parts}
        self._noted["peak"] = max(self._noted["peak"], peak)
        self._write()

    def retires(self, stage: str, parts: Sequence[int]) -> None:
        """It ends without having run these: what it ran before left too little of its budget."""
        self._noted |= {"running": None, "retired": [stage, parts[0] if parts else 0]}
        self._write()

    def _write(self) -> None:
        temporary = self._path.with_suffix(".ramlet-tmp")
        with suppress(OSError):  # a full disk: the work itself will say so
            self._path.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps(self._noted))
            os.replace(temporary, self._path)


def noted(work: Path) -> Iterator[dict[str, Any]]:
    """What every worker noted."""
    for path in sorted((work / FOLDER).glob("*.json")):
        with suppress(OSError, RamletError):
            yield read_json_object(path, RamletError)


def by_node(work: Path) -> list[dict[str, Any]]:
    """For stats.json: workers, parts and the highest memory of a worker, by node."""
    nodes: dict[tuple[str, str], dict[str, Any]] = {}
    for each in noted(work):
        key = (str(each["node"]), str(each["node_id"]))
        node = nodes.setdefault(key, {"node": key[0], "workers": 0, "parts": 0, "peak": 0})
        node["workers"] += 1
        node["parts"] += each["parts"]
        node["peak"] = max(node["peak"], each["peak"])
    return [nodes[key] for key in sorted(nodes)]


def oom_kills(root: str = "/") -> int | None:
    """How many processes the system has killed for memory since it started; None if it does not say."""
    with suppress(OSError, ValueError):
        for line in Path(root, "proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
