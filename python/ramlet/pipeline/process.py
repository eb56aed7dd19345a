"""A stage as a process of its own: `ramlet tokenizer train ...`, as a user would type it.

    ended = run_stage(["prepare", "corpus/", "--out", "data"], captured=True)
    ended.code, ended.output, ended.error, ended.asked_to_stop

What it prints is shown, or captured. Its error it does not print but hands over as JSON: the one who waits tells it.

In a process of its own each stage begins with nothing but its own base: torch, the tables of the tokenizer and what
allocators keep are gone when it ends. It is given the whole budget, and what the process that waits takes of it.
In one process the base of training would be that of all stages together. What is printed as the command is what runs.

It has its own session, so that Ctrl-C comes once, from here, whoever was sent it. Its standard input is a pipe that
ends when this process does, also by kill -9: then the stage ends too, or the next run would meet it in its folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import ramlet
from ramlet.errors import RamletError, from_json

__all__ = ["Ended", "run_stage"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_HEARD = 4096
"""Bytes of an error: what every pipe takes at once, also when no one reads yet."""


@dataclass(frozen=True)
class Ended:
    code: int
    """Negative for a signal."""
    output: str
    error: RamletError | None
    """What went wrong, where it has told so."""
    asked_to_stop: bool
    """By Ctrl-C or SIGTERM, sent to this process."""


def run_stage(words: list[str], *, captured: bool) -> Ended:
    """Runs the command and waits for it; what it prints is shown, or captured."""
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
            stderr=subprocess.DEVNULL if captured else None,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            pass_fds=[telling],
        )
        os.close(telling)
        stops.sent_to(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            output = _waited_for(process)
            error = _heard(hearing)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(hearing)
    return Ended(process.returncode, output, error, stops.asked)


def _heard(hearing: int) -> RamletError | None:
    """Not read to the end, which a process that the stage has left behind may keep open."""
    os.set_blocking(hearing, False)
    with suppress(BlockingIOError, ValueError):
        return from_json(json.loads(os.read(hearing, MOST_HEARD)))
    return None


def _waited_for(process: subprocess.Popen[bytes]) -> str:
    """Not `communicate`, which would close the pipe that says that this process is there."""
    output = b""
    if process.stdout is not None:
        with process.stdout as stream:
            output = stream.read()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    return output.decode("utf-8", "replace")


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


def _tell(error: RamletError, telling: int) -> None:
    told = json.dumps(error.as_json(), default=str).encode()
    if len(told) > MOST_HEARD:  # a value of a file that is repeated in a sentence may be of any length
        told = json.dumps(type(error)(str(error)[:500]).as_json()).encode()
    with suppress(OSError):
        os.write(telling, told)


def _main() -> None:
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    from ramlet.cli import run

    telling = int(sys.argv.pop(1))
    os.set_inheritable(telling, False)
    sys.argv[0] = "ramlet"
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    except KeyboardInterrupt:
        sys.exit(130)
    run(on_error=lambda error: _tell(error, telling))


if __name__ == "__main__":
    _main()
