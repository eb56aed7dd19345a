"""What the tests share: slow ones on demand, any order, a process that each finds alike, and running the command as
a user does.

    pytest --shuffle            files, and the tests in a file, in a random order; its seed is told at the end
    pytest --shuffle 7          in the order of that seed. Any part of the tests keeps the order it has in the whole
    pytest --held 3GB           with so much memory held by the process, as if other tests had loaded it
"""

from __future__ import annotations

import functools
import gc
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ramlet.runtime import budget
from ramlet.runtime.memory import free_memory

# Before torch is loaded, here and in the processes that tests start: threads that wait for work would otherwise spin,
# and two test processes on two cores would take the processor from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What a user's shell does not have either: with it, what is never flushed would seem to come.
os.environ.pop("PYTHONUNBUFFERED", None)

# Nor color: tests read what a pipe gets, and say themselves where they want more.
for _name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
    os.environ.pop(_name, None)

# Tests that are run in the background of a script ignore Ctrl-C, and so would all that they start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases every time: a red run can be run again, and a green one means something for the next. How long they
# take to make says what else the machine does.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

RunRamlet = Callable[..., "subprocess.CompletedProcess[str]"]


AMPLE = "8GB"
"""The budget of calls in this process where it is not the budget that is tested: what the process holds counts, and
that is whatever the tests before have loaded. Budgets of other sizes are for processes of their own."""

FREE = 16 * 10**9
"""Bytes that `auto` finds free at least, in this process: what other processes hold now is not what a test is about."""


HELD = pytest.StashKey[mmap.mmap]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take over ten seconds")
    parser.addoption(
        "--shuffle",
        type=int,
        nargs="?",
        const=random.randrange(10**6),
        metavar="SEED",
        help="run the files, and the tests in each, in random order [default seed: a random one]",
    )
    parser.addoption("--held", metavar="SIZE", help="hold so much memory all the time")


def pytest_configure(config: pytest.Config) -> None:
    held = config.getoption("--held")
    if held is not None and not config.getoption("numprocesses", None):
        size = budget.Budget.parse(held).total
        memory = mmap.mmap(-1, size)
        memory[:: mmap.PAGESIZE] = b"x" * -(-size // mmap.PAGESIZE)  # a page that was written to is resident
        config.stash[HELD] = memory


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        # A file stays together, for what its tests share takes long to make. Sorted by a number of its own, a test has
        # the same place before and behind others whichever of them are run.
        def place(item: pytest.Item) -> tuple[float, float]:
            path = item.nodeid.partition("::")[0]
            return random.Random(f"{seed} {path}").random(), random.Random(f"{seed} {item.nodeid}").random()

        items.sort(key=place)
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        terminalreporter.write_line(f"this order again: --shuffle {seed}")


@pytest.fixture(scope="session", autouse=True)
def _machine_with_room() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "free_memory", lambda: max(FREE, free_memory()))
        yield


@pytest.fixture(autouse=True)
def _as_others_found_it() -> Iterator[None]:
    """Whatever comes next, in whatever order, finds the process as this test did.

    Loading torch and running with it change the environment and the number of threads.
    """
    _draw_from_the_start()
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    environment, folder, handler = dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT)
    yield
    os.environ.update(environment)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    if torch:
        torch.set_num_threads(threads)
    assert os.getcwd() == folder, "the test ends in another folder than it began in"
    assert signal.getsignal(signal.SIGINT) == handler, "the test leaves another handler of Ctrl-C"


def _draw_from_the_start() -> None:
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _little_to_look_through() -> None:
    """What the files before have loaded is no garbage: the collections that a training run asks for pass it over."""
    gc.collect()
    gc.freeze()


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """For a test of what is resident: it runs in a fresh process, where nothing else comes, goes or is given back."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    call = f"from {test.__module__} import {test.__name__}; {test.__name__}.__wrapped__()"

    @functools.wraps(test)
    def run() -> None:
        command = [sys.executable, "-c", f"{start}; {call}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def ramlet(tmp_path: Path) -> RunRamlet:
    """Runs `ramlet ARGUMENTS` in a process of its own, in the test's folder."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        given = {"cwd": tmp_path, "env": {**os.environ, "COLUMNS": "100"}, **options}
        command = [sys.executable, "-m", "ramlet", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, **given)  # type: ignore[call-overload,no-any-return]

    return run
