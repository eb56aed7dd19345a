"""Mistakes that people make, each made as a user makes it: one sentence with the cause and the way out, nothing left.

A case is the command line, its exit code, the cause as the sentence tells it, and the way out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ramlet
from oracles_training import sentences

TRAIN = "train --params 60k --seq-len 16 --batch-size 4 --max-steps 2 --threads 1"


@dataclass(frozen=True)
class Mistake:
    command: str
    code: int
    cause: str
    way_out: str


MISTAKES = {
    "a path that is not there": Mistake(
        "prepare corpsu.txt --out new",
        *(1, "no such file or folder: corpsu.txt", "did you mean corpus.txt?"),
    ),
    "a dataset that is not there": Mistake(
        f"{TRAIN} --data dta --out new", 1, "no such file or folder: dta", "did you mean data?"
    ),
    "data of another tokenizer than the model's": Mistake(
        "eval run --data other --device cpu --threads 1",
        *(1, "other was made with another tokenizer", "prepare it with --tokenizer run/tokenizer.json"),
    ),
    "going on from a model of another tokenizer": Mistake(
        f"{TRAIN} --data other --init-from run --out new",
        *(1, "run was trained with another tokenizer", "prepare the data with --tokenizer run/tokenizer.json"),
    ),
    "datasets of two tokenizers merged": Mistake(
        "data merge data other --out new", 1, "cannot be merged: their tokenizer differs", "prepare both alike"
    ),
    "a tiny budget for a model": Mistake(
        f"{TRAIN} --data data --memory 20MB --device cpu --out new",
        *(1, "the budget is 20.0 MB", r"needs at least \d+MB: .* give more, or use a smaller model"),
    ),
    "a tiny budget for text": Mistake(
        "prepare corpus.txt --tokenizer tok --memory 5MB --out new",
        *(1, "the budget is 5.00 MB", r"needs at least \d+MB"),
    ),
    "a budget without its unit": Mistake(
        "prepare corpus.txt --memory 2 --out new", 1, "2 is less than a megabyte", "give a unit, as in 512MB or 2GB"
    ),
    "a typo in YAML": Mistake(
        "prepare typo.yaml", 1, "typo.yaml, line 3: unknown key 'tokenizr'", "did you mean tokenizer?"
    ),
    "YAML that is none": Mistake(
        "prepare broken.yaml", 1, "broken.yaml, line 2: not valid YAML", "expected ',' or ']'"
    ),
    "a folder in the place of a pipeline": Mistake("run data", 1, "data is a folder, not a file", "give another path"),
    "a file as the folder of a pipeline": Mistake(
        "run in_file.yaml --dry-run", 1, "`work`, .*corpus.txt, is a file", "give a folder for the results"
    ),
    "a GPU that is not there": Mistake(
        f"{TRAIN} --data data --device cuda --out new", 1, "PyTorch finds no GPU here", "use --device cpu"
    ),
    "a device of another name": Mistake(
        f"{TRAIN} --data data --device gpu --out new", 1, "not 'gpu'", "device must be one of auto, cpu, cuda"
    ),
    "a typo in a flag": Mistake(
        f"{TRAIN} --data data --batch-sise 8 --out new", 2, "unknown option --batch-sise", "did you mean --batch-size?"
    ),
    "a typo in a command": Mistake("tokeniser train corpus.txt", 2, "no such command 'tokeniser'", "'tokenizer'"),
    "nothing to write to": Mistake(
        "tokenizer train corpus.txt --vocab-size 300", 2, "--out is missing", "for example: ramlet tokenizer train"
    ),
    "a dataset in the place of text": Mistake(
        "prepare data --tokenizer tok --out new", 1, "data is a dataset, not text", "train on it as data"
    ),
    "a run in the place of text": Mistake(
        "tokenizer train run --vocab-size 300 --out new", 1, "run is a run, not text", "ramlet generate"
    ),
    "text in the place of a dataset": Mistake(
        f"{TRAIN} --data corpus.txt --out new", 1, "corpus.txt is text", "prepare it with --output-format npy"
    ),
    "a run in the place of a dataset": Mistake(
        *("data inspect run", 1),
        *("run is not a dataset: it has no dataset_metadata.json", "create one with `ramlet prepare`"),
    ),
    "a dataset in the place of a run": Mistake(
        "generate data --prompt a --device cpu", 1, "data is not a model", "ramlet train writes them"
    ),
    "a shard cut short": Mistake(
        f"{TRAIN} --data cut --device cpu --out new",
        *(1, r"cut/train/shard_00000.bin is damaged", "restore it from a copy, or prepare the data again"),
    ),
    "a run of other settings": Mistake(
        f"{TRAIN} --data data --lr 0.5 --out run",
        *(1, "run has a run with lr", "choose another --out, or give the same"),
    ),
    "a folder of someone else": Mistake(
        "tokenizer train corpus.txt --vocab-size 300 --out data", 1, "data", "choose another|--force|another folder"
    ),
    "an empty file": Mistake(
        "prepare empty.txt --tokenizer tok --out new", 1, "no text to prepare", "every input is empty"
    ),
    "an empty file to train on": Mistake(
        f"{TRAIN} --input empty.txt --out new", 1, "no text to prepare", "every input is empty"
    ),
    "a prompt longer than the context": Mistake(
        "generate run --device cpu --prompt " + "long" * 40,
        *(1, r"the prompt has \d+ tokens, more than the model's context of 16", "keep only its end with --truncate"),
    ),
    "a vocabulary too small for the bytes": Mistake(
        "tokenizer train corpus.txt --vocab-size 100 --out new",
        *(1, "a vocabulary of 100 is too small for the 256 bytes", "it must be at least 256"),
    ),
    "a file in the way of the result": Mistake(
        "prepare corpus.txt --tokenizer tok --out corpus.txt/new",
        *(1, "cannot write into corpus.txt/new: Not a directory", "choose another --out"),
    ),
    "a run where nothing can be written": Mistake(
        f"{TRAIN} --data data --device cpu --out corpus.txt/new",
        *(1, "cannot write into corpus.txt/new: Not a directory", "choose another --out"),
    ),
    "a program in the place of text": Mistake(
        "tokenizer train program --vocab-size 300 --out new", 1, "program is not text, it has NUL bytes", "give another"
    ),
    "an archive in the place of text": Mistake(
        "prepare corpus.tar.gz --out new", 1, "corpus.tar.gz is an archive", "unpack it and give the folder"
    ),
    "a result that is there already": Mistake(
        "data export data --to npy --out other", 1, "other already exists", "choose another folder, or remove it first"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: text, a tokenizer, two datasets, a run; and what goes wrong with them."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "corpus.txt").write_text(sentences(150))
    (folder / "empty.txt").write_text("")
    (folder / "typo.yaml").write_text("inputs:\n  - corpus.txt\ntokenizr: tok\nout: new\n")
    (folder / "in_file.yaml").write_text("text: corpus.txt\nwork: corpus.txt\n")
    (folder / "broken.yaml").write_text("inputs: [corpus.txt\nout: new\n")
    (folder / "program").write_bytes(b"\x7fELF\x02\x01\x01\0\0\0" * 200)
    (folder / "corpus.tar.gz").write_bytes(b"\x1f\x8b")
    text = folder / "corpus.txt"
    for name, size in (("tok", 280), ("tok2", 270)):
        ramlet.Tokenizer.train([text], vocab_size=size, memory="8GB").save(folder / name)
    for name, tokenizer in (("data", "tok"), ("other", "tok2")):
        ramlet.prepare(text, folder / name, tokenizer=str(folder / tokenizer), documents="line", memory="8GB")
    for name in ("cut", "more"):
        shutil.copytree(folder / "data", folder / name)
    shard = folder / "cut/train/shard_00000.bin"
    shard.write_bytes(shard.read_bytes()[:-10])
    given = f"{TRAIN} --data data --out run --device cpu --checkpoint-every 2 --quiet"
    assert told(folder, given).returncode == 0
    return folder


def told(folder: Path, command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`ramlet COMMAND` on a machine without a GPU."""
    words = [sys.executable, "-m", "ramlet", *command.split()]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
    given = {"cwd": folder, "env": environment, "timeout": 120, **options}
    return subprocess.run(words, capture_output=True, text=True, **given)  # type: ignore[call-overload,no-any-return]


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """All that is in a folder, with size and time of change."""
    found = {}
    for path in folder.rglob("*"):
        status = path.stat()
        found[str(path.relative_to(folder))] = (0, 0) if path.is_dir() else (status.st_size, status.st_mtime_ns)
    return found


