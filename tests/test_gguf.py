"""`ramlet export --to gguf`: a real llama.cpp reads, tokenizes and continues as transformers does.

benchmarks/export_gguf.py is the long form, with trained runs.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from conftest import AMPLE, RunRamlet
from oracles_llama_cpp import LlamaCpp, assert_rounded, reference_greedy, transformers_of
from oracles_model import GROUPED, GROUPED_QK_NORM, QK_NORM, SHAPES, model_of
from ramlet.engines.torch.model_files import save_model
from ramlet.errors import ModelError, SettingsError
from ramlet.model import gguf_file
from ramlet.model.export import export_model, export_parts
from ramlet.model.shape import Shape
from ramlet.tokenizer.model import PATTERNS
from ramlet.tokenizer.tokenizer import Tokenizer

torch.set_num_threads(1)
END = "<|endoftext|>"
TEXT = "the cat sat on the mat, and the dog sat on the log while it rained: 1234567 times! Ça, où? Straße 東京\n\n" * 20
NASTY = [
    "",
    " ",
    "the cat  sat\t\r\n\n on 12345 it's IT'S \u3000x",
    "naïve 東京\u200b\U0001f600!?...  ",
    f"a{END}b",
    "a\u0301ß",
]
APART = {"f32": 1e-4, "f16": 0.02, "bf16": 0.2, "q8_0": 0.3}
"""How far log probabilities may be apart: llama.cpp also rounds what is multiplied with the weights."""


def tokenizer_of(kind: str, pattern: str = "gpt2") -> Tokenizer:
    given = {"vocab_size": 300, "pattern": pattern} if kind == "bpe" else {}
    return Tokenizer.train(texts=[TEXT], kind=kind, special_tokens=[END], memory=AMPLE, **given)


def saved(folder: Path, tokenizer: Tokenizer, shape: Shape, **changes: Any) -> Path:
    tokenizer.save(folder / "tokenizer.json")
    given = {"end_id": tokenizer.end_of_text, **changes}
    wide = replace(shape, vocab_size=max(shape.vocab_size, tokenizer.vocab_size))
    save_model(model_of(wide), folder / "run", tokenizer_file=folder / "tokenizer.json", **given)
    return folder / "run"


def assert_same_text(run: Path, out: Path, dtype: str, prompt: str = "the cat", count: int = 30) -> None:
    path, shape = out / "model.gguf", json.loads((run / "config.json").read_text())
    tokenizer = Tokenizer.load(run)
    theirs = LlamaCpp(path, shape["max_position_embeddings"]).greedy(prompt, count)
    # Rows without a token are not in the file.
    model = transformers_of(path, run, rows=tokenizer.vocab_size)
    ours = reference_greedy(model, tokenizer.encode(prompt), count, tokenizer.end_of_text)
    clear = next((at for at, margin in enumerate(ours.margins()) if margin < 2 * APART[dtype]), count)
    assert ours.ids[:clear] == theirs.ids[:clear]
    if dtype == "f32":
        assert clear == count or len(ours.ids) < count, "the test compares less than it should"
    compared = 0
    for mine, other in zip(ours.logprobs[: clear + 1], theirs.logprobs):
        both = mine.keys() & other.keys()
        assert all(abs(mine[number] - other[number]) < APART[dtype] for number in both), (mine, other)
        compared += len(both)
    assert compared >= 3


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(tmp_path: Path, name: str) -> None:
    """Byte tokens; the embedding of some shapes has more rows than there are tokens."""
    vocabulary = 300 if name in ("grouped", "untied") else 0
    run = saved(tmp_path, tokenizer_of("byte"), replace(SHAPES[name], vocab_size=max(1, vocabulary)))
    export_model(run, tmp_path / "out", to="gguf", dtype="f32")
    assert_rounded(tmp_path / "out" / "model.gguf", run, "f32")
    assert_same_text(run, tmp_path / "out", "f32")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "f32"])
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_every_dtype(tmp_path: Path, kind: str, dtype: str) -> None:
    """A width of 64, of which a head has 16, and a feed-forward layer of 80, which q8_0 cannot store."""
    shape = replace(
        QK_NORM if kind == "char" else GROUPED, vocab_size=1, width=64, heads=4, kv_heads=2, feed_forward=80
    )
    run = saved(tmp_path, tokenizer_of(kind), shape)
    done = export_model(run, tmp_path / "out", to="gguf", dtype=dtype)
    assert done.files == ["Modelfile", "model.gguf"]
    assert_rounded(tmp_path / "out" / "model.gguf", run, dtype)
    assert_same_text(run, tmp_path / "out", dtype)
    odd = f"{shape.layers} matrices with rows that are no multiple of 32 are in f16"
    assert (odd in done.notes) == (dtype == "q8_0")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_ids_of_texts(tmp_path: Path, pattern: str) -> None:
    tokenizer = tokenizer_of("bpe", pattern)
    run = saved(tmp_path, tokenizer, replace(QK_NORM, vocab_size=1))
    export_model(run, tmp_path / "out", to="gguf")
    model = LlamaCpp(tmp_path / "out" / "model.gguf", 48)
    for text in [*NASTY, TEXT]:
        assert model.tokenize(text) == tokenizer.encode(text), text
        assert model.tokenize(text, special=True) == tokenizer.encode(text, allowed_special="all"), text


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_the_ids_of_bytes_and_characters(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    run = saved(tmp_path, tokenizer, replace(QK_NORM, vocab_size=1))
    export_model(run, tmp_path / "out", to="gguf")
    model = LlamaCpp(tmp_path / "out" / "model.gguf", 48)
    for text in [TEXT, f" the{END} ", *(NASTY if kind == "byte" else ())]:
        assert model.tokenize(text, special=True) == tokenizer.encode(text, allowed_special="all"), text


def test_tokens_that_no_merge_produces(tmp_path: Path) -> None:
    """As Llama 3's: a piece that is a token is that token."""
    vocab = {**{byte: bytes([byte]) for byte in range(256)}, 256: b"th", 257: b"quick", 258: b"the"}
    merges = [(b"t", b"h"), (b"th", b"e")]
    plain = json.loads(_json_of(Tokenizer.from_merges(vocab, merges, [END], pattern="llama3"), tmp_path))
    plain["model"]["ignore_merges"] = True
    (tmp_path / "given.json").write_text(json.dumps(plain))
    tokenizer = Tokenizer.load(tmp_path / "given.json")
    assert tokenizer.encode("quick") == [257]
    run = saved(tmp_path, tokenizer, replace(QK_NORM, vocab_size=1))
    export_model(run, tmp_path / "out", to="gguf")
    assert LlamaCpp(tmp_path / "out" / "model.gguf", 48).tokenize("quickthe the") == tokenizer.encode("quickthe the")
    plain["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (run / "tokenizer.json").write_text(json.dumps(plain))
    with pytest.raises(
        ModelError, match=r"tokens that no merge produces, which llama.cpp supports only with .* llama3"
    ):
        export_model(run, tmp_path / "other", to="gguf")


def _json_of(tokenizer: Tokenizer, folder: Path) -> str:
    tokenizer.save(folder / "plain.json")
    return (folder / "plain.json").read_text(encoding="utf-8")


def test_a_model_without_an_end(tmp_path: Path) -> None:
    """llama.cpp would end a text at the id 11; of bytes, one that never occurs ends it."""
    run = saved(tmp_path, Tokenizer.load("byte"), replace(QK_NORM, vocab_size=1), end_id=None)
    export_model(run, tmp_path / "out", to="gguf")
    fields = gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 255
    characters = Tokenizer.train(texts=[TEXT], kind="char", memory=AMPLE)
    characters.save(run / "tokenizer.json")
    with pytest.raises(ModelError, match=r"llama.cpp needs a token that ends a text, and the vocabulary has none"):
        export_model(run, tmp_path / "other", to="gguf")


class TestRefused:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        return saved(tmp_path, tokenizer_of("byte"), replace(GROUPED_QK_NORM, vocab_size=1))

    def refused(self, run: Path, message: str, error: type[Exception] = ModelError, **given: Any) -> None:
        out = run.with_name("out")
        with pytest.raises(error, match=message):
            export_model(run, out, to="gguf", **given)
        assert not out.exists()
        assert not any(".ramlet-tmp" in name for name in os.listdir(run.parent))

    def test_tokenizers(self, run: Path) -> None:
        split = Tokenizer.train(texts=[TEXT], vocab_size=257, pattern=r"\w+|\W+", special_tokens=[END], memory=AMPLE)
        split.save(run / "tokenizer.json")
        self.refused(run, r"does not support the pattern \\w\+\|\\W\+: only byte-level BPE with the patterns gpt2, ")
        small = Tokenizer.train(texts=["a\u2581 b"], kind="char", special_tokens=[END], memory=AMPLE)
        small.save(run / "tokenizer.json")
        self.refused(run, "llama.cpp writes a space as \u2581 .U.2581., which is another character")
        tokenizer_of("bpe").save(run / "tokenizer.json")
        self.refused(run, "the tokenizer has 300 tokens, but the model only 257")
        (run / "tokenizer.json").unlink()
        self.refused(run, "has no tokenizer.json: copy the one")

    def test_settings(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused(run, "unknown dtype 'int8': choose from f32, f16, bf16, q8_0", SettingsError, dtype="int8")
        with pytest.raises(SettingsError, match="unknown dtype 'q8_0': choose from fp32, bf16, fp16"):
            export_model(run, run.with_name("out"), dtype="q8_0")
        monkeypatch.setitem(sys.modules, "gguf", None)
        self.refused(run, r"needs llama.cpp's package gguf: pip install 'ramlet\[gguf\]'", SettingsError)

    def test_numbers_too_large(self, tmp_path: Path) -> None:
        model = model_of(replace(QK_NORM, vocab_size=257))
        for factor, dtype in ((1e6, "f16"), (1e9, "q8_0")):
            folder = tmp_path / dtype
            folder.mkdir()
            tokenizer_of("byte").save(folder / "tokenizer.json")
            model.weights.matrices.mul_(factor)
            model.weights.refresh()
            save_model(model, folder / "run", tokenizer_file=folder / "tokenizer.json", end_id=256)
            self.refused(folder / "run", f"numbers too large for {dtype}: use bf16 or f32", dtype=dtype)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    """q8_0 would make some number of them."""
    model = model_of(replace(QK_NORM, vocab_size=257, width=64))
    model.weights.matrices.mul_(float("nan"))
    model.weights.refresh()
    tokenizer_of("byte").save(tmp_path / "tokenizer.json")
    save_model(model, tmp_path / "run", tokenizer_file=tmp_path / "tokenizer.json", end_id=256)
    with pytest.raises(ModelError, match="weight is damaged, it has NaN or infinite numbers"):
        export_model(tmp_path / "run", tmp_path / "out", to="gguf", dtype="q8_0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), 'a""" \\N{x} {name}'])
def test_names_that_are_no_text(tmp_path: Path, name: str) -> None:
    """A name in Latin-1, and one that Python would not read as a string."""
    run = saved(tmp_path, tokenizer_of("bpe"), replace(QK_NORM, vocab_size=1))
    export_model(run, tmp_path / "gguf" / name, to="gguf")
    modelfile = (tmp_path / "gguf" / name / "Modelfile").read_text(encoding="utf-8")
    assert modelfile.startswith("# ollama create ")
    export_model(run, tmp_path / "ready" / name, to="gguf-ready")
    compile((tmp_path / "ready" / name / "to_gguf.py").read_text(encoding="utf-8"), "to_gguf.py", "exec")


def test_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file does not depend on how much of a tensor is in memory at once."""
    run = saved(tmp_path, tokenizer_of("byte"), replace(SHAPES["scaled"], vocab_size=1))
    written = []
    for piece in (gguf_file.PIECE, 100):
        monkeypatch.setattr(gguf_file, "PIECE", piece)
        (tmp_path / str(piece)).mkdir()
        export_model(run, tmp_path / str(piece) / "out", to="gguf", dtype="q8_0")
        written.append((tmp_path / str(piece) / "out" / "model.gguf").read_bytes())
    assert written[0] == written[1]


def test_the_command(ramlet: RunRamlet, tmp_path: Path) -> None:
    saved(tmp_path, tokenizer_of("byte"), replace(GROUPED, vocab_size=1))
    done = ramlet("export", "run", "--to", "gguf")
    assert "in run-gguf, for gguf: Modelfile, model.gguf" in done.stdout
    assert "next: llama-cli -m run-gguf/model.gguf, or ollama create run-gguf -f run-gguf/Modelfile" in done.stderr
    assert "FROM ./model.gguf\n" in (tmp_path / "run-gguf" / "Modelfile").read_text()
    assert "nothing to do" in ramlet("export", "run", "--to", "gguf").stdout
    assert "already exists and has something else" in ramlet("export", "run", "--to", "gguf", "--dtype", "q8_0").stderr
    told = json.loads(ramlet("export", "run", "--to", "gguf", "--dtype", "q8_0", "q8", "--json").stdout)
    assert told["files"] == ["Modelfile", "model.gguf"]
    refused = ramlet("export", "run", "third", "--to", "gguf", "--memory", "30MB")
    assert "for the tokenizer" in refused.stderr
    assert not (tmp_path / "third").exists()


def test_the_memory_of_a_large_vocabulary(tmp_path: Path) -> None:
    parts = export_parts(saved(tmp_path, tokenizer_of("byte"), replace(GROUPED, vocab_size=1)), "gguf")
    assert parts["the tokenizer"] >= 10 * (tmp_path / "tokenizer.json").stat().st_size
