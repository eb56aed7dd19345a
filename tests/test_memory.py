"""What is free on a machine and in its cgroups; what a process tree holds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import alone
from ramlet.runtime import memory
from ramlet.runtime.memory import free_memory, resident_memory

MB = 1_000_000
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Machine:
    """A made-up /proc and cgroup mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts: list[str] = []
        self.write("proc/self/cgroup", "")
        self.write("proc/meminfo", "MemTotal: 16000 kB\nMemFree: 2000 kB\nMemAvailable: 8000 kB\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def mount(self, kind: str, point: str, options: str, mount_root: str = "/") -> None:
        self.mounts.append(f"36 25 0:31 {mount_root} {point} rw,nosuid shared:9 - {kind} cgroup {options}")
        self.write("proc/self/mountinfo", "25 1 0:5 / / rw - ext4 /dev/root rw\n" + "\n".join(self.mounts) + "\n")

    def v2(self, folder: str, limit: int | str, usage: int, inactive: int = 0, active: int = 0) -> None:
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.current", f"{usage}\n")
        self.write(f"{folder}/memory.stat", f"anon 5\nactive_file {active}\ninactive_file {inactive}\n")

    def v1(self, folder: str, limit: int, usage: int, inactive: int = 0) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        # Only the total_ figures take in the groups below.
        self.write(
            f"{folder}/memory.stat", f"inactive_file 77777\ntotal_inactive_file {inactive}\ntotal_active_file 0\n"
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@linux
class TestFreeMemory:
    def test_without_cgroups_it_is_the_machine(self, machine: Machine) -> None:
        assert free_memory(machine.root) == 8000 * 1024

    def test_kernels_without_memavailable(self, machine: Machine) -> None:
        machine.write("proc/meminfo", "MemTotal: 16000 kB\nMemFree: 2000 kB\nCached: 500 kB\n")
        assert free_memory(machine.root) == 2500 * 1024

    def test_v2_limit_less_usage_with_the_page_cache_as_free(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/app\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw,nsdelegate")
        machine.v2("sys/fs/cgroup/app", 5_000_000, 3_000_000, inactive=600_000, active=400_000)
        assert free_memory(machine.root) == 5_000_000 - (3_000_000 - 1_000_000)

    def test_v2_no_limit_is_the_machine(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/app\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw")
        machine.v2("sys/fs/cgroup/app", "max", 3_000_000)
        assert free_memory(machine.root) == 8000 * 1024

    def test_v2_the_tightest_group_above_counts(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/slice/pod/app\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw")
        machine.v2("sys/fs/cgroup/slice/pod/app", 7_000_000, 1_000_000)
        machine.v2("sys/fs/cgroup/slice/pod", "max", 4_000_000)
        machine.v2("sys/fs/cgroup/slice", 6_000_000, 4_500_000)
        assert free_memory(machine.root) == 1_500_000

    def test_the_machine_counts_when_it_has_less_than_the_group(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/app\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw")
        machine.v2("sys/fs/cgroup/app", 50_000_000, 0)
        assert free_memory(machine.root) == 8000 * 1024

    def test_v1_beside_a_v2_mount_without_memory(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "4:memory:/job/7\n3:cpuset,cpu:/job/7\n0::/\n")
        machine.mount("cgroup", "/sys/fs/cgroup/cpuset", "rw,cpuset")
        machine.mount("cgroup", "/sys/fs/cgroup/memory", "rw,memory")
        machine.mount("cgroup2", "/sys/fs/cgroup/unified", "rw")
        machine.v1("sys/fs/cgroup/memory/job/7", 0x7FFFFFFFFFFFF000, 9)
        machine.v1("sys/fs/cgroup/memory/job", 4_000_000, 2_500_000, inactive=500_000)
        # A limit where another controller is mounted must not be taken for ours.
        machine.v1("sys/fs/cgroup/cpuset/job/7", 1000, 0)
        assert free_memory(machine.root) == 2_000_000

    def test_in_a_container_the_mount_shows_our_group_as_its_top(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "5:memory:/docker/abc\n")
        machine.mount("cgroup", "/sys/fs/cgroup/memory", "rw,memory", mount_root="/docker/abc")
        machine.v1("sys/fs/cgroup/memory", 3_000_000, 1_000_000)
        assert free_memory(machine.root) == 2_000_000

    def test_a_group_outside_the_mount_falls_back_to_its_top(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/../elsewhere\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw")
        machine.v2("sys/fs/cgroup", 3_000_000, 1_000_000)
        machine.v2("sys/fs/elsewhere", 5, 0)
        assert free_memory(machine.root) == 2_000_000

    def test_over_the_limit_is_nothing_free(self, machine: Machine) -> None:
        machine.write("proc/self/cgroup", "0::/app\n")
        machine.mount("cgroup2", "/sys/fs/cgroup", "rw")
        machine.v2("sys/fs/cgroup/app", 3_000_000, 3_500_000)
        assert free_memory(machine.root) == 0

    def test_this_machine(self) -> None:
        assert 0 < free_memory() <= psutil.virtual_memory().available * 1.2


HOLDER = "import sys; block = b'x' * {size}; print('held', flush=True); {then}"


def holding(size: int, then: str = "sys.stdin.read()") -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(size=size, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def release(child: subprocess.Popen[str]) -> None:
    child.communicate(timeout=120)


def tree_rss() -> int:
    ours = psutil.Process()
    return sum(process.memory_info().rss for process in [ours, *ours.children(recursive=True)])


@alone
def test_resident_agrees_with_psutil() -> None:
    assert resident_memory() == pytest.approx(tree_rss(), rel=0.02)


@alone
def test_children_and_theirs_count() -> None:
    before = resident_memory()
    grandchild = (
        "import subprocess; child = subprocess.Popen([sys.executable, '-c', "
        + repr(HOLDER.format(size=60 * MB, then="sys.stdin.read()"))
        + "], stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline(); "
        "print('both', flush=True); sys.stdin.read(); child.communicate()"
    )
    child = holding(40 * MB, then=grandchild)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "both\n"
        grown = resident_memory() - before
        assert 100 * MB < grown < 160 * MB
        assert resident_memory() == pytest.approx(tree_rss(), rel=0.02)
    finally:
        release(child)


@alone
def test_a_child_of_another_thread_counts() -> None:
    before = resident_memory()
    started: list[subprocess.Popen[str]] = []
    stay = threading.Event()

    def work() -> None:
        started.append(holding(50 * MB))
        stay.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not started:
            assert thread.is_alive()
            time.sleep(0.01)
        assert resident_memory() - before > 50 * MB
    finally:
        stay.set()
        thread.join()
        release(started[0])


@linux
def test_children_are_found_by_the_slow_way_too() -> None:
    child = holding(MB)
    try:
        assert child.pid in memory._children_by_scan(os.getpid())
        assert child.pid in memory._children(os.getpid())
        assert os.getpid() not in memory._children_by_scan(os.getpid())
    finally:
        release(child)


@linux
def test_a_sample_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the processes that it is about, each read once, whatever else the machine runs."""
    opened: list[str] = []

    def noted(path: str, mode: str) -> Any:
        opened.append(path)
        return open(path, mode)

    monkeypatch.setattr(memory, "open", noted, raising=False)
    child = holding(MB)
    try:
        resident_memory()
        ours = {process.pid for process in [psutil.Process(), *psutil.Process().children(recursive=True)]}
    finally:
        release(child)
    assert child.pid in ours
    assert {int(path.split("/")[2]) for path in opened} == ours
    assert len(opened) == len(set(opened))
