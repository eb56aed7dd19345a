"""Killed at any moment, damaged, out of disk: the same call again gives the same result, or says what is wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import RunRamlet
from oracles import merges_of, native_train, text_file
from ramlet._native import least_memory
from ramlet.errors import DiskFull, RamletError, SettingsError

TOKENS = 400
THREADS = 2

# Trains, and writes every call of the progress callback as a line, then the result as the last.
CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from oracles import native_train
settings = json.loads(sys.argv[2])
log = open(sys.argv[3], "w", buffering=1)
# A disk slow enough for a few checkpoints.
pause = settings.pop("pause", 0.02)
settings["files"] = (time.sleep(pause) or file for file in settings["files"])
trained = native_train(progress=lambda *told: print(json.dumps(told), file=log), **settings)
trained["tokens"] = [token.hex() for token in trained["tokens"]]
print(json.dumps(trained), file=log)
"""


def write_corpus(
    folder: Path, seed: int = 0, size: int = 2_500_000, files: int = 40
) -> list[tuple[str, str, str, int]]:
    """Files of many distinct words, so that the smallest memory spills all the time."""
    chance = np.random.default_rng(seed)
    codes = chance.choice(np.array(list(b"eeeetttaaooiinnsshrdlucmfwypvbgkjqxz    \n"), dtype="u1"), size)
    text = codes.tobytes().decode()
    written = []
    folder.mkdir()
    for n in range(files):
        part = text[n * size // files : (n + 1) * size // files]
        path = folder / (f"{n:02}.jsonl" if n % 4 == 3 else f"{n:02}.txt")
        if n % 4 == 3:
            part = "".join(json.dumps({"text": line}) + "\n" for line in part.splitlines())
        path.write_text(part)
        written.append(text_file(path, form=path.suffix[1:].replace("txt", "text")))
    return written


def settings_for(files: list[tuple[str, str, str, int]], work_dir: Path, **others: Any) -> dict[str, Any]:
    return {
        "files": files,
        "tokens": TOKENS,
        "threads": THREADS,
        "memory": least_memory(THREADS, TOKENS),
        "work_dir": str(work_dir),
        "checkpoint_seconds": 0.05,
        **others,
    }


def start(settings: dict[str, Any], log: Path, files_open: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), json.dumps(settings), str(log)]
    if files_open is not None:
        command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files_open), *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def told(log: Path) -> list[Any]:
    """What the child has told so far; a line that it was killed in is left out."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def kill_when(process: subprocess.Popen[bytes], log: Path, lines: int, how: signal.Signals) -> bool:
    """Kills the child once it has told so many lines; False when it was faster."""
    while process.poll() is None:
        if len(told(log)) >= lines:
            process.send_signal(how)
            process.wait(60)
            break
        time.sleep(0.005)
    process.communicate()
    return process.returncode != 0


def outcome(trained: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on how the work went."""
    tokens = [bytes.fromhex(token) if isinstance(token, str) else token for token in trained["tokens"]]
    kept = ("pieces", "distinct_pieces", "cut_pieces")
    return {"merges": merges_of({**trained, "tokens": tokens}), **{name: trained[name] for name in kept}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str, int]]:
    return write_corpus(tmp_path_factory.mktemp("interruption") / "corpus")


