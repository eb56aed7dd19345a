"""A text that begins behind an end of text has at least one token, whatever a model thinks of what follows an end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from oracles_model import GROUPED, byte_tokenizer, model_of
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import load_model, save_model
from ramlet.generation import Sampler, generate, stream
from ramlet.tokenizer.tokenizer import Tokenizer

END = 256


def echo() -> GPT:
    """Behind every token the same one again: what a tied embedding says by itself, before any layer disagrees."""
    model = model_of(replace(GROUPED, vocab_size=257))
    for weight in model.weights:
        if weight.name.endswith((".out", ".down")):
            weight.master.zero_()
        elif weight.name == "norm":
            weight.master.fill_(10.0)
    model.weights.refresh()
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo")
    save_model(echo(), folder, tokenizer_file=byte_tokenizer(folder), end_id=END)
    return folder


def test_the_model_is_sure_of_another_end(run: Path) -> None:
    logits = load_model(run).logits(torch.tensor([[END]]))[0, -1]
    assert float(torch.softmax(logits, -1)[END]) > 0.999


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_empty_prompt_is_never_answered_with_nothing(run: Path, temperature: float) -> None:
    texts = generate(run, "", max_tokens=4, temperature=temperature, seed=1, num_samples=6, precision="fp32")
    assert all(texts)
    assert "".join(stream(run, "", max_tokens=4, temperature=temperature, seed=1, precision="fp32")) == texts[0]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.1}, {"repetition_penalty": 1.3}], ids=str)
def test_with_every_setting(run: Path, options: dict[str, float]) -> None:
    assert all(generate(run, "", max_tokens=3, seed=2, num_samples=3, precision="fp32", **options))  # type: ignore[arg-type]


def test_samples_while_training(run: Path) -> None:
    sampler = Sampler(Tokenizer.load(run), "", tokens=5, seed=1, end_id=END)
    model = load_model(run)
    assert all(sampler(model, step) for step in range(8))


def test_after_a_prompt_the_end_is_an_end(run: Path) -> None:
    """The text may be complete as it is."""
    model = load_model(run)
    model.weights["embedding"].master[END] = 3 * model.weights["embedding"].master[ord("x")]
    model.weights.refresh()
    assert Sampler(Tokenizer.load(run), "x", tokens=5, seed=1, end_id=END, temperature=0.0)(model, 0) == "x"


def test_transformers_begins_a_text_too(run: Path) -> None:
    llama = transformers.AutoModelForCausalLM.from_pretrained(run)
    written = llama.generate(max_new_tokens=4, do_sample=False)[0].tolist()
    assert written[0] == END
    assert written[1] != END
