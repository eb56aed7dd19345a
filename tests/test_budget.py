"""The budget: reading, dividing, refusing; and the meter."""

from __future__ import annotations

import doctest
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import alone
from ramlet.errors import BudgetError
from ramlet.runtime import budget as budget_module
from ramlet.runtime import meter as meter_module
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter

MB = 1_000_000
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("512MB", 512 * MB),
        ("512mb", 512 * MB),
        ("512 MB", 512 * MB),
        (" 2GB ", 2_000_000_000),
        ("2g", 2_000_000_000),
        ("1.5g", 1_500_000_000),
        ("1.5GB", 1_500_000_000),
        (".5GB", 500_000_000),
        ("2GiB", 2 * 1024**3),
        ("2gi", 2 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("4000KB", 4 * MB),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("2000000", 2 * MB),
        ("2000000b", 2 * MB),
    ],
)
def test_parse(text: str, total: int) -> None:
    assert Budget.parse(text).total == total


@pytest.mark.parametrize("text", ["", "lots", "2XB", "GB", "-2GB", "2,5GB", "2GB extra", "0x10MB", "1..5GB", "½GB"])
def test_unreadable_is_one_sentence_with_the_way_out(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text)
    assert str(caught.value) == f"cannot read {text!r} as memory: write it like 512MB, 2GB, 2GiB, 50% or auto"


@pytest.mark.parametrize("value", ["512", "999999", "0GB", "0", 512, 0, -5])
def test_a_forgotten_unit_is_noticed(value: str | int) -> None:
    with pytest.raises(BudgetError, match="less than a megabyte of memory: give a unit, as in 512MB or 2GB"):
        Budget.parse(value)


@pytest.mark.parametrize("text", ["0%", "101%", "0.0%"])
def test_a_part_outside_the_whole_is_refused(text: str) -> None:
    with pytest.raises(BudgetError, match="between 1% and 100%"):
        Budget.parse(text)


def test_parts_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "free_memory", lambda: 10_000 * MB)
    assert Budget.parse("50%").total == 5_000 * MB
    assert Budget.parse("12.5 %").total == 1_250 * MB
    assert Budget.parse("auto").total == Budget.parse("AUTO ").total == Budget.parse(None).total == 6_000 * MB


def test_a_budget_or_a_number_of_bytes_passes_through() -> None:
    given = Budget(3 * MB, reserve=17)
    assert Budget.parse(given) is given
    assert Budget.parse(3 * MB).total == 3 * MB


@given(st.integers(MB, 10**15))
def test_what_is_printed_can_be_read_back(total: int) -> None:
    again = Budget.parse(format_bytes(total)).total
    assert abs(again - total) <= total * 0.006


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_430_000_000, "1.43 GB"),
        (2_000_000_000, "2.00 GB"),
        (31_000_000, "31.0 MB"),
        (812_300_000, "812 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.00 GB"),
        (9_994_000, "9.99 MB"),
        (9_996_000, "10.0 MB"),
        (99_960_000, "100 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(budget_module).attempted > 0
    assert doctest.testmod(budget_module).failed == 0


@given(
    st.integers(0, 10**13),
    st.dictionaries(st.sampled_from(["table", "blocks", "cache", "spill"]), st.floats(0.001, 1000), min_size=1),
)
def test_parts_never_add_up_to_more(total: int, weights: dict[str, float]) -> None:
    parts = Budget(total).divide(**weights)
    assert parts.keys() == weights.keys()
    whole = sum(part.total for part in parts.values())
    assert total * (1 - 1e-9) - len(parts) <= whole <= total * (1 + 1e-9)


def test_divide_in_proportion() -> None:
    parts = Budget(800 * MB).divide(table=6, blocks=1, spill=1)
    assert {name: part.total for name, part in parts.items()} == {
        "table": 600 * MB,
        "blocks": 100 * MB,
        "spill": 100 * MB,
    }


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 1, "b": -1}])
def test_divide_refuses_nonsense(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights must be positive"):
        Budget(MB).divide(**weights)


def test_share() -> None:
    assert Budget(100 * MB).share(0.25).total == 25 * MB
    with pytest.raises(ValueError, match="between 0 and 1"):
        Budget(100 * MB).share(1.5)


def test_available_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "resident_memory", lambda: 40 * MB)
    assert Budget(320 * MB).available() == (320 - 40 - 10) * MB
    assert Budget(320 * MB, reserve=0).available() == 280 * MB
    assert Budget(30 * MB).available() == 0


def test_require_names_the_smallest_that_works_and_what_takes_it() -> None:
    Budget(310 * MB).require(310 * MB, "never said")
    with pytest.raises(BudgetError) as caught:
        Budget(128 * MB).require(309_000_001, "tables for 8 threads")
    assert str(caught.value) == "needs at least 310MB: tables for 8 threads (the budget is 128 MB)"
    assert Budget.parse(str(caught.value).split()[3].rstrip(":")).total >= 309_000_001