@pytest.fixture(scope="module")
def whole(corpus: list[tuple[str, str, str, int]]) -> dict[str, Any]:
    """The same, never interrupted, with all the memory it wants."""
    return native_train(files=corpus, tokens=TOKENS, memory=1 << 30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(
    tmp_path: Path, corpus: list[Any], whole: dict[str, Any], how: signal.Signals, seed: int
) -> None:
    chance = random.Random(f"{how} {seed}")
    settings = settings_for(corpus, tmp_path / "work", pause=0.02)
    kills = resumed = attempt = 0
    while True:
        log = tmp_path / f"{kills} {attempt}.log"
        already = 0
        if (tmp_path / "work" / "counts.json").exists():
            already = noted(tmp_path / "work")["counters"]["bytes_on_disk"]
        # The moments get later, or it would never be done.
        killed = kill_when(start(settings, log), log, chance.randint(1, 4 + 3 * attempt + attempt * attempt), how)
        calls = [line for line in told(log) if isinstance(line, list)]
        if already and calls:
            done = next((amount for stage, amount, _ in calls if stage == "counting"), already)
            assert done >= already, "counted from the start again"
            resumed += 1
        kills += killed
        attempt += 1
        if not killed and kills >= 2 and resumed >= 1:
            break
        if not killed:
            from_the_start_and_slower(settings)
            attempt = 0
    assert outcome(told(log)[-1]) == outcome(whole)


def from_the_start_and_slower(settings: dict[str, Any]) -> None:
    """For a child that was done before it was killed, however long that took the one that kills."""
    shutil.rmtree(settings["work_dir"])
    settings["pause"] *= 3


def test_the_same_counters_after_an_interruption(tmp_path: Path, corpus: list[Any], whole: dict[str, Any]) -> None:
    settings = settings_for(corpus, tmp_path / "work", pause=0.02)
    log = tmp_path / "first.log"
    while not kill_when(start(settings, log), log, 3, signal.SIGKILL):
        from_the_start_and_slower(settings)
        log.unlink()
    settings.pop("pause")
    trained = native_train(**settings)
    assert trained["read"] == whole["read"]


def slowly(files: list[Any]) -> Iterator[Any]:
    """A disk slow enough for checkpoints, and for progress to be told."""
    for file in files:
        time.sleep(0.02)
        yield file


def interrupt_merging(settings: dict[str, Any]) -> None:
    """Behind a count that was saved, because its tables did not fit: one that is done soon, in memory, is not kept."""

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "merging":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        larger = {"tokens": 20_000, "memory": least_memory(THREADS, 20_000)}
        native_train(**{**settings, **larger}, progress=stop)


def test_the_same_counters_after_an_interruption_in_merging(
    tmp_path: Path, corpus: list[Any], whole: dict[str, Any]
) -> None:
    settings = settings_for(corpus, tmp_path / "work")
    interrupt_merging(settings)
    assert native_train(**settings)["read"] == whole["read"]


def test_a_finished_count_is_not_done_again(tmp_path: Path, corpus: list[Any], whole: dict[str, Any]) -> None:
    settings = settings_for(corpus, tmp_path / "work")
    interrupt_merging(settings)
    # Another size of vocabulary needs no other count; nor do other threads or memory.
    settings.update(threads=1, memory=100 << 20)
    with other_text(corpus):  # another count would find other pieces
        assert outcome(native_train(**settings)) == outcome(whole)


@contextmanager
def other_text(corpus: list[Any]) -> Iterator[None]:
    """Other bytes in the files, which otherwise look the same."""
    texts = {path: Path(path).read_bytes() for path, *_ in corpus}
    try:
        for path, text in texts.items():
            replace_bytes(path, b"x" * len(text))
        yield
    finally:
        for path, text in texts.items():
            replace_bytes(path, text)


def replace_bytes(path: str, data: bytes) -> None:
    before = os.stat(path)
    Path(path).write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def interrupt(settings: dict[str, Any]) -> None:
    """Stops a count in its middle, behind a few checkpoints."""

    def broken() -> Iterator[Any]:
        yield from slowly(settings["files"][:30])
        raise InterruptedError

    with pytest.raises(InterruptedError):
        native_train(**{**settings, "files": broken()})
    assert noted(Path(settings["work_dir"]))["counters"]["bytes_on_disk"] > 0


@pytest.fixture(scope="module")
def interrupted_work(corpus: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    while True:
        work = tmp_path_factory.mktemp("interrupted") / "work"
        interrupt(settings_for(corpus, work))
        # On a busy machine the last checkpoint may be between two files; the tests need one inside of a file.
        if "offset" in json.dumps(noted(work)):
            return work


@pytest.fixture
def interrupted(tmp_path: Path, corpus: list[Any], interrupted_work: Path) -> dict[str, Any]:
    """The settings of a count that was stopped in its middle, of which each test has its own copy."""
    shutil.copytree(interrupted_work, tmp_path / "work")
    return settings_for(corpus, tmp_path / "work")


def noted(work_dir: Path) -> dict[str, Any]:
    """Where the count stands, by its notes."""
    notes = json.loads((work_dir / "counts.json").read_text())
    return json.loads(notes["position"])  # type: ignore[no-any-return]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_other_threads_and_memory_go_on_from_there(
    interrupted: dict[str, Any], corpus: list[Any], whole: dict[str, Any], threads: int
) -> None:
    interrupted.update(threads=threads, memory=least_memory(threads, TOKENS) * 2)
    first: list[int] = []
    already = noted(Path(interrupted["work_dir"]))["counters"]["bytes_on_disk"]
    interrupted["files"] = slowly(corpus)
    trained = native_train(**interrupted, progress=lambda stage, done, _: first.append(done))
    assert first[0] >= already
    assert outcome(trained) == outcome(whole)
    assert trained["read"] == whole["read"]


def test_more_runs_than_open_files(tmp_path: Path) -> None:
    """A count may have more runs than its process may have files open, and so may the one that resumes it."""
    few = 100  # a merge opens 64
    corpus = write_corpus(tmp_path / "corpus", files=400)
    # As if the memory were nearly full: each block that is counted becomes a run.
    settings = settings_for(corpus, tmp_path / "work", checkpoint_seconds=0.0, resident_limit=0, pause=0.0)
    expected = outcome(native_train(files=corpus, tokens=TOKENS))
    for log in (tmp_path / "first.log", tmp_path / "second.log"):  # the second finds the runs of the first
        process = start(settings, log, files_open=few)
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert outcome(told(log)[-1]) == expected
        assert len(json.loads((tmp_path / "work" / "counts.json").read_text())["runs"]) > few


def test_another_signature_starts_anew(tmp_path: Path, interrupted: dict[str, Any]) -> None:
    assert list((tmp_path / "work").glob("*.run"))
    other = write_corpus(tmp_path / "other", seed=1, size=1_000_000)
    interrupted.update(files=other, signature="another")
    trained = native_train(**interrupted)
    expected = native_train(files=other, tokens=TOKENS)
    assert outcome(trained) == outcome(expected)
    assert trained["read"] == expected["read"]


def test_documents_of_an_iterator_start_anew(tmp_path: Path) -> None:
    documents = ["some words " * 1000] * 50
    settings = {"work_dir": tmp_path / "work", "checkpoint_seconds": 0.0, "tokens": 300}

    def broken() -> Iterator[str]:
        yield from documents
        time.sleep(0.2)  # for a checkpoint
        raise InterruptedError

    with pytest.raises(InterruptedError):
        native_train(broken(), **settings, batch=1)
    assert outcome(native_train(documents, **settings)) == outcome(native_train(documents, tokens=300))


# Damage


def a_run(settings: dict[str, Any]) -> Path:
    notes = json.loads((Path(settings["work_dir"]) / "counts.json").read_text())
    return Path(settings["work_dir"]) / notes["runs"][len(notes["runs"]) // 2]


@pytest.mark.parametrize("damage", ["flip", "shorten", "lengthen", "empty", "remove"])
def test_a_damaged_run_is_noticed(interrupted: dict[str, Any], damage: str) -> None:
    run = a_run(interrupted)
    content = bytearray(run.read_bytes())
    if damage == "flip":
        content[len(content) // 3] ^= 4
    elif damage == "shorten":
        del content[-20:]
    elif damage == "lengthen":
        content += bytes(20)
    elif damage == "empty":
        content.clear()
    run.write_bytes(content)
    if damage == "remove":
        run.unlink()
    with pytest.raises(RamletError, match=run.name):
        native_train(**interrupted)


def test_a_damaged_run_comes_with_a_way_out(interrupted: dict[str, Any]) -> None:
    a_run(interrupted).write_bytes(b"")
    with pytest.raises(RamletError) as raised:
        native_train(**interrupted)
    assert "--on-error" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"signature": "test"}', "\x00" * 500])
def test_notes_that_cannot_be_read_start_anew(interrupted: dict[str, Any], whole: dict[str, Any], content: str) -> None:
    (Path(interrupted["work_dir"]) / "counts.json").write_text(content)
    assert outcome(native_train(**interrupted)) == outcome(whole)


@pytest.mark.parametrize("field", ["offset", "files_taken", "pieces"])
def test_notes_with_a_changed_digit_are_noticed(interrupted: dict[str, Any], whole: dict[str, Any], field: str) -> None:
    notes = Path(interrupted["work_dir"]) / "counts.json"
    text = notes.read_text()
    at = text.index(field) + len(field)
    at = next(n for n in range(at, len(text)) if text[n].isdigit())
    end = next(n for n in range(at, len(text)) if not text[n].isdigit())
    notes.write_text(text[:at] + str(int(text[at:end]) - 1) + text[end:])
    try:
        trained = native_train(**interrupted)
    except RamletError:
        return
    assert outcome(trained) == outcome(whole)


def test_files_that_are_not_ours_stay(interrupted: dict[str, Any], whole: dict[str, Any]) -> None:
    work = Path(interrupted["work_dir"])
    (work / "tokenizer.json").write_text("a user's file")
    (work / "999999.run").write_bytes(b"written after the notes, and cut off")
    (work / "000000.tmp").write_bytes(b"half of a run")
    assert outcome(native_train(**interrupted)) == outcome(whole)
    assert (work / "tokenizer.json").read_text() == "a user's file"


# Two at once


def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path, corpus: list[Any]) -> None:
    settings = settings_for(corpus, tmp_path / "work")
    refused: list[bytes] = []

    def start_another(stage: str, done: int, total: int) -> None:
        if not refused:
            process = start(settings, tmp_path / "second.log")
            refused.append(process.communicate(timeout=120)[1])
            assert process.returncode != 0
        with pytest.raises(SettingsError, match="in use by another run"):
            native_train(**settings)

    expected = outcome(native_train(files=corpus, tokens=TOKENS))
    assert outcome(native_train(**{**settings, "files": slowly(corpus)}, progress=start_another)) == expected
    assert b"in use by another run" in refused[0]


# No space left


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


DISK = """
import json, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from oracles import native_train
from ramlet.errors import DiskFull
settings, disk = json.loads(sys.argv[2]), sys.argv[3]
files = settings.pop("files")
slowly = lambda: (time.sleep(0.02) or file for file in files)  # for checkpoints
mount = lambda options: subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
mount("size=" + sys.argv[4])
try:
    native_train(files=slowly(), **settings)
except DiskFull as error:
    said = str(error)
else:
    sys.exit("there was room")
left = {path.name: path.stat().st_size for path in Path(settings["work_dir"]).iterdir()}
mount("remount,size=1g")
first = []
trained = native_train(files=slowly(), progress=lambda stage, done, _: first.append([stage, done]), **settings)
trained["tokens"] = [token.hex() for token in trained["tokens"]]
print(json.dumps([said, left, first[0] if first else None, trained]))
"""


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
@pytest.mark.parametrize("size", ["16k", "500k", "1m", "3m"])
def test_a_full_disk_is_named_and_the_same_call_goes_on(
    tmp_path: Path, corpus: list[Any], whole: dict[str, Any], size: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = settings_for(corpus, disk / "work")
    command = ["unshare", "-m", sys.executable, "-c", DISK, str(Path(__file__).parent)]
    done = subprocess.run(
        [*command, json.dumps(settings), str(disk), size], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    said, left, first, trained = json.loads(done.stdout)
    assert "no disk space left" in said
    assert str(disk) in said
    # Runs are whole or not there; nothing else of ours is of any size.
    assert not [name for name in left if name.endswith(".tmp") and left[name]]
    assert outcome(trained) == outcome(whole)
    if size == "3m":
        assert first != ["counting", 0], "what was counted before the disk was full is lost"


def test_a_file_that_may_not_grow_is_an_error(tmp_path: Path, corpus: list[Any]) -> None:
    limit = 100_000
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); trained ="
    code = CHILD.replace("trained =", limited)
    # With memory for runs larger than the limit.
    settings = settings_for(
        corpus, tmp_path / "work", memory=least_memory(THREADS, TOKENS) + (2 << 20), checkpoint_seconds=1e6
    )
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), json.dumps(settings), str(log)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ramlet."), done.stderr
    assert not list((tmp_path / "work").glob("*.tmp"))


def test_disk_full_is_an_os_error() -> None:
    assert issubclass(DiskFull, OSError)


# As a user meets it


def train_command(inputs: list[str], out: Path, vocabulary: int = 500) -> list[str]:
    options = ["--vocab-size", str(vocabulary), "--memory", "64MB", "--threads", "2", "--quiet"]
    return [sys.executable, "-m", "ramlet", "tokenizer", "train", *inputs, "--out", str(out), *options]


class Waiting:
    """The command, waiting in the middle of its count: its last input is a pipe that no one writes to."""

    def __init__(self, inputs: list[str], pipe: Path, out: Path) -> None:
        command = train_command([*inputs, str(pipe)], out)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.pipe = pipe.open("wb")  # returns when the command has opened its end

    def end(self, how: signal.Signals | None) -> tuple[int, bytes]:
        if how:
            self.process.send_signal(how)
            time.sleep(0.2)
        self.pipe.close()
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_command_killed_and_given_again(tmp_path: Path, corpus: list[Any], pipe: Path, how: signal.Signals) -> None:
    inputs = [file[0] for file in corpus]
    assert Waiting(inputs, pipe, tmp_path / "expected").end(None)[0] == 0
    out = tmp_path / "out"
    chance = random.Random(how)
    for _ in range(3):
        waiting = Waiting(inputs, pipe, out)
        time.sleep(chance.uniform(0, 0.4))
        code, said = waiting.end(how)
        assert code != 0
        assert b"Traceback" not in said
        assert not (out / "tokenizer.json").exists()
    code, said = Waiting(inputs, pipe, out).end(None)
    assert code == 0, said
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "expected" / "tokenizer.json").read_bytes()
    # Nothing but the result is left.
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "expected"))


