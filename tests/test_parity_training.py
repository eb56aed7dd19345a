"""What the guides' scripts do for training and generation, one test a row of docs/parity.md, as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from oracles_training import losses, make_data, metrics, sentences, steps_kept
from test_parity import ONE, Command

SMALL = ("--device", "cpu", "--seq-len", "32", "--eval-tokens", "320", "--sample-every", "0", *ONE)
FEW = ("--params", "40k", "--batch-size", "4", "--max-steps", "4", *SMALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and a run of it, made once."""
    folder = tmp_path_factory.mktemp("parity")
    make_data(folder, "general")
    make_data(folder, "domain", seed=8, words=["PQR", "XYZ", "777", "QQ", "Z9", "WWW"])
    ramlet.train(
        folder / "general", folder / "base", params=40_000, seq_len=32, batch_size=8, max_steps=80, device="cpu",
        precision="fp32", lr=1e-2, eval_tokens=320, sample_every=0, memory="8GB", threads=1,
    )  # fmt: skip
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed, with data/, base/ and text."""
    monkeypatch.chdir(tmp_path)
    for name in ("general", "domain", "base"):
        (tmp_path / name).symlink_to(made / name)
    (tmp_path / "wiki.txt").write_text(sentences(300))
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def settled(run: Path) -> dict[str, Any]:
    """What the run has decided on."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((run / "settings.yaml").read_text())
    return found


# -- memory-optimised training


def test_train_streaming(command: Command, folder: Path) -> None:
    """--use-streaming of a source, as the guide has it; the loader; and an exact place to go on from."""
    said = command.ran(
        *("train", "--dataset-id", "wiki.txt", "--use-streaming", "--tokenizer", "byte", "--out", "run"),
        *("--target-params", "40k", "--batch-size", "4", "--max-steps", "6", *SMALL),
    )
    assert "tokenized on the fly" in said
    assert not list((folder / "run").rglob("*.bin"))
    loader = ramlet.StreamLoader("wiki.txt", tokenizer="byte", seq_len=128, batch_size=32)
    batches = iter(loader)
    assert next(batches)["input_ids"].shape == (32, 128)
    state, wanted = json.loads(json.dumps(loader.state())), next(batches)["input_ids"]
    again = ramlet.StreamLoader("wiki.txt", tokenizer="byte", seq_len=128, batch_size=32)
    again.restore(state)
    assert np.array_equal(next(iter(again))["input_ids"], wanted)
    loader.close()
    again.close()


def test_train_shuffle_buffer(command: Command, folder: Path) -> None:
    for size in ("1", "40"):
        command.ran(
            *("train", "--stream", "wiki.txt", "--tokenizer", "byte", "--out", size, *FEW),
            *("--shuffle-buffer-size", size, "--log-every", "1"),
        )
    assert losses(folder / "1") != losses(folder / "40"), "another order"


def test_train_accumulation(command: Command, folder: Path) -> None:
    """A step is as large as was said, however it is divided."""
    words = ("train", "--data", "general", "--params", "40k", "--max-steps", "3", "--log-every", "1", *SMALL)
    precise = ("--precision", "fp32")
    command.ran(*words, *precise, "--batch-size", "2", "--gradient-accumulation-steps", "4", "--out", "a")
    command.ran(*words, *precise, "--tokens-per-step", "256", "--micro-batch", "1", "--out", "b")
    command.ran(*words, *precise, "--batch_size", "8", "--gradient_accumulation_steps", "1", "--out", "c")
    assert {settled(folder / name)["job"]["sequences_per_step"] for name in "abc"} == {8}
    assert losses(folder / "a") == pytest.approx(losses(folder / "b"), abs=1e-4)
    assert losses(folder / "a") == losses(folder / "c")


def test_train_mixed_precision(command: Command, folder: Path) -> None:
    command.ran("train", "--data", "general", "--out", "run", "--use-mixed-precision", *FEW)
    noted = settled(folder / "run")
    assert noted["job"]["precision"] == noted["plan"]["choice"]["compute"] == "bf16"
    assert "contradicts" in command.refused(
        *("train", "--data", "general", "--out", "x", "--use-mixed-precision", "--precision", "fp32", *FEW)
    )


def test_train_8bit_optimizer(command: Command, folder: Path) -> None:
    command.ran("train", "--data", "general", "--out", "run", "--use-8bit-optimizer", *FEW)
    assert settled(folder / "run")["plan"]["choice"]["optimizer"] == "adamw8bit"
    states = folder / "run/checkpoints/step_000004/optimizer.safetensors"
    weights = folder / "run/checkpoints/step_000004/model.safetensors"
    assert states.stat().st_size < weights.stat().st_size, "2 bytes a parameter, where AdamW has 8"


