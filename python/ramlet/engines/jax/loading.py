"""Imports JAX with little memory, for one kind of device, and keeps what it compiles on disk.

    load_jax("cpu", threads=2)
    cache_folder()              # ~/.cache/ramlet/jax/1f2e3d4c, for CPUs like this one

`import jax` makes 170 MB resident, of which 70 MB stay after releasing the pages of its libraries that were only read
while they were loaded. Device memory is not allocated in advance (XLA_PYTHON_CLIENT_PREALLOCATE), unless the user's
environment says so. Programs for a CPU use its vector instructions, so the cache has a folder for each kind of CPU; the
oldest files go when it is larger than `MOST_CACHED`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from ramlet import _native
from ramlet.engines.opening import OLDEST_JAX, jax_version
from ramlet.errors import SettingsError
from ramlet.runtime.processor import flags
from ramlet.runtime.settled import release_library_pages
from ramlet.runtime.threads import available_threads

MOST_CACHED = 512 << 20
QUICK = 0.3
"""Seconds: what compiles faster is not worth a file."""
LIBRARIES = ["libjax_common.so", "xla_extension.so"]
"""What XLA is in: the name of newer and of older versions."""
PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "tpu": "tpu"}


def load_jax(device: str, threads: int | None = None) -> None:
    """Imports jax; touches no device."""
    found = jax_version()
    assert found is not None  # `choose_engine` refuses
    if found < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise SettingsError(
            f"JAX {'.'.join(map(str, found))} is too old, {oldest} is the oldest that works: "
            "pip install -U 'ramlet[jax]'"
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA reports what it loads otherwise
    # How many threads XLA starts on a CPU: it counts the machine's cores, even if the container has fewer.
    os.environ.setdefault("NPROC", str(threads or available_threads()))
    import jax

    if device in PLATFORMS and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", PLATFORMS[device])
    if not jax.config.jax_compilation_cache_dir:
        with suppress(OSError):  # no home folder that can be written to: nothing is cached
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            prune(folder.parent)
            jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", QUICK)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    import optax  # noqa: F401 - resident before it is measured what is

    if sys.platform.startswith("linux"):
        # A page that is cached with its neighbors becomes resident with all of them (engines/torch/base_memory.py).
        _native.split_file_pages(LIBRARIES)
        release_library_pages()
    # A step's memory is a few large blocks, which go back to the system at once: kept ones would fragment the heap.
    _native.keep_large_blocks(False)


def cache_folder() -> Path:
    """Where compiled programs are kept, unless JAX_COMPILATION_CACHE_DIR names another place."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = hashlib.sha256(" ".join(sorted(flags())).encode()).hexdigest()[:8]
    return home / "ramlet" / "jax" / kind


def prune(folder: Path, most: int = MOST_CACHED) -> None:
    """Removes the files that were used longest ago, until the rest is small enough."""
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # another process may remove it too
            if path.is_file():
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        with suppress(OSError):
            path.unlink()
        total -= size
