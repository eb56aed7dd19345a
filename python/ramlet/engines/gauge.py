"""Measures the memory of a probe: the highest resident memory since a moment.

gauge = ResidentGauge(meter)
gauge.reset()
...
gauge.peak()
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ramlet.engines import Ranks
from ramlet.engines.plan import Plan
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import release_heap


class ResidentGauge:
    """Resident memory by the kernel's high-water mark, which is reset; the meter remembers the earlier peak.

    Of several ranks it is that of the one with the highest, on all of them, so that they take the same decisions.
    """

    def __init__(self, meter: Meter, ranks: Ranks | None = None) -> None:
        self._meter, self._ranks = meter, ranks or Ranks()
        self._resets = True
        self._below = 0
        """How much less this rank had, the last time."""

    def of_this_rank(self, plan: Plan) -> Plan:
        """A plan with the memory that was measured here."""
        parts = {**plan.parts, "overhead": plan.parts["overhead"] - self._below}
        return replace(plan, parts=parts, measured=plan.measured - self._below)

    def settle(self) -> None:
        # Not the libraries' pages: the run needs them again, and how many return depends on the page cache.
        release_heap()

    def reset(self) -> None:
        self._meter.sample()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            # Then it is the peak of the whole run so far: never too low.
            self._resets = False

    def peak(self) -> int:
        own = self._own_peak()
        highest = self._ranks.most(own)
        self._below = highest - own
        return highest

    def _own_peak(self) -> int:
        self._meter.sample()
        if not self._resets:
            return self._meter.peak
        marks = Path("/proc/self/status").read_text().split("VmHWM:", 1)
        return max(int(marks[1].split()[0]) * 1024, resident_memory()) if len(marks) == 2 else self._meter.peak