def test_train_target_params(command: Command, folder: Path) -> None:
    """The size that was asked for, the embedding counted."""
    words = ("--vocab-size", "4096", "--device", "cpu", *ONE)
    told = command.ran("plan", "--target-params", "1000000", *words)
    parameters = int(told.split(" parameters")[0].replace(",", ""))
    assert parameters == pytest.approx(1_000_000, rel=0.03)
    # The shape; what is resident, and the speed, are measured anew.
    assert command.ran("plan", "--params", "1M", *words).splitlines()[0] == told.splitlines()[0]


def test_train_length_flags(command: Command, folder: Path) -> None:
    """--seq-len, --stride, --max-examples, --epochs and --seed."""
    words = (
        "--params",
        "40k",
        "--batch-size",
        "10",
        "--device",
        "cpu",
        "--sample-every",
        "0",
        "--eval-every",
        "0",
        *ONE,
    )
    lengths = ("--seq-len", "24", "--stride", "12", "--max-examples", "60", "--epochs", "2")
    for seed in ("1", "2"):
        command.ran("train", "--data", "general", "--out", seed, *words, *lengths, "--seed", seed, "--log-every", "1")
    assert settled(folder / "1")["job"]["seq_len"] == 24
    assert [line["step"] for line in metrics(folder / "1") if "loss" in line][-1] == 12, (
        "60 sequences, 10 a step, twice"
    )
    assert losses(folder / "1") != losses(folder / "2")


def test_train_memory_is_estimated(command: Command, folder: Path) -> None:
    """`estimate_memory_usage(num_sequences, seq_len, batch_size)`, and the same of a run that was made."""
    told = command.json(
        *("plan", "--params", "40k", "--data", "general", "--num-sequences", "100000", "--device", "cpu"),
        *("--seq-len", "128", "--batch-size", "32", *ONE),
    )
    assert {"weights", "gradients", "optimizer", "activations", "logits", "data", "overhead"} == set(told["parts"])
    assert ramlet.plan(params=40_000, data="general", device="cpu", threads=1, memory="8GB").peak > 10**7
    noted = json.loads((folder / "base/stats.json").read_text())["memory"]
    assert noted["predicted"] == pytest.approx(noted["device_peak"], rel=0.5)


def test_train_settings_by_hardware(command: Command, folder: Path) -> None:
    """--memory takes the place of the tables: less of it, a smaller micro-batch; the step stays."""
    large = ramlet.plan(params="10M", memory="8GB", device="cpu", threads=1)
    small = ramlet.plan(params="10M", memory=large.peak - (60 << 20), device="cpu", threads=1)
    assert small.choice.micro_batch < large.choice.micro_batch
    assert small.batch_size == large.batch_size
    assert "ramlet train --data general" in command.ran("plan", "--data", "general", "--device", "cpu", *ONE)


def test_train_with_jax(command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's command line with all of its flags, on the engine that it was written for."""
    pytest.importorskip("jax")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command.ran(
        *("train", "--dataset-id", "wiki.txt", "--use-streaming", "--tokenizer", "byte", "--out", "run"),
        *("--target-params", "40000", "--batch-size", "2", "--gradient-accumulation-steps", "2", "--epochs", "3"),
        *("--use-mixed-precision", "--use-8bit-optimizer", "--shuffle-buffer-size", "50", "--seed", "123"),
        *("--seq-len", "32", "--stride", "32", "--max-examples", "40", "--log-every", "1", "--sample-every", "0"),
        *("--engine", "jax", "--device", "cpu", "--memory", "8GB", *ONE),
    )
    noted = settled(folder / "run")
    assert noted["plan"]["choice"]["optimizer"] == "adamw8bit"
    assert noted["plan"]["choice"]["compute"] == "bf16"
    assert "jax" in noted
    found = losses(folder / "run")
    assert len(found) == 30
    assert found[-1] < found[0]


# -- the array beside the text


def test_npy_is_found(command: Command, folder: Path) -> None:
    """By the name of the text, or by its own; the last part is kept for validation."""
    command.ran("prepare", "wiki.txt", "--format", "npy", "--tokenizer", "byte", *ONE)
    for name in ("wiki.txt", "wiki.npy"):
        command.ran("train", "--data", name, "--val-fraction", "0.2", "--out", f"run-{name}", "--log-every", "1", *FEW)
    assert losses(folder / "run-wiki.txt") == losses(folder / "run-wiki.npy")
    assert any("val" in line.get("eval", {}) for line in metrics(folder / "run-wiki.npy"))


def test_npy_says_what_is_used(command: Command, folder: Path) -> None:
    command.ran("prepare", "wiki.txt", "--format", "npy", "--tokenizer", "byte", *ONE)
    said = command.ran("train", "--data", "wiki.txt", "--out", "run", *FEW)
    total = len(np.load("wiki.npy"))
    used = total - int(total * 0.1)
    assert f"tokens in wiki.npy: {total:,}" in said
    assert f"train portion: {used:,} tokens (90.0%)" in said
    assert re.search(r"sequences: [\d,]+ of 32 tokens", said)


def test_npy_is_missing(command: Command, folder: Path) -> None:
    told = command.refused("train", "--data", "wiki.txt", "--out", "run", *FEW)
    assert "there is no wiki.npy with its ids: prepare it with --output-format npy" in told
    assert not (folder / "run").exists()


# -- training on shards


def test_shards_train(command: Command, folder: Path) -> None:
    """The guide's command, flag by flag, with a model's shape from a file in nanoGPT's words."""
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32}
    (folder / "150M.json").write_text(json.dumps(shape))
    command.ran(
        *("train", "--dataset_dir", "general", "--model_name", "my_model", "--config_file", "150M.json"),
        *("--max_iters", "4", "--learning_rate", "3e-4", "--batch_size", "4", *SMALL),
    )
    job = settled(folder / "my_model")["job"]
    assert (job["shape"]["layers"], job["shape"]["width"], job["lr"], job["steps"]) == (2, 32, 3e-4, 4)
    assert steps_kept(folder / "my_model")[-1] == 4


