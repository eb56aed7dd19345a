"""Damage in what `prepare --near` spills is found and named, a killed run goes on, and a cache may have many files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import RunRamlet
from ramlet.errors import RamletError
from ramlet.preparing import core
from test_near import run, texts, written
from test_prepare_same_bytes import files


class Stopped(Exception):
    pass


def stop_before(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The run ends before this stage, as if it had been killed."""
    real = core.run_native

    def stage(work: Path, out: Any, stage: str, *given: Any, **named: Any) -> None:
        if stage == name:
            raise Stopped
        real(work, out, stage, *given, **named)

    monkeypatch.setattr(core, "run_native", stage)


@pytest.mark.parametrize("before", ["pair", "compare", "decide", "near", "layout", "assemble"])
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    inputs = written(tmp_path / "in", texts(6))
    run(inputs, tmp_path / "whole", task_bytes=4000)
    with monkeypatch.context() as patch:
        stop_before(patch, before)
        with pytest.raises(Stopped):
            run(inputs, tmp_path / "out", task_bytes=4000)
    notes = sorted((tmp_path / "out" / ".work" / "near").glob("*.json"))
    for note in notes[len(notes) // 2 :]:  # as if it had been killed in the middle of the stage
        note.unlink()
    run(inputs, tmp_path / "out", task_bytes=4000)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


KINDS = {
    "compare": ["tokens/*.bands", "tokens/*.places", "near_pairs/*.pairs"],
    "decide": ["near/*.similar"],
    "near": ["near/*.decided"],
    "layout": ["near/*.dropped"],
    "assemble": ["shards/layout"],
}


@pytest.mark.parametrize("pattern", [pattern for patterns in KINDS.values() for pattern in patterns])
@pytest.mark.parametrize("at", [0.2, 0.5, 0.99])
def test_a_flipped_bit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, at: float) -> None:
    before = "pair" if "bands" in pattern else next(stage for stage, kinds in KINDS.items() if pattern in kinds)
    inputs = written(tmp_path / "in", texts(7))
    with monkeypatch.context() as patch:
        stop_before(patch, before)
        with pytest.raises(Stopped):
            run(inputs, tmp_path / "out", task_bytes=4000)
    found = sorted((tmp_path / "out" / ".work").glob(pattern))
    assert found
    for path in found:
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] ^= 16
        path.write_bytes(data)
    with pytest.raises(RamletError, match=r"is damaged: remove .* and run the same command again"):
        run(inputs, tmp_path / "out", task_bytes=4000)


def test_damaged_tokens_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = written(tmp_path / "in", texts(8))
    with monkeypatch.context() as patch:
        stop_before(patch, "compare")
        with pytest.raises(Stopped):
            run(inputs, tmp_path / "out", task_bytes=4000)
    for path in (tmp_path / "out" / ".work" / "tokens").glob("*.train.ids"):
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    with pytest.raises(RamletError, match="ids is damaged"):
        run(inputs, tmp_path / "out", task_bytes=4000)


def test_a_damaged_cache_is_found(tmp_path: Path) -> None:
    documents = texts(9)
    early = written(tmp_path / "early", documents[:130], parts=1)
    late = written(tmp_path / "late", documents[130:], parts=1)
    cache = tmp_path / "cache"
    run(early, tmp_path / "a", dedup_cache=str(cache), dedup="none")
    [path] = cache.glob("*.near")
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        data = bytearray(whole)
        data[at] ^= 4
        path.write_bytes(data)
        out = tmp_path / f"b{at}"
        try:
            run(late, out, dedup_cache=str(cache), dedup="none")
        except RamletError as error:
            assert f"{path} is damaged: remove it" in str(error)  # noqa: PT017
        else:
            path.write_bytes(whole)  # it was in a part that this run did not need
            run(late, tmp_path / f"c{at}", dedup_cache=str(cache), dedup="none")


def test_a_cache_of_more_runs_than_files_may_be_open(tmp_path: Path, ramlet: RunRamlet) -> None:
    words = ("-T", "byte", "--near", "0.8", "--dedup-cache", "cache", "--threads", "1")
    for name in ("early", "late"):
        (tmp_path / f"{name}.txt").write_text(f"a few words of an {name} text that are found in no other one")
    assert ramlet("prepare", "early.txt", "--out", "early", *words).returncode == 0
    (one,) = (tmp_path / "cache").glob("*.near")
    for number in range(200):
        (tmp_path / "cache" / f"{number:032x}.near").hardlink_to(one)
    limited = (
        "import resource, sys; from ramlet.cli import main; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", limited, "prepare", "late.txt", "--out", "late", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
