"""A run from its first step to its last: what is learned, evaluated, kept and told."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from oracles_training import (
    SMALL,
    assert_same_run,
    left_behind,
    losses,
    make_data,
    metrics,
    run,
    sentences,
    slow_loss,
    steps_kept,
    stored_ids,
)
from ramlet.engines.torch.model_files import load_model
from ramlet.errors import Interrupted, SettingsError
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training import loop
from ramlet.training.evaluate import Score
from ramlet.training.listener import Listener


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return make_data(shared)


class Heard(Listener):
    """Remembers all that it is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.samples: list[str] = []

    def warned(self, line: str) -> None:
        self.warnings.append(line)

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def sampled(self, step: int, text: str) -> None:
        self.samples.append(text)


class StopAt(Listener):
    """Ctrl-C behind a step; it is heard in the next."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


# -- what a run is


def test_what_a_run_leaves(data: Path, tmp_path: Path) -> None:
    done = run(data, tmp_path / "out")
    assert (done.steps, done.tokens, done.already_done) == (12, 12 * 6 * 32, False)
    assert "timeline" not in repr(done)
    assert "steps=12" in repr(done)
    assert done.loss == pytest.approx(losses(tmp_path / "out")[-1], abs=1e-6)
    assert losses(tmp_path / "out")[-1] < losses(tmp_path / "out")[0] - 0.3
    lines = metrics(tmp_path / "out")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["tokens"] for line in lines if "loss" in line] == [step * 192 for step in range(1, 13)]
    assert [line["step"] for line in lines if "eval" in line] == [4, 8, 12]
    assert set(lines[-1]["eval"]) == {"val"}
    assert done.scores == lines[-1]["eval"]
    noted = yaml.safe_load((tmp_path / "out" / "settings.yaml").read_text())
    assert noted["settings"]["seed"] == 5
    assert noted["job"]["steps"] == 12
    assert noted["data"][0]["path"] == str(data)
    assert noted["plan"]["choice"]["optimizer"] == "adamw"
    told = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert told["parameters"] == noted["job"]["parameters"]
    assert told["memory"]["device_peak"] == done.peak > 0
    assert told["memory"]["predicted"] == done.predicted > 0
    assert abs(noted["job"]["parameters"] / SMALL["params"] - 1) < 0.03
    assert Tokenizer.load(tmp_path / "out" / "tokenizer.json").vocab_size == 257


def test_the_same_seed_gives_the_same_run(data: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        run(data, tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "other")
    run(data, tmp_path / "third", seed=6)
    assert losses(tmp_path / "third")[0] != losses(tmp_path / "one")[0]


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_a_step_in_parts_is_the_same_step(data: Path, tmp_path: Path, micro_batch: int) -> None:
    whole = run(data, tmp_path / "whole", micro_batch=6)
    parts = run(data, tmp_path / "parts", micro_batch=micro_batch, recompute=True)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), abs=1e-4)
    assert parts.scores["val"]["loss"] == pytest.approx(whole.scores["val"]["loss"], abs=1e-4)


def test_batches_that_make_one_step(data: Path, tmp_path: Path) -> None:
    """Six sequences are six, as three times two or as so many tokens."""
    run(data, tmp_path / "one", max_steps=4)
    run(data, tmp_path / "other", max_steps=4, batch_size=2, gradient_accumulation_steps=3)
    run(data, tmp_path / "third", max_steps=4, batch_size=None, tokens_per_step=6 * 32)
    assert losses(tmp_path / "one") == losses(tmp_path / "other") == losses(tmp_path / "third")


@pytest.mark.parametrize(
    ("end", "steps"),
    [
        ({"tokens": 1000}, math.ceil(1000 / 192)),
        ({"tokens": "1k", "batch_size": "3"}, math.ceil(1000 / 96)),
        ({"epochs": 2, "max_examples": 9}, 3),
        ({"epochs": 0.5, "max_examples": 24}, 2),
        ({"max_examples": 13}, 3),
    ],
)
def test_when_a_run_ends(data: Path, tmp_path: Path, end: dict[str, Any], steps: int) -> None:
    assert run(data, tmp_path / "out", **{"max_steps": None, **end}).steps == steps


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rates_that_are_told_are_the_schedules(data: Path, tmp_path: Path, schedule: str) -> None:
    from ramlet.training.schedule import Schedule

    run(data, tmp_path / "out", schedule=schedule, warmup=3, min_lr=1e-4)
    wanted = Schedule(peak=3e-3, floor=1e-4, warmup=3, steps=12, kind=schedule)
    told = [line["lr"] for line in metrics(tmp_path / "out") if "loss" in line]
    assert told == pytest.approx([wanted(step) for step in range(12)])


# -- evaluation


def test_named_sets_and_their_scores(data: Path, shared: Path, tmp_path: Path) -> None:
    """The last score is that of the model that was saved, reckoned slowly."""
    apart = make_data(shared, "apart", lines=40, seed=3, val_fraction=0.0)  # no validation split: all of it
    done = run(data, tmp_path / "out", evals={"general": data, "apart": apart}, eval_tokens=10**6)
    assert list(done.scores) == ["val", "general", "apart"]
    assert done.scores["general"] == done.scores["val"]
    model = load_model(tmp_path / "out")
    for name, ids in (("val", stored_ids(data, "val")), ("apart", stored_ids(apart, "train"))):
        total, count = slow_loss(model, [ids[start : start + 33] for start in range(0, len(ids) - 32, 32)])
        assert done.scores[name]["tokens"] == count
        assert done.scores[name]["loss"] == pytest.approx(total / count, abs=2e-5)
    with pytest.raises(SettingsError, match="val is the validation split of the data itself"):
        run(data, tmp_path / "other", evals={"val": apart})


def test_evaluation_only_at_the_end(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "out", eval_every=0)
    assert [line["step"] for line in metrics(tmp_path / "out") if "eval" in line] == [12]


def test_data_with_too_little_to_validate_on(shared: Path, tmp_path: Path) -> None:
    short = make_data(shared, "short", lines=60, val_fraction=0.02)
    heard = Heard()
    done = run(short, tmp_path / "out", seq_len=256, max_steps=2, listener=heard)
    assert done.scores == {}
    assert "the validation split has less than one sequence" in heard.notes[0]


def scores_of(monkeypatch: pytest.MonkeyPatch, *wanted: float) -> None:
    """Evaluations give these losses, one after the other."""
    left = list(wanted)
    monkeypatch.setattr(loop, "evaluate_model", lambda *_: Score(left.pop(0), 10, None))


def test_the_last_and_the_best_are_kept(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores_of(monkeypatch, 3.0, 2.0, 2.5, 2.6, 2.1, 2.2)
    done = run(data, tmp_path / "out", eval_every=2, checkpoint_every=2, keep=2)
    assert done.statistics["best"] == {"step": 4, "loss": 2.0}
    assert steps_kept(tmp_path / "out") == [4, 10, 12]
    scores_of(monkeypatch, 3.0, 2.9, 2.8)
    run(data, tmp_path / "improving", eval_every=4, checkpoint_every=2, keep=3)
    assert steps_kept(tmp_path / "improving") == [8, 10, 12]


def test_the_best_is_saved_also_between_checkpoints(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores_of(monkeypatch, 3.0, 1.0, 2.0, 1.1, 1.2, 3.0)
    done = run(data, tmp_path / "out", eval_every=2, checkpoint_every=5, keep=1)
    assert done.statistics["best"] == {"step": 4, "loss": 1.0}
    assert steps_kept(tmp_path / "out") == [4, 12]


# -- from another model


@pytest.fixture(scope="module")
def general(data: Path, shared: Path) -> Path:
    """A model that has learned a little of the first data."""
    run(data, shared / "general", max_steps=60, eval_every=0, checkpoint_every=0)
    return shared / "general"


@pytest.fixture(scope="module")
def domain(shared: Path) -> Path:
    return make_data(shared, "domain", lines=200, words=["LEX", "IUS", "IUDEX", "REUS", "ACTIO", "FORUM"])


def test_domain_adaptation_tells_what_is_forgotten(data: Path, general: Path, domain: Path, tmp_path: Path) -> None:
    start = {"init_from": str(general), "params": None, "seq_len": None}
    heard = Heard()
    done = run(domain, tmp_path / "out", evals={"general": data}, listener=heard, max_steps=40, eval_every=20, **start)
    told = [line for line in metrics(tmp_path / "out") if "eval" in line]
    assert [line["step"] for line in told] == [0, 20, 40]
    before = json.loads((general / "stats.json").read_text())["scores"]["val"]["loss"]
    assert told[0]["eval"]["general"]["loss"] == pytest.approx(before, abs=1e-5)
    assert told[0]["forgetting"] == {"val": 0.0, "general": 0.0}
    for line in told[1:]:
        rise = line["eval"]["general"]["loss"] - told[0]["eval"]["general"]["loss"]
        assert line["forgetting"]["general"] == pytest.approx(rise, abs=2e-6)
    assert told[-1]["forgetting"]["general"] > 0.1
    assert told[-1]["forgetting"]["val"] < -1.0
    assert done.scores["val"]["loss"] < told[0]["eval"]["val"]["loss"]
    assert len(heard.warnings) == 1
    assert "the model is forgetting general" in heard.warnings[-1]
    calm = Heard()
    run(domain, tmp_path / "calm", evals={"general": data}, listener=calm, max_steps=2, forgetting=50.0, **start)
    assert calm.warnings == []


def test_forgetting_outlasts_a_resume(data: Path, general: Path, domain: Path, tmp_path: Path) -> None:
    start = {"init_from": str(general), "params": None, "seq_len": None, "evals": {"general": data}}
    run(domain, tmp_path / "whole", **start)
    with pytest.raises(Interrupted):
        run(domain, tmp_path / "out", listener=StopAt(5), **start)
    run(domain, tmp_path / "out", **start)
    assert_same_run(tmp_path / "out", tmp_path / "whole")


def test_weights_to_start_from(data: Path, general: Path, tmp_path: Path) -> None:
    """At rate 0 the model stays what it was, whichever of its folders is named."""
    same = (general / "model.safetensors").read_bytes()
    for name in (general, general / "checkpoints" / "step_000060"):
        run(data, tmp_path / name.name, init_from=str(name), params=None, seq_len=None, lr=0.0, max_steps=1)
        assert (tmp_path / name.name / "model.safetensors").read_bytes() == same
    with pytest.raises(SettingsError, match=r"the model has the size of .*: do not give params"):
        run(data, tmp_path / "sized", init_from=str(general))
    with pytest.raises(SettingsError, match=r"seq_len=64 must be at most the model's context of 32"):
        run(data, tmp_path / "long", init_from=str(general), params=None, seq_len=64)


# -- data of every kind


def test_a_stream_and_its_resume(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(sentences(300))
    given = {"data": None, "stream": tmp_path / "text.txt", "tokenizer": "byte", "shuffle_buffer": 20}
    run(**given, out=tmp_path / "whole")
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0] - 0.3
    for step in (1, 4, 7):
        with pytest.raises(Interrupted):
            run(**given, out=tmp_path / "out", listener=StopAt(step), checkpoint_every=100)
    run(**given, out=tmp_path / "out")
    mine, theirs = left_behind(tmp_path / "out"), left_behind(tmp_path / "whole")
    for name in ("weights", "optimizer", "metrics", "state"):
        assert mine[name] == theirs[name], name
    assert Tokenizer.load(tmp_path / "out" / "tokenizer.json").vocab_size == 257


def test_packed_data_decides_the_length(shared: Path, tmp_path: Path) -> None:
    packed = make_data(shared, "packed", pack=48)
    done = run(packed, tmp_path / "out", seq_len=None, max_steps=3)
    noted = yaml.safe_load((tmp_path / "out" / "settings.yaml").read_text())
    assert noted["job"]["seq_len"] == 48
    # Padding is not learned from: fewer tokens than places.
    assert 0 < done.tokens < 3 * 6 * 48
    with pytest.raises(SettingsError, match="packed in sequences of 48"):
        run(packed, tmp_path / "other", seq_len=32)


def test_an_array_without_a_tokenizer(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, 4000).astype(np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    done = run(tmp_path / "ids.npy", tmp_path / "out", sample_every=4, params=12_000)
    assert done.scores["val"]["bits_per_byte"] is None
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert yaml.safe_load((tmp_path / "out" / "settings.yaml").read_text())["job"]["shape"]["vocab_size"] == 50


def test_a_mix_of_datasets(data: Path, domain: Path, tmp_path: Path) -> None:
    mixed = [(data, 0.7), (domain, 0.3)]
    done = run(mixed, tmp_path / "whole")
    assert set(done.scores) == {"val_data", "val_domain"}
    with pytest.raises(Interrupted):
        run(mixed, tmp_path / "out", listener=StopAt(5))
    run(mixed, tmp_path / "out")
    assert_same_run(tmp_path / "out", tmp_path / "whole")
    with pytest.raises(SettingsError, match="other data"):
        run([(data, 0.5), (domain, 0.5)], tmp_path / "out")


def test_documents_that_do_not_see_each_other(data: Path, tmp_path: Path) -> None:
    masked = run(data, tmp_path / "masked", document_mask=True)
    plain = run(data, tmp_path / "plain")
    # What follows from another document is not learned: the first token behind each end.
    assert masked.tokens < plain.tokens
    assert masked.scores["val"]["tokens"] < plain.scores["val"]["tokens"]
    parts = run(data, tmp_path / "parts", document_mask=True, micro_batch=1)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "masked"), abs=1e-4)
    assert parts.tokens == masked.tokens


# -- what is told


def test_samples_along_the_way(data: Path, tmp_path: Path) -> None:
    heard = Heard()
    given = {"sample_every": 4, "sample_prompt": "the red", "sample_tokens": 12}
    run(data, tmp_path / "whole", listener=heard, **given)
    told = [line for line in metrics(tmp_path / "whole") if "sample" in line]
    assert [line["step"] for line in told] == [0, 4, 8, 12]
    assert [line["sample"] for line in told] == heard.samples
    assert all(text.startswith("the red") for text in heard.samples)
    with pytest.raises(Interrupted):
        run(data, tmp_path / "out", listener=StopAt(5), **given)
    run(data, tmp_path / "out", **given)
    assert_same_run(tmp_path / "out", tmp_path / "whole")


def test_tensorboard_by_flag(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(data, tmp_path / "out", tensorboard=True)
    read = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [round(each.value, 4) for each in read.Scalars("loss")] == pytest.approx(losses(tmp_path / "out"), abs=1e-4)
    run(data, tmp_path / "without")
    assert not (tmp_path / "without" / "tensorboard").exists()


def test_bf16_comes_near_fp32(data: Path, tmp_path: Path) -> None:
    exact = run(data, tmp_path / "fp32", max_steps=30)
    near = run(data, tmp_path / "bf16", max_steps=30, precision="bf16")
    assert losses(tmp_path / "fp32") != losses(tmp_path / "bf16")
    assert near.scores["val"]["loss"] == pytest.approx(exact.scores["val"]["loss"], rel=0.01)
