"""The memory of `ramlet.StreamLoader` that HF's library or Parquet files take, in a process of its own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ramlet
from ramlet.loading.stream_loader import StreamLoader
from ramlet.loading.text_tokens import PART_CHARACTERS
from ramlet.tokenizer.engines import HfEngine

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SCRIPT = """
import json, sys
from ramlet.loading.stream_loader import StreamLoader
from ramlet.runtime.memory import resident_memory

memory = int(sys.argv[3]) if sys.argv[3:] else None
given = {"seq_len": 64, "shuffle_buffer": 1, "epochs": 1, "read_ahead": 0, "memory": memory}
loader = StreamLoader(sys.argv[1], tokenizer=sys.argv[2], **given)
loader.tokenizer.encode_batch(["a"])
before = resident_memory()
count = sum(len(batch.input_ids) for batch in loader)
peak = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps({"taken": peak - before, "memory": loader.memory(), "sequences": count}))
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the kind that takes most: every character is a word."""
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "\u6f22": 1}, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer()
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    model.save(str(path))
    return path


@pytest.mark.parametrize("text", ["\u6f22\u5b57", "stone river, "])
def test_it_is_not_more_than_it_says(text: str, tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(text * (2_200_000 // len(text)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(tokenizer)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["sequences"] > 0
    assert told["taken"] <= told["memory"], told


def test_no_more_than_the_text_has(tokenizer: Path, tmp_path: Path) -> None:
    """But compressed files may have any amount."""
    byte = ramlet.Tokenizer.load("byte")
    (tmp_path / "short.txt").write_text("word " * 1000)
    with gzip.open(tmp_path / "short.txt.gz", "wt") as file:
        file.write("word " * 1000)

    def counted(name: str) -> int:
        hf, native = (StreamLoader(tmp_path / name, tokenizer=each, seq_len=16) for each in (tokenizer, byte))
        return hf.memory() - native.memory()

    assert counted("short.txt") == 5000 * HfEngine.MEMORY_PER_CHARACTER
    assert counted("short.txt.gz") == PART_CHARACTERS * HfEngine.MEMORY_PER_CHARACTER


def test_pages_of_parquet_files(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": ["a b c " * 5000] * 1000, "other": ["of more"] * 1000})
    path = tmp_path / "large.parquet"
    parquet.write_table(table, path, use_dictionary=False, data_page_size=1 << 30, compression="zstd")
    with pytest.raises(ramlet.BudgetError) as refused:
        StreamLoader(path, tokenizer="byte", seq_len=64, shuffle_buffer=1, read_ahead=0, memory="2MB")
    least = refused.value.facts["needed"]
    assert least > 40_000_000  # 14 with usual pages
    command = [sys.executable, "-c", SCRIPT, str(path), "byte", str(least)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    told = json.loads(done.stdout)
    assert 30_000_000 < told["taken"] <= told["memory"] <= least, told
