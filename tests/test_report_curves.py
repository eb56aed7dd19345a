"""Curves and metrics.jsonl: any length in bounded memory, nothing of note lost, read while it is written."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles_report import eval_line, sample_line, step_line, usual_lines
from ramlet.errors import ModelError
from ramlet.reporting.curves import Curve
from ramlet.reporting.metrics import SAMPLES, Metrics


def curve_of(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
@settings(max_examples=60)
def test_what_is_kept_are_points_of_the_curve(values: list[float]) -> None:
    curve = curve_of(values)
    points = curve.points()
    assert len(points) <= 602
    assert all(values[int(step)] == value for step, value in points)
    assert points == sorted(points)
    assert points[0] == (0, values[0])
    assert points[-1] == (len(values) - 1, values[-1])
    assert min(value for _, value in points) == min(values)
    assert max(value for _, value in points) == max(values)
    assert curve.mean() == pytest.approx(sum(values) / len(values), abs=1e-3)
    if len(values) <= 300:
        assert len(points) == len(values)


def test_a_spike_among_a_hundred_thousand_points_stays() -> None:
    values = [1.0] * 100_000
    values[61_803] = 9.0
    values[31_415] = -3.0
    points = curve_of(values).points()
    assert (61_803, 9.0) in points
    assert (31_415, -3.0) in points
    assert len(points) <= 602


def test_the_trend_is_near_the_truth_and_follows_the_ends() -> None:
    chance = random.Random(1)
    truth = [5 * 0.999**step for step in range(5000)]
    trend = curve_of([value + chance.gauss(0, 0.3) for value in truth]).smooth()
    assert len(trend) <= 300
    assert max(abs(value - truth[min(4999, round(step))]) for step, value in trend[2:]) < 0.25
    assert curve_of([]).smooth() == []
    assert curve_of([4.0]).smooth() == [(0.0, 4.0)]


def test_what_is_no_number_or_not_behind_the_last_is_left_out() -> None:
    curve = Curve()
    for step, value in ((1, 1.0), (2, float("nan")), (3, float("inf")), (1, 7.0), (4, 2.0)):
        curve.add(step, value)
    assert curve.points() == [(1, 1.0), (4, 2.0)]


def read(path: Path) -> Metrics:
    metrics = Metrics(path)
    metrics.read()
    return metrics


def told(metrics: Metrics) -> object:
    return (
        metrics.curves["loss"].points(),
        {name: curve.points() for name, curve in metrics.losses.items()},
        metrics.scores,
        metrics.samples,
        (metrics.step, metrics.tokens, metrics.seconds, metrics.lines, metrics.broken),
    )


@given(cuts=st.lists(st.integers(0, 4000), max_size=8))
@settings(max_examples=40)
def test_read_in_pieces_it_is_the_same(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    content = "".join(usual_lines(30)).encode()
    growing = Metrics(path)
    for cut in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:cut])  # mostly in the middle of a line
        growing.read()
    assert told(growing) == told(read(path))
    assert growing.step == 30


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = step_line(2, 3.0)
    path.write_text(step_line(1, 4.0) + line[:20])
    metrics = read(path)
    assert (metrics.step, metrics.broken) == (1, 0)
    path.write_text(step_line(1, 4.0) + line)
    metrics.read()
    assert metrics.step == 2


def test_a_run_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(step_line(step, 5.0) for step in range(1, 9)))
    metrics = read(path)
    kept = "".join(step_line(step, 5.0) for step in range(1, 5))
    path.write_text(kept)
    metrics.read()
    assert metrics.step == 4
    path.write_text("".join(step_line(step, 5.0) for step in range(1, 9)))
    metrics.read()
    # Longer than it was, but other lines: the steps after the checkpoint came anew.
    path.write_text(kept + "".join(step_line(step, 2.0) for step in range(5, 20)))
    metrics.read()
    assert told(metrics) == told(read(path))
    assert [value for _, value in metrics.curves["loss"].points()] == [5.0] * 4 + [2.0] * 15


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    odd = [
        b"\0\0\0\n",
        b"[1]\n",
        b'{"loss": 2}\n',
        b'{"step": true}\n',
        b'{"a":' * 100_000 + b"\n",
        b"x" * (3 << 20) + b"\n",
    ]
    path.write_bytes(step_line(1, 4.0).encode() + b"".join(odd) + step_line(2, 3.0).encode())
    metrics = read(path)
    assert (metrics.lines, metrics.broken) == (8, 6)
    assert metrics.curves["loss"].points() == [(1, 4.0), (2, 3.0)]
    path.write_bytes(b"".join(odd))
    with pytest.raises(ModelError, match="none of its lines can be read"):
        read(path)


def test_values_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "loss": NaN, "grad_norm": null, "tokens": 64, "seconds": 1}\n',
        eval_line(1, {"val": float("nan"), "law": 2.0}),
        '{"step": 2, "eval": {"val": 3}, "forgetting": [1]}\n',
        '{"step": 3, "loss": 1' + "0" * 400 + "}\n",
    ]
    path.write_text("".join(lines))
    metrics = read(path)
    assert metrics.curves["loss"].points() == []
    assert list(metrics.losses) == ["law"]
    assert metrics.broken == 0


def test_of_many_samples_the_first_and_the_last_are_kept_and_others_evenly(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for count in (1, 2, SAMPLES, SAMPLES + 1, 1000):
        path.write_text("".join(sample_line(step, f"text {step}") for step in range(count)))
        steps = [sample.step for sample in read(path).samples]
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (0, count - 1)
        assert min(count, SAMPLES // 2) <= len(steps) <= SAMPLES + 1
        gaps = {right - left for left, right in pairwise(steps[:-1])}
        assert len(gaps) <= 1


def test_ten_times_the_lines_take_no_more_memory(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        path = tmp_path / f"{lines}.jsonl"
        with open(path, "w") as file:
            for step in range(1, lines + 1):
                file.write(step_line(step, 3.0 + step % 7))
                file.write(sample_line(step, "some text " * 20))
        tracemalloc.start()
        read(path)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    assert peak(20_000) < 1.3 * peak(2_000) + 50_000
