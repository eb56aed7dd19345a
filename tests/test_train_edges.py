"""Edges of a run: a signal while an average is written, evaluations that break, settings that cannot be read back."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import ramlet
from conftest import AMPLE
from oracles_training import make_data, metrics, run, steps_kept
from ramlet.engines.native.trainee import NativeTrainee
from ramlet.errors import Interrupted, SettingsError, TrainingStopped
from ramlet.generation.sampler import Sampler
from ramlet.model.tensor_file import blend_tensors
from ramlet.training import average, loop
from ramlet.training.average import Averaging
from ramlet.training.eval_sets import own_sets
from ramlet.training.evaluate import Score
from ramlet.training.progress import Progress


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("edges"))


def test_ctrl_c_while_an_average_is_written_is_saved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a step without a checkpoint of its own."""
    real = Averaging.add

    def interrupted(self: Averaging, place: Path, step: int, weights: Any) -> None:
        real(self, place, step, weights)
        if step == 8:
            signal.raise_signal(signal.SIGINT)

    given = {"average": 0.5, "schedule": "constant", "checkpoint_every": 12, "eval_every": 12}
    with monkeypatch.context() as patched:
        patched.setattr(Averaging, "add", interrupted)
        with pytest.raises(Interrupted, match="at step 8 of 12, and saved"):
            run(data, tmp_path / "run", **given)
    assert steps_kept(tmp_path / "run") == [8]
    run(data, tmp_path / "run", **given)
    run(data, tmp_path / "calm", **given)
    name = "checkpoints/average_000012.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


def test_averages_of_a_shorter_run_are_never_continued_with(tmp_path: Path) -> None:
    """They lie between the moments of the longer one, and the newest before a checkpoint is kept."""
    (tmp_path / "checkpoints").mkdir()
    short, long = Averaging(100, 0.7), Averaging(140, 0.7)
    for averaging, step in ((short, 58), (short, 65), (long, 62)):
        blend_tensors(
            tmp_path / "checkpoints" / f"average_{step:06}.safetensors",
            {},
            None,
            1.0,
            {"format": "pt", "averaged": "1", "steps": str(averaging.steps)},
        )
    average.prune(tmp_path, 70, [60, 70], long)
    assert os.listdir(tmp_path / "checkpoints") == ["average_000062.safetensors"]


def test_an_evaluation_set_without_ends_with_a_document_mask(data: Path, tmp_path: Path) -> None:
    """Training on documents with a mask; the other set is one long text, as `ramlet eval` takes it too."""
    np.save(tmp_path / "ids.npy", np.arange(2000, dtype=np.uint16) % 200)
    made = run(data, tmp_path / "run", document_mask=True, evals={"other": str(tmp_path / "ids.npy")}, max_steps=4)
    asked = ramlet.evaluate(
        tmp_path / "run",
        {"other": str(tmp_path / "ids.npy")},
        tokens=640,
        memory=AMPLE,
        threads=1,
        device="cpu",
        precision="fp32",
    )
    assert made.scores["other"]["loss"] == pytest.approx(asked["other"].loss, abs=1e-5)


def test_settings_that_could_not_be_read_back_are_refused(data: Path, tmp_path: Path) -> None:
    """Before anything changes: the run of before stays."""
    out = tmp_path / "run"
    run(data, out, max_steps=2)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(SettingsError, match=r"take 7\d,\d\d\d bytes, and 64,000 is the most"):
        run(data, out, max_steps=2, sample_prompt="word " * 14_000, sample_every=1, resume=False)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert run(data, out, max_steps=2).steps == 2


def test_a_given_floor_of_the_rate_outlives_an_extension(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(data, out, min_lr=1.5e-3, max_steps=6)
    run(data, out, max_steps=10, resume=True)
    assert yaml.safe_load((out / "settings.yaml").read_text())["job"]["min_lr"] == 1.5e-3
    assert metrics(out)[-2]["lr"] >= 1.5e-3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_evaluation_that_is_no_number_stops_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    real = loop.evaluate_model

    def broken(model: Any, wanted: Any, progress: Any) -> Score:
        score = real(model, wanted, progress)
        return Score(**{**vars(score), "loss": bad}) if calls.append(1) or len(calls) == 2 else score

    calls: list[int] = []
    monkeypatch.setattr(loop, "evaluate_model", broken)
    with pytest.raises(TrainingStopped, match=r"the loss on val became NaN or infinite at step 8.*step_000006"):
        run(data, tmp_path / "run")
    assert steps_kept(tmp_path / "run") == [4, 6], "the broken model is not saved"


def test_a_step_that_overflows_in_fp16_is_valid_json(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients are skipped, and the run goes on."""
    real = loop._one_step

    def overflowing(*given: Any) -> Any:
        metrics = real(*given)
        if metrics is not None and metrics.step == 2:
            metrics.loss, metrics.grad_norm = float("inf"), float("inf")
        return metrics

    monkeypatch.setattr(loop, "_one_step", overflowing)
    monkeypatch.setattr(NativeTrainee, "overflow_is_normal", True)
    run(data, tmp_path / "run", max_steps=3, engine="native")
    odd: list[str] = []
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    second = [json.loads(line, parse_constant=odd.append) for line in lines][1]
    assert (odd, second["step"], second["loss"], second["grad_norm"]) == ([], 2, None, None)


def test_a_best_loss_that_is_no_number_is_none() -> None:
    """A checkpoint of an older version may have one."""
    progress = Progress(step=4, best=2, best_loss=float("nan"), best_tokens=640)
    score = Score(loss=2.0, tokens=640, bits_per_byte=None)
    progress.evaluated_as({"val": score}, score)
    assert (progress.best, progress.best_loss) == (4, 2.0)


def test_datasets_of_the_same_name_are_all_evaluated(tmp_path: Path) -> None:
    paths = []
    for number, name in enumerate(("web", "code")):
        (tmp_path / name).mkdir()
        paths.append(make_data(tmp_path / name, "dataset", seed=number))
    run([(path, 1.0) for path in paths], tmp_path / "run", max_steps=2)
    assert own_sets(tmp_path / "run", "train", seq_len=32) == {"dataset": str(paths[0]), "dataset_2": str(paths[1])}


def test_runs_of_the_same_name_have_ids_of_their_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []

    def init(**given: Any) -> Any:
        begun.append(given)
        return SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for out in (tmp_path / "a" / "run", tmp_path / "b" / "run"):
        run(data, out, wandb=True, max_steps=2)
        run(data, out, wandb=True, max_steps=4, resume=True)
    run(data, tmp_path / "b" / "run", wandb=True, max_steps=2, resume=False)
    ids = [given["id"] for given in begun]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert len({ids[0], ids[2], ids[4]}) == 3
    assert {given["name"] for given in begun} == {"run"}


def test_a_sample_of_a_tokenizer_without_line_breaks() -> None:
    class Dropping:
        vocabulary = dict.fromkeys((7, 3), b"a")

        def encode(self, text: str) -> list[int]:
            return []

    dropping: Any = Dropping()
    assert Sampler(dropping)._start == [3]
