"""`ramlet doctor`: what it reads, what it advises, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import RunRamlet
from ramlet.engines import opening
from ramlet.errors import SettingsError, option
from ramlet.reporting import doctor
from ramlet.runtime.memory import cgroup_limit, total_memory
from ramlet.runtime.threads import available_threads, cpu_quota

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MB = 1_000_000


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A made-up /proc: 8 GB, of which 5 are free; an old processor; the work folder on a disk."""
    root = tmp_path / "root"
    write(root / "proc/meminfo", "MemTotal: 8000000 kB\nMemFree: 4000000 kB\nMemAvailable: 5000000 kB\n")
    write(root / "proc/self/cgroup", "0::/box\n")
    write(root / "proc/self/mountinfo", "25 1 0:5 / / rw - ext4 /dev/root rw\n36 25 0:31 / /cg rw - cgroup2 cg rw\n")
    write(root / "proc/cpuinfo", "model name : Old One\nflags : fpu avx2\n")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def sound() -> dict[str, Any]:
    """A report of a machine with nothing wrong."""
    return {
        "memory": {"total": 8000 * MB, "free": 5000 * MB, "cgroup_limit": None},
        "processor": {"compiler": "/usr/bin/cc", "gpu": False},
        "disk": {"path": "/w", "free": 50_000 * MB, "kind": "ext4", "error": None},
        "temporary": {"path": "/tmp", "kind": "ext4"},
        "limits": {"open_files": 1024, "address_space": None},
        "native": None,
        "torch": {"installed": True},
        "jax": {"installed": False},
        "engine": {"name": "torch", "gpus": [], "threads": 2},
        "plan": {"threads": 2},
    }


def test_nothing_to_say_about_a_sound_machine() -> None:
    assert doctor.advise(sound()) == []


@pytest.mark.parametrize(
    ("where", "value", "level", "words"),
    [
        (
            "engine",
            {"name": "native", "error": "x"},
            "problem",
            "the native engine does not start (x): reinstall ramlet",
        ),
        ("engine", {"name": "torch", "error": "boom"}, "problem", "PyTorch does not start (boom): reinstall it"),
        ("engine", {"name": "torch", "threads": 8}, "warning", f"give {option('threads', 2)}"),
        ("native", "ImportError: x", "problem", "the native core does not load (ImportError: x)"),
        ("disk.error", "Read-only file system", "problem", "cannot write here (Read-only file system)"),
        ("disk.kind", "tmpfs", "warning", "this folder is in memory"),
        ("disk.free", 300 * MB, "warning", "only 300 MB is free on this disk: free some space"),
        ("temporary.kind", "tmpfs", "warning", "set TMPDIR to a folder on a disk"),
        ("memory.free", 200 * MB, "warning", "only 200 MB of memory is free"),
        ("limits.open_files", 64, "warning", "only 64 files may be open at once: ulimit -n 1024"),
        ("limits.address_space", 4000 * MB, "warning", "limited to 4.00 GB"),
    ],
)
def test_one_sentence_for_what_is_in_the_way(where: str, value: Any, level: str, words: str) -> None:
    report = sound()
    name, _, key = where.partition(".")
    if key:
        report[name][key] = value
    else:
        report[name] = value
    (one,) = doctor.advise(report)
    assert one["level"] == level
    assert words in one["text"]


def test_problems_come_first() -> None:
    report = sound()
    report["disk"]["kind"], report["native"] = "tmpfs", "gone"
    assert [one["level"] for one in doctor.advise(report)] == ["problem", "warning"]


def test_a_gpu_without_torch() -> None:
    report = sound()
    report["torch"], report["engine"] = {"installed": False}, {"name": "native"}
    assert doctor.advise(report) == []
    report["processor"]["gpu"] = True
    (one,) = doctor.advise(report)
    assert one["text"] == "PyTorch is not installed, so the GPU is not used: pip install 'ramlet[torch]'"


