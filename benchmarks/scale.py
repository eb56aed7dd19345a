"""On paper: 1 TB and 100 TB of text on 10 to 1,000 nodes, and 7B parameters on 8 devices.

    python benchmarks/scale.py            the tables of docs/design/scale.md

The real planner divides a synthetic list of inputs, which takes no disk: it reads names and sizes only. What each stage
then opens, reads, writes and holds follows from the formats. Times need a machine, so they are computed from speeds of
a core, which were measured, and of a shared disk and its metadata, which are assumed (`Machine`).
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import markdown_table
from ramlet import _native
from ramlet.preparing.near import bands_for

TB = 10**12
DOCUMENT = 4096
"""Bytes of text in a document."""
BYTES_PER_TOKEN = 4.2
WIDTH = 2
FILE = 10**9
HASH, KEY, PLACE = 20, 12, 56
"""Bytes on disk of a document's hash, of each of its band keys, and of its place among the tokens."""
DUPLICATES, SIMILAR = 0.1, 0.1
"""Shares of documents that are dropped by exact and by near deduplication."""


@dataclass(frozen=True)
class Machine:
    cores: int = 16
    scan: float = 160e6
    write: float = 80e6
    """Bytes of text per second and core; together 53 MB/s, as measured with two threads (benchmarks/prepare.py)."""
    compare: float = 120e6
    disk: float = 40e9
    """Of the shared disk, for all nodes together."""
    of_node: float = 1.2e9
    """10 Gbit/s."""
    opens: float = 50_000
    """Files that the shared disk opens per second, for all nodes together."""


@dataclass(frozen=True)
class Planned:
    total: int
    files: int
    tasks: int
    partitions: int
    near_partitions: int
    seconds: float

    @property
    def documents(self) -> int:
        return self.total // DOCUMENT

    @property
    def tokens(self) -> int:
        return int(self.total * (1 - DUPLICATES) / BYTES_PER_TOKEN)


