"""A part of a run is a plain function of the plan and an index: in any order, any number of times, in any process."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import RunRamlet
from documented import ROOT
from ramlet import Budget, BudgetError, DatasetError, Meter, SettingsError
from ramlet.cluster.parts import Slice
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.verify import verify
from ramlet.errors import SourceChanged
from ramlet.preparing import parts, work
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.manifest import add_run
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


def stage(
    inputs: Path,
    out: Path,
    name: str,
    part: str = "1/1",
    *,
    append: bool = False,
    shard_bytes: int | None = None,
    budget: str = "8GB",
    **more: Any,
) -> StageDone:
    with Meter(Budget.parse(budget)) as meter:
        return prepare_stage(
            [inputs],
            out,
            PrepareSettings(**{**SETTINGS, **more}),
            name,
            Slice.parse(part),
            meter=meter,
            threads=1,
            append=append,
            shard_bytes=shard_bytes,
            task_bytes=4_000,
        )


def stages(inputs: Path, out: Path, names: Sequence[str] = NAMES, **more: Any) -> None:
    for name in names:
        stage(inputs, out, name, **more)


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


def test_a_cache_of_many_runs(tmp_path: Path, lines: Path) -> None:
    """The plan lists its files, and is then larger than other files of its kind."""
    more = {"near": None, "dedup_cache": str(tmp_path / "cache")}
    (tmp_path / "early.txt").write_text("a line of an earlier run")
    prepared(tmp_path / "early.txt", tmp_path / "early", **more)
    (one,) = (tmp_path / "cache").iterdir()
    for number in range(21_000):
        (tmp_path / "cache" / f"{number:032x}.hashes").hardlink_to(one)
    stage(lines, tmp_path / "out", "plan", **more)
    assert (tmp_path / "out/.work/plan.json").stat().st_size > 1_000_000
    assert stage(lines, tmp_path / "out", "scan", **more).parts > 3


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
    monkeypatch.setattr("ramlet.runtime.folder_lock.PATIENCE", 0.1)
    with parts._folder(out, npy=False).share(), pytest.raises(SettingsError, match="running parts of"):
        stage(lines, out, "plan", dedup="doc")
    stage(lines, out, "plan", dedup="doc")


def test_nobody_runs_parts_while_the_work_is_removed(
    tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rmtree = tmp_path / "out", shutil.rmtree
    removed: list[Path] = []
    monkeypatch.setattr("ramlet.runtime.folder_lock.PATIENCE", 0.0)

    def remove(path: Path, **more: Any) -> None:
        with pytest.raises(SettingsError, match="being begun or finished by another ramlet"):
            parts._folder(out, npy=False).share()
        removed.append(path)
        rmtree(path, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    stage(lines, out, "plan", dedup="doc")
    assert removed
    removed.clear()
    stages(lines, out)
    assert removed[-1] == out / ".work"


@pytest.mark.parametrize("append", [False, True], ids=["alone", "append"])
@pytest.mark.parametrize("killed", ["behind the manifest", "while the work is removed"])
def test_finish_is_killed_and_repeated(
    tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch, killed: str, append: bool
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("a line that came later\nand another one of some words")
    for name in ("calm", "killed"):
        if append:
            prepared(lines, tmp_path / name)
        stages(more, tmp_path / name, NAMES[:-1], append=append)
    stage(more, tmp_path / "calm", "finish", append=append)
    out, rmtree = tmp_path / "killed", shutil.rmtree

    def die(path: Path | OutFolder, **_: Any) -> None:
        if isinstance(path, Path):
            rmtree(path / "tokens")
            (path / "run.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        where, name = (OutFolder, "finish") if killed == "behind the manifest" else (shutil, "rmtree")
        patched.setattr(where, name, die)
        stage(more, out, "finish", append=append)
    assert (out / ".work").exists()
    for name in ("scan", "finish", "finish"):
        assert stage(more, out, name, append=append).already_done
    assert files(out) == files(tmp_path / "calm")
    assert verify(out).problems == []


def test_a_run_is_added_once(tmp_path: Path, lines: Path) -> None:
    prepared(lines, tmp_path / "out")
    manifest = Manifest.read(tmp_path / "out")
    with pytest.raises(DatasetError, match="already"):
        add_run(manifest, manifest, [], manifest.runs[0])


def test_a_part_that_is_repeated_counts_once(tmp_path: Path, lines: Path) -> None:
    out = tmp_path / "data"
    stages(lines, out, [name for name in NAMES[:-1] for _ in range(2)])
    whole = sum(count_of(out / ".work", OutFolder(out).plan() or {}, name) for name in CORE)
    stage(lines, out, "finish")
    assert sum(node["parts"] for node in json.loads((out / "stats.json").read_text())["nodes"]) == whole


@pytest.mark.parametrize("shard_bytes", [None, 2_000], ids=["tokens", "bytes"])
def test_finished_is_what_the_same_command_made(tmp_path: Path, lines: Path, shard_bytes: int | None) -> None:
    out, other = tmp_path / "out", tmp_path / "other.txt"
    other.write_text("a line that came later\nand another one of some words")
    stages(lines, out, shard_bytes=shard_bytes)
    assert stage(lines, out, "scan", shard_bytes=shard_bytes).already_done
    for inputs, size in ((other, shard_bytes), (lines, 4_000)):
        with pytest.raises(SettingsError, match="nothing is planned"):
            stage(inputs, out, "scan", shard_bytes=size)
    stages(other, out, append=True)
    assert stage(lines, out, "scan", shard_bytes=shard_bytes).already_done
    assert stage(other, out, "scan", append=True).already_done
    other.write_text(other.read_text() + "\nit has grown since")
    assert not stage(other, out, "plan", append=True).already_done
    assert stage(other, out, "scan", append=True).parts == 1


def test_a_manifest_without_commands(tmp_path: Path, lines: Path) -> None:
    """As older versions wrote it: whether it has this dataset, only `plan` can tell."""
    out = tmp_path / "out"
    prepared(lines, out)
    manifest = json.loads((out / "dataset_metadata.json").read_text())
    del manifest["runs"][0]["command"]
    (out / "dataset_metadata.json").write_text(json.dumps(manifest))
    assert verify(out).problems == []
    with pytest.raises(SettingsError, match="nothing is planned"):
        stage(lines, out, "scan")
    assert stage(lines, out, "plan").already_done


def test_an_evaluation_set_that_is_of_no_use(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice says so, and leaves the plan to the others."""
    out, short = tmp_path / "out", tmp_path / "short.txt"
    short.write_text("only a few words")
    monkeypatch.setattr("ramlet.runtime.folder_lock.PATIENCE", 0.0)
    stage(lines, out, "plan", exclude=(str(short),))
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"no document in .*short\.txt has 13 words"):
            stage(lines, out, "exclude", exclude=(str(short),))
    with pytest.raises(SettingsError, match=r"has 13 words"):
        prepared(lines, out, exclude=(str(short),))
    assert not (out / ".work").exists()