def test_a_gpu_without_a_compiler() -> None:
    report = sound()
    report["engine"]["gpus"] = [{"name": "X"}]
    assert doctor.advise(report) == []
    report["processor"]["compiler"] = None
    assert "install gcc" in doctor.advise(report)[0]["text"]


@linux
class TestLooking:
    def test_a_made_up_machine(self, machine: Path, tmp_path: Path) -> None:
        write(machine / "cg/box/memory.max", str(2000 * MB))
        write(machine / "cg/box/memory.current", str(500 * MB))
        write(machine / "cg/box/cpu.max", "50000 100000\n")
        report = doctor.examine(tmp_path, root=machine, engine=False)
        assert report["memory"] == {"total": 8_192_000_000, "free": 1500 * MB, "cgroup_limit": 2000 * MB}
        assert (report["processor"]["name"], report["processor"]["vectors"]) == ("Old One", "AVX2")
        assert report["processor"]["quota"] == 0.5
        assert report["disk"]["kind"] == "ext4"
        assert (report["plan"]["budget"], report["plan"]["threads"]) == (900 * MB, 1)
        assert report["plan"]["device"] is report["plan"]["largest"] is None

    def test_the_place_of_a_folder(self, machine: Path, tmp_path: Path) -> None:
        inside = tmp_path / "a b" / "c"
        inside.mkdir(parents=True)
        point = str(tmp_path / "a b").replace(" ", "\\040")
        mounts = machine / "proc/self/mountinfo"
        mounts.write_text(mounts.read_text() + f"40 25 0:40 / {point} rw - tmpfs tmpfs rw\n")
        assert doctor._place(inside, machine)["kind"] == "tmpfs"
        assert doctor._place(tmp_path, machine)["kind"] == "ext4"

    @pytest.mark.parametrize(
        ("flags", "vectors"), [("avx512f avx512bw avx512dq avx512vl avx2", "AVX-512"), ("avx512f avx2", "AVX2")]
    )
    def test_vectors(self, machine: Path, flags: str, vectors: str) -> None:
        write(machine / "proc/cpuinfo", f"flags : {flags}\n")
        assert doctor._processor(machine)["vectors"] == vectors

    @pytest.mark.parametrize(
        ("files", "quota"),
        [
            ({"cg/box/cpu.max": "150000 100000"}, 1.5),
            ({"cg/box/cpu.max": "max 100000"}, None),
            ({"cg/box/cpu.max": "400000 100000", "cg/cpu.max": "200000 100000"}, 2.0),
            ({"cg/box/cpu.max": "nonsense"}, None),
            ({}, None),
        ],
    )
    def test_quotas(self, machine: Path, files: dict[str, str], quota: float | None) -> None:
        for name, text in files.items():
            write(machine / name, text)
        assert cpu_quota(machine) == quota
        most = len(os.sched_getaffinity(0))
        assert available_threads(machine) == (most if quota is None else min(most, -int(-quota // 1)))

    def test_quotas_of_the_first_kind(self, machine: Path) -> None:
        write(machine / "proc/self/cgroup", "4:cpu,cpuacct:/box\n3:memory:/box\n")
        mounts = [f"{n} 25 0:{n} / /{kind} rw - cgroup cgroup rw,{kind}\n" for n, kind in ((31, "cpu"), (32, "memory"))]
        write(machine / "proc/self/mountinfo", "".join(mounts))
        write(machine / "cpu/box/cpu.cfs_quota_us", "300000\n")
        write(machine / "cpu/box/cpu.cfs_period_us", "100000\n")
        write(machine / "cpu/cpu.cfs_quota_us", "-1\n")
        write(machine / "cpu/cpu.cfs_period_us", "100000\n")
        write(machine / "memory/box/memory.limit_in_bytes", "1000000\n")
        write(machine / "memory/memory.limit_in_bytes", "9223372036854771712\n")
        assert cpu_quota(machine) == 3.0
        assert cgroup_limit(machine) == 1_000_000

    def test_no_limit(self, machine: Path) -> None:
        write(machine / "cg/box/memory.max", "max\n")
        assert cgroup_limit(machine) is None
        assert total_memory(machine) == 8_192_000_000


class TestDisk:
    def test_measured_and_nothing_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "PROBE_BYTES", 3 << 20)
        told = doctor._disk(tmp_path, Path("/"))
        assert told["error"] is None
        assert told["write_speed"] > 0
        assert list(tmp_path.iterdir()) == []

    def test_never_more_than_a_tenth_of_what_is_free(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(doctor, "_place", lambda *_: {"path": "x", "free": 1000, "kind": None})
        monkeypatch.setattr(doctor, "_speeds", lambda _, size: asked.append(size) or (1.0, 1.0))
        doctor._disk(tmp_path, Path("/"))
        assert asked == [100]

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> Any:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(doctor, "_speeds", refuse)
        assert doctor._disk(tmp_path, Path("/"))["error"] == "Read-only file system"

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="is not a folder"):
            doctor.examine(tmp_path / "none")


class TestEngine:
    @pytest.mark.parametrize(("gpu", "name"), [(True, "torch"), (False, "native")])
    @pytest.mark.parametrize(
        ("code", "err", "said"), [(1, "Traceback\nOSError: lib\n", "OSError: lib"), (-11, "", "exit code -11")]
    )
    def test_broken(
        self, monkeypatch: pytest.MonkeyPatch, code: int, err: str, said: str, gpu: bool, name: str
    ) -> None:
        """PyTorch is asked only where it would be used."""
        done = subprocess.CompletedProcess([], code, "", err)
        monkeypatch.setattr(opening, "has_gpu", lambda: gpu)
        monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: done)
        assert doctor._ask_engine(MB) == {"name": name, "error": said}


def test_the_command(ramlet: RunRamlet, tmp_path: Path) -> None:
    """Once as it is, the engine and all."""
    done = ramlet("doctor", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["torch"]["installed"]
    assert (report["plan"]["device"], report["engine"]["name"]) in (("cpu", "native"), ("cuda", "torch"))
    assert report["plan"]["largest"]["params"] >= 1_000_000
    assert report["versions"]["torch"] is not None
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ramlet import cli

    gpu = {"name": "Big One", "memory": 80_000 * MB, "free": 79_000 * MB, "bf16": True}
    row = {"params": 124_000_000, "peak": 4000 * MB, "tokens": 2_480_000_000, "seconds": 7200.0}
    asked = {"name": "torch", "device": "cuda", "precision": "bf16", "budget": 70_000 * MB, "gpus": [gpu]}
    large = {**row, "params": 7_000_000_000}
    asked |= {"largest": large, "in_a_day": row, "all_fit": False, "threads": 1}
    monkeypatch.setattr(doctor, "_ask_engine", lambda _: asked)
    monkeypatch.setattr(doctor, "PROBE_BYTES", 1 << 20)
    assert cli.main(["doctor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "  GPU          Big One, 79.0 GB free of 80.0 GB, bf16\n" in said
    assert "  training     on cuda, with 70.0 GB of its memory, in bf16, with the torch engine\n" in said
    assert "  largest      7B parameters in 4.00 GB, about 2.0 h for 2.48B tokens\n" in said
    assert "  in a day     124M parameters in 4.00 GB, about 2.0 h for 2.48B tokens; see ramlet plan for more\n" in said
    monkeypatch.setattr(doctor, "_ask_engine", lambda _: {"name": "native"})
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert "  training     no engine starts" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_native", lambda: "gone")
    assert cli.main(["doctor", str(tmp_path), "--quiet"]) == 1
    assert "problem: the native core does not load (gone)" in capsys.readouterr().out


@linux
def test_it_does_not_load_torch_itself() -> None:
    script = (
        "import sys, ramlet.reporting.doctor as d; d.PROBE_BYTES = 1 << 20; "
        "d._ask_engine = lambda _: {'name': 'native'}; "
        "from ramlet.cli import main; main(['doctor', '--json']); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120).returncode == 0
