"""A stage as a process of its own: `ramlet tokenizer train ...`, as a user would type it.

    ended = run_stage(["prepare", "corpus/", "--out", "data"], captured=True)
    ended.code, ended.output, ended.errors, ended.asked_to_stop

What it prints is shown, or captured. Also when it is shown, on a terminal, its `error: ` lines are heard here.

In a process of its own each stage begins with nothing but its own base: torch, the tables of the tokenizer and what
allocators keep are gone when it ends. It is given the whole budget, and told what the process that waits takes of it.
In one process the base of training would be that of all stages together. What is printed as the command is what runs.

It has its own session, so that Ctrl-C comes once, from here, whoever was sent it. Its standard input is a pipe that
ends when this process does, also by kill -9: then the stage ends too, or the next run would meet it in its folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO, cast

import ramlet
from ramlet.budget import HELD

__all__ = ["Ended", "run_stage"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_HEARD = 4096
"""Bytes of an error: what a pipe takes at once, also when no one reads yet."""


@dataclass(frozen=True)
class Ended:
    code: int
    """Negative for a signal."""
    output: str
    errors: str
    """What it wrote to standard error; where that is shown, only the lines that tell an error."""
    asked_to_stop: bool
    """By Ctrl-C or SIGTERM, sent to this process."""


def run_stage(words: list[str], *, captured: bool, held: int = 0) -> Ended:
    """Runs the command and waits for it; what it prints is shown, or captured.

    `held` is what this process takes of the budget that the command is given.
    """
    # It must find the ramlet that is running here, wherever that was imported from.
    home = os.path.dirname(os.path.dirname(os.path.abspath(ramlet.__file__)))
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    sys.stdout.flush()
    with _stops() as stops:
        # Until the stage can answer them; it would end with a traceback while it is being imported.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        hearing, telling = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "ramlet.pipeline.process", str(telling), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if captured else None,
            stderr=subprocess.PIPE if captured else None,
            env={**os.environ, "PYTHONPATH": path, HELD: str(held)},
            start_new_session=True,
            pass_fds=[telling],
        )
        os.close(telling)
        stops.sent_to(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            output, errors = _waited_for(process)
            errors = errors if captured else _heard(hearing)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(hearing)
    return Ended(process.returncode, output, errors, stops.asked)


def _heard(hearing: int) -> str:
    """Not read to the end, which a process that the stage has left behind may keep open."""
    os.set_blocking(hearing, False)
    with suppress(BlockingIOError):
        return os.read(hearing, MOST_HEARD).decode("utf-8", "replace")
    return ""


def _waited_for(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Not `communicate`, which would close the pipe that says that this process is there."""
    found = {"output": b"", "errors": b""}

    def read(name: str, stream: Any) -> None:
        found[name] = stream.read()

    streams = {"output": process.stdout, "errors": process.stderr}
    threads = [threading.Thread(target=read, args=pair) for pair in streams.items() if pair[1] is not None]
    for thread in threads:
        thread.start()
    process.wait()
    for thread in threads:
        thread.join()
    for stream in (process.stdin, *streams.values()):
        if stream is not None:
            stream.close()
    return found["output"].decode("utf-8", "replace"), found["errors"].decode("utf-8", "replace")


class _Stops:
    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[bytes] | None = None

    def sent_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.asked:  # before there was anyone to tell
            process.send_signal(signal.SIGINT)

    def heard(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._process is not None:
            self._process.send_signal(number)

    def pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z, which only the foreground gets."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


@contextmanager
def _stops() -> Iterator[_Stops]:
    """While the block lasts Ctrl-C and SIGTERM go on to the stage, which saves what it has."""
    stops = _Stops()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in (
            (signal.SIGINT, stops.heard),
            (signal.SIGTERM, stops.heard),
            (signal.SIGTSTP, stops.pause),
        ):
            before[number] = signal.signal(number, handler)
    try:
        yield stops
    finally:
        for changed, previous in before.items():
            signal.signal(changed, previous)


def _end_with_the_other() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # what is on disk is whole at any moment


class _Overheard:
    """Standard error, of which the process that waits hears what tells an error."""

    def __init__(self, shown: TextIO, telling: int) -> None:
        self._shown = shown
        self._telling = telling

    def write(self, text: str) -> int:
        plain = re.sub(r"\x1b\[[\d;]*m", "", text)
        if plain.startswith("error: "):
            with suppress(OSError):
                os.write(self._telling, plain.encode("utf-8", "replace")[: MOST_HEARD - 1] + b"\n")
        return self._shown.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


def _main() -> None:
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    from ramlet.cli import run

    telling = int(sys.argv.pop(1))
    os.set_inheritable(telling, False)
    sys.stderr = cast(TextIO, _Overheard(sys.stderr, telling))
    sys.argv[0] = "ramlet"
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    _main()
