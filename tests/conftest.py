"""Shared by all tests: slow tests on demand, random order, a process that is the same for each test, and running the
command as a user does.

    pytest --shuffle            files, and the tests in each file, in random order; prints the seed at the end
    pytest --shuffle 7          in the order of that seed. A subset of the tests keeps its relative order
    pytest --held 3GB           with this much memory in use by the process, as if other tests had loaded it
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

# Set before torch is loaded, for this process and those that tests start: idle threads would otherwise spin, and two
# test processes on two cores would slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# On a CPU with AMX `--engine auto` would be torch: what tests expect must not depend on the CPU.
os.environ.setdefault("RAMLET_VECTORS", "avx512bf16")

# XLA spends most of its time on optimizing programs that run for milliseconds. What a test measures in a process of its
# own leaves it out, because the compiler's memory counts too.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# Not set in a user's shell either: it would hide output that is never flushed.
os.environ.pop("PYTHONUNBUFFERED", None)

# No color by default: tests read the output of a pipe. Tests of color set it themselves.
for _name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
    os.environ.pop(_name, None)

# A background job of a shell script ignores Ctrl-C, and so would the processes that tests start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases every time, so that a failure can be reproduced. No limit on the time to generate them, because it
# depends on what else the machine is doing.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

RunRamlet = Callable[..., "subprocess.CompletedProcess[str]"]


AMPLE = "8GB"
"""The budget of calls in this process, in tests that are not about the budget: memory that earlier tests have loaded
counts too. To test a smaller budget, start a separate process."""

FREE = 16 * 10**9
"""The least that `auto` sees as free memory in this process, so that tests do not depend on other processes."""


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
    parser.addoption("--held", metavar="SIZE", help="keep this much memory in use during all tests")


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
        # Tests of a file stay together because their shared fixtures are slow to create. Each test has its own sort
        # key, so a subset of the tests keeps its relative order.
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
        terminalreporter.write_line(f"repeat this order with --shuffle {seed}")


@pytest.fixture(scope="session", autouse=True)
def _enough_free_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "free_memory", lambda: max(FREE, free_memory()))
        yield


@pytest.fixture(autouse=True)
def _process_restored() -> Iterator[None]:
    """Each test leaves the process as it found it, so that the order of tests does not matter.

    Loading and using torch changes the environment and the number of threads.
    """
    _seed_everything()
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    environment, folder, handler = dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT)
    yield
    os.environ.update(environment)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    if torch:
        torch.set_num_threads(threads)
    assert os.getcwd() == folder, "the test changed the current folder"
    assert signal.getsignal(signal.SIGINT) == handler, "the test changed the handler of Ctrl-C"


def _seed_everything() -> None:
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _garbage_collection_stays_fast() -> None:
    """Exempts everything that earlier files have loaded from the garbage collections that a training run triggers."""
    gc.collect()
    gc.freeze()


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test in a fresh process, for what the test process would disturb: resident memory, because nothing else
    allocates or frees memory there, and many forks, each of which would copy the page tables of all that earlier tests
    have loaded (80 ms with 1.5 GB). The fixtures it may ask for are folders."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path"

    @functools.wraps(test)
    def run(**folders: Path) -> None:
        given = ", ".join(f"{name}=Path({str(folder)!r})" for name, folder in folders.items())
        call = f"from {test.__module__} import {test.__name__}; {test.__name__}.__wrapped__({given})"
        command = [sys.executable, "-c", f"{start}; {call}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def ramlet(tmp_path: Path) -> RunRamlet:
    """Runs `ramlet ARGUMENTS` in a separate process, in the test's folder."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        given = {"cwd": tmp_path, "env": {**os.environ, "COLUMNS": "100"}, "timeout": 240, **options}
        command = [sys.executable, "-m", "ramlet", *arguments]
        return subprocess.run(command, capture_output=True, text=True, **given)  # type: ignore[call-overload,no-any-return]

    return run
