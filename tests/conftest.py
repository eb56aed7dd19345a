"""What the tests share: slow ones on demand, and running the command as a user does."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

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

# The same cases every time: a red run can be run again, and a green one means something for the next.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")

RunRamlet = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take over ten seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))


@pytest.fixture(scope="module", autouse=True)
def _little_to_look_through() -> None:
    """What the files before have loaded is no garbage: the collections that a training run asks for pass it over."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def ramlet(tmp_path: Path) -> RunRamlet:
    """Runs `ramlet ARGUMENTS` in a process of its own, in the test's folder."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        given = {"cwd": tmp_path, "env": {**os.environ, "COLUMNS": "100"}, **options}
        command = [sys.executable, "-m", "ramlet", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **given)  # type: ignore[call-overload,no-any-return]

    return run
