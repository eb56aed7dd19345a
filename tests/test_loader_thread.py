"""The thread that reads ahead: bounded, never left behind, its errors heard."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracles_dataset import write_dataset
from ramlet.errors import SettingsError
from ramlet.loading.loader import Loader
from ramlet.loading.read_ahead import ReadAhead

_others: set[threading.Thread] = set()
"""What tests of other files have left open is not what these are about."""


@pytest.fixture(autouse=True)
def _without_others() -> None:
    _others.clear()
    _others.update(threading.enumerate())


def readers() -> int:
    return sum(thread.name == "ramlet-read-ahead" for thread in set(threading.enumerate()) - _others)


def settled(seconds: float = 60) -> int:
    """The number of threads, given time to end."""
    until = time.monotonic() + seconds
    while readers() and time.monotonic() < until:
        time.sleep(0.005)
    return readers()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d", [[number % 256] * 40 for number in range(50)])


class Counted:
    """Items that know how many were made."""

    def __init__(self, fail_at: int | None = None, end: int = 10**9) -> None:
        self.made = 0
        self.fail_at = fail_at
        self.end = end

    def __iter__(self) -> Iterator[int]:
        while self.made < self.end:
            if self.made == self.fail_at:
                raise ValueError(f"at {self.made}")
            self.made += 1
            yield self.made - 1


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order_and_then_end(depth: int) -> None:
    ahead = ReadAhead(iter(Counted(end=50)), depth)
    assert list(ahead) == list(range(50))
    assert list(ahead) == []
    assert settled() == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_never_more_than_asked_for(depth: int) -> None:
    items = Counted()
    ahead = ReadAhead(iter(items), depth)
    assert items.made == 0
    for number in range(30):
        assert next(ahead) == number
        time.sleep(0.002)
        assert number + 1 <= items.made <= number + 1 + depth
    ahead.close()
    assert readers() == 0
    assert list(ahead) == []
    ahead.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_comes_where_the_item_would(depth: int) -> None:
    ahead = ReadAhead(iter(Counted(fail_at=5)), depth)
    assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="at 5"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)
    assert settled() == 0


def test_no_thread_without_a_loop(dataset: Path) -> None:
    loader = Loader(dataset, seq_len=8)
    loader.examples[3]
    batches = iter(loader)
    assert readers() == 0
    next(batches)
    assert readers() == 1
    loader.close()
    assert readers() == 0
    loader.close()


def test_breaking_off_ends_it(dataset: Path) -> None:
    for _ in Loader(dataset, seq_len=8):
        break
    assert settled() == 0
    with Loader(dataset, seq_len=8) as loader:
        batches = iter(loader)
        next(batches)
    assert readers() == 0


def test_a_forgotten_loop_ends_it(dataset: Path) -> None:
    batches = iter(Loader(dataset, seq_len=8))
    next(batches)
    assert readers() == 1
    del batches
    gc.collect()
    assert settled() == 0


def test_one_loop_at_a_time(dataset: Path) -> None:
    loader = Loader(dataset, seq_len=8)
    first, second = iter(loader), iter(loader)
    next(second)
    with pytest.raises(SettingsError, match="a loader runs one loop at a time"):
        next(first)
    assert next(second) is not None
    # Closed from inside, a loop just ends.
    for count, _ in enumerate(loader):
        if count == 2:
            loader.close()
        assert count <= 2
    assert settled() == 0


SCRIPT = """
import sys, time
from ramlet.loading.loader import Loader
loader = Loader({path!r}, seq_len=8)
batches = iter(loader)
next(batches)
print("reading", flush=True)
{rest}
"""


def start(path: Path, rest: str) -> subprocess.Popen[str]:
    script = SCRIPT.format(path=str(path), rest=rest)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_program_ends_with_a_loop_open(dataset: Path) -> None:
    process = start(dataset, "sys.exit(7)")
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (7, "")


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c(dataset: Path) -> None:
    process = start(dataset, "for batch in batches: pass")
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_after_a_fork_it_says_so_or_begins_anew(dataset: Path) -> None:
    rest = """
import os, warnings
warnings.simplefilter("ignore")
while threading.active_count() < 2 or len(loader._reading._queue.items) < 2: time.sleep(0.01)
child = os.fork()
if child == 0:
    try:
        for _ in range(5): next(batches)
    except RuntimeError as error:
        ok = "did not survive a fork" in str(error)
    else:
        ok = False
    next(iter(loader))
    os._exit(0 if ok else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    process = start(dataset, "import threading\n" + rest)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
