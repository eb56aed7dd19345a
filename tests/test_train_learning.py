"""That it learns: a model of 90,000 parameters obeys a small grammar in what it writes.

The language is that of balanced brackets of three kinds, nested up to four deep: which bracket may close follows from
all that was opened before, so no short memory will do. A model that knows only which characters there are writes
fewer than one right line in ten.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import ramlet
from oracles_training import MEMORY
from ramlet.generation.entry import generate
from ramlet.training.entry import train

CLOSES = {"(": ")", "[": "]", "{": "}"}
DEEPEST = 4
LONGEST = 12


def line(chance: random.Random) -> str:
    """One line of the language."""
    made, open_ones = "", ""
    while True:
        full = len(made) + len(open_ones) >= LONGEST or len(open_ones) == DEEPEST
        if open_ones and (full or chance.random() < 0.45):
            made += CLOSES[open_ones[-1]]
            open_ones = open_ones[:-1]
            if not open_ones and (len(made) >= LONGEST or chance.random() < 0.5):
                return made
        else:
            bracket = chance.choice("([{")
            made += bracket
            open_ones += bracket


def obeys(text: str) -> bool:
    """Removes pairs until nothing is left, or nothing can be removed."""
    before = None
    while text != before:
        before = text
        for bracket, close in CLOSES.items():
            text = text.replace(bracket + close, "")
    return text == ""


def test_the_rule_is_the_language() -> None:
    chance = random.Random(2)
    lines = [line(chance) for _ in range(200)]
    assert all(map(obeys, lines))
    assert not any(map(obeys, ["(", ")(", "([)]", "(]", "(()"]))
    assert sum(obeys("".join(chance.sample(each, len(each)))) for each in lines if len(each) > 5) < 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("learning")
    chance = random.Random(1)
    (made / "text.txt").write_text("".join(line(chance) + "\n" for _ in range(6000)))
    given = {"tokenizer": "char", "dedup": "none", "filter": False, "val_fraction": 0.0}
    ramlet.prepare([made / "text.txt"], made / "data", memory=MEMORY, threads=1, **given)
    (made / "model.yaml").write_text("layers: 3\nwidth: 48\nheads: 4\n")
    return made


def share_that_obeys(run: Path, known: set[str]) -> tuple[float, float, int]:
    """Of all whole lines in samples, and of those that were never seen; and how many there were of these."""
    texts = generate(run, "\n", max_tokens=46, temperature=1.0, num_samples=40, seed=3, device="cpu", memory=MEMORY)
    written = [each for text in texts for each in text.split("\n")[:-1] if each]
    new = [each for each in written if each not in known]
    return (
        sum(map(obeys, written)) / max(1, len(written)),
        sum(map(obeys, new)) / max(1, len(new)),
        len(new),
    )


def test_a_small_model_obeys_a_grammar(folder: Path) -> None:
    known = set((folder / "text.txt").read_text().splitlines())
    settings = {"config": str(folder / "model.yaml"), "seq_len": 48, "batch_size": 16, "lr": 5e-3, "beta2": 0.99}
    settings |= {"device": "cpu", "precision": "fp32", "eval_every": 0, "checkpoint_every": 0, "sample_every": 0}
    untaught = train(folder / "data", folder / "untaught", max_steps=1, memory=MEMORY, threads=1, **settings)
    assert share_that_obeys(untaught.path, known)[0] < 0.1
    taught = train(folder / "data", folder / "taught", max_steps=600, memory=MEMORY, threads=1, **settings)
    assert taught.statistics["parameters"] < 100_000
    share, share_of_new, new = share_that_obeys(taught.path, known)
    assert new > 40
    assert share > 0.9
    assert share_of_new > 0.85
