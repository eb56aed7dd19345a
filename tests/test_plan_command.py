"""`ramlet plan`, `ramlet.plan` and looking at a machine."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import RunRamlet
from oracles_dataset import write_dataset
from ramlet.cli.plan import rough_duration
from ramlet.engines.plan import Plan
from ramlet.errors import BudgetError, SettingsError
from ramlet.training import propose as proposing
from ramlet.training.course import course_for
from ramlet.training.machine import Found, find_datasets
from ramlet.training.propose import Row, plan


def make_dataset(ramlet: RunRamlet, folder: Path, name: str, lines: int) -> None:
    (folder / "text.txt").write_text("\n".join(f"line {number} of a text" for number in range(lines)))
    done = ramlet("prepare", "text.txt", "--out", name, "--tokenizer", "byte", "--no-dedup", "-q")
    assert done.returncode == 0, done.stderr


def test_the_table_has_every_part_and_the_choice(ramlet: RunRamlet) -> None:
    done = ramlet("plan", "--params", "1M", "--memory", "1GB", "--device", "cpu", "--seq-len", "128")
    assert done.returncode == 0, done.stderr
    for part in ("weights", "gradients", "optimizer", "activations", "logits", "data", "overhead", "predicted peak"):
        assert f"\n{part}" in done.stdout
    assert "32 sequences of 128 tokens" in done.stdout
    assert "of 1.00 GB" in done.stdout


def test_a_budget_too_small_names_the_smallest_and_that_works(ramlet: RunRamlet) -> None:
    options = ["plan", "--params", "1M", "--device", "cpu", "--json"]
    refused = ramlet(*options, "--memory", "20MB")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: needs at least ")
    smallest = refused.stderr.split("at least ")[1].split(":")[0]
    done = ramlet(*options, "--memory", smallest)
    assert done.returncode == 0, done.stderr
    made = Plan.from_dict(json.loads(done.stdout))
    assert made.peak <= made.budget


def test_without_arguments_it_says_what_to_do(ramlet: RunRamlet, tmp_path: Path) -> None:
    make_dataset(ramlet, tmp_path, "my data", 3000)
    done = ramlet("plan", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "dataset my data: " in done.stdout
    assert "estimated" in done.stdout
    command = shlex.split(done.stdout.strip().splitlines()[-1])
    assert command[:6] == ["ramlet", "train", "--data", "my data", "--out", "RUN"]
    assert command[command.index("--params") + 1] == "300k"


def test_without_a_dataset_it_says_how_to_make_one(ramlet: RunRamlet) -> None:
    done = ramlet("plan", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["datasets"] == []
    assert "--data DATASET" in told["command"]
    assert [row["fits"] for row in told["sizes"]] == sorted((row["fits"] for row in told["sizes"]), reverse=True)
    assert told["flops"] > 0


def test_from_python() -> None:
    made = plan(params="1M", memory="8GB", device="cpu", seq_len=64, batch_size=4, num_sequences=1000, vocab_size=300)
    assert (made.seq_len, made.batch_size, made.shape.vocab_size) == (64, 4, 300)
    assert made.whole_data == 1000 * 64 * 16
    assert made.parts["data"] < made.whole_data * 10
    with pytest.raises(BudgetError):
        plan(params="1M", memory="20MB", device="cpu")
    with pytest.raises(SettingsError):
        plan(params="1M", config="x.json", device="cpu")


def test_a_config_says_the_shape(tmp_path: Path) -> None:
    config = tmp_path / "model.json"
    config.write_text(json.dumps({"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 128}))
    made = plan(config=config, vocab_size=500, memory="8GB", device="cpu")
    assert (made.shape.layers, made.shape.width, made.seq_len) == (2, 64, 128)


def test_datasets_are_found_two_folders_deep(tmp_path: Path) -> None:
    write_dataset(tmp_path / "small", [[1] * 4])
    write_dataset(tmp_path / "deep/large", [[1] * 49])
    write_dataset(tmp_path / "much/too/deep", [[1] * 99])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/dataset_metadata.json").write_text("{}")
    assert find_datasets(tmp_path) == [Found("deep/large", 50, 257), Found("small", 5, 257)]


def rows(*found: tuple[int, bool, float]) -> list[Row]:
    """Of parameters, whether they fit, and seconds."""
    course = course_for(1, text=0, seq_len=1)
    return [Row(params, cast(Any, object() if fits else None), course, seconds) for params, fits, seconds in found]


@pytest.mark.parametrize(
    ("tokens", "found", "best"),
    [
        (10**9, rows((300_000, True, 1), (10**6, True, 10), (10**7, True, 100)), 10**7),
        (10**9, rows((300_000, True, 1), (10**6, True, 10), (10**7, True, 3601)), 10**6),
        (10**9, rows((300_000, True, 1), (10**6, True, 10), (10**7, False, 100)), 10**6),
        (10**6, rows((300_000, True, 1), (10**6, True, 10), (10**7, True, 100)), 10**6),
        # However little text and however slow the machine.
        (10, rows((300_000, True, 1), (10**6, True, 10)), 300_000),
        (10**9, rows((300_000, True, 10**6), (10**6, True, 10**7)), 300_000),
        # Speed not known.
        (10**9, rows((300_000, True, 0), (10**6, True, 0)), 10**6),
        (10**9, rows((300_000, False, 1)), None),
    ],
)
def test_a_size_follows_from_the_data_the_time_and_the_budget(tokens: int, found: list[Row], best: int | None) -> None:
    chosen = proposing._best(found, Found("x", tokens, 100))
    assert (chosen.params if chosen else None) == best


@pytest.mark.parametrize(
    ("params", "text", "seq_len", "sequences", "steps"),
    [
        (10_000_000, 0, 256, 32, 24_414),  # 20 tokens a parameter
        (10_000_000, 10**10, 256, 32, 24_414),
        (10_000_000, 10**7, 256, 32, 4_882),  # four times through
        (3_000_000, 1_000_000, 128, 8, 3_906),
        (1_000_000, 2_600_000, 256, 16, 2_539),
        (300_000, 60_000, 128, 8, 600),  # ten times, or it would be 234 steps
        (300_000, 6_000, 128, 8, 146),  # 25 times
        (300_000, 10, 128, 8, 1),
    ],
)
def test_a_model_learns_as_long_as_the_text_is_good_for(
    params: int, text: int, seq_len: int, sequences: int, steps: int
) -> None:
    course = course_for(params, text=text, seq_len=seq_len)
    assert (course.sequences, course.steps) == (sequences, steps)
    assert course.tokens == sequences * steps * seq_len


def test_times_are_said_as_people_say_them() -> None:
    assert [rough_duration(seconds) for seconds in (40, 600, 9000, 400_000, 1e9)] == [
        *("40 s", "10 min", "2.5 h", "4.6 days", "32 years")
    ]


def test_where_nothing_fits_the_least_is_named(ramlet: RunRamlet, tmp_path: Path) -> None:
    done = ramlet("plan", "--memory", "20MB", "--device", "cpu")
    assert done.returncode == 1
    assert "too large" in done.stdout
    assert re.search(r"error: needs at least \d+MB", done.stderr)
    with pytest.raises(BudgetError, match="needs at least"):
        plan(memory="20MB", device="cpu")


def test_a_count_is_named_as_it_is_given(ramlet: RunRamlet) -> None:
    said = ramlet("plan", "--params", "1M", "--num-sequences", "0").stderr
    assert said == "error: --num-sequences must be at least 1, not 0\n"
