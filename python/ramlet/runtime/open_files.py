"""How many files the process may have open: the system's limit, which is 1,024 on many machines unless it is raised."""

from __future__ import annotations

import resource
from contextlib import suppress

OTHERS = 256
"""Files that are open besides those that are counted."""


def allow_open_files(count: int) -> None:
    """Raises the limit for this many files, as far as the system lets it; what then fails says how to raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHERS
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    with suppress(OSError, ValueError):
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
