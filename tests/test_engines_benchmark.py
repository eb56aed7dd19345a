"""The short forms of benchmarks/engines.py, and how it counts."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import AMPLE, RunRamlet
from oracles_training import make_data
from ramlet.engines.native.engine import NativeEngine
from ramlet.engines.plan import Task
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training.settings import RunSettings

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import engines
import engines_random
import engines_speed
from engines_same import VECTORS, report_bits, report_parity, result_of
from recipe_runs import Records

WHOLE = (
    *("train", "--data", "data", "--engine", "native", "--device", "cpu", "--params", "30k", "--seq-len", "16"),
    *("--batch-size", "6", "--max-steps", "4", "--eval-every", "2", "--eval-tokens", "128", "--checkpoint-every", "2"),
    *("--dropout", "0.1", "--average", "0.5", "--kv-groups", "2", "--document-mask", "--sample-every", "0", "--quiet"),
    *("--memory", AMPLE),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path)


@pytest.mark.parametrize(("optimizer", "precision"), [("muon8bit", "bf16"), ("muon", "fp32")])
def test_a_whole_run_has_the_same_bits_with_all_vectors_and_threads(
    ramlet: RunRamlet, tmp_path: Path, data: Path, optimizer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.rename(tmp_path / "data")
    results = []
    for vectors, threads in (("portable", "1"), ("avx2", "4"), (VECTORS[0], "2")):
        monkeypatch.setenv("RAMLET_VECTORS", vectors)
        out = f"{vectors}-{threads}"
        words = [*WHOLE, "--optimizer", optimizer, "--precision", precision, "--threads", threads, "--out", out]
        done = ramlet(*words)
        assert done.returncode == 0, done.stderr
        results.append(result_of(tmp_path / out))
    assert len(results[0]) > 4
    assert results[1:] == results[:-1]


def test_vectors_can_be_limited() -> None:
    code = "from ramlet import _native; print(_native.vectors())"
    found = [
        subprocess.run([sys.executable, "-c", code], env={"RAMLET_VECTORS": vectors}, capture_output=True, text=True)
        for vectors in VECTORS
    ]
    used = [VECTORS.index(done.stdout.strip()) for done in found]
    assert used[-1] == VECTORS.index("portable")
    assert all(at >= wanted for wanted, at in enumerate(used))  # a CPU may not have the widest


def test_unknown_vectors_are_an_error(
    ramlet: RunRamlet, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.rename(tmp_path / "data")
    monkeypatch.setenv("RAMLET_VECTORS", "neon")
    done = ramlet(*WHOLE, "--out", "run")
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "error: unknown RAMLET_VECTORS 'neon': use one of portable, avx2, avx512, avx512bf16",
    )
    assert not (tmp_path / "run").exists()


class TestAPlanKnowsWhatItsOwnStepsLoad:
    TASK = Task(Shape(256, 128, 2, 64, 2), 128, 16, Budget.parse("1GB"), "bf16", sampled=0)

    def fitted(self, resident: int, task: Task, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The plan if this much is resident after a step like its own."""
        found = iter([task.resident, resident])
        monkeypatch.setattr(NativeEngine, "_rehearsed", lambda *_: next(found))
        return NativeEngine(1).fit(task, RunSettings(), Meter())

    def test_they_are_part_of_the_peak(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = replace(self.TASK, resident=30_000_000)
        sketch = NativeEngine(1).sketch(task)
        plan = self.fitted(30_700_000, task, monkeypatch)
        assert (plan.peak, plan.choice) == (sketch.peak + 700_000, sketch.choice)

    def test_a_smaller_plan_if_it_does_not_fit_with_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = replace(self.TASK, resident=30_000_000)
        sketch = NativeEngine(1).sketch(task)
        tight = Budget(sketch.peak + 2_500_000)
        plan = self.fitted(31_000_000, replace(task, budget=tight), monkeypatch)
        assert plan.peak <= tight.total - tight.reserve
        assert plan.choice.micro_batch < sketch.choice.micro_batch

    @pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamw8bit", "muon8bit"])
    @pytest.mark.parametrize("more", [{"dropout": 0.1}, {"recompute": True}])
    def test_every_choice_can_be_rehearsed(self, optimizer: str, more: dict[str, Any]) -> None:
        for mask in (False, True):
            forced = {"optimizer": optimizer, **more}
            ample = Budget(1 << 40)  # whatever this process has in memory
            task = replace(self.TASK, forced=forced, document_mask=mask, budget=ample)
            assert NativeEngine(1).fit(task, RunSettings(), Meter()).choice.optimizer == optimizer


class TestRandom:
    RUN: ClassVar[dict[str, Any]] = {
        **engines_random.drawn(random.Random(1)),
        "number": 1,
        "budget": 50_000_000,
        "peak": 48_000_000,
        "predicted": 48_400_000,
        "named": 50_000_000,
    }

    def met(self, *runs: dict[str, Any]) -> list[bool]:
        return [each["met"] for each in engines_random.report_random(list(runs))[1]]

    def test_a_run_as_planned(self) -> None:
        assert self.met(self.RUN) == [True] * 4

    def test_over_the_budget(self) -> None:
        assert self.met(self.RUN, {**self.RUN, "peak": 50_000_001, "predicted": 50_000_000})[0] is False

    def test_refused_with_what_was_named(self) -> None:
        refused = {key: value for key, value in self.RUN.items() if key not in ("peak", "predicted")}
        assert self.met(self.RUN, {**refused, "refused": True}) == [True, False, True, True]

    @pytest.mark.parametrize("predicted", [47_500_000, 48_500_000])
    def test_a_plan_that_is_off(self, predicted: int) -> None:
        assert self.met({**self.RUN, "predicted": predicted}) == [True, True, False, True]

    def test_all_options_are_drawn(self) -> None:
        rng = random.Random(2)
        drawn = [engines_random.drawn(rng) for _ in range(200)]
        for name in ("tied", "kv_groups", "qk_norm", "document_mask", "threads", "sample_every", "share", "vocab"):
            assert len({each[name] for each in drawn}) > 1, name
        sizes = [each["params"] for each in drawn]
        assert min(sizes) < 200_000
        assert max(sizes) > 10_000_000


def test_parity_is_the_largest_difference() -> None:
    line = {"contender": "adamw", "steps": 5, "first_apart": 0.0, "mean_apart": 1e-4, "at_step": 3}
    for apart, met in ((9e-4, True), (1.1e-3, False)):
        _, (one, val) = report_parity([{**line, "apart": apart, "val": {"native": 1.0, "torch": 1.002}}])
        assert (one["met"], val["met"]) == (met, True)


def test_bits_of_every_run_are_those_of_the_first() -> None:
    line = {"contender": "muon, fp32", "vectors": "avx2", "threads": 1, "memory": "50MB", "killed": 5}
    same, other = {"result": {"model.safetensors": "a"}}, {"result": {"model.safetensors": "b"}}
    for second, met in ((same, True), (other, False), ({"error": "it failed"}, False)):
        _, (one,) = report_bits([{**line, **same}, {**line, **second}])
        assert one["met"] is met


def test_only_runs_of_as_many_steps_are_compared() -> None:
    line = {"setup": "1M", "steps": 40, "peak": 1, "number": 0}
    runs = [{**line, "contender": "native", "tokens_per_second": 30.0}]
    runs += [{**line, "contender": "torch", "tokens_per_second": 20.0, "steps": 10}]
    assert engines_speed.report_speed(runs)[1] == []
    _, (one,) = engines_speed.report_speed([*runs, {**runs[1], "steps": 40}])
    assert (one["value"].split()[0], one["met"]) == ("1.50x", True)


def test_a_run_with_a_record_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def once(self: Any, setup: Any, device: str) -> None:
        made.append(self.name)
        self.rates.append(1.0)
        self.peaks.append(1)

    monkeypatch.setattr(engines_speed.Contender, "once", once)
    monkeypatch.setattr(engines_speed, "ids_of", lambda setup: tmp_path)
    monkeypatch.setattr(engines_speed.Ramlet, "code", "a")
    file = tmp_path / "runs.jsonl"
    for contenders in (["native"], ["native", "torch"]):
        given = argparse.Namespace(sizes=["1M"], steps=7, repeats=2, contenders=contenders)
        engines_speed.speed(given, Records([file]))
    assert made == ["native", "native", "torch", "torch"]
    assert len(file.read_text().splitlines()) == 4


def test_a_missing_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no train_gpt2.c: clone karpathy/llm.c"):
        engines_speed.checkout(tmp_path, "train_gpt2.c", "karpathy/llm.c")


def test_every_bar_has_a_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for bar in engines.REPORTS:
        monkeypatch.setattr(sys, "argv", ["engines.py", bar, "--help"])
        with pytest.raises(SystemExit, match="0"):
            engines.main()
    assert "--vectors" in capsys.readouterr().out