def counted(out: Path) -> bool:
    """Whether the command has counted all, and merges now."""
    try:
        return any(json.loads(notes.read_text())["done"] for notes in out.rglob("counts.json"))
    except FileNotFoundError:
        return False  # it was done in this moment


def test_the_command_killed_in_merging_and_given_again(tmp_path: Path, ramlet: RunRamlet) -> None:
    inputs = [file[0] for file in write_corpus(tmp_path / "mine", size=6_000_000)]
    out = tmp_path / "out"
    killed = False
    while not killed:  # and once more, where it was done before it could be killed
        shutil.rmtree(out, ignore_errors=True)
        process = subprocess.Popen(train_command(inputs, out, 10_000), stderr=subprocess.PIPE)
        while process.poll() is None and not counted(out):
            time.sleep(0.01)
        process.kill()
        _, said = process.communicate()
        killed = process.returncode == -signal.SIGKILL
        assert killed or process.returncode == 0, said
    for folder in (out, tmp_path / "fresh"):
        done = ramlet(*train_command(inputs, folder, 10_000)[3:])
        assert done.returncode == 0, done.stderr
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "fresh" / "tokenizer.json").read_bytes()


def test_the_command_notices_changed_inputs(tmp_path: Path, pipe: Path, ramlet: RunRamlet) -> None:
    inputs = [file[0] for file in write_corpus(tmp_path / "mine", seed=5, size=1_000_000)]
    out = tmp_path / "out"
    waiting = Waiting(inputs, pipe, out)
    time.sleep(0.3)
    assert waiting.end(signal.SIGINT)[0] not in (0, 1)
    path = Path(inputs[0])
    path.write_bytes(path.read_bytes()[::-1])  # the same size, another content
    for folder in (out, tmp_path / "fresh"):
        done = ramlet(*train_command(inputs, folder)[3:])
        assert done.returncode == 0, done.stderr
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "fresh" / "tokenizer.json").read_bytes()


def test_ctrl_c_ends_a_command_that_waits_for_its_input(tmp_path: Path) -> None:
    process = subprocess.Popen(train_command(["-"], tmp_path / "out"), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(b"some words\n" * 100_000)  # more than a pipe holds: when it is written, the command reads
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        process.wait(120)
    finally:
        process.kill()
        process.communicate()
