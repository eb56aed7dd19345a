"""Public objects as programs use them: pickled, copied, handed to each other, and asked for help."""

from __future__ import annotations

import copy
import json
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import ramlet
from oracles_training import SMALL, run, sentences

PUBLIC = [name for name in ramlet.__all__ if not name.startswith("_")]
MEMORY = "8GB"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("public") / "text.txt"
    path.write_text(sentences(300))
    return path


@pytest.fixture(scope="module")
def bpe(text: Path) -> ramlet.Tokenizer:
    return ramlet.Tokenizer.train(
        text, vocab_size=300, special_tokens=["<|endoftext|>"], documents="line", memory=MEMORY
    )


def word_level(folder: Path) -> ramlet.Tokenizer:
    """A family that HF's library runs; the file asks for truncation, which ramlet leaves out."""
    model = tokenizers.models.WordLevel({"the": 0, "old": 1, "house": 2, "<unk>": 3}, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<|endoftext|>"])
    made.enable_truncation(2)
    made.save(str(folder / "tokenizer.json"))
    return ramlet.Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "hf"])
@pytest.mark.parametrize("used", [False, True])
def test_a_tokenizer_pickles_and_copies(
    kind: str, used: bool, text: Path, bpe: ramlet.Tokenizer, tmp_path: Path
) -> None:
    tokenizer = {
        "bpe": lambda: bpe,
        "byte": lambda: ramlet.Tokenizer.load("byte"),
        "char": lambda: ramlet.Tokenizer.train(text, kind="char", memory=MEMORY),
        "hf": lambda: word_level(tmp_path),
    }[kind]()
    if used:
        tokenizer.encode("the old house")
        assert tokenizer.fingerprint
    sample = "the old house" if kind == "char" else "the old house<|endoftext|> the old"
    for again in (pickle.loads(pickle.dumps(tokenizer)), copy.copy(tokenizer), copy.deepcopy(tokenizer)):
        assert again.encode(sample) == tokenizer.encode(sample)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.special_tokens == tokenizer.special_tokens
        assert again.decode(again.encode("the old")) == tokenizer.decode(tokenizer.encode("the old"))


def test_a_tokenizer_goes_to_a_process_that_knows_nothing(bpe: ramlet.Tokenizer) -> None:
    """As a worker of a DataLoader gets it, where processes are spawned."""
    bpe.encode("the old house")
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).encode('the old house'))"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(bpe), capture_output=True, check=True)
    assert json.loads(done.stdout) == bpe.encode("the old house")


def test_prepare_takes_a_tokenizer(text: Path, bpe: ramlet.Tokenizer, tmp_path: Path) -> None:
    bpe.encode("the old house")
    settings: dict[str, Any] = {"documents": "line", "dedup": "none", "memory": MEMORY, "threads": 1}
    made = ramlet.prepare(text, tmp_path / "made", tokenizer=bpe, **settings)
    bpe.save(tmp_path / "tokenizer")
    named = ramlet.prepare(text, tmp_path / "named", tokenizer=tmp_path / "tokenizer", **settings)
    assert made.manifest["splits"] == named.manifest["splits"]
    assert (
        made.manifest["tokenizer"]["fingerprint"] == bpe.fingerprint == ramlet.Dataset(made.path).tokenizer.fingerprint
    )
    assert ramlet.prepare(text, tmp_path / "made", tokenizer=bpe, **settings).already_done
    more = ramlet.prepare(text, tmp_path / "made", tokenizer=bpe, append=True, **{**settings, "val_fraction": 0.2})
    assert not more.already_done
    other = ramlet.Tokenizer.load("byte")
    with pytest.raises(ramlet.TokenizerError, match="another tokenizer"):
        ramlet.prepare(text, tmp_path / "made", tokenizer=other, append=True, **settings)


def test_a_stream_takes_a_tokenizer(text: Path, bpe: ramlet.Tokenizer, tmp_path: Path) -> None:
    reading = {"documents": "line"}
    made = run(None, tmp_path / "made", stream=text, tokenizer=bpe, reading=reading, max_steps=2)
    bpe.save(tmp_path / "tokenizer")
    named = run(None, tmp_path / "named", stream=text, tokenizer=tmp_path / "tokenizer", reading=reading, max_steps=2)
    assert made.loss == named.loss
    assert SMALL["max_steps"] > made.steps == 2
    before = vars(bpe).get("_cache_bytes")
    with ramlet.StreamLoader(text, tokenizer=bpe, seq_len=16, memory="40MB") as loader:
        assert next(iter(loader)).input_ids.shape == (8, 16)
    assert vars(bpe).get("_cache_bytes") == before  # the caller's own is not limited


@pytest.mark.parametrize("name", PUBLIC)
def test_help_names_only_what_is_public(name: str) -> None:
    told = pydoc.plain(pydoc.render_doc(getattr(ramlet, name)))
    assert set(re.findall(r"\bramlet\.(\w+)", told)) <= set(PUBLIC)
    assert getattr(ramlet, name).__module__ == "ramlet"
