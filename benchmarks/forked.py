"""Runs ramlet commands that are stopped or killed at their n-th change on disk, about a hundred per minute.

    with Forks(scratch) as forks:
        calls = forks.run(["prepare", "in", "--out", "out"], cwd).calls        # undisturbed
        forks.run(["prepare", "in", "--out", "out"], cwd, at=17)               # killed before its 17th

One process imports ramlet, and torch for the torch engine, once, and forks for each command. file_operations.c, which
is compiled here and preloaded, counts rename, link, unlink, mkdir, fsync, and creating and truncating a file, in
Python, in the native core and in processes that the command starts. At the n-th call it sends its own process a signal:
SIGKILL, or SIGSTOP, so that another command can run at that moment.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_option import with_engine

__all__ = ["Ended", "Forks", "compiler"]

HERE = Path(__file__).resolve().parent
SLOT = struct.Struct("<3q")
PR_SET_CHILD_SUBREAPER = 36
TASK_BYTES = 2500


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Negative for a signal."""
    calls: int
    """Number of calls that change the disk."""
    said: str
    """Standard output and standard error."""

    killed: bool
    """The command itself, or a process that it started: then it reports that and ends with 1."""


class Forks:
    """The process that forks, and the requests to it."""

    def __init__(self, scratch: Path, *, engine: str = "native", python: str = sys.executable) -> None:
        """`engine` runs the models of commands that have one."""
        self._scratch, self._engine, self._python = scratch, engine, python
        self._slots: mmap.mmap
        self._server: subprocess.Popen[str]

    def __enter__(self) -> Forks:
        library, slots = self._scratch / "file_operations.so", self._scratch / "slots"
        found = compiler()
        assert found is not None, "a C compiler is needed"
        source = HERE / "file_operations.c"
        subprocess.run([found, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        slots.write_bytes(bytes(4096))
        with open(slots, "r+b") as file:
            self._slots = mmap.mmap(file.fileno(), 4096)
        variables = {
            "LD_PRELOAD": str(library),
            "FILE_OPERATIONS": str(slots),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "passive",
            "OMP_NUM_THREADS": "1",
        }
        self._server = subprocess.Popen(
            [self._python, str(HERE / "forked.py"), self._engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def _ask(self, **task: Any) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, "the forking process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, words: list[str], cwd: Path, *, slot: int = 0, at: int = 0, with_signal: int = 9) -> int:
        """Starts a command; returns its pid."""
        self._slots[slot * SLOT.size : (slot + 1) * SLOT.size] = SLOT.pack(0, at, with_signal)
        log = self._scratch / f"said-{slot}"
        words = with_engine(words, self._engine)
        return int(self._ask(words=words, cwd=str(cwd), slot=slot, log=str(log))["pid"])

    def wait(self, pid: int, *, slot: int = 0) -> Ended:
        """Waits until the command and all processes that it started have ended."""
        code = int(self._ask(wait=pid)["code"])
        said = (self._scratch / f"said-{slot}").read_text(errors="replace")
        calls, at, number = SLOT.unpack_from(self._slots, slot * SLOT.size)
        return Ended(code, calls, said, number == signal.SIGKILL and 0 < at <= calls and code != 0)

    def run(self, words: list[str], cwd: Path, *, at: int = 0) -> Ended:
        """Runs a command to its end, or kills it before its `at`-th call."""
        return self.wait(self.start(words, cwd, at=at))

    @staticmethod
    def is_stopped(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False


# -- the forking process


def _serve() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopt the child processes of a killed command
    import numpy  # noqa: F401

    import ramlet.cli
    from ramlet.preparing.run import prepare_to

    # Small enough that these inputs become several tasks: after a kill in one, the others must not be repeated.
    prepare_to.__kwdefaults__["task_bytes"] = TASK_BYTES
    if "torch" in sys.argv:
        from ramlet.engines.torch.base_memory import load_torch

        load_torch(1)
    import ramlet.training.entry

    use_slot = ctypes.CDLL(None).use_slot
    ended: dict[int, int] = {}
    for line in sys.stdin:
        task = json.loads(line)
        if "wait" in task:
            print(json.dumps({"code": _waited(task["wait"], ended)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.environ["FILE_OPERATIONS_SLOT"] = str(task["slot"])
            with open(task["log"], "w") as log, open(os.devnull) as nothing:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                os.dup2(nothing.fileno(), 0)
            os.chdir(task["cwd"])
            use_slot(task["slot"])
            code = 70
            try:
                code = _check(task["words"]) if task["words"][0] == "check" else ramlet.cli.main(task["words"])
                sys.stdout.flush()
            finally:
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


def _waited(pid: int, ended: dict[int, int]) -> int:
    """The exit code of a command. Also waits for its child processes, which end when they notice that it is gone."""
    while pid not in ended:
        found, status = os.wait()
        ended[found] = os.waitstatus_to_exitcode(status)
    code = ended.pop(pid)
    deadline = time.monotonic() + 30
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while code == -signal.SIGKILL and (left := children.read_text().split()) and time.monotonic() < deadline:
        if not any(_is_orphan(one) for one in left):
            break
        found, status = os.waitpid(-1, os.WNOHANG)
        if found:
            ended[found] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return code


def _is_orphan(pid: str) -> bool:
    """Whether it is a stage of a pipeline, started by another process than this one."""
    try:
        return (
            b"ramlet" in Path(f"/proc/{pid}/cmdline").read_bytes()
            and b"forked.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    except OSError:
        return False


def _check(words: list[str]) -> int:
    """`check dataset|tokenizer|model PATH...`: checks that finished results can be used."""
    _, kind, *paths = words
    for path in paths:
        if kind == "dataset":
            from ramlet.dataset.verify import verify

            # Shards written by an interrupted append are not in the manifest yet. They are reported, because --adopt
            # would be wrong, but they are not damage.
            report = verify(path)
            wrong = [problem for problem in report.problems if problem.file not in report.adoptable]
            assert not wrong, [str(problem) for problem in wrong]
        elif kind == "tokenizer":
            from ramlet import Tokenizer

            Tokenizer.load(path).encode("some text")
        else:
            from ramlet.engines.opening import open_engine
            from ramlet.model.folder import find_model

            open_engine("cpu", 1, name="native").load(find_model(path), "fp32")
    return 0


if __name__ == "__main__":
    _serve()
