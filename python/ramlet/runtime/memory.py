"""Free memory of this machine, and the resident memory of this process tree.

On Linux both are read from /proc and the cgroup files: no dependency, and a sample of a process with nine threads
takes 0.1 ms. Elsewhere psutil does it.

The resident memory of a tree is the sum over its processes. Pages that two of them share count twice, as in `htop`:
the strictest reading of the budget.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_LINUX = sys.platform.startswith("linux")
_PAGE = resource.getpagesize()
# What reading the files of a process raises when it ends in the middle.
_ENDED = (FileNotFoundError, ProcessLookupError, IndexError)
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


def free_memory(root: str | Path = "/") -> int:
    """Free bytes on the machine or in the tightest cgroup above us, whichever is less.

    Page cache counts as free: the kernel drops it before it refuses memory. `root` holds `proc` and `sys`; tests pass
    another.
    """
    if not _LINUX:
        import psutil

        return int(psutil.virtual_memory().available)
    root = Path(root)
    fields = _meminfo(root)
    # Before Linux 3.14 there is no MemAvailable.
    free = [fields.get("MemAvailable", fields["MemFree"] + fields.get("Cached", 0))]
    free.extend(_cgroup_free(folder) for folder in cgroup_folders(root))
    return max(0, min(free))


def _meminfo(root: Path) -> dict[str, int]:
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields


def cgroup_limit(root: str | Path = "/") -> int | None:
    """The tightest memory limit of the cgroups above us, in bytes; None if there is none."""
    if not _LINUX:
        return None
    limits = [
        min(_number(folder / "memory.max"), _number(folder / "memory.limit_in_bytes"))
        for folder in cgroup_folders(Path(root))
    ]
    tightest = min(limits, default=_UNLIMITED)
    return None if tightest >= _UNLIMITED else tightest


def total_memory(root: str | Path = "/") -> int:
    """Bytes of memory in the machine, used or not."""
    if not _LINUX:
        import psutil

        return int(psutil.virtual_memory().total)
    return _meminfo(Path(root))["MemTotal"]


def cgroup_folders(root: Path, controller: str = "memory") -> Iterator[Path]:
    """The folders of the cgroups that limit this process, from its own up to the top of the mount.

    A v1 and a v2 hierarchy may both be mounted; in a container the mount shows only the part of the hierarchy below its
    mount root.
    """
    ours: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            ours["cgroup2"] = path
        elif controller in controllers.split(","):
            ours["cgroup"] = path
    for line in _read(root / "proc/self/mountinfo").splitlines():
        # 36 35 98:0 /mount/root /mount/point rw,noatime shared:1 - cgroup cgroup rw,memory
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        if kind not in ours or (kind == "cgroup" and controller not in options.split(",")):
            continue
        mount_root, mount_point = mount.split()[3:5]
        top = root / mount_point.lstrip("/")
        folder = top
        if _inside(ours[kind], mount_root):
            folder = top / os.path.relpath(ours[kind], mount_root)
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _inside(path: str, folder: str) -> bool:
    return ".." not in path and (folder == "/" or path == folder or path.startswith(folder + "/"))


def _cgroup_free(folder: Path) -> int:
    if (folder / "memory.max").exists():
        limit, usage, fields = "memory.max", "memory.current", ("inactive_file", "active_file")
    else:
        limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        fields = ("total_inactive_file", "total_active_file")
    most = _number(folder / limit)
    if most >= _UNLIMITED:
        return _UNLIMITED
    cache = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in fields:
            cache += int(value)
    used = _number(folder / usage)
    return most - max(0, (0 if used >= _UNLIMITED else used) - cache)


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else _UNLIMITED


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def resident_memory() -> int:
    """Bytes resident now in this process and its descendants."""
    if not _LINUX:
        import psutil

        ours = psutil.Process()
        return sum(_psutil_rss(process) for process in [ours, *ours.children(recursive=True)])
    total = 0
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            with open(f"/proc/{pid}/statm", "rb") as statm:
                total += int(statm.read().split()[1]) * _PAGE
            waiting.extend(_children(pid))
        except _ENDED:
            continue
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as children:
                found.extend(map(int, children.read().split()))
    except FileNotFoundError:
        # A thread that just ended, or a kernel without the file: the slow way works for both.
        return _children_by_scan(pid)
    return found


def _children_by_scan(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The command's name may contain anything, so fields are counted from its closing bracket.
                if int(stat.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(name))
        except _ENDED:
            continue
    return found


def _psutil_rss(process: object) -> int:
    import psutil

    try:
        return int(process.memory_info().rss)  # type: ignore[attr-defined]
    except psutil.Error:
        return 0


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return _high_water_marks()[0]


class PeakCounter:
    """The kernel's high-water marks since this object was created.

    They are not reset, which would mislead other tools, so a mark counts only once it has moved.
    """

    def __init__(self) -> None:
        self._at_start = _high_water_marks()

    def grown(self) -> int:
        """The largest mark that moved since the start, in bytes; 0 if none did."""
        pairs = zip(self._at_start, _high_water_marks(), strict=True)
        return max((now for before, now in pairs if now > before), default=0)


def _high_water_marks() -> tuple[int, int]:
    """Of this process, and of the largest child that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if _LINUX:
        # ru_maxrss outlives exec: a small command started by a large process would inherit its peak.
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"VmHWM:"):
                    own = int(line.split()[1]) * 1024
                    break
    return own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