def test_shards_input_file(command: Command, folder: Path) -> None:
    """A small text is prepared on the way."""
    command.ran("train", "--model_name", "my_model", "--input_file", "wiki.txt", *FEW)
    assert (folder / "my_model/data").is_dir()
    assert ramlet.Tokenizer.load("my_model").kind == "char"


def test_shards_char_vocabulary(command: Command, folder: Path) -> None:
    """It comes from the dataset, goes into the run, and another one is refused."""
    command.ran("prepare", "wiki.txt", "--tokenization", "char", "--docs", "line", *ONE, "--out", "letters")
    said = command.ran("train", "--dataset_dir", "letters", "--model_name", "run", *FEW)
    learned = ramlet.Dataset("letters").tokenizer
    assert f"{learned.vocab_size:,} tokens" in said
    assert ramlet.Tokenizer.load("run").fingerprint == learned.fingerprint
    told = command.refused("eval", "run", "--data", "general", *ONE)
    assert "another tokenizer" in told
    command.ran("generate", "run", "--prompt", "the ", "--max-tokens", "5", "--device", "cpu", *ONE)


def test_shards_domain_adaptation(command: Command, folder: Path) -> None:
    """Two evaluations side by side, and a warning when the general one rises."""
    said = command.ran(
        *("train", "--dataset_dir", "domain", "--model_name", "domain_model", "--init_from_model", "base"),
        *("--eval_dataset_dir", "general", "--max_iters", "12", "--learning_rate", "1e-2", "--batch_size", "4", *SMALL),
    )
    assert re.search(r"step 12: val: loss [\d.]+.*\(-[\d.]+ since the start\)", said)
    assert re.search(r"step 12: general: loss [\d.]+.*\(\+[\d.]+ since the start\)", said)
    assert "warning: the model is forgetting general" in said
    told = [line["forgetting"] for line in metrics(folder / "domain_model") if "forgetting" in line]
    assert told[-1]["general"] > 0.1 > told[-1]["val"]


def test_shards_evaluation_from_python(folder: Path) -> None:
    """`model.fit(loader, optimizer, eval_data_loaders={...})`."""
    result = ramlet.train(
        "domain", "run", init_from="base", evals={"general": "general"}, max_steps=3, batch_size=4, device="cpu",
        eval_tokens=320, sample_every=0, memory="8GB", threads=1,
    )  # fmt: skip
    assert set(result.scores) == {"val", "general"}


def test_shards_generate(command: Command, folder: Path) -> None:
    words = ("--max-tokens", "12", "--device", "cpu", *ONE)
    guide = command.ran("generate", "--model_name", "base", "--prompt", "the old", "--seed", "3", "--quiet", *words)
    assert guide.startswith("the old")
    chosen = ("--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "--seed", "3", "--num-samples", "2")
    first, second = (command.json("generate", "base", "--prompt", "the old", *chosen, *words) for _ in range(2))
    assert len(first["samples"]) == 2
    assert first["samples"] == second["samples"]


def test_shards_none_found(command: Command, folder: Path) -> None:
    (folder / "data").mkdir()
    told = command.refused("train", "--dataset_dir", "data", "--model_name", "run", *FEW)
    assert "data is not a dataset: it has no dataset_metadata.json" in told
    command.ran(
        "prepare",
        "wiki.txt",
        "--tokenizer",
        "byte",
        "--docs",
        "line",
        *ONE,
        "--out",
        "all-dropped",
        "--min-tokens",
        "100000",
        "--allow-empty",
    )
    told = command.refused("train", "--dataset_dir", "all-dropped", "--model_name", "run", *FEW)
    assert "has nothing in train: `ramlet data inspect all-dropped` shows what it has" in told
