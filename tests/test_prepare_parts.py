"""A part of a run is a plain function of the plan and an index: in any order, any number of times, in any process."""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import RunRamlet
from documented import ROOT
from ramlet import Budget, Meter, SettingsError
from ramlet.cluster.parts import Slice
from ramlet.preparing import parts, work
from ramlet.preparing.parts import StageDone, prepare_stage, run_parts
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import CORE, NAMES, unfinished
from ramlet.preparing.stages import parts as count_of

SETTINGS: dict[str, Any] = {
    "documents": "line",
    "dedup": "line",
    "near": 0.6,
    "tokens_per_shard": 2_000,
    "tokenizer": "byte",
}


def prepared(inputs: Path, out: Path, **more: Any) -> None:
    with Meter(Budget.parse("8GB")) as meter:
        prepare_to([inputs], out, PrepareSettings(**{**SETTINGS, **more}), meter=meter, threads=1, task_bytes=4_000)


def stage(inputs: Path, out: Path, name: str, part: str = "1/1", **more: Any) -> StageDone:
    settings = PrepareSettings(**{**SETTINGS, **more})
    with Meter(Budget.parse("8GB")) as meter:
        return prepare_stage([inputs], out, settings, name, Slice.parse(part), meter=meter, threads=1, task_bytes=4_000)


def files(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if not name.endswith("stats.json")}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    chosen = random.Random(5)
    words = [f"line {chosen.randrange(300)} of {chosen.randrange(4)} kinds" for _ in range(900)]
    inputs = tmp_path / "lines.txt"
    inputs.write_text("\n".join(words))
    return inputs


def test_parts_in_any_order_give_the_same_dataset(tmp_path: Path, lines: Path) -> None:
    prepared(lines, tmp_path / "whole")
    out, chosen = tmp_path / "parts", random.Random(6)
    stage(lines, out, "plan")
    plan = json.loads((out / ".work/plan.json").read_text())
    for name in CORE:
        indices = list(range(count_of(out / ".work", plan, name)))
        assert len(indices) > 3 or name in ("settle", "pair", "decide", "layout")
        chosen.shuffle(indices)
        for index in [*indices, indices[0]]:
            found = run_parts(str(out), name, [index], memory=8_000_000_000, threads=1)
            assert found["peak"] > 0
            assert (found["bytes"] > 0) == (name in ("scan", "write"))
        assert unfinished(out / ".work", plan, name) == []
    stage(lines, out, "finish")
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize(
    "more",
    [
        {"near": None, "dedup": "none", "tokenizer": "char"},
        {"near": None, "dedup": "doc", "pack": 64},
        {"near": None, "dedup": "doc", "output_format": "npy"},
    ],
    ids=["characters", "packed", "npy"],
)
def test_every_kind_of_result_in_slices(tmp_path: Path, lines: Path, more: dict[str, Any]) -> None:
    suffix = ".npy" if "output_format" in more else ""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    prepared(lines, tmp_path / f"whole/data{suffix}", **more)
    out = tmp_path / f"parts/data{suffix}"
    for name in NAMES:
        for number in (3, 1, 2):
            stage(lines, out, name, f"{number}/3", **more)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    # A scheduler may start a task again, however late.
    assert stage(lines, out, "scan", "2/3", **more).already_done


def test_more_shards_than_a_manifest_can_list_are_refused(tmp_path: Path, lines: Path) -> None:
    """As if almost as many were there already: the run is refused before any is written."""
    out, more = tmp_path / "out", {"near": None, "dedup": "none"}
    for name in ("plan", "write"):
        stage(lines, out, name, **more)
    path = out / ".work/plan.json"
    plan = json.loads(path.read_text())
    path.write_text(json.dumps({**plan, "first_train_shard": 199_000, "first_val_shard": 998}))
    with pytest.raises(SettingsError, match=r"more than 200,000 shards.*tokens_per_shard"):
        stage(lines, out, "layout", **more)
    path.write_text(json.dumps(plan))
    for name in ("layout", "assemble", "finish"):
        stage(lines, out, name, **more)


