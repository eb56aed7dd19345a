"""The memory budget: parse it, divide it, refuse what does not fit.

A budget limits the peak resident memory (RSS) of the whole process tree, file-mapped pages included: what `htop`,
`VmHWM` and `ru_maxrss` show. It is an object that is passed down and divided:

    budget = Budget.parse("2GB")
    free = budget.grant({"a read block, a table and a spill buffer for each of 2 threads": 8_000_000})
    shares = budget.divide(table=6, blocks=1, spill=1)   # shares["table"].total bytes, ...

RSS is more than what we account for: allocators, fragmentation and imports add to it. So everything is sized from
`available()`, which starts from what is resident already and keeps a reserve, and `ramlet.runtime.meter` measures the
outcome. What is resident is read in `ramlet.runtime.memory`.

What is resident before the work begins differs between two runs of one command: pages of libraries are mapped as they
happen to be cached, and addresses differ. So the smallest budget that `grant` names has an allowance on top of what it
would accept: every later run accepts it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ramlet.errors import BudgetError
from ramlet.runtime.amounts import SIZES, amount
from ramlet.runtime.memory import free_memory, resident_memory

AUTO = "auto"
AUTO_PERCENT = 60
"""How much of the free memory `auto` uses: the rest is for the page cache, which makes reading fast, and for whatever
else runs on the machine."""

MOST = 1e18
SMALLEST = 1_000_000
"""Anything below a megabyte is a forgotten unit, not a budget."""

LEAST_RESERVE = 2_000_000
"""Kept for allocators and Python's own objects, however small the budget is."""

DRIFT = 5_000_000
DRIFT_SHARE = 32
"""What is resident before the work begins varies between runs by less than this many bytes, or this fraction (1/32):
the same command had 37.4 MB with libraries read from disk and 42.1 MB with libraries that were just installed, which
the system caches in large pages."""


def format_bytes(count: float) -> str:
    """Three digits and a decimal unit.

    >>> format_bytes(1_430_000_000), format_bytes(128_000_000), format_bytes(512)
    ('1.43 GB', '128 MB', '512 B')
    """
    if abs(count) < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        # Compared as it will be rounded, or 999.7 MB would become "1000 MB".
        if abs(count) < 999.5 or unit == "TB":
            break
    digits = 2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0
    return f"{count:.{digits}f} {unit}"


