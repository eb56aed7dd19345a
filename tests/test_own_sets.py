"""`ramlet eval RUN`, without data: on what the run was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from conftest import AMPLE, RunRamlet
from oracles_model import GROUPED, model_of
from oracles_training import make_data, run, sentences
from ramlet.engines.torch.model_files import save_model
from ramlet.errors import DatasetError, ModelError, SettingsError, TrainingStopped

GIVEN: dict[str, Any] = {"memory": AMPLE, "threads": 1, "device": "cpu", "precision": "fp32"}


def test_the_validation_split_of_the_run(tmp_path: Path, ramlet: RunRamlet) -> None:
    data = make_data(tmp_path)
    run(data, tmp_path / "run")
    told = json.loads(ramlet("eval", "run", "--json", "--threads", "1").stdout)["scores"]
    asked = json.loads(ramlet("eval", "run", "--data", "val=data", "--json", "--threads", "1").stdout)["scores"]
    assert list(told) == ["val"]
    assert told == asked
    assert "tokens" in ramlet("eval", "run", "--split", "train", "--tokens", "500").stdout


def test_a_mix_by_the_names_of_its_training(tmp_path: Path) -> None:
    one, two = make_data(tmp_path, "one"), make_data(tmp_path, "two", seed=3)
    result = run([(one, 1.0), (two, 2.0)], tmp_path / "run")
    scores = ramlet.evaluate(tmp_path / "run", tokens=640, **GIVEN)
    assert list(scores) == ["val_one", "val_two"] == list(result.scores)
    for name, score in scores.items():
        assert score.loss == pytest.approx(result.scores[name]["loss"], abs=1e-5)


def test_a_validation_split_that_is_too_short_is_not_replaced_by_training_data(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.arange(1200, dtype=np.uint16) % 50)
    np.save(tmp_path / "long.npy", np.arange(9000, dtype=np.uint16) % 50)
    short, long = tmp_path / "short.npy", tmp_path / "long.npy"
    given = {"max_steps": 1, "seq_len": 64, "val_fraction": 0.02}
    assert run(short, tmp_path / "one", **given).scores == {}
    with pytest.raises(DatasetError, match="24 tokens in val, but one sequence needs 65"):
        ramlet.evaluate(tmp_path / "one", **GIVEN)
    mixed = run([(short, 1.0), (long, 1.0)], tmp_path / "two", **given)
    assert list(mixed.scores) == ["val_long"] == list(ramlet.evaluate(tmp_path / "two", **GIVEN))


def test_fp8_is_only_for_training(tmp_path: Path) -> None:
    run(make_data(tmp_path), tmp_path / "run", max_steps=1)
    for engine in ("native", "torch"):
        with pytest.raises(SettingsError, match="fp8 is only for training: use precision="):
            ramlet.evaluate(tmp_path / "run", engine=engine, **{**GIVEN, "precision": "fp8"})


def test_a_model_whose_loss_is_not_a_number_has_no_score(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    run(data, tmp_path / "run", max_steps=1)
    damage(tmp_path / "run")
    with pytest.raises(ModelError, match=r"loss of .*/run on val is NaN or infinite: its weights are damaged"):
        ramlet.evaluate(tmp_path / "run", **GIVEN)
    with pytest.raises(TrainingStopped, match=r"before the first step: the weights of .*/run are damaged"):
        run(data, tmp_path / "next", init_from=str(tmp_path / "run"), params=None)
    assert "NaN" not in (tmp_path / "next" / "metrics.jsonl").read_text()


def damage(model: Path) -> None:
    """Makes all weights NaN."""
    with open(model / "model.safetensors", "r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        size = file.seek(0, 2) - start
        file.seek(start)
        file.write(np.full(size // 4, np.nan, np.float32).tobytes())


def test_text_that_the_run_prepared_moves_with_it(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "text.txt").write_text(sentences(300))
    small = ("--params", "40k", "--seq-len", "32", "--batch-size", "4", "--max-steps", "3", "--threads", "1")
    assert ramlet("train", "--input", "text.txt", "--out", "run", *small, "--quiet").returncode == 0
    before = ramlet("eval", "run", "--threads", "1").stdout.splitlines()[0]
    (tmp_path / "run").rename(tmp_path / "moved")
    assert ramlet("eval", "moved", "--threads", "1").stdout.splitlines()[0] == before


def test_data_that_is_not_the_same_any_more(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    run(data, tmp_path / "run")
    shutil.move(data, tmp_path / "elsewhere")
    with pytest.raises(
        DatasetError, match=r"was trained on .*/data, which is not there any more: give the dataset as data"
    ):
        ramlet.evaluate(tmp_path / "run", **GIVEN)
    make_data(tmp_path, lines=200, seed=9)
    with pytest.raises(DatasetError, match=r"is not the data that .*/run was trained on any more: give data="):
        ramlet.evaluate(tmp_path / "run", **GIVEN)
    assert ramlet.evaluate(tmp_path / "run", tmp_path / "data", **GIVEN)["data"].tokens > 0


def test_runs_without_data_of_their_own(tmp_path: Path) -> None:
    save_model(model_of(GROUPED), tmp_path / "model")
    with pytest.raises(SettingsError, match="model does not say which data it was trained on: give a dataset as data"):
        ramlet.evaluate(tmp_path / "model", **GIVEN)
    data = make_data(tmp_path, val_fraction=0)
    run(data, tmp_path / "run")
    with pytest.raises(DatasetError, match=r"has no validation split: give another dataset as data, or split=.train"):
        ramlet.evaluate(tmp_path / "run", **GIVEN)
    assert ramlet.evaluate(tmp_path / "run", split="train", **GIVEN)["data"].tokens > 0
    (tmp_path / "text.txt").write_text(sentences(300))
    run(None, tmp_path / "streamed", stream=[str(tmp_path / "text.txt")], tokenizer="byte", eval_every=0)
    with pytest.raises(SettingsError, match="streamed was trained on a stream, which has no validation split"):
        ramlet.evaluate(tmp_path / "streamed", **GIVEN)


def test_settings_that_cannot_be_read_name_no_option_of_another_command(tmp_path: Path, ramlet: RunRamlet) -> None:
    run(make_data(tmp_path, lines=100), tmp_path / "run", max_steps=1)
    for text, reason in (("{", "cannot be read"), ("a: 1", "is not that of a run")):
        (tmp_path / "run" / "settings.yaml").write_text(text)
        said = ramlet("eval", "run").stderr
        assert reason in said
        assert "give another run" in said
        assert "--out" not in said
