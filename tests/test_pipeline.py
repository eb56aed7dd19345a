"""`ramlet run`: from text to a model, only what changed, after any interruption, within one budget.

One pipeline is made for the whole module; what a change would lead to is asked of it without running anything.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramlet as package
from conftest import AMPLE
from oracles_training import metrics, sentences
from ramlet.cli import main
from ramlet.errors import BudgetError, Interrupted, PipelineError, RamletError, SettingsError, option
from ramlet.pipeline import process as stage_process
from ramlet.pipeline import run as spine
from ramlet.pipeline import stages
from ramlet.pipeline.executor import StageExit
from ramlet.pipeline.process import run_stage
from ramlet.pipeline.run import run_pipeline
from ramlet.pipeline.wording import with_keys
from ramlet.runtime.budget import Budget

FILE: dict[str, Any] = {
    "memory": "1GB",
    "threads": 1,
    "work": "model",
    "text": ["corpus"],
    "docs": "line",
    "report": False,
    "tokenizer": {"vocab_size": 280, "special_tokens": ["<|endoftext|>"]},
    "data": {"dedup": "none"},
    "model": {"params": "40k", "seq_len": 32},
    "training": {
        "batch_size": 6,
        "max_steps": 6,
        "device": "cpu",
        "precision": "fp32",
        "eval_tokens": 500,
        "log_every": 1,
        "sample_every": 0,
        "checkpoint_every": 2,
    },
}
ALL = ["tokenizer", "data", "training"]


def changed(**changes: Any) -> dict[str, Any]:
    """The file with other values; `section__key` for those of a section, None for what is to be gone."""
    made = json.loads(json.dumps(FILE))
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            made[section][key] = value
        elif value is None:
            made.pop(name)
        else:
            made[name] = value
    return made


def write(folder: Path, name: str = "pipeline.yaml", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(changed(**changes)))  # JSON is YAML
    return path


def text_in(folder: Path, lines: int = 300) -> None:
    (folder / "corpus").mkdir(exist_ok=True)
    (folder / "corpus" / "a.txt").write_text(sentences(lines))


def due(path: Path, **given: Any) -> list[str]:
    """The stages that would run."""
    return [stage.name for stage in run_pipeline(path, dry_run=True, **given).stages if stage.what == "due"]


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests, which others have filled, is no measure of the one that waits for stages."""
    monkeypatch.setattr(spine, "waiting_memory", lambda: 32_000_000)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder in which the pipeline was run, and what became of it."""
    folder = tmp_path_factory.mktemp("pipeline")
    text_in(folder)
    command = [sys.executable, "-m", "ramlet", "run", str(write(folder)), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return folder, json.loads(done.stdout)


@pytest.fixture
def made(made_once: tuple[Path, Any]) -> tuple[Path, Any]:
    """The same, with the file as it was then."""
    write(made_once[0])
    return made_once


# -- what is made


def test_from_text_to_a_model_within_one_budget(made: tuple[Path, Any]) -> None:
    folder, result = made
    assert [(stage["name"], stage["what"]) for stage in result["stages"]] == [(name, "made") for name in ALL]
    figures = {stage["name"]: stage["figures"] for stage in result["stages"]}
    assert figures["tokenizer"]["tokenizer"]["vocab_size"] == 280
    assert figures["data"]["splits"]["train"]["tokens"] > 1000
    assert figures["training"]["steps"] == 6
    assert package.Dataset(folder / "model" / "dataset").tokenizer.vocab_size == 280
    assert result["memory"]["budget"] == 10**9
    assert max(figures[name]["memory"]["peak"] for name in ALL) < result["memory"]["peak"] < 10**9
    # A stage speaks of the budget that was asked for, though it does with what this process leaves of it.
    assert {figures[name]["memory"]["budget"] for name in ALL} == {10**9}


def test_the_commands_are_what_a_user_would_type(made: tuple[Path, Any]) -> None:
    folder, result = made
    commands = {stage["name"]: stage["command"] for stage in result["stages"]}
    work = folder / "model"
    assert commands["tokenizer"] == (
        f"ramlet tokenizer train {folder}/corpus --out {work}/tokenizer --docs line --vocab-size 280 "
        "--special-token '<|endoftext|>' --memory 1GB --threads 1"
    )
    assert commands["data"].startswith(f"ramlet prepare {folder}/corpus --tokenizer {work}/tokenizer --out {work}")
    assert commands["training"].startswith(f"ramlet train --data {work}/dataset --out {work}/run --params 40000")


def test_the_second_run_does_nothing(made: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = made
    before = {path: path.stat().st_mtime_ns for path in (folder / "model").rglob("*") if path.is_file()}
    assert main(["run", str(folder / "pipeline.yaml")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ALL
    assert all("nothing changed" in line for line in out)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "model").rglob("*") if path.is_file()}


# -- what a change leads to


@pytest.mark.parametrize(
    ("changes", "stages_due"),
    [
        ({}, []),
        ({"memory": "2GB"}, []),
        ({"threads": 2}, []),
        ({"report": True}, ["report"]),
        ({"data__dedup": "none", "data__val_fraction": 0.1}, []),  # a default, written out
        ({"training__keep": 5}, []),
        ({"training__eval_every": 2}, []),
        ({"tokenizer__vocab_size": 290}, ALL),
        ({"tokenizer__special_tokens": []}, ALL),
        ({"docs": "file"}, ALL),
        ({"tokenizer": "byte"}, ["data", "training"]),
        ({"data__dedup": "line"}, ["data", "training"]),
        ({"data__pack": 32}, ["data", "training"]),
        ({"model__params": "50k"}, ["training"]),
        ({"training__max_steps": 8}, ["training"]),
        ({"training__max_steps": 4}, ["training"]),
        ({"training__lr": 0.1}, ["training"]),
        ({"training__seed": 7}, ["training"]),
        ({"model": None, "training": None}, []),
    ],
)
def test_what_a_change_leads_to(made: tuple[Path, Any], changes: dict[str, Any], stages_due: list[str]) -> None:
    folder, _ = made
    assert due(write(folder, **changes)) == stages_due


@pytest.mark.parametrize("change", ["touched", "longer", "another file", "renamed"])
def test_other_text_is_noticed(made: tuple[Path, Any], change: str) -> None:
    folder, _ = made
    path, file = folder / "pipeline.yaml", folder / "corpus" / "a.txt"
    status, text = file.stat(), file.read_text()
    other = folder / "corpus" / "b.txt"
    try:
        if change == "touched":
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        elif change == "longer":
            file.write_text(text + "\nmore")
        elif change == "another file":
            other.write_text("more")
        else:
            file.rename(other)
        assert due(path) == ALL
    finally:
        if change == "renamed":
            other.rename(file)
        other.unlink(missing_ok=True)
        file.write_text(text)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert due(path) == []


def test_why_is_said(made: tuple[Path, Any]) -> None:
    folder, _ = made
    found = run_pipeline(write(folder, tokenizer__vocab_size=290), dry_run=True).stages
    assert [stage.why for stage in found] == [
        *("vocab_size 280 -> 290", "the tokenizer changed", "the data changed"),
    ]


def test_force_and_only(made: tuple[Path, Any]) -> None:
    folder, _ = made
    path = folder / "pipeline.yaml"
    assert due(path, force="data") == ["data"]
    assert due(path, only="training") == []
    with pytest.raises(SettingsError, match=r"unknown stage 'trainin': did you mean training\?"):
        due(path, only="trainin")
    with pytest.raises(SettingsError, match=r"has no stage text: its stages are tokenizer, data, training"):
        due(path, force=["text"])
    with pytest.raises(SettingsError, match='only="data" excludes training, which force asks for'):
        due(path, only="data", force="training")
    write(folder, tokenizer__vocab_size=290)
    assert due(path, only="tokenizer") == ["tokenizer"]
    with pytest.raises(SettingsError, match=r"tokenizer comes before data and is due \(vocab_size 280 -> 290\)"):
        due(path, only="data")


def test_a_missing_result_is_made_again(made: tuple[Path, Any]) -> None:
    folder, _ = made
    model = folder / "model" / "run" / "model.safetensors"
    aside = model.rename(folder / "aside")
    try:
        assert due(folder / "pipeline.yaml") == ["training"]
    finally:
        aside.rename(model)


# -- whose results they are


def test_results_of_another_file_are_left_alone(made: tuple[Path, Any]) -> None:
    """Or they would be moved aside by whoever copied a file and did not think of `work`."""
    folder, _ = made
    other = write(folder, "other.yaml", tokenizer__vocab_size=290)
    for dry in (True, False):
        with pytest.raises(SettingsError) as refused:
            run_pipeline(other, dry_run=dry)
        assert str(refused.value) == (
            f"{folder}/model holds the results of {folder}/pipeline.yaml: give {other} a `work` of its own, "
            f"or move {folder}/pipeline.yaml away to continue with its results"
        )
    assert not list(folder.glob("model/*.old-*"))
    other.unlink()


def test_a_renamed_file_goes_on(made: tuple[Path, Any]) -> None:
    folder, _ = made
    path = folder / "pipeline.yaml"
    renamed = path.rename(folder / "renamed.yaml")
    try:
        assert [stage.what for stage in run_pipeline(renamed).stages] == ["kept", "kept", "kept"]
        # From now on they are its own.
        with pytest.raises(SettingsError, match=r"holds the results of .*renamed.yaml"):
            run_pipeline(write(folder))
    finally:
        renamed.replace(path)
    assert [stage.what for stage in run_pipeline(path).stages] == ["kept", "kept", "kept"]


@pytest.mark.parametrize("changes", [{}, {"tokenizer": "mine", "data__dedup": "doc", "data__dedup_cache": "seen"}])
def test_a_folder_that_was_moved_is_not_made_again(place: Path, changes: dict[str, Any]) -> None:
    """Text, results and file together; also when it is run from elsewhere."""
    made = {"model": None, "training": None, **changes}
    assert main(["tokenizer", "train", "corpus", "--vocab-size", "270", "--out", "mine", "--quiet"]) == 0
    run_pipeline(write(place, **made))
    assert due(Path("pipeline.yaml")) == []
    names = os.listdir(place)
    (place / "sub").mkdir()
    for name in names:
        (place / name).rename(place / "sub" / name)
    assert due(Path("sub/pipeline.yaml")) == []
    assert due(place / "sub" / "pipeline.yaml") == []
    # Text that stays where it is was not moved, and is other text now.
    (place / "sub" / "corpus").rename(place / "corpus")
    write(place / "sub", **{**made, "text": ["../corpus"]})
    assert due(Path("sub/pipeline.yaml"))[-1] == "data"


def test_datasets_and_columns_of_a_folder_that_was_moved(place: Path) -> None:
    """What else has a path in the record: datasets that are there, and files that become text first."""
    (place / "sub").mkdir()
    (place / "a.jsonl").write_text(json.dumps({"body": "a b c"}) + "\n")
    (place / "b.jsonl").write_text(json.dumps({"story": "d e f"}) + "\n")
    package.prepare("corpus", "there", tokenizer="byte", memory=AMPLE)
    (place / "sub" / "here").symlink_to(place)
    texts = [{"path": "a.jsonl", "text_column": "body"}, {"path": "b.jsonl", "text_column": "story"}]
    for changes in ({"data": "there", "text": None, "tokenizer": None}, {"text": texts}):
        write(place, **changes)
        one, other = (list(stages.stages(spine.load(path))) for path in ("pipeline.yaml", "sub/here/pipeline.yaml"))
        assert [stage.fingerprint for stage in one] == [stage.fingerprint for stage in other]


# -- made again


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text_in(tmp_path, 120)
    return tmp_path


def test_a_longer_run_goes_on_and_old_results_are_moved_aside(place: Path) -> None:
    run_pipeline(write(place))
    first = (place / "model/run/model.safetensors").read_bytes()
    longer = run_pipeline(write(place, training__max_steps=8))
    assert [stage.what for stage in longer.stages] == ["kept", "kept", "made"]
    assert "--resume" in longer.stages[2].command
    # The first steps are those of the run that was there, and were not made again.
    assert [line["step"] for line in metrics(place / "model/run") if "loss" in line] == [*range(1, 9)]
    assert not list(place.glob("model/*.old-*"))

    shorter = run_pipeline(write(place, training__max_steps=4))
    assert [stage.what for stage in shorter.stages] == ["kept", "kept", "made"]
    assert shorter.stages[2].moved == str(place / "model/run.old-1")
    assert json.loads((place / "model/run.old-1/stats.json").read_text())["steps"] == 8
    assert json.loads((place / "model/run/stats.json").read_text())["steps"] == 4
    assert first != (place / "model/run/model.safetensors").read_bytes()

    run_pipeline(write(place, model=None, training=None, tokenizer__vocab_size=290))
    assert sorted(path.name for path in place.glob("model/*.old-*")) == [
        "dataset.old-1",
        "run.old-1",
        "tokenizer.old-1",
    ]
    assert package.Dataset("model/dataset").tokenizer.vocab_size == 290
    assert package.Dataset("model/dataset.old-1").tokenizer.vocab_size == 280


def test_a_file_whose_name_is_not_utf8(place: Path) -> None:
    path = write(place, os.fsdecode(b"p\xe9.yaml"), model=None, training=None, tokenizer="byte")
    run_pipeline(path)
    assert due(path) == []


def test_a_dataset_made_again_is_not_compared_with_the_one_that_it_replaces(place: Path) -> None:
    text = {"model": None, "training": None, "tokenizer": "byte", "data__dedup": "doc", "data__dedup_cache": "seen"}
    (place / "other.txt").write_text((place / "corpus" / "a.txt").read_text().splitlines()[0])
    package.prepare("other.txt", "other", tokenizer="byte", dedup_cache="seen", documents="line", memory=AMPLE)
    run_pipeline(write(place, **text, data__documents="line"))
    first = package.Dataset("model/dataset")
    (place / "corpus" / "b.txt").write_text("a line that came later")
    run_pipeline(write(place, **text, data__documents="line", data__val_fraction=0.3))
    again = package.Dataset("model/dataset")
    kept = [dataset.manifest.ledger["documents"]["kept"] for dataset in (first, again)]
    assert kept[1] == kept[0] + 1
    # What other datasets have is still a duplicate.
    assert again.manifest.ledger["documents"]["dropped"]["duplicate"] >= 1
    assert len(list((place / "seen").iterdir())) == 2
    assert len(list((place / "model/dataset.old-1/dedup-cache").iterdir())) == 1


def test_a_report_is_of_what_is_there(place: Path) -> None:
    """Also where that was made anew from the same."""
    path = write(place, model=None, training=None, report=True)
    run_pipeline(path)
    assert due(path) == []
    again = run_pipeline(path, force="data")
    assert [(stage.name, stage.what) for stage in again.stages] == [
        *(("tokenizer", "kept"), ("data", "made"), ("report", "made")),
    ]


def test_a_folder_that_is_not_ours_is_left_alone(place: Path) -> None:
    (place / "model" / "tokenizer").mkdir(parents=True)
    (place / "model" / "tokenizer" / "thesis.txt").write_text("years of work")
    with pytest.raises(PipelineError, match=r"^tokenizer: .*model/tokenizer is not empty \(it contains thesis.txt\)"):
        run_pipeline(write(place))
    assert (place / "model" / "tokenizer" / "thesis.txt").read_text() == "years of work"


def test_text_of_columns_of_their_own_and_a_file_of_krill(place: Path) -> None:
    """Two jsonl files with different fields become one text first; nothing is fetched."""
    lines = sentences(60).splitlines()
    (place / "a.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in lines[:30]))
    (place / "b.jsonl").write_text("".join(json.dumps({"story": line}) + "\n" for line in lines[30:]))
    path = place / "krill.yaml"
    path.write_text(
        "sequence_len: 32\nmin_length: 2\nvocab_size: 280\npreprocess_save_shard_size: 1MB\n"
        "preprocess_chunk_size: 10\npreprocess_memory_efficient: true\noutput_dir: ./artifacts\n"
        "datasets:\n  - {path: a.jsonl, split: train, text_column: body}\n  - {path: b.jsonl, text_column: story}\n"
    )
    result = run_pipeline(path, memory="500MB", threads=1)
    assert [(stage.name, stage.what) for stage in result.stages] == [
        *(("text", "made"), ("tokenizer", "made"), ("data", "made"), ("report", "made")),
    ]
    dataset = package.Dataset("artifacts/dataset")
    assert json.loads(Path("artifacts/dataset/stats.json").read_text())["ledger"]["documents"]["read"] == 60
    assert dataset.manifest.packed is not None
    assert dataset.manifest.packed.sequence_length == 32
    assert due(path, memory="500MB") == []
    (place / "a.jsonl").write_text("")
    # What was fetched is kept until it is asked for again.
    assert due(path) == []
    assert due(path, force="text") == ["text"]


# -- interruptions


def test_interrupted_between_a_stage_and_its_record(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(place, model=None, training=None)
    real = spine.run_stage

    def killed(argv: list[str], *, captured: bool) -> StageExit:
        real(argv, captured=captured)
        raise KeyboardInterrupt

    monkeypatch.setattr(spine, "run_stage", killed)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(path)
    made_at = (place / "model/tokenizer/tokenizer.json").stat().st_mtime_ns
    assert due(path) == ["tokenizer", "data"]
    monkeypatch.setattr(spine, "run_stage", real)
    again = run_pipeline(path)
    assert again.stages[0].why == "it was interrupted"
    assert again.stages[0].figures["already_done"]
    assert (place / "model/tokenizer/tokenizer.json").stat().st_mtime_ns == made_at
    assert due(path) == []


def test_changed_after_an_interruption(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun with other settings is moved aside too."""
    monkeypatch.setattr(spine, "run_stage", lambda argv, captured: StageExit(1, "", RamletError("no"), False))
    (place / "model" / "tokenizer" / ".work").mkdir(parents=True)
    (place / "model" / "tokenizer" / ".work" / "counts").touch()
    with pytest.raises(PipelineError, match=r"^tokenizer: no$"):
        run_pipeline(write(place))
    found = run_pipeline(write(place, tokenizer__vocab_size=290), dry_run=True)
    assert found.stages[0].why == "vocab_size 280 -> 290"
    with pytest.raises(PipelineError):
        run_pipeline(write(place, tokenizer__vocab_size=290))
    assert (place / "model" / "tokenizer.old-1" / ".work" / "counts").exists()