def run_stages(lines: Path, out: Path, barrier: Any, parts: list[str]) -> None:
    for name in NAMES[1:-1]:
        barrier.wait()
        for part in parts:
            stage(lines, out, name, part)


def test_processes_at_once_even_with_the_same_parts(tmp_path: Path, lines: Path) -> None:
    """Three processes run three slices at once, and two of them also that of another."""
    prepared(lines, tmp_path / "whole")
    out = tmp_path / "parts"
    stage(lines, out, "plan")
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(3, timeout=120)
    own = [["1/3"], ["2/3", "1/3"], ["3/3", "2/3", "1/3"]]
    processes = [context.Process(target=run_stages, args=(lines, out, barrier, each)) for each in own]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    stage(lines, out, "finish")
    assert files(out) == files(tmp_path / "whole")


def test_what_cannot_be_run(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    with pytest.raises(SettingsError, match="nothing is planned"):
        stage(lines, out, "scan")
    stage(lines, out, "plan")
    with pytest.raises(SettingsError, match="other inputs or settings"):
        stage(lines, out, "scan", dedup="doc")
    with pytest.raises(SettingsError, match="no stage 'scna'"):
        stage(lines, out, "scna")
    stage(lines, out, "scan", "2/3")
    with pytest.raises(SettingsError, match=r"settle needs scan, of which \d+ of \d+ parts are not done"):
        stage(lines, out, "settle")
    with pytest.raises(SettingsError, match="assemble needs layout, which is not done"):
        stage(lines, out, "finish")
    with monkeypatch.context() as patched, pytest.raises(SettingsError, match=r"made by ramlet .* and this is 9\.9"):
        patched.setattr(work, "__version__", "9.9")
        stage(lines, out, "scan", "1/3")
    lines.unlink()
    with pytest.raises(Exception, match=r"lines\.txt"):
        stage(lines, out, "scan", "1/3")


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", ""])
def test_a_part_that_does_not_exist(part: str) -> None:
    with pytest.raises(SettingsError, match=r"does not exist|as in 3/16"):
        Slice.parse(part)


def test_slices_cover_all_parts_once() -> None:
    for count in (1, 3, 7):
        covered = [index for number in range(1, count + 1) for index in Slice(number, count).of(20)]
        assert sorted(covered) == list(range(20))


def test_nobody_begins_again_while_parts_run(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    stage(lines, out, "plan")
    monkeypatch.setattr("ramlet.preparing.folder.PATIENCE", 0.1)
    with parts._folder(out, npy=False).share(), pytest.raises(SettingsError, match="running parts of"):
        stage(lines, out, "plan", dedup="doc")
    stage(lines, out, "plan", dedup="doc")


def test_the_command(ramlet: RunRamlet, tmp_path: Path, lines: Path) -> None:
    given = ("prepare", "lines.txt", "--out", "out", "-T", "byte", "--memory", "500MB")
    assert "--part is a slice of a stage: give --stage too" in ramlet(*given, "--part", "1/2").stderr
    assert "give one of them" in ramlet(*given, "--stage", "scan", "--cluster", "ray").stderr
    assert "run --stage plan first" in ramlet(*given, "--stage", "scan").stderr
    assert ramlet(*given, "--stage", "plan").returncode == 0
    told = json.loads(ramlet(*given, "--stage", "scan", "--part", "2/2", "--json").stdout)
    assert (told["stage"], told["part"], told["parts"], told["of"]) == ("scan", "2/2", 0, 1)
    assert "exclude: not needed with these settings" in ramlet(*given, "--stage", "exclude").stdout


def test_the_page_has_every_stage_and_a_job_that_parses() -> None:
    """benchmarks/slurm.py runs them."""
    page = (ROOT / "docs/clusters.md").read_text()
    assert page.count(f"for stage in {' '.join(NAMES)}; do") == 2
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
    job, ray = (yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[:0:-1])
    assert job["spec"]["completionMode"] == "Indexed"
    assert "--part $((JOB_COMPLETION_INDEX + 1))/16" in job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert ray["provider"]["type"] == "local"
