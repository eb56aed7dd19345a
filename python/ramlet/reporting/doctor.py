"""What this machine has, and what ramlet would do with it.

    report = examine()
    report["memory"]["free"], report["plan"]["budget"], report["advice"]

This takes a few seconds. The engine that training would use is queried in a process of its own. The disk is measured
with an unnamed file of at most 64 MB, so that nothing is left behind. The report is plain data; `advice`
says what to do about it, one sentence each, in which settings are marked as in errors.py.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.engines.opening import choose_engine, has_gpu, has_jax, has_torch
from ramlet.errors import SettingsError, option
from ramlet.runtime import processor
from ramlet.runtime.budget import AUTO_PERCENT, format_bytes
from ramlet.runtime.memory import cgroup_limit, free_memory, total_memory
from ramlet.runtime.threads import available_threads, cpu_quota

PROBE_BYTES = 64_000_000
PACKAGES = (
    "numpy",
    "click",
    "PyYAML",
    "torch",
    "jax",
    "optax",
    "tokenizers",
    "huggingface_hub",
    "datasets",
    "pyarrow",
    "fsspec",
)
ENOUGH_MEMORY = {"torch": 400_000_000, "native": 100_000_000, "jax": 600_000_000}
NAMES = {"torch": "PyTorch", "native": "the native engine", "jax": "JAX"}
"""By engine: with less, a model of a million parameters does not fit next to what it loads."""
ENOUGH_DISK = 2_000_000_000
ENOUGH_FILES = 256
"""A merge of spilled counts opens 64 files; a loader of many shards, more."""
ENGINE_SECONDS = 120
IN_MEMORY = ("tmpfs", "ramfs")

Report = dict[str, Any]


def examine(folder: str | os.PathLike[str] = ".", *, root: str | Path = "/", engine: bool = True) -> Report:
    """Examines the machine and a folder to work in. `root` holds `proc` and `sys`, for tests."""
    if not Path(folder).is_dir():
        raise SettingsError(f"{folder} is not a folder: name an existing one")
    free = free_memory(root)
    budget = free * AUTO_PERCENT // 100
    report: Report = {
        "memory": {"total": total_memory(root), "free": free, "cgroup_limit": cgroup_limit(root)},
        "processor": _processor(Path(root)),
        "disk": _disk(Path(folder), Path(root)),
        "temporary": _place(Path(tempfile.gettempdir()), Path(root)),
        "limits": _limits(),
        "versions": _versions(),
        "native": _native(),
        "torch": {"installed": has_torch()},
        "jax": {"installed": has_jax(), **(_ask_jax() if engine and has_jax() else {})},
        "engine": _ask_engine(budget) if engine else {"name": "native"},
    }
    report["plan"] = _plan(report["engine"], budget, available_threads(root))
    report["advice"] = advise(report)
    return report


def advise(report: Report) -> list[dict[str, str]]:
    """What needs attention, problems first: `level` is problem (a command will fail) or warning."""
    disk, temporary, limits, engine = report["disk"], report["temporary"], report["limits"], report["engine"]
    free, threads = report["memory"]["free"], report["plan"]["threads"]
    with_torch = engine["name"] == "torch"
    name, broken = NAMES[engine["name"]], "ramlet" if engine["name"] == "native" else "it"
    problems = {
        f"the native core does not load ({report['native']}): reinstall ramlet": report["native"],
        f"cannot write here ({disk['error']}): work in another folder": disk["error"],
        f"{name} does not start ({engine.get('error')}): reinstall {broken}": engine.get("error"),
    }
    warnings = {
        f"JAX does not start ({report['jax'].get('error')}): reinstall it": report["jax"].get("error"),
        "PyTorch is not installed, so the GPU is not used: pip install 'ramlet[torch]'": (
            not report["torch"]["installed"] and report["processor"]["gpu"]
        ),
        "this folder is in memory, so files here use up memory: work in one on a disk": disk["kind"] in IN_MEMORY,
        f"only {format_bytes(disk['free'])} is free on this disk: free some space, or use another": (
            disk["free"] < ENOUGH_DISK and not disk["error"]
        ),
        f"temporary files are in memory ({temporary['path']}): set TMPDIR to a folder on a disk": (
            temporary["kind"] in IN_MEMORY
        ),
        f"only {format_bytes(free)} of memory is free: close other programs, or train elsewhere": (
            free < ENOUGH_MEMORY[engine["name"]]
        ),
        f"only {limits['open_files']} files may be open at once: ulimit -n {4 * ENOUGH_FILES}": (
            (limits["open_files"] or ENOUGH_FILES) < ENOUGH_FILES
        ),
        f"the address space is limited to {format_bytes(limits['address_space'] or 0)}, too little for PyTorch: "
        "ulimit -v unlimited": with_torch and limits["address_space"] is not None,
        "there is no C compiler, so the faster GPU kernels are not used: install gcc": (
            engine.get("gpus") and not report["processor"]["compiler"]
        ),
        f"{name} would use more threads than the {threads} available here: give {option('threads', threads)}": (
            engine.get("threads", 0) > threads
        ),
    }
    levels = {"problem": problems, "warning": warnings}
    return [{"level": level, "text": text} for level, found in levels.items() for text, so in found.items() if so]


def _plan(engine: Report, budget: int, threads: int) -> Report:
    """What commands do by default."""
    from_engine = {name: engine.get(name) for name in ("device", "precision", "largest", "in_a_day")}
    return {"budget": budget, "threads": threads, "device_budget": engine.get("budget"), **from_engine}


def _processor(root: Path) -> Report:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = processor.described(root).get("model name") or platform.processor() or platform.machine()
    flags = processor.flags(root)
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        vectors = "AVX-512"
    elif "avx2" in flags:
        vectors = "AVX2"
    else:
        vectors = "NEON" if platform.machine() in ("aarch64", "arm64") else "none"
    compiler = next((found for one in ("cc", "gcc", "clang") if (found := shutil.which(one))), None)
    return {
        "name": name,
        "cores": os.cpu_count() or 1,
        "allowed": allowed,
        "quota": cpu_quota(root),
        "vectors": vectors,
        "compiler": compiler,
        "gpu": has_gpu(),
    }


def _disk(folder: Path, root: Path) -> Report:
    place = _place(folder, root)
    speeds: Report = {"write_speed": None, "read_speed": None, "error": None}
    try:
        size = min(PROBE_BYTES, place["free"] // 10)
        if size:
            speeds["write_speed"], speeds["read_speed"] = _speeds(folder, size)
    except OSError as error:
        speeds["error"] = error.strerror or str(error)
    return {**place, **speeds}


def _speeds(folder: Path, size: int) -> tuple[float, float | None]:
    """Bytes per second, written to the disk and read back from it, not from the page cache."""
    block = os.urandom(1 << 20)  # some disks compress
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(max(1, size // len(block))):
            file.write(block)
        os.fsync(file.fileno())
        written = file.tell()
        write_speed = written / max(1e-6, time.perf_counter() - began)
        if not hasattr(os, "posix_fadvise"):
            return write_speed, None
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.perf_counter()
        while file.read(1 << 20):
            pass
        return write_speed, written / max(1e-6, time.perf_counter() - began)


def _place(folder: Path, root: Path) -> Report:
    """A folder, its free space, and its kind of file system."""
    path = str(folder.resolve())
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = 0
    kind, longest = None, -1
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        # Spaces in names are written as octal escapes.
        point = mount.split()[4].encode().decode("unicode_escape")
        if len(point) >= longest and (path + "/").startswith(point.rstrip("/") + "/"):
            kind, longest = system.split()[0], len(point)
    return {"path": path, "free": free, "kind": kind}


def _limits() -> Report:
    def limit(which: int) -> int | None:
        soft = resource.getrlimit(which)[0]
        return None if soft == resource.RLIM_INFINITY else soft

    return {"open_files": limit(resource.RLIMIT_NOFILE), "address_space": limit(resource.RLIMIT_AS)}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"ramlet": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "system": f"{platform.system()} {platform.release()} {platform.machine()}"}


def _native() -> str | None:
    """What is wrong with the native core, or None."""
    try:
        from ramlet import _native as core

        core.pattern_regex("gpt2")
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return f"{type(error).__name__}: {error}"
    return None


def _ask_jax() -> Report:
    """The devices that JAX finds."""
    command = [sys.executable, "-m", "ramlet.engines.jax.device"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS)
        if done.returncode == 0:
            return {"devices": json.loads(done.stdout.splitlines()[-1])}
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        last = f"{type(error).__name__}: {error}"
    return {"error": last}


def _ask_engine(budget: int) -> Report:
    """The engine that training would use, and what it finds here."""
    name = choose_engine("auto", "auto").name
    command = [sys.executable, "-m", "ramlet.training.self_check", str(budget)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS)
        if done.returncode == 0:
            return {"name": name, **json.loads(done.stdout.splitlines()[-1])}
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        last = f"{type(error).__name__}: {error}"
    return {"name": name, "error": last}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
