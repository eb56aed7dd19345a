"""What goes wrong is told in a sentence, and nothing is lost or half-written after it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from conftest import AMPLE, RunRamlet
from ramlet.dataset.verify import verify
from ramlet.errors import BrokenInput, DiskFull, RamletError, SettingsError, SourceChanged, SourceError
from ramlet.preparing.entry import prepare
from ramlet.preparing.run import Prepared, prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from test_prepare_append import snapshot
from test_prepare_same_bytes import files


def run(inputs: Any, out: Path, **given: Any) -> Prepared:
    return prepare(inputs, out, **{"tokenizer": "byte", "memory": AMPLE, "threads": 1, **given})


def write(folder: Path, count: int = 5) -> Path:
    folder.mkdir()
    for n in range(count):
        (folder / f"{n}.txt").write_text(f"document {n} of some words")
    return folder


class TestFolders:
    @pytest.mark.parametrize("name", ["notes.txt", "train", "val/x", ".work2"])
    def test_a_foreign_folder_is_left_alone(self, tmp_path: Path, name: str) -> None:
        out = tmp_path / "out"
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        before = snapshot(out)
        with pytest.raises(SettingsError, match="holds something else"):
            run(write(tmp_path / "in"), out)
        assert snapshot(out) == before

    def test_a_file_in_the_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("mine")
        with pytest.raises(SettingsError, match="is a file"):
            run(write(tmp_path / "in"), tmp_path / "out")
        assert (tmp_path / "out").read_text() == "mine"

    def test_foreign_npy(self, tmp_path: Path) -> None:
        (tmp_path / "ids.npy").write_text("mine")
        with pytest.raises(SettingsError, match="not written by ramlet"):
            run(write(tmp_path / "in"), tmp_path / "ids.npy", output_format="npy")
        assert (tmp_path / "ids.npy").read_text() == "mine"

    def test_npy_leaves_its_neighbours_alone(self, tmp_path: Path) -> None:
        for name in ("train", "val", "other"):
            (tmp_path / name).mkdir()
        run(write(tmp_path / "in"), tmp_path / "ids.npy", output_format="npy")
        assert {"train", "val", "other"} <= set(os.listdir(tmp_path))

    def test_other_settings_do_not_replace_a_dataset(self, tmp_path: Path) -> None:
        inputs = write(tmp_path / "in")
        run(inputs, tmp_path / "out")
        before = snapshot(tmp_path / "out")
        with pytest.raises(SettingsError, match="other inputs or settings"):
            run(inputs, tmp_path / "out", min_chars=3)
        assert snapshot(tmp_path / "out") == before
        assert not (tmp_path / "out" / ".work").exists()

    def test_what_is_refused_leaves_nothing(self, tmp_path: Path) -> None:
        for given, inputs in (
            ({"tokenizer": "no/such/tokenizer.json"}, write(tmp_path / "in")),
            ({"end_token": "<|none such|>", "tokenizer": "gpt2"}, tmp_path / "in"),
            ({}, tmp_path / "missing.txt"),
            ({"memory": "20MB"}, tmp_path / "in"),
        ):
            with pytest.raises(RamletError):
                run(inputs, tmp_path / "new" / "out", **given)
            assert not (tmp_path / "new").exists(), given

    @pytest.mark.parametrize("wide", ["in", "in/*"])
    @pytest.mark.parametrize(("name", "given"), [("data", {}), ("ids.npy", {"output_format": "npy"})])
    def test_the_result_is_never_an_input(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: str, name: str, given: dict[str, Any]
    ) -> None:
        inputs = write(tmp_path / "in")
        monkeypatch.chdir(tmp_path)
        made = run(wide, inputs / name, **given)
        assert made.manifest["ledger"]["documents"]["read"] == 5
        assert made.manifest["ledger"]["input"]["skipped_files"] == {}
        assert run(wide, inputs / name, **given).already_done

    def test_the_output_folder_as_input(self, tmp_path: Path) -> None:
        run(write(tmp_path / "in"), tmp_path / "out")
        with pytest.raises(SourceError, match="where the result goes"):
            run(tmp_path / "out", tmp_path / "out", append=True)

    def test_a_lost_shard_is_noticed(self, tmp_path: Path) -> None:
        inputs = write(tmp_path / "in")
        made = run(inputs, tmp_path / "out")
        (made.path / "train/shard_00000.bin").unlink()
        with pytest.raises(RamletError, match="missing or incomplete"):
            run(inputs, tmp_path / "out")


class TestAtTheSameTime:
    def test_a_second_run_is_refused(self, tmp_path: Path) -> None:
        inputs = write(tmp_path / "in")

        def second() -> None:
            for append in (False, True):
                with pytest.raises(SettingsError, match=r"out is being written by another ramlet \(prepare, pid \d+"):
                    run(inputs, tmp_path / "out", append=append)

        change_while_running(inputs, second, tmp_path / "out", "tokenizing")
        assert verify(tmp_path / "out").problems == []
        assert run(inputs, tmp_path / "out").already_done


def change_while_running(folder: Path, change: Callable[[], object], out: Path, stage: str) -> None:
    """Calls `change` as soon as this stage is reached."""
    done = []

    def watch(name: str, *_: Any) -> None:
        if name == stage and not done:
            done.append(change())

    class Telling(Meter):
        def stage(self, name: str) -> None:
            watch(name)
            super().stage(name)

    with Telling(Budget.parse(AMPLE)) as meter:
        prepare_to(folder, out, PrepareSettings(tokenizer="byte"), meter=meter, threads=1)


class TestInputs:
    @pytest.mark.parametrize("stage", ["comparing", "tokenizing"])
    @pytest.mark.parametrize("text", ["longer than it was, and another text", "dOcument 3 of some words"])
    def test_changed_between_two_readings(self, tmp_path: Path, stage: str, text: str) -> None:
        inputs = write(tmp_path / "in")
        with pytest.raises(SourceChanged, match=r"3\.txt|first read"):
            change_while_running(inputs, lambda: (inputs / "3.txt").write_text(text), tmp_path / "out", stage)
        assert not (tmp_path / "out/dataset_metadata.json").exists()
        made = run(inputs, tmp_path / "out")
        run(inputs, tmp_path / "calm")
        assert files(made.path) == files(tmp_path / "calm")

    def test_vanished_between_runs(self, tmp_path: Path) -> None:
        inputs = write(tmp_path / "in")
        with pytest.raises(SourceError):
            change_while_running(inputs, (inputs / "2.txt").unlink, tmp_path / "out", "tokenizing")
        assert run(inputs, tmp_path / "out").manifest["ledger"]["documents"]["read"] == 4

    @pytest.mark.parametrize(
        "given", [{}, {"tokenizer": "char"}, {"pack": 8}, {"dedup": "line"}, {"documents": "line"}]
    )
    def test_nothing_in_them(self, tmp_path: Path, given: dict[str, Any]) -> None:
        (tmp_path / "in").mkdir()
        for n, text in enumerate(("", " \n\t\n", "\ufeff")):
            (tmp_path / "in" / f"{n}.txt").write_text(text)
        with pytest.raises(SourceError, match=r"every document was dropped: . as empty"):
            run(tmp_path / "in", tmp_path / "out", **given)
        made = run(tmp_path / "in", tmp_path / "out", allow_empty=True, **given)
        assert made.manifest["splits"]["train"] == {"tokens": 0, "documents": 0, "shards": []}
        assert made.manifest["ledger"]["documents"]["kept"] == 0
        assert verify(made.path).problems == []
        assert run(tmp_path / "in", tmp_path / "out", **given).already_done

    def test_a_pipe_is_refused_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceError, match="pipe it in"):
            run(tmp_path / "pipe", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_broken_lines(self, tmp_path: Path) -> None:
        lines = ['{"text": "one"}', "{broken", '{"other": "x"}', '{"text": 5}', '{"text": null}', '{"text": "two"}']
        (tmp_path / "in.jsonl").write_text("\n".join(lines))
        with pytest.raises(BrokenInput, match=r"in\.jsonl:2"):
            run(tmp_path / "in.jsonl", tmp_path / "out")
        assert not (tmp_path / "out/dataset_metadata.json").exists()
        made = run(tmp_path / "in.jsonl", tmp_path / "out", on_error="skip")
        assert made.manifest["ledger"]["documents"]["kept"] == 2
        assert made.manifest["ledger"]["input"]["broken_records"] == 4
        skipped = made.statistics["skipped"]
        assert {key: skipped[key] for key in skipped if key != "examples"} == {
            "broken_json": 1,
            "missing_field": 1,
            "not_a_string": 2,
        }
        assert [place.split()[0] for place in skipped["examples"]] == [f"{tmp_path}/in.jsonl:{n}" for n in (2, 3, 4)]

    def test_rows_without_a_text(self, tmp_path: Path) -> None:
        """Whether they are read from parquet or staged from a dataset that was saved."""
        rows = ["one", None, "two"]
        pa.parquet.write_table(pa.table({"text": rows}), tmp_path / "in.parquet")
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict({"text": rows}).save_to_disk(str(tmp_path / "saved"))
        for name in ("in.parquet", "saved"):
            made = run(tmp_path / name, tmp_path / f"of-{name}")
            assert made.manifest["ledger"]["documents"]["kept"] == 2, name

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_bytes(b"good line, and long enough for it \xff\n" * 3 + b"ab\xff\xfe\n")
        made = run(tmp_path / "in.txt", tmp_path / "out", documents="line", dedup="none", max_invalid=0.1)
        assert made.manifest["ledger"]["documents"]["dropped"]["bad_encoding"] == 1
        assert made.manifest["ledger"]["documents"]["kept"] == 3
        assert made.manifest["ledger"]["input"]["invalid_utf8"] == 5


class TestMemory:
    def peak(self, ramlet: RunRamlet, *arguments: str) -> tuple[dict[str, Any], int]:
        done = ramlet("prepare", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return told, told["memory"]["peak"]

    def test_a_line_of_30_megabytes(self, ramlet: RunRamlet, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("x" * 30_000_000)
        given = ("in.txt", "--out", "out", "-T", "byte", "--max-line-chars", "0", "--dedup", "none")
        given = (*given, "--memory", "78MB", "--threads", "1")
        told, peak = self.peak(ramlet, *given)
        assert peak < 78_000_000
        documents = told["ledger"]["documents"]
        # Two tasks, each with parts of 64 KiB.
        assert (documents["read"], documents["kept"]) == (2, -(-30_000_000 // (1 << 16)))
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "é" * 15_000_000}, ensure_ascii=False))
        assert self.peak(ramlet, "in.jsonl", "--out", "out2", *given[3:])[1] < 78_000_000

    def test_the_smallest_budget_holds_for_texts_that_grow(self, ramlet: RunRamlet, tmp_path: Path) -> None:
        """U+1D160 is three characters in NFC."""
        text = "\U0001d160" * 260_000
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n in range(6)))
        kept = ("--max-line-chars", "0", "--max-symbols", "1", "--max-repeated", "1")
        given = ("in.jsonl", "-T", "gpt2", *kept, "--threads", "1", "--out", "out", "--memory")
        enough = int(ramlet("prepare", *given, "25MB").stderr.split("at least ")[1].split("MB")[0])
        assert self.peak(ramlet, *given, f"{enough}MB")[1] < enough * 1_000_000

    def test_tiny_documents_packed(self, ramlet: RunRamlet, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("a\n" * 700_000)
        given = ("--docs", "line", "--no-dedup", "--pack", "64", "--memory", "78MB", "--threads", "1")
        assert self.peak(ramlet, "in.txt", "--out", "out", "-T", "byte", *given)[1] < 78_000_000

    @pytest.mark.slow
    def test_100_000_files(self, ramlet: RunRamlet, tmp_path: Path) -> None:
        for n in range(100):
            (tmp_path / "in" / str(n)).mkdir(parents=True)
            for m in range(1000):
                (tmp_path / "in" / str(n) / f"{m}.txt").write_text(f"text {n} {m}")
        told, peak = self.peak(ramlet, "in", "--out", "out", "-T", "byte", "--memory", "60MB", "--threads", "1")
        assert told["ledger"]["documents"]["kept"] == 100_000
        assert peak < 60_000_000

    def test_too_little_is_refused_with_what_is_enough(self, ramlet: RunRamlet, tmp_path: Path) -> None:
        write(tmp_path / "in")
        given = ("prepare", "in", "--out", "out", "-T", "byte", "--threads", "2", "--memory")
        refused = ramlet(*given, "20MB")
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: needs at least ")
        assert not (tmp_path / "out").exists()
        enough = refused.stderr.split("at least ")[1].split(":")[0]
        done = ramlet(*given, enough)
        assert done.returncode == 0, done.stderr


class TestDisk:
    @pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk")
    def test_full(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
        if mounted.returncode:
            pytest.skip("cannot mount")
        try:
            (tmp_path / "in.txt").write_text("\n".join(f"line {n}" for n in range(40_000)))
            with pytest.raises(DiskFull):
                run(tmp_path / "in.txt", disk / "out", documents="line")
            assert not (disk / "out/dataset_metadata.json").exists()
            subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
            made = run(tmp_path / "in.txt", disk / "out", documents="line")
            run(tmp_path / "in.txt", tmp_path / "calm", documents="line")
            assert files(made.path) == files(tmp_path / "calm")
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def test_files_that_may_not_grow(self, tmp_path: Path) -> None:
        """As with a quota: the write fails in the middle."""
        (tmp_path / "in.txt").write_text("\n".join(f"line {n}" for n in range(40_000)))
        arguments = ["prepare", "in.txt", "--out", "out", "-T", "byte", "--docs", "line", "--memory", "1GB"]

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        command = [sys.executable, "-m", "ramlet", *arguments]
        failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, timeout=120)
        assert failed.returncode == 1
        assert failed.stderr.startswith("error: ")
        assert "bug in ramlet" not in failed.stderr
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
        assert verify(tmp_path / "out").notes == []


def test_ctrl_c_then_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(f"line {n} of a text that takes a while" for n in range(600_000)))
    arguments = ["prepare", "in.txt", "-T", "byte", "--docs", "line", "--memory", "1GB", "--out"]
    command = [sys.executable, "-m", "ramlet", *arguments]
    code = 0
    while code == 0:  # and once more, where it was done before it could be interrupted
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        process = subprocess.Popen(
            [*command, "out"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None and not (tmp_path / "out/.work/plan.json").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
        code = process.returncode
    assert code == 130
    assert told == "interrupted; run the same command to resume\n"
    assert not (tmp_path / "out/dataset_metadata.json").exists()
    for out in ("out", "calm"):
        assert subprocess.run([*command, out], cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
    assert files(tmp_path / "out") == files(tmp_path / "calm")


@pytest.mark.parametrize("count", [-1, 1 << 64, None, "5"])
def test_a_count_in_a_note_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: Any) -> None:
    inputs = write(tmp_path / "in")
    with monkeypatch.context() as stopped:
        stopped.setattr("ramlet.preparing.core.Core.run", _stop_behind("scan"))
        with pytest.raises(KeyboardInterrupt):
            run(inputs, tmp_path / "out")
    note = tmp_path / "out/.work/scan/000000.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"units": count}))
    with pytest.raises(RamletError, match=r"000000\.json is damaged: .*remove .*\.work and run the same command again"):
        run(inputs, tmp_path / "out")


def _stop_behind(last: str) -> Callable[..., None]:
    from ramlet.preparing.core import Core

    def run_stage(self: Any, stage: str, *given: Any) -> None:
        if stage != last:
            raise KeyboardInterrupt
        whole(self, stage, *given)

    whole = Core.run
    return run_stage


def test_all_of_unicode_is_a_vocabulary(tmp_path: Path) -> None:
    """The note of the scan then has 4.4 MB."""
    every = "".join(chr(code) for code in range(32, 0x110000) if not 0xD800 <= code < 0xE000)
    (tmp_path / "in.txt").write_text(every)
    made = run(tmp_path / "in.txt", tmp_path / "out", tokenizer="char", filter=False, normalize=False, val_fraction=0)
    assert made.statistics["ledger"]["characters"] == len(every)
    assert made.manifest["vocab_size"] >= len(every)


@pytest.mark.parametrize(
    ("key", "value"), [("splits", []), ("splits", {"train": {"tokens": -1}}), ("runs", {}), ("tokenizer", {"file": 3})]
)
def test_a_note_beside_an_array_that_is_damaged(tmp_path: Path, key: str, value: Any) -> None:
    inputs = write(tmp_path / "in")
    run(inputs, tmp_path / "ids.npy", output_format="npy")
    note = tmp_path / "ids.npy.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {key: value}))
    with pytest.raises(RamletError, match=r"ids\.npy\.json is damaged"):
        run(inputs, tmp_path / "ids.npy", output_format="npy")
