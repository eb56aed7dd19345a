"""The executor of one machine: all parts in this process, on its threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ramlet.cluster import Report


class ThisMachine:
    """Parts are passed on together: the native core divides them among its threads and reports by itself."""

    def __init__(self, run: Callable[[str, Sequence[int]], None]) -> None:
        self._run = run

    def run(self, stage: str, parts: Sequence[int], report: Report) -> None:
        self._run(stage, parts)
