"""The memory that reading a Parquet file takes is its writer's choice: the budget counts it before anything is read."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import RunRamlet
from ramlet import _native

MB = 1_000_000


def write(folder: Path, texts: list[str], *, name: str = "a.parquet", columns: int = 0, **options: object) -> str:
    table = {"text": texts, **{f"c{at}": range(len(texts)) for at in range(columns)}}
    pq.write_table(pa.table(table), folder / name, **{"use_dictionary": False, **options})
    return str(folder / name)


def test_pages(tmp_path: Path) -> None:
    small = write(tmp_path, ["some text"] * 1000)
    assert _native.parquet_memory(small, "text") < 100_000
    large = write(tmp_path, ["a b c " * 5000] * 1000, data_page_size=1 << 30, compression="zstd")
    assert 30 * MB < _native.parquet_memory(large, "text") < 31 * MB
    # Two pages are in memory while the second is decoded.
    texts = ["a b c " * 5000] * 1000
    two = write(tmp_path, texts, data_page_size=15 * MB, write_batch_size=500, compression="zstd")
    assert 30 * MB < _native.parquet_memory(two, "text") < 31 * MB
    plain = write(tmp_path, texts, data_page_size=15 * MB, write_batch_size=500, compression="none")
    assert 30 * MB < _native.parquet_memory(plain, "text") < 31 * MB
    assert _native.parquet_memory(large, "other") < 100_000  # only the footer


def test_dictionaries(tmp_path: Path) -> None:
    words = [f"{number:07}" for number in range(100_000)]
    path = write(tmp_path, words, use_dictionary=True, dictionary_pagesize_limit=1 << 30)
    # Each value is an object of the reader's.
    assert 11 * 100_000 + 24 * 100_000 < _native.parquet_memory(path, "text") < 6 * MB


def test_footers(tmp_path: Path) -> None:
    texts = ["some text"] * 2000
    narrow = write(tmp_path, texts, row_group_size=100)
    wide = write(tmp_path, texts, columns=50, row_group_size=2, name="wide.parquet")
    assert _native.parquet_memory(narrow, "text") < 100_000
    footer = Path(wide).read_bytes()[-8:-4]
    assert _native.parquet_memory(wide, "text") > 2 * int.from_bytes(footer, "little")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(20) + b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_damaged_files_are_left_to_the_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    assert _native.parquet_memory(tmp_path / "a.parquet", "text") == 0
    assert _native.parquet_memory(tmp_path / "none.parquet", "text") == 0
    assert _native.parquet_memory(tmp_path, "text") == 0


def test_damaged_pages(tmp_path: Path) -> None:
    path = Path(write(tmp_path, ["a b c " * 5000] * 1000, data_page_size=1 << 20, compression="none"))
    whole, generator = path.read_bytes(), random.Random(1)
    for _ in range(50):
        damaged = bytearray(whole)
        for _ in range(100):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        assert _native.parquet_memory(path, "text") >= 0


COMMANDS = {
    "prepare": ["prepare", "-T", "byte"],
    "exclude": ["prepare", "a.txt", "-T", "byte", "--exclude-ngram", "3", "--exclude"],
    "train": ["tokenizer", "train", "-v", "300"],
    "characters": ["tokenizer", "train", "--type", "char"],
    "encode": ["tokenizer", "encode", "-T", "byte"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("large", ["page", "footer"])
def test_the_least_that_is_named_is_kept(ramlet: RunRamlet, tmp_path: Path, command: str, large: str) -> None:
    if large == "page":
        path = write(tmp_path, ["a b c " * 5000] * 3000, data_page_size=1 << 30, compression="zstd")
    else:
        path = write(tmp_path, ["some text here"] * 4000, columns=60, row_group_size=4)
    (tmp_path / "a.txt").write_text("some text of its own")
    words = [*COMMANDS[command], path, "--threads", "1", "--out", "out", "--json"]
    refused = ramlet(*words, "--memory", "20MB")
    assert refused.returncode == 1
    least = re.search(r"needs at least (\d+)MB", json.loads(refused.stdout)["error"]["message"])
    assert least is not None
    assert int(least[1]) > 60  # 46 with usual pages
    done = ramlet(*words, "--memory", f"{least[1]}MB")
    assert done.returncode == 0, done.stderr
    memory = json.loads(done.stdout)["memory"]
    assert memory["peak"] <= memory["budget"] == int(least[1]) * MB