def assert_one_sentence(said: str, cause: str, way_out: str) -> None:
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    assert said.endswith("\n")
    assert "Traceback" not in said
    assert "bug in ramlet" not in said
    assert re.search(cause, said), said
    assert re.search(way_out, said), said


@pytest.mark.parametrize("name", MISTAKES)
def test_one_sentence_and_nothing_left(bench: Path, name: str) -> None:
    mistake = MISTAKES[name]
    before = files_of(bench)
    done = told(bench, mistake.command)
    assert (done.returncode, done.stdout) == (mistake.code, ""), done.stderr
    assert_one_sentence(done.stderr, mistake.cause, mistake.way_out)
    assert files_of(bench) == before


def test_a_damaged_shard_is_found(bench: Path, tmp_path: Path) -> None:
    """Bytes that were changed in place: what a check is for. Its findings are its result, on standard output."""
    shutil.copytree(bench / "data", tmp_path / "data")
    shard = tmp_path / "data/train/shard_00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\xff\xff")
    before = files_of(tmp_path)
    done = told(tmp_path, "data verify data")
    assert (done.returncode, done.stderr) == (1, "")
    assert "train/shard_00000.bin: its checksum differs from the manifest" in done.stdout
    assert files_of(tmp_path) == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "command",
    [
        "tokenizer train corpus.txt --vocab-size 300 --out new",
        "prepare corpus.txt --tokenizer byte --out new",
        "data merge data more --out new",
        "data export data --to npy --out new",
        f"{TRAIN} --data data --device cpu --out new",
        "export run new",
    ],
)
def test_a_disk_that_is_full(bench: Path, disk: Path, command: str) -> None:
    """8 kB are left; then there is room, and the same command works."""
    for name in ("corpus.txt", "data", "more", "run"):
        (disk / name).symlink_to(bench / name)
    filler = disk / "filler"
    with open(filler, "wb") as file:
        file.write(bytes(shutil.disk_usage(disk).free - 8192))
    failed = told(disk, command)
    assert (failed.returncode, failed.stdout) == (1, ""), failed.stderr
    assert_one_sentence(failed.stderr.splitlines(keepends=True)[-1], "no space left", "free some .*run the same")
    for name in ("dataset_metadata.json", "model.safetensors", "train.npy"):
        assert not (disk / "new" / name).exists()
    filler.unlink()
    assert told(disk, command).returncode == 0


@pytest.mark.parametrize("command", ["init", "doctor", "data merge a b --out c"])
def test_a_current_folder_that_was_removed(tmp_path: Path, command: str) -> None:
    words = [sys.executable, "-m", "ramlet", *command.split()]
    home = Path(ramlet.__file__).parents[1]
    gone = f"import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv({words[0]!r}, {words!r})"
    environment = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run([words[0], "-c", gone], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr == "error: the current folder was removed: change to another one and run the same command again\n"
    )
