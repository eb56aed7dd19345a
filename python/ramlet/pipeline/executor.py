"""The contract of an executor: whatever can run a stage's command, here or elsewhere, and wait for it.

    run_pipeline("pipeline.yaml", executor=my_executor)

process.py is the one in use. Another, over ssh or in this process, is one new file with a function of this signature.
Whatever runs the command must leave `stage.done` on this machine's disk, and stop the stage when it is interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ramlet.errors import RamletError


@dataclass(frozen=True)
class StageExit:
    code: int
    """The exit code; negative for a signal."""
    output: str
    """What it printed, if captured: its last line is the result as JSON."""
    error: RamletError | None
    """What went wrong, if the stage reported it."""
    asked_to_stop: bool
    """By Ctrl-C or SIGTERM, sent to the process that waits."""


class Executor(Protocol):
    def __call__(self, argv: list[str], *, captured: bool) -> StageExit:
        """Runs `ramlet` with these arguments and waits for it; its output is captured, or shown as it comes."""
