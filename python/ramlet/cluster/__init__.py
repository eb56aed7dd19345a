"""Where the parts of a stage run: on this machine, on a Ray cluster, or wherever a scheduler starts them.

The contract. A job is a folder that every worker sees, and stages with numbered parts. A part depends only on what is
in the folder and on its number, commits its own result there, and is not repeated once it is done.

    executor.run(stage, parts, report)      run these parts, each at most once at a time, anywhere that sees the folder;
                                            call `report` now and then; return when all of them are done

Data passes through the folder; an executor passes only names and numbers. Whether a part ran once or three times, and
where, changes nothing in the result, so an executor may lose and repeat parts as it likes.

    this machine     `here.py`              all parts in this process, on its threads
    Ray              `ray_executor.py`      a Ray task for some parts at a time, on any node
    a scheduler      `parts.py`             the parts of slice 3 of 16, as one of many processes (`--part 3/16`)

A new cluster is a file like `ray_executor.py`; `Run.executor` in preparing/run.py chooses the one of a run, and
`_counting` in tokenizer/folder.py that of counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramlet.errors import SettingsError, option

RAY = "ray"


@dataclass
class Status:
    """How far a stage is on a whole cluster."""

    stage: str
    parts: int
    done: int = 0
    bytes: int = 0
    """Of the input, in the parts that are done."""
    seconds: float = 0.0
    nodes: int = 0
    peak: int = 0
    """The most resident memory of any worker so far."""
    budget: int = 0
    """Of each worker."""

    @property
    def speed(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


Report = Callable[[Status], None]


class Executor(Protocol):
    def run(self, stage: str, parts: Sequence[int], report: Report) -> None:
        """Returns when all of these parts are done."""


@dataclass(frozen=True)
class Job:
    """What every worker calls: `run_parts(folder, stage, parts, memory, threads)` of a module of ours.

    It returns `bytes`, those of the input in these parts, and `peak`, the highest memory of the process.
    """

    module: str
    folder: str
    """The path of the result, as every node sees it."""
    memory: int
    """The budget of each worker, in bytes; 0: what the nodes have, divided by their workers."""
    threads: int
    cwd: str = ""
    """Where relative paths start from."""
    work: str = ""
    """The folder of the unfinished job, in which workers note what they use."""


def check_address(cluster: str) -> str:
    """The address, if it is one."""
    if cluster == RAY or cluster.startswith("ray://"):
        return cluster
    raise SettingsError(
        f"{option('cluster')} is {cluster!r}: give ray for the Ray cluster that this machine belongs to, "
        "or ray://HOST:PORT"
    )
