"""Lines of the guides as they stand there, on small local data: nothing but names of files is another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers

import ramlet
from oracles_training import metrics, sentences
from ramlet.cli.help_page import repeat_option
from test_parity import ONE, Command

TINY = (
    *("--target-params", "40k", "--seq-len", "32", "--device", "cpu", "--sample-every", "0", "--eval-every", "0"),
    *("--log-every", "1", *ONE),
)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wiki.txt").write_text(sentences(300))
    return tmp_path


def last_step(run: str) -> int:
    return int([line["step"] for line in metrics(Path(run)) if "loss" in line][-1])


# -- training BPE


def test_several_special_tokens(command: Command) -> None:
    command.ran(
        *("tokenizer", "train", "--input", "wiki.txt", "--vocab-size", "300", "--processes", "2"),
        *("--special-tokens", "<|endoftext|>", "<|startoftext|>", "--output-prefix", "production_model"),
        *("--memory", "8GB"),
    )
    made = ramlet.Tokenizer.load("production_model")
    assert list(made.special_tokens) == ["<|endoftext|>", "<|startoftext|>"]
    assert made.vocab_size == 300


@pytest.mark.parametrize("flag", ["--special-tokens", "--special_tokens"])
def test_words_go_to_the_flag_before_them(flag: str) -> None:
    given = ["a.txt", flag, "<a>", "<b>", "-v", "300", flag, "<c>", "--", "<d>"]
    wanted = ["a.txt", flag, "<a>", flag, "<b>", "-v", "300", flag, "<c>", "--", "<d>"]
    assert repeat_option(given) == repeat_option(wanted) == wanted


def test_processes_in_python() -> None:
    one = ramlet.Tokenizer.train("wiki.txt", vocab_size=290, processes=2, memory="8GB")
    assert one.merges == ramlet.Tokenizer.train("wiki.txt", vocab_size=290, threads=1, memory="8GB").merges
    with pytest.raises(ramlet.SettingsError, match="mean the same: give only one"):
        ramlet.Tokenizer.train("wiki.txt", vocab_size=290, processes=2, threads=1)


# -- training with little memory


def test_the_streaming_loader() -> None:
    """`from tokenizers import Tokenizer`, and the guide's own loop."""
    ramlet.Tokenizer.train("wiki.txt", vocab_size=290, special_tokens=["<|endoftext|>"], memory="8GB").save(
        "tokenizer.json"
    )
    tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
    loader = ramlet.StreamLoader("wiki.txt", tokenizer=tokenizer, seq_len=128, batch_size=2, streaming=True, epochs=1)
    count = 0
    for batch in loader:
        assert batch["input_ids"].shape[1] == 128
        assert {name: array.shape for name, array in batch.items()} == dict.fromkeys(
            ("input_ids", "labels"), batch["input_ids"].shape
        )
        count += len(batch["input_ids"])
    assert count == loader.count_examples() > 4
    with pytest.raises(ramlet.SettingsError, match=r"use ramlet\.Loader"):
        ramlet.StreamLoader("wiki.txt", tokenizer=tokenizer, streaming=False)
    assert ramlet.Tokenizer.load(tokenizer).fingerprint == ramlet.Tokenizer.load("tokenizer.json").fingerprint
    with pytest.raises(ramlet.TokenizerError, match="not int"):
        ramlet.Tokenizer.load(7)


@pytest.mark.parametrize("stride", [None, 5, 40])
@pytest.mark.parametrize("most", [None, 1, 7, 10**6])
@pytest.mark.parametrize("kind", ["byte", "hf"])
def test_examples_are_counted_as_they_come(stride: int | None, most: int | None, kind: str) -> None:
    tokenizer = ramlet.Tokenizer.load("byte")
    if kind == "hf":
        words = {word: number for number, word in enumerate(sorted(set(sentences(300).split())))}
        model = tokenizers.models.WordLevel({**words, "<unk>": len(words)}, unk_token="<unk>")
        made = tokenizers.Tokenizer(model)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = ramlet.Tokenizer.load(made)
        assert tokenizer.kind == "hf"
    loader = ramlet.StreamLoader(
        "wiki.txt", tokenizer=tokenizer, seq_len=16, stride=stride, max_examples=most, epochs=1, documents="line"
    )
    assert loader.count_examples() == sum(len(batch.input_ids) for batch in loader)