@dataclass(frozen=True)
class Budget:
    """A limit on the resident memory of the process tree, or of one part of the work.

    budget = ramlet.Budget.parse("2GB")
    budget.total, budget.available(), str(budget)
    """

    total: int
    """The limit, in bytes."""

    reserve: int = -1
    """The safety margin, not part of `available()`; -1 is 1/32 of the total, and at least `LEAST_RESERVE`: an
    assumption about allocator overhead that the meter checks."""

    held: int = 0
    """What the parent process that waits for this one uses of the budget that was asked for, besides the total."""

    def __post_init__(self) -> None:
        if self.total < 0:
            raise BudgetError(f"a memory budget cannot be negative ({self.total} bytes): give one like 2GB")
        if self.reserve < 0:
            object.__setattr__(self, "reserve", reserve_of(self.total))

    @classmethod
    def parse(cls, value: Budget | str | int | None) -> Budget:
        """A budget from what a user wrote.

        `512MB`, `2GB`, `1.5g` are decimal, `2GiB`, `512mi` binary; `50%` is a fraction of what is free on the machine
        or in its cgroup, whichever is less; `auto`, or None, is 60% of it. An integer is bytes. `2GB-32MB` is what
        `ramlet run` gives a stage: of the 2GB that the user asked for, the process that waits for the stage uses 32MB.
        """
        if isinstance(value, Budget):
            return value
        if isinstance(value, int):
            return cls(_checked(value, str(value)))
        if value is not None and not isinstance(value, str):
            raise BudgetError(f"{value!r} is not a memory budget: give a string like 2GB, or a number of bytes")
        text = f"{AUTO_PERCENT}%" if value is None or value.strip().lower() == AUTO else value.strip()
        asked, minus, waiting = text.partition("-")
        if minus and asked:
            whole, held = cls.parse(asked).total, cls.parse(waiting).total
            return cls(max(0, whole - held), held=min(held, whole))
        percent = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*%", text)
        if percent is None:
            return cls(_checked(amount(text, SIZES), text))
        if not 0 < (part := float(percent[1])) <= 100:
            raise BudgetError(f"cannot use {text} of the free memory: give between 1% and 100%")
        return cls(int(free_memory() * part / 100))

    def divide(self, **weights: float) -> dict[str, Budget]:
        """The budget divided in proportion to the weights; the parts never add up to more than it.

        >>> {name: part.total for name, part in Budget(1000).divide(table=3, blocks=1).items()}
        {'table': 750, 'blocks': 250}
        """
        whole = sum(weights.values())
        if whole <= 0 or min(weights.values()) < 0:
            raise ValueError(f"weights must be positive: {weights}")
        return {name: Budget(int(self.total * weight / whole)) for name, weight in weights.items()}

    def share(self, fraction: float) -> Budget:
        """A fraction of the budget."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"a share is between 0 and 1, not {fraction}")
        return Budget(int(self.total * fraction))

    def room(self) -> int:
        """Bytes that can still be used now; negative if the budget is exceeded."""
        return self.total - resident_memory() - self.reserve

    def available(self) -> int:
        """Bytes that can still be used now: the total less what is resident and the reserve."""
        return max(0, self.room())

    def grant(self, parts: Mapping[str, int], base: str = "Python and what it has loaded", *, peak: int = 0) -> int:
        """The bytes available for the work, at least the sum of `parts`: bytes by what needs them.

        Refuses a smaller budget, and names one that every run of the same command accepts. `peak` is the largest
        resident memory so far under this budget.
        """
        room, need = self.room(), sum(parts.values())
        if room >= need and peak <= self.total:
            return room
        resident = _rounded_up(resident_memory())
        enough = with_reserve(resident + need)
        if (before := _rounded_up(peak)) > enough:
            # Loading needed more than the work will.
            enough, parts, base = before, {}, f"{base}, while it was loaded"
            resident = before
        raise refusal(self, enough, {base: resident, **parts})

    def require(self, minimum: int, what: str | Mapping[str, int], *, measured: int = 0) -> None:
        """Refuses a budget below the minimum; the error names the minimum and what needs it.

        `what` is a sentence, or bytes by what needs them. `measured` bytes of the minimum were found resident: another
        run may find a little more, and the budget that is named allows for that.
        """
        if self.total < minimum:
            raise refusal(self, minimum + (_rounded_up(measured) - measured if measured else 0), what)

    def all_parts(self, parts: Mapping[str, int]) -> dict[str, int]:
        """The parts, and what the parent process that waits for this one uses."""
        return {**parts, "the process that waits for this one": self.held} if self.held else dict(parts)

    @property
    def asked(self) -> int:
        """The budget as the user gave it, for messages: the total and what the waiting process uses."""
        return self.total + self.held

    def __str__(self) -> str:
        return format_bytes(self.asked)


def refusal(
    budget: Budget, minimum: int, what: str | Mapping[str, int], *, each: str = "", how: str = "", remedy: str = ""
) -> BudgetError:
    """The error that names the smallest budget that is enough, part by part.

    `each`, `how` and `remedy` are added where they belong: needs at least 70MB `each`: 50 MB for X, 20 MB for Y `how`
    (the budget is 60 MB) `remedy`.
    """
    # As a user would type it, rounded up to be enough.
    enough = math.ceil((minimum + budget.held) / 1e6)
    parts: Mapping[str, int] = {}
    if not isinstance(what, str):
        parts = budget.all_parts(what)
        what = format_parts(parts, enough)
    return BudgetError(
        f"needs at least {enough}MB{each}: {what}{how} (the budget is {budget}){remedy}",
        needed=enough * 1_000_000,
        parts=dict(parts),
        budget=budget.asked,
    )


def reserve_of(total: int) -> int:
    """The reserve of a budget of this many bytes."""
    return max(total // 32, LEAST_RESERVE)


def with_reserve(work: int) -> int:
    """The smallest total that leaves this many bytes besides its reserve."""
    return work + max(-(-work // 31), LEAST_RESERVE)


def _rounded_up(resident: int) -> int:
    """What is resident in any run of this command, rounded up to megabytes: two runs mostly give the same number."""
    return -(-(resident + max(DRIFT, resident // DRIFT_SHARE)) // 1_000_000) * 1_000_000


def format_parts(parts: Mapping[str, int], megabytes: int) -> str:
    """`87.9 MB for X, ...`, the largest first; the numbers shown add up to the total."""
    rest = megabytes * 1_000_000 - sum(parts.values())
    # Less than that is rounding.
    named = {**parts, "a safety margin": rest} if rest >= 1_000_000 else dict(parts)
    ordered = sorted(named.items(), key=lambda part: -part[1])
    tenths = [round(size / 1e5) for _, size in ordered]
    tenths[0] += megabytes * 10 - sum(tenths)
    shown = zip(tenths, ordered, strict=True)
    return ", ".join(f"{tenth / 10:,.1f} MB for {name}" for tenth, (name, _) in shown)


def _checked(total: int | None, text: str) -> int:
    how = "write it like 512MB, 2GB, 2GiB, 50% or auto"
    if re.fullmatch(r"[\d.]{20,}.*", text) or (total or 0) > MOST:
        raise BudgetError(f"{text[:20]}... is more memory than any machine has: {how}")
    if total is None:
        raise BudgetError(f"cannot read {text!r} as memory: {how}")
    if total < SMALLEST:
        raise BudgetError(f"{text} is less than a megabyte of memory: give a unit, as in 512MB or 2GB")
    return total


_USED: list[Budget] = []


def current_budget() -> Budget | None:
    """The budget of the run in progress, if any, for `small_files` alone.

    A global on purpose: passing it down would add a budget parameter to every public function that reads a manifest,
    a tokenizer or a checkpoint, and RSS, which it limits, belongs to the process anyway.
    """
    return _USED[-1] if _USED else None


@contextmanager
def using_budget(budget: Budget | None) -> Iterator[None]:
    """Makes this the current budget; a meter does so while it measures."""
    if budget is None:
        yield
        return
    _USED.append(budget)
    try:
        yield
    finally:
        _USED.remove(budget)