def test_require_adds_the_parts_up_in_words() -> None:
    with pytest.raises(BudgetError) as caught:
        Budget(2 * MB).require(20 * MB, {"read blocks": 4 * MB, "the interpreter": 16 * MB})
    assert str(caught.value) == (
        "needs at least 20MB: 16.0 MB for the interpreter, 4.0 MB for read blocks (the budget is 2.00 MB)"
    )


def fill(size: int) -> bytearray:
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    return block


@alone
def test_meter_by_stage() -> None:
    with Meter(Budget(2_000 * MB), interval=0.01) as meter:
        meter.stage("small")
        base = meter.sample()
        meter.stage("large")
        block = fill(80 * MB)
        time.sleep(0.05)
        assert meter.sample() > base + 70 * MB
        del block
        meter.stage("small")
    assert meter.peak >= base + 75 * MB
    assert meter.stages["large"].peak >= base + 75 * MB
    assert meter.stages["small"].peak < base + 40 * MB
    assert meter.stages["large"].seconds >= 0.05
    assert list(meter.stages) == ["small", "large"]
    assert {point.stage for point in meter.timeline} >= {"small", "large"}


def test_meter_samples_by_itself() -> None:
    began = time.monotonic()
    with Meter(interval=0.01) as meter:
        while len(meter.timeline) < 20:
            assert time.monotonic() < began + 120
            time.sleep(0.01)
    # And no more often than it should: one sample at the start, one at the end.
    assert len(meter.timeline) <= 2 + (time.monotonic() - began) / 0.01
    assert meter._thread is not None
    assert not meter._thread.is_alive()


def test_meter_catches_a_spike_between_two_samples() -> None:
    """In a fresh process, as the high-water mark of this one may be far above."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from ramlet.runtime.meter import Meter
with Meter(interval=3600) as meter:
    base = meter.sample()
    meter.stage("spike")
    block = bytearray(200_000_000)
    block[::4096] = b"x" * len(block[::4096])
    del block
print(base, meter.current, meter.peak, meter.stages["spike"].peak)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    base, current, peak, stage_peak = map(int, done.stdout.split())
    assert current < base + 50 * MB
    assert base + 190 * MB < peak < base + 230 * MB
    assert stage_peak == peak


@alone
def test_an_old_high_water_mark_is_not_ours() -> None:
    block = fill(150 * MB)
    del block
    with Meter(interval=3600) as meter:
        now = meter.sample()
    assert meter.peak < now + 50 * MB


@linux
def test_a_peak_inherited_through_exec_is_not_ours() -> None:
    """ru_maxrss survives exec: the child of a large process would seem to have been large."""
    script = """
import os, sys
block = bytearray(200_000_000)
block[::4096] = b"x" * len(block[::4096])
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c",
        "from ramlet import Meter\\nwith Meter() as meter: x = bytearray(3_000_000)\\nprint(meter.peak)"])
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 * MB


@alone
def test_meter_sees_children_come_and_go() -> None:
    with Meter(interval=0.01) as meter:
        base = meter.sample()
        hold = "import sys; block = b'x' * 90_000_000; print('held', flush=True); sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        meter.sample()
        child.communicate(timeout=120)
        after = meter.sample()
    assert meter.peak > base + 90 * MB
    assert after < base + 50 * MB


def test_timeline_stays_bounded_and_keeps_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(range(1, 100_000))
    clock = iter(range(1_000_000))
    monkeypatch.setattr(meter_module, "resident_memory", lambda: 99_999 if (n := next(readings)) == 7001 else n % 500)
    monkeypatch.setattr(meter_module.PeakCounter, "grown", lambda self: 0)
    monkeypatch.setattr(meter_module.time, "monotonic", lambda: float(next(clock)))
    meter = Meter()
    meter.stage("count")
    lengths = set()
    for _ in range(10_000):
        meter.sample()
        lengths.add(len(meter.timeline))
    assert max(lengths) <= Meter.POINTS
    points = meter.timeline
    assert len(points) >= Meter.POINTS // 2
    assert [point.seconds for point in points] == sorted(point.seconds for point in points)
    assert points[-1].seconds - points[0].seconds > 9_900
    assert sum(point.rss == 99_999 for point in points) == 1
    assert meter.peak == meter.stages["count"].peak == 99_999


def test_closing_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "resident_memory", lambda: 1_430_000_000)
    monkeypatch.setattr(meter_module.PeakCounter, "grown", lambda self: 0)
    with Meter(Budget.parse("2GB")) as meter:
        pass
    assert meter.closing_line() == "peak 1.43 GB of 2.00 GB"
    with Meter() as meter:
        pass
    assert meter.closing_line() == "peak 1.43 GB"


def test_summary_is_plain_data() -> None:
    import json

    with Meter(Budget(500 * MB)) as meter:
        meter.stage("count")
    summary = json.loads(json.dumps(meter.summary()))
    assert summary["budget"] == 500 * MB
    assert summary["peak"] == meter.peak > MB
    assert summary["stages"]["count"]["peak"] > MB
    seconds, rss, stage = summary["timeline"][-1]
    assert seconds >= 0
    assert rss > MB
    assert stage == "count"


def test_a_meter_is_for_one_run() -> None:
    meter = Meter()
    with meter:
        pass
    with pytest.raises(RuntimeError, match="create another"):
        meter.__enter__()
