"""What a process keeps resident without needing it: freed memory, and pages of its libraries that were only read.

    base = settled_memory()         # what is resident after releasing both

The pages of a library that is still used return from the page cache one by one. A Python that has loaded numpy and the
native core has 36 MB resident, and 29 MB after this and some work.
"""

from __future__ import annotations

import gc

from ramlet import _native
from ramlet.runtime.memory import resident_memory

WAITING_GROWTH = 4_000_000
WAITING_STEP = 8_000_000
REPORT_BYTES = 84_000_000
"""A budget that is enough for `ramlet report`, which asks for 79 MB: for who runs it after other commands."""


def settled_memory() -> int:
    """Releases what can be released and returns the resident bytes: where a prediction starts."""
    release_heap()
    release_library_pages()
    return resident_memory()


def waiting_memory() -> int:
    """What this process uses of a budget while it waits for another.

    Rounded up, so that the budget of the other, and with it the size of its micro-batches, is the same whenever the
    same command continues.
    """
    return -(-(settled_memory() + WAITING_GROWTH) // WAITING_STEP) * WAITING_STEP


def release_heap() -> None:
    """Returns freed memory to the system."""
    gc.collect()
    _native.release_freed_memory()


def release_library_pages() -> int:
    """Releases the library pages that were only read, and returns their bytes. Not while a library is being loaded."""
    return _native.release_file_pages()