def inputs(total: int) -> Iterator[tuple[str, str, str, int, int]]:
    for number in range(total // FILE):
        yield f"/shared/corpus/{number:08}.jsonl", "jsonl", "", FILE, 1


def plan(total: int) -> Planned:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tasks, files, size, _ = _native.plan_tasks(
            inputs(total), Path(folder) / "inputs", documents="file", separator=None, task_bytes=None
        )
    assert size == total
    return Planned(
        total,
        files,
        tasks,
        _native.dedup_partitions(total, "document"),
        _native.near_partitions(total, bands_for(0.8).bands),
        time.monotonic() - began,
    )


def opens(planned: Planned) -> dict[str, int]:
    """Files that all processes of a stage open together."""
    tasks, hashes, keys = planned.tasks, planned.partitions, planned.near_partitions
    return {
        "scan": planned.files + 3 * tasks,
        "settle": hashes * tasks,
        "write": planned.files + 8 * tasks + hashes * tasks,
        "pair": keys * tasks,
        "compare": keys * tasks + 3 * tasks,
        "near": 6 * tasks,
        "assemble": 2 * (planned.tokens // 10**9) + 3 * tasks,
    }


def moved(planned: Planned) -> dict[str, float]:
    """Bytes that are read from and written to the shared disk."""
    documents, tokens = planned.documents, planned.tokens * WIDTH
    kept = documents * (1 - DUPLICATES)
    bands = bands_for(0.8).bands
    similar = kept * SIMILAR
    return {
        "scan": planned.total + documents * HASH,
        "settle": documents * HASH + documents / 8,
        "write": planned.total + tokens + kept * (8 + PLACE + bands * KEY),
        "pair": kept * bands * KEY + similar * 3 * 6,
        "compare": similar * 2 * DOCUMENT / BYTES_PER_TOKEN * WIDTH + similar * 24,
        "near": similar * (PLACE + 40),
        "assemble": 2 * tokens * (1 - SIMILAR),
    }


def work(planned: Planned, machine: Machine) -> dict[str, float]:
    """Seconds of one core."""
    similar = planned.total * (1 - DUPLICATES) * SIMILAR
    return {
        "scan": planned.total / machine.scan,
        "settle": planned.documents / 8e6,
        "write": planned.total / machine.write,
        "pair": planned.documents * bands_for(0.8).bands / 10e6,
        "compare": 2 * similar / machine.compare,
        "near": planned.documents * SIMILAR / 1e6,
        "assemble": planned.tokens * WIDTH / 1e9,
    }


def alone(planned: Planned, machine: Machine) -> dict[str, float]:
    """Seconds of the steps that one process does."""
    return {
        "plan": planned.seconds + planned.files * 20e-6,
        "decide": planned.documents * SIMILAR * 24 / 200e6 + planned.tasks * 2e-3,
        "layout": planned.documents / 40e6 + planned.tasks * 2e-3,
        "finish": planned.tasks * 3e-3,
    }


def memory(planned: Planned) -> dict[str, float]:
    """Bytes of the largest things that a process holds, besides buffers of a fixed size."""
    columns = 24 * planned.tasks
    return {
        "settle": 40e6 + columns,
        "pair": 40e6 + columns,
        "decide": planned.documents * (1 - DUPLICATES) / 8,
        "finish": min(planned.tasks, 2048) * 12e3,
        "driver": planned.tasks * 40,
    }


def times(planned: Planned, nodes: int, machine: Machine) -> dict[str, tuple[float, str]]:
    """Seconds of each stage, and what they are: cores, the nodes' network, the disk or its metadata."""
    found = {}
    for stage, seconds in work(planned, machine).items():
        limits = {
            "cores": seconds / (nodes * machine.cores),
            "network": moved(planned)[stage] / (nodes * machine.of_node),
            "disk": moved(planned)[stage] / machine.disk,
            "opens": opens(planned)[stage] / machine.opens,
        }
        slowest = max(limits, key=lambda name: limits[name])
        found[stage] = (limits[slowest], slowest)
    for stage, seconds in alone(planned, machine).items():
        found[stage] = (seconds, "one process")
    return found


def shown(seconds: float) -> str:
    return (
        f"{seconds / 3600:,.1f} h"
        if seconds >= 5400
        else f"{seconds / 60:,.1f} min"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )


def data_tables() -> None:
    machine = Machine()
    plans = [plan(TB), plan(100 * TB)]
    rows = [
        ("inputs of 1 GB", *(f"{each.files:,}" for each in plans)),
        ("tasks", *(f"{each.tasks:,}" for each in plans)),
        ("input of a task", *(f"{each.total / each.tasks / 1e9:.2f} GB" for each in plans)),
        ("partitions of hashes, of band keys", *(f"{each.partitions:,}, {each.near_partitions:,}" for each in plans)),
        ("documents", *(f"{each.documents / 1e9:.2f} billion" for each in plans)),
        ("tokens", *(f"{each.tokens / 1e12:.2f} trillion" for each in plans)),
        ("files opened", *(f"{sum(opens(each).values()):,}" for each in plans)),
        ("bytes moved", *(f"{sum(moved(each).values()) / TB:,.1f} TB" for each in plans)),
        ("the planner's time", *(shown(each.seconds) for each in plans)),
    ]
    print(markdown_table(["", "1 TB", "100 TB"], [list(row) for row in rows]), "\n")
    print(f"The planner's peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB\n")
    names = list(memory(plans[0]))
    rows = [(name, *(f"{memory(each)[name] / 1e6:,.0f} MB" for each in plans)) for name in names]
    print(markdown_table(["held by", "1 TB", "100 TB"], [list(row) for row in rows]), "\n")
    for each in plans:
        counts = (10, 100, 1000)
        found = [times(each, nodes, machine) for nodes in counts]
        body = [[stage, *(f"{shown(one[stage][0])} ({one[stage][1]})" for one in found)] for stage in found[0]]
        body.append(["all", *(shown(sum(seconds for seconds, _ in one.values())) for one in found)])
        print(f"{each.total // TB} TB:\n")
        print(markdown_table(["", *(f"{nodes:,} nodes" for nodes in counts)], body), "\n")


def model_table() -> None:
    """7B parameters on 8 devices: what each rank holds when a part is divided over the ranks."""
    from ramlet.engines.plan import Choice
    from ramlet.engines.torch.predict import state_bytes
    from ramlet.model.sizing import shape_for

    shape = shape_for(7_000_000_000, vocab_size=32_000, context=4096)
    body = []
    for optimizer, weights in (("adamw", "fp32"), ("adamw8bit", "fp32"), ("muon", "fp32"), ("muon8bit", "fp32")):
        choice = Choice(micro_batch=1, chunk=4096, recompute=True, optimizer=optimizer, weights=weights, compute="bf16")
        parts = state_bytes(shape, choice)
        whole = sum(parts.values())
        held = [whole]
        for name in ("optimizer", "gradients", "weights"):
            held.append(held[-1] - parts[name] * 7 // 8)
        body.append([optimizer, *(f"{each / 1e9:.1f} GB" for each in held)])
    head = ["", "one device", "states divided by 8", "and gradients", "and weights"]
    print(f"{shape.parameters / 1e9:.2f} billion parameters, weights in fp32, computing in bf16:\n")
    print(markdown_table(head, body))


if __name__ == "__main__":
    data_tables()
    model_table()
