"""Runs a stage as a process of its own: `ramlet tokenizer train ...`, as a user would type it.

    ended = run_stage(command_line("prepare", "corpus/", out="data"), captured=True)
    ended.code, ended.output, ended.error, ended.asked_to_stop

Its output is shown, or captured. It does not print its error but sends it as JSON, and the waiting process prints it.

In a process of its own, each stage starts with only its own base memory: torch, the tables of the tokenizer and what
allocators keep are gone when it ends. In one process, training would start with the base memory of all stages. A stage
is given the whole budget, along with what the waiting process uses of it. The command that is printed is what runs.

It has its own session, so that Ctrl-C arrives once, from here, whichever process it was sent to. Its standard input is
a pipe that closes when this process ends, even by kill -9: then the stage ends too, or the next run would find it still
writing to its folder.
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
from types import FrameType
from typing import Any

import ramlet
from ramlet.errors import RamletError, from_json
from ramlet.pipeline.executor import StageExit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LARGEST_ERROR = 4096
"""Bytes: what any pipe accepts at once, even while nobody reads."""


def run_stage(argv: list[str], *, captured: bool) -> StageExit:
    """Runs the command and waits for it; its output is shown, or captured."""
    # It must find the ramlet that is running here, wherever that was imported from.
    home = os.path.dirname(os.path.dirname(os.path.abspath(ramlet.__file__)))
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    sys.stdout.flush()
    with _forwarded_signals() as signals:
        # Blocked until the stage can handle them: while it is being imported, it would end with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        read_end, write_end = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "ramlet.pipeline.process", str(write_end), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if captured else None,
            stderr=subprocess.DEVNULL if captured else None,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            pass_fds=[write_end],
        )
        os.close(write_end)
        signals.forward_to(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            output = _wait_for(process)
            error = _receive_error(read_end)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(read_end)
    return StageExit(process.returncode, output, error, signals.asked_to_stop)


def _receive_error(read_end: int) -> RamletError | None:
    """Not read to the end of the pipe, which a process that the stage has left behind may keep open."""
    os.set_blocking(read_end, False)
    with suppress(BlockingIOError, ValueError):
        return from_json(json.loads(os.read(read_end, LARGEST_ERROR)))
    return None


def _wait_for(process: subprocess.Popen[bytes]) -> str:
    """Not `communicate`, which would close the pipe that tells the stage that this process is alive."""
    output = b""
    if process.stdout is not None:
        with process.stdout as stream:
            output = stream.read()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    return output.decode("utf-8", "replace")


class _Signals:
    def __init__(self) -> None:
        self.asked_to_stop = False
        self._process: subprocess.Popen[bytes] | None = None

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self.asked_to_stop:  # before there was a process to forward it to
            process.send_signal(signal.SIGINT)

    def stop(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        if self._process is not None:
            self._process.send_signal(number)

    def pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z, which only the foreground process gets."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


@contextmanager
def _forwarded_signals() -> Iterator[_Signals]:
    """Within the block, Ctrl-C and SIGTERM are forwarded to the stage, which saves its work."""
    signals = _Signals()
    handlers = {signal.SIGINT: signals.stop, signal.SIGTERM: signals.stop, signal.SIGTSTP: signals.pause}
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield signals
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _exit_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # files on disk are complete at any moment


def _send_error(error: RamletError, write_end: int) -> None:
    sent = json.dumps(error.as_json(), default=str).encode()
    if len(sent) > LARGEST_ERROR:  # a value from a file, repeated in the message, may be of any length
        sent = json.dumps(type(error)(str(error)[:500]).as_json()).encode()
    with suppress(OSError):
        os.write(write_end, sent)


def _main() -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from ramlet.cli import run

    write_end = int(sys.argv.pop(1))
    os.set_inheritable(write_end, False)
    sys.argv[0] = "ramlet"
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    except KeyboardInterrupt:
        sys.exit(130)
    run(on_error=lambda error: _send_error(error, write_end))


if __name__ == "__main__":
    _main()