@pytest.mark.parametrize("name", ["tokenizer", "dataset"])
def test_what_a_stage_that_failed_at_once_leaves_is_no_result(place: Path, name: str) -> None:
    """Nothing but a lock: the command takes the folder as it is."""
    shorter: dict[str, Any] = {"model": None, "training": None}
    run_pipeline(write(place, **shorter))
    shutil.rmtree(place / "model" / name)
    (place / "model" / name / ".work").mkdir(parents=True)
    (place / "model" / name / ".work" / "lock").touch()
    key, value = ("tokenizer__vocab_size", 290) if name == "tokenizer" else ("data__dedup", "line")
    result = run_pipeline(write(place, **shorter, **{key: value}))
    made = {Path(stage.path).name: stage for stage in result.stages}
    assert (made[name].what, made[name].moved) == ("made", None)
    assert not (place / "model" / f"{name}.old-1").exists()


@pytest.fixture
def begun(place: Path) -> Any:
    """`ramlet run` in a process of its own, once the run has a checkpoint."""
    path = write(place, training__max_steps=100_000, training__log_every=1000, training__eval_every=0)
    processes = []

    def begin(beyond: int = 0) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ramlet", "run", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=place,
        )
        processes.append(process)
        wait_for(lambda: latest(place) > beyond, process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
    for number in running(place):
        os.kill(number, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def latest(folder: Path) -> int:
    """The step of the last checkpoint that is whole."""
    found = folder.glob("model/run/checkpoints/step_*/state.json")
    return max((int(path.parent.name.removeprefix("step_")) for path in found), default=0)


def running(folder: Path) -> list[int]:
    """The processes that train into this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"ramlet.pipeline.process" in (words := (entry / "cmdline").read_bytes()):
                found += [int(entry.name)] if os.readlink(entry / "cwd") == str(folder) and b"train" in words else []
        except OSError:
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_killed_within_training(place: Path, begun: Any) -> None:
    """The stage ends with the process that waits for it, and a run goes on from its checkpoint."""
    process = begun()
    assert len(running(place)) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not running(place))
    at = latest(place)
    result = run_pipeline(write(place, training__max_steps=100_000, training__log_every=1000), dry_run=True)
    assert [stage.what for stage in result.stages] == ["kept", "kept", "due"]
    assert result.stages[2].why == "it was interrupted"
    process = begun(at)
    # Ctrl-C comes to this process alone; the stage saves, and says the one sentence that there is.
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.count("interrupted at step") == 1
    assert "interrupted; " not in errors
    assert f"resuming from step {at:,}" in errors
    assert not running(place)


@pytest.mark.parametrize("before", [True, False])
def test_a_signal_while_a_stage_is_being_loaded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], before: bool
) -> None:
    """It waits until the stage can answer it, also one that came before there was a stage."""
    real = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> Any:
        if before:
            os.kill(os.getpid(), signal.SIGINT)
        process = real(*words, **options)
        if not before:
            os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    # On a busy machine the stage may have finished before this process gets to forward the signal.
    codes = [ended.code for ended in (run_stage(["--help"], captured=False) for _ in range(5)) if ended.asked_to_stop]
    assert len(codes) == 5
    assert 130 in codes
    assert set(codes) <= {0, 130}
    assert "Traceback" not in capfd.readouterr().err


def test_two_at_once(place: Path) -> None:
    with (
        spine.Record("model"),
        pytest.raises(SettingsError, match=r"model is being written by another ramlet \(run, pid \d+, since .*\)"),
    ):
        run_pipeline(write(place))


def test_interrupted_from_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "interrupted at step 5 of 9, and saved: run the same command to resume"
    monkeypatch.setattr(spine, "run_stage", lambda argv, captured: StageExit(130, "", Interrupted(said), True))
    with pytest.raises(Interrupted, match=said):
        run_pipeline(write(place))
    monkeypatch.setattr(spine, "run_stage", lambda argv, captured: StageExit(-9, "", None, False))
    with pytest.raises(PipelineError, match=r"tokenizer: it was killed by signal 9 \("):
        run_pipeline(write(place))


# -- refused before anything is made


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"text": ["nowhere"]}, "no such file or folder: nowhere"),
        ({"training__eval": {"general": "gone"}}, "eval general: no dataset at gone; make one with"),
        ({"model": {"params": "40k", "init_from": "gone"}}, "init_from gone in pipeline.yaml does not exist"),
        ({"tokenizer__vocab_size": 30000}, "too few for a vocabulary of 30,000"),
        ({"text": ["."]}, "work, model, is inside ., which is read as text"),
        ({"memory": "30MB"}, "needs at least"),
        ({"data": "gone", "text": None, "tokenizer": None}, "data: no dataset at gone"),
        ({"work": "corpus/a.txt", "text": ["corpus/a.txt"]}, "cannot write into corpus/a.txt"),
    ],
)
def test_refused_at_once(
    place: Path, changes: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place, **changes)
    assert main(["run", "pipeline.yaml"]) == 1
    read = capsys.readouterr()
    assert sentence in read.err
    assert read.err.count("error: ") == 1
    assert "Traceback" not in read.err
    assert not (place / "model" / "tokenizer").exists()


def test_a_damaged_record_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "model").mkdir()
    for content in ("{", "[]", "{}", '{"format": "ramlet pipeline", "version": 2, "stages": {}}'):
        (place / "model" / "pipeline.json").write_text(content)
        write(place)
        assert main(["run", "pipeline.yaml"]) == 1
        assert "model/pipeline.json cannot be read" in capsys.readouterr().err


def test_a_stage_that_fails_is_told_once(place: Path) -> None:
    """By the one that waits, with the exit code of the stage; with --json as an object too."""
    write(place, tokenizer__pattern="(")
    for flags in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "ramlet", "run", "pipeline.yaml", *flags], capture_output=True, text=True, cwd=place
        )
        assert done.returncode == 1
        assert done.stderr.count("error: ") == 1
        assert "error: tokenizer: the pattern" in done.stderr
        told = json.loads(done.stdout)["error"]["message"] if flags else done.stdout
        assert told.startswith("tokenizer: the pattern") if flags else told == ""


def test_what_this_process_takes_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or a budget that a stage asks for would be too small again."""
    path = write(place, memory="120MB", model={"params": "20M", "seq_len": 32})
    with pytest.raises(PipelineError, match=r"^training: needs at least (\d+)MB: .*; give `memory") as refused:
        run_pipeline(path)
    least = int(str(refused.value).split("needs at least ")[1].split("MB")[0])
    assert "32.0 MB for the process that waits" in str(refused.value)
    assert "a shorter `seq_len` (under model)" in str(refused.value)
    assert str(refused.value).endswith(f"; give `memory: {least}MB` in {path}")
    assert refused.value.facts["needed"] == least * 10**6
    # On a terminal it is the last line, once.
    said = subprocess.run([sys.executable, "-m", "ramlet", "run", "pipeline.yaml"], capture_output=True, text=True)
    *_, last = said.stderr.splitlines()
    assert said.returncode == 1
    assert said.stderr.count("needs at least ") == 1
    enough = int(last.split("`memory: ")[1].split("MB`")[0])
    assert last.startswith(f"error: training: needs at least {enough}MB: ")
    assert last.endswith(f"; give `memory: {enough}MB` in pipeline.yaml")
    run_pipeline(
        write(place, memory="120MB", model=None, training=None), listener=(heard := Heard()), force="tokenizer"
    )
    assert heard.notes[1] == "memory: 32.0 MB of 120 MB for the process that waits, 88.0 MB for a stage"


def test_a_budget_too_small_for_the_report_is_refused_before_the_first_stage(place: Path) -> None:
    """Not after hours of training."""
    path = write(place, memory="110MB", report=True)
    with pytest.raises(BudgetError, match=r"^needs at least 116MB: 84\.0 MB for the report, 32\.0 MB for this process"):
        run_pipeline(path)
    assert not (place / "model" / "tokenizer").exists()
    assert [stage.what for stage in run_pipeline(path, only="tokenizer").stages] == ["made"]


@pytest.mark.parametrize(
    ("name", "sentence", "told"),
    [
        ("data", f"it is broken: pass {option('on_error', 'skip')}", "pass `on_error: skip` (under data)"),
        (
            "training",
            f"choose a smaller {option('seq_len')} or {option('lr')}",
            "choose a smaller `seq_len` (under model) or `lr` (under training)",
        ),
        ("tokenizer", f"it is not empty: choose another {option('out')}", "it is not empty: choose another out"),
        ("tokenizer", "a--seq-len b", "a--seq-len b"),
        ("report", "no space left", "no space left"),
    ],
)
def test_a_stage_names_settings_and_a_file_has_keys(name: str, sentence: str, told: str) -> None:
    stage = stages.Stage(name, "out", (), {}, {})
    said = with_keys(stage, RamletError(sentence), "p.yaml", own="32 MB", given=False)
    assert said.endswith(told)


@pytest.mark.parametrize(
    ("given", "on_gpu", "told"),
    [
        (False, False, "much; give `memory: 438MB` in p.yaml"),
        (True, False, 'much; give memory="438MB"'),
        (False, True, "much; 32 MB of memory is for the process that waits"),
    ],
)
def test_a_budget_is_raised_where_it_was_given(given: bool, on_gpu: bool, told: str) -> None:
    stage = stages.Stage("training", "out", (), {}, {}, on_gpu=on_gpu)
    error = BudgetError("needs at least 438MB: much", needed=437_100_000)
    said = with_keys(stage, error, "p.yaml", own="32 MB", given=given)
    assert str(PipelineError(said)) == f"needs at least 438MB: {told}"


def test_an_error_of_any_length_comes_through() -> None:
    """The pipe that it comes by may hold no more than a page, and no one reads before the stage has ended."""
    long = "é" * 3000
    for error in (SettingsError(long, value=long), BudgetError("short", parts={long: 1}), Interrupted("")):
        hearing, telling = os.pipe()
        stage_process._send_error(error, telling)
        os.close(telling)
        heard = stage_process._receive_error(hearing)
        os.close(hearing)
        assert type(heard) is type(error)
        assert str(heard) == str(error)[:500]


class Heard(spine.PipelineListener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, line: str) -> None:
        self.notes.append(line)


def test_json_says_what_was_done(made: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = made
    assert main(["run", str(folder / "pipeline.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(stage["name"], stage["what"]) for stage in found["stages"]] == [(name, "kept") for name in ALL]
    assert found["memory"]["budget"] == 10**9


# -- parts


def test_memory_on_a_gpu_is_left_to_the_stage(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what is free there is not a part of what is free here."""
    folder, _ = made
    pipeline = spine.load(folder / "pipeline.yaml")
    *_, training = stages.stages(pipeline)
    assert not training.on_gpu
    run = spine._Run(pipeline, spine.Record("x"), Budget.parse("1GB"), "1GB", None, spine.PipelineListener(), run_stage)
    there = stages.replace(training, on_gpu=True)
    for stage in (training, there):
        assert Budget.parse(run._memory(stage)).asked == 10**9
    run.written = "50%"
    assert run._memory(there) == "50%"
    run.written = None
    assert run._memory(there) == "auto"


def test_the_report_is_the_last_stage(made: tuple[Path, Any]) -> None:
    folder, _ = made
    pipeline = spine.load(write(folder, report=True))
    *_, training, report = stages.stages(pipeline)
    page = str(folder / "model" / "report.html")
    assert report.argv(memory="1GB", threads=2) == ["report", training.out, "--out", page, "--memory", "1GB"]
