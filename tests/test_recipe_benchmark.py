"""How benchmarks/recipe.py counts: which runs reach a loss, which are done, and what is measured of nanoGPT."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import budgets
import recipe
from nanogpt_worker import evaluating
from ramlet.engines import OPTIMIZERS
from recipe_little import report_little, whole_lines
from recipe_race import CPU, GPU, reached, report
from recipe_runs import Ramlet, Records, rate_before
from recipe_step import report_eightbit


def run(contender: str, seed: int, steps: int, seconds: float, loss: float, **more: Any) -> dict[str, Any]:
    common = {
        "bar": "gpu",
        "code": "a",
        "data": "mix",
        "size": "",
        "eval_tokens": 9,
        "device": "cuda",
        "parameters": 124_000_000,
    }
    scores = {"loss": loss, "bits_per_byte": loss / 2}
    return {**common, "contender": contender, "seed": seed, "steps": steps, "seconds": seconds, **scores, **more}


NANOGPT = [run("nanogpt", seed, 1000, 120.0, 1.8, evaluating_seconds=20.0) for seed in (1, 2)]


def test_the_fastest_run_at_or_below_the_loss_counts() -> None:
    ours = [run("now", 1, 300, 30.0, 1.9), run("now", 1, 350, 35.0, 1.8), run("now", 1, 400, 40.0, 1.7)]
    target, found = reached([*NANOGPT, *ours], "nanogpt")[1]
    assert (target["loss"], found and found["steps"]) == (1.8, 350)


def test_a_loss_is_reached_only_if_every_seed_does() -> None:
    ours = [run("now", 1, 350, 35.0, 1.7), run("now", 2, 350, 35.0, 1.85)]
    _, (share, bare) = report(GPU, [*NANOGPT, *ours])
    assert not share["met"]
    assert "not reached by every seed" in share["value"]
    _, (share, bare) = report(GPU, [*NANOGPT, *ours, run("now", 2, 400, 38.0, 1.75)])
    assert share["met"]
    assert share["value"].startswith("0.30 ")
    # A hundred seconds without its evaluations.
    assert (bare["value"], bare["met"]) == ("0.36", False)


def test_only_runs_on_the_same_text_are_compared() -> None:
    other = [run("now", seed, 350, 35.0, 1.7, data="other") for seed in (1, 2)]
    table, (share,) = report(GPU, [*NANOGPT, *other])
    assert (share["value"], share["met"]) == ("never reached; not reached by every seed", False)
    assert table.count("| run |") == 2


def test_without_a_rival_there_is_nothing_to_check() -> None:
    table, checks = report(CPU, [run("now", 1, 350, 35.0, 1.7)])
    assert "now, seed 1" in table
    assert checks == []


def test_a_run_is_made_once_for_the_same_code(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    made = []

    def once(code: str, seconds: float, *, any_code: bool = False) -> float:
        def make() -> dict[str, Any]:
            made.append(seconds)
            return {"seconds": seconds}

        key = {"bar": "demo", "contender": "now", "code": code}
        return float(Records([file], any_code).once(make, device="cpu", **key)["seconds"])

    assert [once("a", 1.0), once("a", 2.0), once("b", 3.0), once("c", 4.0, any_code=True)] == [1.0, 1.0, 3.0, 3.0]
    assert made == [1.0, 3.0]
    assert [line["seconds"] for line in Records([file]).latest("demo")] == [3.0]
    assert [line["seconds"] for line in Records([file], any_code=True).latest("demo")] == [1.0, 3.0]


def test_a_checkout_is_run_from_its_own_package(tmp_path: Path) -> None:
    code = Ramlet.before(str(tmp_path))
    assert (code.python, code.environment) == (sys.executable, {"PYTHONPATH": str(tmp_path / "python")})
    assert Ramlet.before("python9").environment == {}
    with pytest.raises(SystemExit, match="--before is needed"):
        Ramlet.before(None)


def test_the_defaults_of_before() -> None:
    assert [round(rate_before(size), 5) for size in (1_000_000, 10_000_000, 124_000_000)] == [0.0025, 0.00182, 0.0006]
    assert Ramlet.before(None, 10_000_000).options[:2] == ("--optimizer", "adamw")


def test_the_evaluations_of_nanogpt_are_timed_by_its_lines() -> None:
    lines = ["compiling the model...", "step 0: train loss 9.1, val loss 9.2", "iter 0: loss 9.1, time 1ms"]
    lines += ["iter 10: loss 9.0, time 1ms", "step 10: train loss 8.1, val loss 8.2", "iter 20: loss 7.9, time 1ms"]
    moments = [0.0, 50.0, 51.0, 52.0, 55.0, 56.0]
    assert evaluating(list(zip(moments, lines))) == 6.0  # the first takes as long as the last, without compiling
    assert evaluating(list(zip(moments[:3], lines))) == 0.0


def test_the_kept_model_is_compared_with_the_best_of_its_run() -> None:
    line = {"bytes": 10**6, "contender": "now", "seed": 1, "parameters": 10**6, "steps": 5, "seconds": 9.0}
    line |= {"bits_per_byte": 2.0, "validation_bits_per_byte": 2.0, "last_loss": 3.3, "best_loss": 3.0}
    _, checks = report_little([{**line, "kept_loss": 3.0}, {**line, "kept_loss": 3.3, "seed": 2}])
    assert [each["met"] for each in checks] == [True, False]
    before = {**line, "kept_loss": 3.0, "contender": "before", "bits_per_byte": 2.1}
    _, checks = report_little([{**line, "kept_loss": 3.0}, before])
    assert [each["claim"] for each in checks if not each["met"]] == ["1 MB: validation bits per byte, lower by"]


def test_eight_bit_states_are_compared_over_all_seeds() -> None:
    losses = {"muon": (1.70, 1.72), "muon8bit": (1.71, 1.715)}
    runs = [run(name, seed, 400, 40.0, loss) for name, both in losses.items() for seed, loss in enumerate(both)]
    _, (same,) = report_eightbit(runs)
    assert (same["value"], same["met"]) == ("+0.15%", True)


def test_a_part_of_a_text_has_whole_lines(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"first\nsecond\nthird\n")
    assert whole_lines(text, 0, 8) == b"first\nsecond\n"
    assert whole_lines(text, 2, 3) == b"second\n"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_random_runs_are_of_every_kind(device: str) -> None:
    draw = random.Random(1)
    drawn = [budgets.drawn(draw, device) for _ in range(60)]
    assert {each["optimizer"] for each in drawn} == {"auto", *OPTIMIZERS}
    assert {(each["tied"], each["qk_norm"]) for each in drawn} == {(a, b) for a in (True, False) for b in (True, False)}


def test_report_of_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    halves = NANOGPT, [run("now", seed, 350, 35.0, 1.7) for seed in (1, 2)]
    for file, lines in zip(files, halves):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sys, "argv", ["recipe.py", "--no-results", "report", *map(str, files)])
    assert recipe.main() == 1  # more than a third of nanoGPT's time without its evaluations
    shown = capsys.readouterr().out
    assert "| now, seed 2 | 124.0M | 350 | 35.0 |  | 1.7000 | 0.8500 |" in shown
    assert "- met: gpu: seconds to the loss of nanogpt / its seconds, median of 2 seeds: 0.29" in shown
