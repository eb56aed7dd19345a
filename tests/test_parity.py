"""What the guides' scripts do for text, tokenizers and datasets, one test a row of docs/parity.md, as a user runs it.

Training is in test_parity_training.py. Commands run in this process where the budget is not the point.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from conftest import AMPLE, RunRamlet
from oracles_training import sentences
from ramlet.cli import main

TABLE = Path(__file__).resolve().parents[1] / "docs" / "parity.md"
ONE = ("--threads", "1", "--memory", "8GB")
END = "<|endoftext|>"


class Command:
    """`ramlet WORDS` in this process: `ran` wants it to succeed, `refused` to fail with one sentence."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def ran(self, *words: str) -> str:
        code = main(list(words))
        said = self._capsys.readouterr()
        assert code == 0, said.err
        return said.out + said.err

    def refused(self, *words: str) -> str:
        code = main(list(words))
        said = self._capsys.readouterr()
        assert code == 1, said.err
        assert said.err.count("\n") == 1
        return said.err

    def json(self, *words: str) -> Any:
        return json.loads(self.ran(*words, "--json"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed: a few text files as the guides have them."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("wiki.txt", "books.txt", "news.txt")):
        (tmp_path / name).write_text(sentences(300, seed=number) + "\n")
    return tmp_path


def manifest(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "dataset_metadata.json").read_text())
    return found


def test_every_row_has_a_test() -> None:
    """docs/parity.md names the test of each row, and there is no test that it does not name."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and "|---" not in line]
    named = [re.search(r"`(test_\w+)` \|$", row) for row in rows if not row.endswith("test |")]
    assert all(named), [row for row, name in zip(rows, named) if name is None]
    found = [name[1] for name in named if name]
    here = Path(__file__)
    text = here.read_text() + here.with_name("test_parity_training.py").read_text()
    written = re.findall(r"^def (test_\w+)", text, re.M)
    assert sorted(found) == sorted(set(written) - {"test_every_row_has_a_test"})
    assert len(found) == 42


# -- training BPE


def test_bpe_train(command: Command, folder: Path) -> None:
    """With the guide's own flags: --input, --vocab-size, --processes, --output-prefix."""
    guide = command.ran(
        *("tokenizer", "train", "--input", "wiki.txt", "--vocab-size", "300", "--processes", "1"),
        *("--output-prefix", "efficient_model"),
    )
    assert "300 tokens (44 merges learned) in efficient_model/tokenizer.json" in guide
    command.ran("tokenizer", "train", "wiki.txt", "--vocab-size", "300", *ONE, "--out", "ours")
    assert (folder / "ours/tokenizer.json").read_bytes() == (folder / "efficient_model/tokenizer.json").read_bytes()


def test_bpe_special_tokens(command: Command, folder: Path) -> None:
    (folder / "with.txt").write_text(f"one{END}two" * 50)
    specials = ("--special-token", END, "--special_token", "<|startoftext|>")
    command.ran("tokenizer", "train", "with.txt", "--vocab_size", "270", *specials, *ONE, "--out", "t")
    made = ramlet.Tokenizer.load("t")
    assert list(made.special_tokens) == [END, "<|startoftext|>"]
    assert not any(b"endof" in token for token in made.vocabulary.values() if token != END.encode())


def test_bpe_one_copy_for_all_threads(command: Command, folder: Path) -> None:
    """Threads in one process, and the same file whatever their number."""
    for threads in ("1", "3"):
        command.ran("tokenizer", "train", ".", "--vocab-size", "320", "--threads", threads, "--out", f"../t{threads}")
    assert Path("../t1/tokenizer.json").read_bytes() == Path("../t3/tokenizer.json").read_bytes()


def test_bpe_memory_decides_nothing(folder: Path, ramlet: RunRamlet) -> None:
    """One flag in the place of tables by machine: a small budget and `auto` learn the same."""
    for memory in ("48MB", "auto"):
        words = ("--vocab-size", "400", "--threads", "1", "--memory", memory, "--out", memory)
        done = ramlet("tokenizer", "train", "wiki.txt", "books.txt", *words)
        assert done.returncode == 0, done.stderr
    assert (folder / "48MB/tokenizer.json").read_bytes() == (folder / "auto/tokenizer.json").read_bytes()
    assert re.search(r"^peak \S+ MB of ", done.stdout, re.M)


def test_bpe_corpus_larger_than_memory(folder: Path, ramlet: RunRamlet) -> None:
    text = (folder / "wiki.txt").read_bytes()
    with open(folder / "large.txt", "wb") as file:
        for _ in range(72_000_000 // len(text)):
            file.write(text)
    done = ramlet("tokenizer", "train", "large.txt", "--vocab-size", "300", "--memory", "60MB", "--out", "t", "-t", "1")
    assert done.returncode == 0, done.stderr
    used = json.loads((folder / "t/stats.json").read_text())["memory"]
    assert used["peak"] <= used["budget"] == 60_000_000 < (folder / "large.txt").stat().st_size


def test_bpe_compare(command: Command, folder: Path) -> None:
    words = ("tokenizer", "compare", "--input", "wiki.txt", "--vocab-size", "300", "--processes", "1")
    said = command.ran(*words)
    for part in ("HF tokenizers", "peak memory", "ramlet is", "both learned the same 44 merges"):
        assert part in said


def test_bpe_from_python(folder: Path) -> None:
    made = ramlet.Tokenizer.train("wiki.txt", vocab_size=300, threads=1, memory="8GB")
    for name, form in (("a.json", "json"), ("a.tiktoken", "tiktoken"), ("pair", "vocab")):
        made.save(name, format=form)
        opened = ramlet.Tokenizer.load(name, pattern=None if form == "json" else "gpt2")
        assert opened.vocabulary == made.vocabulary
        assert opened.merges == made.merges
        assert opened.decode(opened.encode("the old house")) == "the old house"
    assert (len(made.vocabulary), len(made.merges)) == (300, 44)


def test_bpe_memory_is_reported(command: Command, folder: Path) -> None:
    said = command.ran("tokenizer", "train", "wiki.txt", "--vocab-size", "300", *ONE, "--out", "t")
    assert re.search(r"^peak [\d.]+ [MG]B of 8\.00 GB$", said, re.M)
    told = json.loads((folder / "t/stats.json").read_text())
    assert told["memory"]["timeline"]
    assert {"budget", "peak"} <= set(told["memory"])
    assert {"counting", "merging"} <= set(told["stages"])


# -- the array beside the text


def test_npy_is_written_beside(command: Command, folder: Path) -> None:
    command.ran("prepare", "wiki.txt", "--format", "npy", "--tokenizer", "byte", *ONE)
    ids = np.load("wiki.npy")
    assert ids.dtype == np.uint16
    assert bytes(ids[ids < 256].astype(np.uint8)).decode().rstrip() == (folder / "wiki.txt").read_text().rstrip()


def test_npy_totals(command: Command, folder: Path) -> None:
    said = command.ran("prepare", "wiki.txt", "--format", "npy", "--tokenizer", "byte", *ONE)
    tokens = len(np.load("wiki.npy"))
    assert f"{tokens:,} tokens in wiki.npy" in said
    assert "1.00 characters per token" in said
    note = json.loads((folder / "wiki.npy.json").read_text())
    assert note["ledger"]["characters"] == tokens - note["ledger"]["tokens"]["end_ids"]


# -- krill


def krill_config(folder: Path) -> None:
    """A file of krill's, as its guide has it."""
    lines = [json.dumps({"text": line}) for line in sentences(200, seed=4).splitlines()]
    (folder / "corpus.jsonl").write_text("\n".join([*lines, *lines[:40], '{"text": "x"}']))
    (folder / "config.yaml").write_text(
        "preprocess_memory_efficient: true\n"
        "preprocess_chunk_size: 1000\n"
        "preprocess_save_shard_size: 4kB\n"
        "preprocess_dedup_cache_dir: ./cache/dedup\n"
        "hub_tokenizer_id: byte\n"
        "dataset_prepared_path: ./prepared\n"
        "sequence_len: 64\n"
        "min_length: 3\n"
        "learning_rate: 0.001\n"
        "datasets:\n  - path: corpus.jsonl\n    split: train\n    text_column: text\n"
    )


def test_krill_config(command: Command, folder: Path) -> None:
    krill_config(folder)
    said = command.ran("prepare", "config.yaml", *ONE)
    assert "preprocess_chunk_size" in said
    assert "learning_rate" in said
    made = manifest(folder / "prepared")
    assert made["packed"]["sequence_length"] == 64
    assert made["ledger"]["documents"]["dropped"]["duplicate"] == 40
    assert len(made["splits"]["train"]["shards"]) > 3
    (folder / "config.yaml").write_text("sequence_lenght: 64\ndatasets: [{path: corpus.jsonl}]\nout: x\n")
    assert "line 1" in (told := command.refused("prepare", "config.yaml"))
    assert "sequence_len" in told


def test_krill_filter_and_pack(command: Command, folder: Path) -> None:
    (folder / "short.jsonl").write_text('{"text": "ab"}\n{"text": "a longer one"}\n{"text": "another of them"}\n')
    command.ran(
        *("prepare", "short.jsonl", "--min_tokens", "5", "--pack", "32", "--tokenizer", "byte", *ONE),
        *("--val-fraction", "0", "--out", "d"),
    )
    made = manifest(folder / "d")
    assert made["ledger"]["documents"]["dropped"]["too_few_tokens"] == 1
    assert (made["packed"]["sequences"], made["packed"]["pieces"], made["packed"]["truncated_documents"]) == (1, 2, 0)


def test_krill_dedup_cache(command: Command, folder: Path) -> None:
    words = ("--docs", "line", "--tokenizer", "byte", "--dedup_cache", "cache", *ONE)
    command.ran("prepare", "wiki.txt", "--out", "first", *words)
    command.ran("prepare", "wiki.txt", "news.txt", "--out", "second", *words)
    first, second = (manifest(folder / name)["ledger"]["documents"] for name in ("first", "second"))
    assert second["dropped"]["duplicate"] >= first["kept"] > 0
    assert second["kept"] > 0


def test_krill_memory_by_stage(command: Command, folder: Path) -> None:
    said = command.ran("prepare", "wiki.txt", "--tokenizer", "byte", "--out", "d", *ONE)
    for stage in ("scanning", "comparing", "tokenizing", "finishing"):
        assert re.search(rf"^  {stage} +[\d.]+ s +peak [\d.]+ [kMG]B$", said, re.M)
    told = json.loads((folder / "d/stats.json").read_text())["memory"]
    assert {"budget", "peak", "stages", "timeline"} <= set(told)


def test_krill_inspect(command: Command, folder: Path) -> None:
    """The same tool's other commands: tokenizer train and inspect here, train and generate below."""
    command.ran("tokenizer", "train", "wiki.txt", "--vocab-size", "300", "--special-token", END, *ONE, "--out", "t")
    command.ran("prepare", "wiki.txt", "--tokenizer", "t", "--docs", "line", *ONE, "--out", "d")
    said = command.ran("data", "inspect", "d", "--samples", "2")
    assert "300" in said
    assert command.json("data", "inspect", "d")["splits"]["train"]["documents"] > 200


def test_later_near_duplicates(tmp_path: Path) -> None:
    """What the guide calls future work is done."""
    text = " ".join(f"word{n}" for n in range(40))
    (tmp_path / "a.txt").write_text(f"{text} one\n{text} two\n")
    done = ramlet.prepare(
        tmp_path / "a.txt", tmp_path / "d", documents="line", near=0.8, tokenizer="byte", memory=AMPLE
    )
    assert done.manifest["ledger"]["documents"]["dropped"]["near_duplicate"] == 1


# -- shards


def prepared(command: Command, *words: str) -> str:
    """The guide's command, flag by flag."""
    return command.ran(
        *("prepare", "--input_files", "wiki.txt", "books.txt", "news.txt", "--out_dir", "data/my_dataset"),
        *("--tokens_per_shard", "3000", "--val_fraction", "0.15", "--docs", "line", *ONE, *words),
    )


def test_shards_prepare(command: Command, folder: Path) -> None:
    said = prepared(command, "--tokenization", "char", "--no_normalize", "--no_filter", "--no_dedup")
    made = manifest(folder / "data/my_dataset")
    settings = made["runs"][0]["settings"]
    assert (settings["normalize"], settings["filter"], settings["dedup"]) == (False, False, "none")
    assert made["ledger"]["documents"]["read"] == 900
    assert "documents kept" in said
    prepared_again = prepared(command, "--tokenization", "char", "--no-normalize", "--no-filter", "--no-dedup")
    assert "nothing to do" in prepared_again


def test_shards_tree(command: Command, folder: Path) -> None:
    prepared(command, "--tokenization", "byte")
    root = folder / "data/my_dataset"
    names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    assert {"dataset_metadata.json", "tokenizer.json", "train/shard_00000.bin", "train/shard_00000.idx"} <= names
    assert "val/shard_00000.bin" in names
    assert "is sound" in command.ran("data", "verify", "data/my_dataset")


def test_shards_width_of_an_id(command: Command, folder: Path) -> None:
    prepared(command, "--tokenization", "byte")
    vocabulary = {number: bytes([number]) for number in range(256)}
    many = ramlet.Tokenizer.from_merges(vocabulary, [], [END, *(f"<{number}>" for number in range(65_280))])
    many.save("many")
    command.ran("prepare", "wiki.txt", "--tokenizer", "many", "--docs", "line", *ONE, "--out", "wide")
    for name, kind in (("data/my_dataset", "uint16"), ("wide", "uint32")):
        made = manifest(folder / name)
        shard = made["splits"]["train"]["shards"][0]
        assert made["dtype"] == kind
        assert shard["bytes"] == shard["tokens"] * np.dtype(kind).itemsize


def test_shards_add_data(command: Command, folder: Path) -> None:
    """Appended, merged, or moved over by hand as the guide does it."""
    words = ("--tokenizer", "byte", "--docs", "line", *ONE)
    command.ran("prepare", "wiki.txt", "--out", "a", *words)
    command.ran("prepare", "books.txt", "--out", "b", *words)
    shutil.copytree("a", "c")
    added = command.ran("prepare", "books.txt", "--out", "a", "--append", "--docs", "line", *ONE)
    assert "added to a" in added
    command.ran("data", "merge", "c", "b", "--out", "merged")
    for split in ("train", "val"):
        for file in (folder / "b" / split).iterdir():
            shutil.move(file, folder / "c" / split / file.name.replace("00000", "00009"))
    command.ran("data", "verify", "c", "--adopt")
    for split in ("train", "val"):
        counts = [ramlet.Dataset(name).splits[split].tokens for name in ("a", "merged", "c")]
        assert len(set(counts)) == 1, counts
    command.ran("tokenizer", "train", "news.txt", "--vocab-size", "280", *ONE, "--out", "other")
    told = command.refused("prepare", "news.txt", "--out", "a", "--append", "--tokenizer", "other")
    assert "made with another tokenizer" in told


def test_shards_loaders(command: Command, folder: Path) -> None:
    """`GPTDataLoader(..., eval_only=True)` and its batches."""
    prepared(command, "--tokenization", "byte")
    with ramlet.Loader("data/my_dataset", split="val", seq_len=16, batch_size=4, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["input_ids"].shape == batch["targets"].shape == (4, 16)
    first = ramlet.Dataset("data/my_dataset").tokens("val", 0, 17)
    assert batch["input_ids"][0].tolist() == first[:-1].tolist()
    assert batch["targets"][0].tolist() == first[1:].tolist()


def test_shards_flat_memory(command: Command, folder: Path) -> None:
    """What the loader holds does not grow with the dataset."""
    text = (folder / "wiki.txt").read_text()
    (folder / "more.txt").write_text(text * 60)
    held = []
    for source in ("wiki.txt", "more.txt"):
        command.ran(
            "prepare",
            source,
            "--tokenizer",
            "byte",
            "--no-dedup",
            "--no-filter",
            "--docs",
            "line",
            *ONE,
            "-o",
            f"d-{source}",
        )
        with ramlet.Loader(f"d-{source}", seq_len=32, batch_size=8) as loader:
            next(iter(loader))
            held.append(loader.memory())
    assert held[0] == held[1]