def test_epochs_of_a_stream(command: Command) -> None:
    """`--dataset-id ... --batch-size 32 --use-streaming --gradient-accumulation-steps 1 --epochs 3`."""
    words = ("--use-streaming", "--gradient-accumulation-steps", "1", "--epochs", "2", *TINY)
    command.ran(
        "train", "--dataset-id", "wiki.txt", "--tokenizer", "byte", "--batch-size", "64", "--out", "all", *words
    )
    examples = ramlet.StreamLoader("wiki.txt", tokenizer="byte", seq_len=32).count_examples()
    assert last_step("all") == -(-2 * examples // 64)
    command.ran(
        *("train", "--dataset-id", "wiki.txt", "--tokenizer", "byte", "--batch-size", "8", "--out", "some", *words),
        *("--max-examples", "20"),
    )
    assert last_step("some") == 5
    told = command.refused("train", "--dataset-id", "wiki.txt", "--use-streaming", "--out", "none", *TINY)
    assert "--tokenizer" in told
    Path("short.txt").write_text("too short")
    told = command.refused("train", "--stream", "short.txt", "-T", "byte", "--epochs", "1", "--out", "none", *TINY)
    assert "short.txt has less than one sequence of 32 tokens" in told
    assert not Path("none").exists()


def test_epochs_of_what_comes_from_elsewhere() -> None:
    from ramlet.training.feed import StreamFeed
    from ramlet.training.settings import RunSettings

    for most in (None, 50):
        feed = StreamFeed(["org/name"], "byte", RunSettings(max_examples=most), Path("work"), {})
        assert feed.examples(32) == most
    assert not Path("work").exists()


def test_memory_is_estimated() -> None:
    """What parity.md has for `estimate_memory_usage(num_sequences=100000, seq_len=128, batch_size=32)`."""
    made = ramlet.plan(
        params="40k", num_sequences=100_000, seq_len=128, batch_size=32, vocab_size=300, device="cpu", memory="8GB"
    )
    assert made.parts["data"] > 0
    ramlet.prepare("wiki.txt", "data", tokenizer="byte", documents="line", memory="8GB", threads=1)
    streaming = ramlet.Loader("data", seq_len=128, batch_size=32).memory()
    assert streaming < 100_000 * 128 * 2 * 4 / 10


# -- preprocessing in bounded memory


def test_a_krill_file_without_a_folder(command: Command) -> None:
    Path("corpus.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in sentences(200).splitlines()))
    Path("configs").mkdir()
    Path("configs/small.yaml").write_text(
        "preprocess_memory_efficient: true\npreprocess_chunk_size: 1000\nsequence_len: 64\nhub_tokenizer_id: byte\n"
        "datasets:\n  - path: corpus.jsonl\n    split: train\n    text_column: text\n"
    )
    told = command.ran("prepare", "configs/small.yaml", *ONE)
    assert "configs/small" in told
    assert ramlet.Dataset("configs/small").sequence_length == 64
    assert "nothing to do" in command.ran("prepare", "configs/small.yaml", *ONE)
    assert "give one with --out" in command.refused("prepare", "corpus.jsonl", *ONE)


# -- training on sharded datasets


def test_train_of_characters(command: Command) -> None:
    command.ran(
        *("train", "--input_file", "wiki.txt", "--tokenization", "char", "--model_name", "shakespeare"),
        *("--batch-size", "4", "--max_iters", "2", *TINY),
    )
    assert ramlet.Tokenizer.load("shakespeare").kind == "char"


def test_a_loader_for_evaluation() -> None:
    ramlet.prepare("wiki.txt", "data", tokenizer="byte", documents="line", memory="8GB", threads=1)
    given = {"seq_len": 16, "batch_size": 4, "shuffle": False}
    general = ramlet.Loader("data", eval_only=True, **given)  # type: ignore[arg-type]
    val = ramlet.Loader("data", split="val", **given)  # type: ignore[arg-type]
    assert len(general.examples) == len(val.examples)
    assert next(iter(general))["input_ids"].tolist() == next(iter(val))["input_ids"].tolist()
    general.close()
    val.close()


def test_shards_moved_under_the_same_names(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """`mv new/train/*.bin old/train/` replaces what is there; told with the names to use, which then work."""
    from ramlet.cli import main

    Path("more.txt").write_text(sentences(200, seed=3))
    words = ("--tokenizer", "byte", "--docs", "line", *ONE)
    command.ran("prepare", "wiki.txt", "--out", "old", *words)
    command.ran("prepare", "more.txt", "--out", "new", *words)
    before = ramlet.Dataset("old").splits["train"].tokens
    shutil.copyfile("old/train/shard_00000.bin", "kept.bin")
    shutil.copyfile("new/train/shard_00000.bin", "old/train/shard_00000.bin")
    assert main(["data", "verify", "old", "--adopt", "--memory", "8GB"]) == 1
    assert (
        "if another shard was moved over train/shard_00000.bin, its old content is no longer in the dataset: "
        "put the old file back, and move the new one to a free name, such as train/shard_00001.bin, "
        "before --adopt\n"
    ) in capsys.readouterr().err
    shutil.copyfile("kept.bin", "old/train/shard_00000.bin")
    shutil.copyfile("new/train/shard_00000.bin", "old/train/shard_00001.bin")
    command.ran("data", "verify", "old", "--adopt", "--memory", "8GB")
    assert ramlet.Dataset("old").splits["train"].tokens == before + ramlet.Dataset("new").splits["train"].tokens
