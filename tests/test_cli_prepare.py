"""`ramlet prepare` as a user types it: flags, a config file, what it prints and how it ends."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import RunRamlet

MEMORY = ("--memory", "500MB", "--threads", "1")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    lines = [f"line {n} of a text" for n in range(50)] + ["line 3 of a text", "", "no"]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    return tmp_path


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "dataset_metadata.json").read_text())
    return found


def test_the_closing_table(ramlet: RunRamlet, corpus: Path) -> None:
    done = ramlet("prepare", "in.txt", "--out", "out", "-T", "byte", "--docs", "line", "--min-chars", "5", *MEMORY)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    table = {re.split(r"\s{2,}", line.strip())[0]: re.split(r"\s{2,}", line.strip())[1:] for line in lines}
    assert table["documents read"][0] == "53"
    assert table["dropped: empty"][0] == "1"
    assert table["dropped: too short"] == ["1", "2 B"]
    assert table["dropped: duplicate"] == ["1", "16 B"]
    assert table["documents kept"][0] == "50"
    tokens = {split: manifest(corpus / "out")["splits"][split]["tokens"] for split in ("train", "val")}
    for split, count in tokens.items():
        assert any(re.fullmatch(rf"{split}\s+{count:,} tokens in 1 shard", line) for line in lines)
    assert f"{sum(tokens.values()):,} tokens in out" in lines
    assert re.fullmatch(r"peak [\d.]+ MB of 500 MB", lines[-1])
    again = ramlet("prepare", "in.txt", "--out", "out", "-T", "byte", "--docs", "line", "--min-chars", "5", *MEMORY)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == "out already has this dataset, from the same inputs and settings: nothing to do\n"


def test_what_was_skipped_is_told_by_file_and_line(ramlet: RunRamlet, corpus: Path) -> None:
    (corpus / "in.jsonl").write_text('{"text": "one"}\n{broken\n{"title": "two"}\n')
    done = ramlet("prepare", "in.jsonl", "--out", "out", "-T", "byte", "--on-error", "skip", "--val-fraction", "0")
    assert done.returncode == 0
    told = done.stderr.splitlines()
    assert told[:2] == ["1 broken line was skipped", "1 line without the text field was skipped"]
    assert [line.split()[0] for line in told[2:]] == ["in.jsonl:2", "in.jsonl:3"]


def test_quiet_and_json(ramlet: RunRamlet, corpus: Path) -> None:
    given = ("prepare", "in.txt", "--out", "out", "-T", "byte", "--docs", "line", *MEMORY)
    done = ramlet(*given, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["path"] == "out"
    assert told["already_done"] is False
    assert told["splits"]["train"]["shards"] == 1
    assert told["dataset_ledger"] == told["ledger"] == manifest(corpus / "out")["ledger"]
    assert 0 < told["memory"]["peak"] < 500_000_000
    again = json.loads(ramlet(*given, "--json").stdout)
    assert again["already_done"] is True
    assert again["splits"] == told["splits"]
    quiet = ramlet("prepare", "in.txt", "--out", "quiet", "-T", "byte", "-q", *MEMORY)
    assert len(quiet.stdout.splitlines()) == 2


def test_every_flag_reaches_the_settings(ramlet: RunRamlet, corpus: Path) -> None:
    """Also with underscores, as other tools write them."""
    flags = {
        "doc_separator": "of",
        "text_field": "body",
        "on_error": "skip",
        "document_bytes": 5000,
        "min_chars": 2,
        "max_chars": 900,
        "max_symbols": 0.9,
        "max_repeated": 0.8,
        "max_invalid": 0.5,
        "min_line_chars": 1,
        "max_line_chars": 800,
        "max_line_symbols": 0.9,
        "min_tokens": 2,
        "max_tokens": 700,
        "long_documents": "drop",
        "dedup": "line",
        "end_token": "none",
        "unknown": "unk",
        "val_fraction": 0.25,
        "tokens_per_shard": 3000,
        "pack": 32,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    switches = ["--no_normalize", "--no_filter", "--input_format", "text", "--dedup_cache", "cache"]
    done = ramlet("prepare", "in.txt", "--out_dir", "out", "--tokenizer", "byte", *words, *switches, *MEMORY)
    assert done.returncode == 0, done.stderr
    settings = manifest(corpus / "out")["runs"][0]["settings"]
    others = {"normalize": False, "filter": False, "format": "text", "tokenizer": "byte", "dedup_cache": "cache"}
    assert {name: settings[name] for name in (*flags, *others)} == {**flags, **others}


def test_a_config_with_the_keys_of_krill(ramlet: RunRamlet, corpus: Path) -> None:
    (corpus / "rows.jsonl").write_text("".join(json.dumps({"body": f"row {n}"}) + "\n" for n in range(5)))
    (corpus / "config.yaml").write_text(
        "sequence_len: 16\nmin_length: 2\nhub_tokenizer_id: byte\ndataset_prepared_path: out\n"
        "datasets:\n  - path: rows.jsonl\n    text_column: body\n"
        "preprocess_save_shard_size: 200KB\npreprocess_dedup_cache_dir: cache\npreprocess_chunk_size: 100\n"
        "learning_rate: 1e-3\nmemory: 400MB\nthreads: 1\n"
    )
    done = ramlet("prepare", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "learning_rate is for another stage" in done.stderr
    assert "preprocess_chunk_size has no effect here" in done.stderr
    found = manifest(corpus / "out")
    assert found["packed"]["sequence_length"] == 16
    assert found["tokens_per_shard"] == 100_000
    assert found["ledger"]["documents"]["kept"] == 5
    assert len(list((corpus / "cache").iterdir())) == 1
    # What is typed wins.
    other = ramlet("prepare", "config.yaml", "--out", "other", "--pack", "8", "--memory", "300MB", "--allow-empty")
    assert other.returncode == 0, other.stderr
    assert manifest(corpus / "other")["packed"]["sequence_length"] == 8
    assert other.stdout.rstrip().endswith("of 300 MB")


def test_append(ramlet: RunRamlet, corpus: Path) -> None:
    (corpus / "more.txt").write_text("another text")
    assert ramlet("prepare", "in.txt", "--out", "out", "-T", "byte", "-q", *MEMORY).returncode == 0
    done = ramlet("prepare", "more.txt", "--out", "out", "--append", *MEMORY)
    assert done.returncode == 0, done.stderr
    # The table is of what was added, not of all that is there.
    assert re.search(r"documents read\s+1\s", done.stdout)
    assert len(manifest(corpus / "out")["runs"]) == 2
    assert manifest(corpus / "out")["tokenizer"]["name"] == "byte"


def test_npy(ramlet: RunRamlet, corpus: Path) -> None:
    done = ramlet("prepare", "in.txt", "--format", "npy", "-T", "byte", *MEMORY)
    assert done.returncode == 0, done.stderr
    assert bytes(np.load(corpus / "in.npy").astype("u1")).decode().startswith("line 0 of a text\n")
    other = ramlet("prepare", "in.txt", "--format", "npy", "-T", "gpt2", *MEMORY)  # which cannot be appended
    said = other.stderr.splitlines()[-1]
    assert said == "error: in.npy holds a dataset from other inputs or settings: choose another --out"


def test_standard_input(ramlet: RunRamlet, corpus: Path) -> None:
    given = ("prepare", "-", "--out", "out", "-T", "byte", "--docs", "line", *MEMORY)
    text = "from a pipe\nand more\n"
    assert ramlet(*given, input=text).returncode == 0
    assert manifest(corpus / "out")["ledger"]["documents"]["kept"] == 2
    assert "already has" in ramlet(*given, input=text).stdout
    other = ramlet(*given, input="something else")
    assert other.returncode == 1
    assert "other inputs or settings" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["in.txt"], 1, "give one with --out"),
        ([], 2, "is missing; for example: ramlet prepare corpus/"),
        (["in.txt", "--out", "out", "--no-such"], 2, "unknown option --no-such: "),
        (["missing.txt", "--out", "out"], 1, "no such file or folder: missing.txt"),
        (["in.txt", "--out", "out", "--memory", "2 bananas"], 1, "cannot read '2 bananas'"),
        (["in.txt", "--out", "out", "--no-dedup", "--dedup", "line"], 1, "contradicts"),
        (["in.txt", "--out", "out", "--val-fraction", "1"], 1, "at least 0 and below 1"),
        (["in.txt", "--out", "out", "--pack", "1"], 1, "pack must be at least 2"),
        (["in.txt", "--out", "x.npy", "--format", "npy", "--pack", "8"], 1, "remove --append and --pack"),
        (["in.txt", "--out", "out", "--append"], 1, "no dataset"),
        (["in.txt", "--out", "out", "-T", "gpt2", "--end-token", "<x>"], 1, "not a special token"),
        (["in.txt", "--out", "in.txt"], 1, "is a file"),
        (["in.txt", "--out", "in.txt/out"], 1, "cannot write into"),
    ],
)
def test_mistakes(ramlet: RunRamlet, corpus: Path, arguments: list[str], code: int, said: str) -> None:
    done = ramlet("prepare", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "bug in ramlet" not in done.stderr
    assert sorted(path.name for path in corpus.iterdir()) == ["in.txt"]


def test_names_that_are_not_utf8(ramlet: RunRamlet, corpus: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    (corpus / odd).mkdir()
    texts = [" ".join(f"{name}{n}" for n in range(20)) for name in ("one", "two")]
    for number, text in enumerate(texts):
        (corpus / odd / os.fsdecode(b"t\xe9xt%d" % number)).write_text(text)
    done = ramlet("prepare", odd, "--out", odd + ".data", "-T", "byte", "--json", *MEMORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["path"] == odd + ".data"
    (corpus / "more.txt").write_text(f"{texts[0]} and more")
    given = ("prepare", odd, "more.txt", "in.txt", "--out", "kept", "-T", "byte", "--exclude", odd, *MEMORY)
    assert ramlet(*given, "--stage", "plan").returncode == 0
    assert ramlet(*given, "--stage", "exclude").returncode == 0  # reads back what the first one noted
    assert ramlet(*given).returncode == 0
    assert manifest(corpus / "kept")["ledger"]["documents"]["dropped"]["contaminated"] == 3
    assert manifest(corpus / "kept")["runs"][0]["settings"]["exclude"] == ["caf?"]
    found = [json.loads(line) for line in (corpus / "kept" / "contaminated.jsonl").read_text().splitlines()]
    assert os.fsencode(found[0]["excluded_source"]) == b"caf\xe9/t\xe9xt0"
    for refused in (("--format", "npy", "--out", odd + ".npy"), ("--out", "new", "--dedup-cache", odd)):
        done = ramlet("prepare", "in.txt", "-T", "byte", *refused, *MEMORY)
        assert re.fullmatch(r"error: --[a-z-]+ is '.*', which is not UTF-8: choose another name\n", done.stderr)


def test_a_document_of_many_sequences_is_packed_within_the_budget(ramlet: RunRamlet, tmp_path: Path) -> None:
    text = " ".join(map(str, range(140_000)))
    (tmp_path / "long.txt").write_text(text)
    whole = ("--document-bytes", "1MiB", "--max-line-chars", "0", "--max-symbols", "1", "--threads=1")
    done = ramlet(
        "prepare", "long.txt", "--out", "o", "-T", "byte", "--pack", "2", *whole, "--memory", "80MB", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["peak"] < 70_000_000
    found = manifest(tmp_path / "o")
    tokens, packed = found["ledger"]["tokens"]["train"], found["packed"]
    assert tokens == 2 * packed["sequences"] == len(text) + 1 + packed["padding"]
    assert packed["truncated_documents"] == 1
