"""Memory of the commands with tokenizers that HF's library runs: it encodes a document as a whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import RunRamlet

tokenizers = pytest.importorskip("tokenizers")

MB = 1_000_000


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Of the kind that takes most: every character of punctuation is a word."""
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "!": 1}, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer()
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model.save(str(tmp_path / "hf.json"))
    return "hf.json"


def least(said: str) -> str:
    found = re.search(r"needs at least (\d+MB)", json.loads(said)["error"]["message"])
    assert found is not None, said
    return found[1]


def test_prepare_keeps_the_least_that_it_names(tokenizer: str, tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"{n}" + "!" * 1_000_000}) + "\n" for n in range(2)))
    words = ("prepare", "a.jsonl", "-T", tokenizer, "--out", "out", "--no-filter", "--end-token", "none")
    refused = ramlet(*words, "--threads", "1", "--json", "--memory", "25MB").stdout
    assert "1 thread at work, with the encoder, which takes a document as a whole" in refused
    done = ramlet(*words, "--threads", "1", "--json", "--memory", least(refused))
    assert done.returncode == 0, done.stderr
    memory = json.loads(done.stdout)["memory"]
    assert memory["peak"] <= memory["budget"]


def test_encode_keeps_the_least_that_it_names(tokenizer: str, tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "lines.txt").write_text(("!" * 100_000 + "\n") * 20)
    words = ("tokenizer", "encode", "lines.txt", "-T", tokenizer, "--threads", "1", "--out", "ids.bin", "--json")
    budget = least(ramlet(*words, "--docs", "line", "--memory", "25MB").stdout)
    done = ramlet(*words, "--docs", "line", "--memory", budget)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tokens"] == 2_000_000
    assert told["memory"]["peak"] <= told["memory"]["budget"]
    refused = ramlet(*words, "--memory", budget)
    assert refused.returncode == 1
    assert "HF's library, which encodes it as a whole, may take 500 bytes for each" in refused.stderr
    assert refused.stderr.endswith(": give more --memory, or --docs line if each line is a document\n")