def test_an_evaluation_set_that_changes_after_the_plan(tmp_path: Path, lines: Path) -> None:
    more = {"near": None, "dedup": "none", "exclude": (str(tmp_path / "eval.txt"),), "exclude_ngram": 2}
    (tmp_path / "eval.txt").write_text("line 7")
    stage(lines, tmp_path / "out", "plan", **more)
    (tmp_path / "eval.txt").write_text("line 8")
    with pytest.raises(SourceChanged, match=r"eval\.txt changed since the run was planned"):
        stage(lines, tmp_path / "out", "exclude", **more)
    stages(lines, tmp_path / "out", **more)
    prepared(lines, tmp_path / "whole", **more)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_slice_counts_the_memory_of_the_tokenizer(tmp_path: Path, lines: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"line": 0, "<unk>": 1}, unk_token="<unk>"))
    other.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    other.save(str(tmp_path / "words.json"))
    packed = tmp_path / "lines.txt.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    # For a document of 16 MB, which a compressed file may have, that library takes 8 GB.
    out, given = tmp_path / "out", {"tokenizer": str(tmp_path / "words.json"), "document_bytes": 1 << 24}
    for name in NAMES:
        if name in ("write", "compare", "decide", "near", "finish"):
            with pytest.raises(BudgetError):
                stage(packed, out, name, budget="8GB", **given)
        stage(packed, out, name, budget="100GB", **given)


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
