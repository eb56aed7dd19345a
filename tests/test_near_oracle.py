"""`prepare --near` against a brute-force comparison of all documents on their shingles (docs/design/near.md)."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import AMPLE
from oracles_clean import is_blank
from oracles_near import similarity, units
from ramlet.preparing.run import Prepared, prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import near_oracle
import near_text
from prepare_worker import lines_of
from test_prepare_same_bytes import files

AS_IS: dict[str, Any] = {
    "tokenizer": "byte",
    "end_token": "none",
    "normalize": False,
    "filter": False,
    "val_fraction": 0.0,
    "allow_empty": True,
}
"""The dataset has the bytes of every document that is left."""

CERTAIN = 0.96
"""The bands for 0.8 find a pair of this similarity but for one time in a billion."""


def shingles(text: str) -> set[int]:
    """Their hashes, from the fast oracle: 1 MB would take seconds with the slow one."""
    return set(near_oracle.shingles(text).tolist())


def prepared(texts: list[str], out: Path, *, budget: int = 0, **given: Any) -> Prepared:
    """`budget`: bytes above what is resident."""
    how = {name: given.pop(name) for name in ("threads", "task_bytes", "append") if name in given}
    how["own_tokenizer"] = how.get("append", False)
    source = out.parent / "texts.jsonl"
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    if not source.exists() or source.read_text() != content:  # the time of its last change is in the manifest
        source.write_text(content)
    total = resident_memory() * 32 // 31 + budget if budget else AMPLE
    with Meter(Budget.parse(total)) as meter:
        return prepare_to(source, out, PrepareSettings(**{**AS_IS, **given}), meter=meter, **how)


def judged(texts: list[str], made: Prepared, threshold: float, dedup: str = "doc") -> list[int]:
    """Checks what is left of the texts; returns the numbers of those that are dropped as near-duplicates."""
    found = [document.decode() for document in lines_of(made.path)]
    left: list[int] = []
    for text in found:  # in the order of the input, each where it occurs first
        left.append(texts.index(text, left[-1] + 1 if left else 0))
    seen: set[str] = set()
    near: list[int] = []
    sets = {number: shingles(texts[number]) for number in range(len(texts))}
    for number, text in enumerate(texts):
        copy, known = text in seen and dedup == "doc", text in seen
        seen.add(text)
        if number in left:
            assert not is_blank(text), number
            assert not copy, number
        elif not copy and not is_blank(text):
            before = [other for other in left if other < number]
            best = max((similarity(sets[number], sets[other]) for other in before), default=0.0)
            assert best >= threshold, (number, best, text[:80], known)
            near.append(number)
    for place, number in enumerate(left):
        for other in left[:place]:
            assert not sets[number] or sets[number] != sets[other], (number, other, "have the same shingles")
    ledger = made.manifest["ledger"]
    for unit, sizes in (("documents", [1] * len(texts)), ("bytes", [len(text.encode()) for text in texts])):
        counts = ledger[unit]
        assert counts["dropped"]["near_duplicate"] == sum(sizes[number] for number in near), unit
        assert counts["kept"] == sum(sizes[number] for number in left), unit
        assert counts["read"] == counts["kept"] + sum(counts["dropped"].values()), unit
    return near


WORDS = [
    *("the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are", "with", "as", "his", "they", "be"),
    *("at", "one", "have", "this", "from", "or", "had", "by", "hot", "but"),
    *("Ünïcode", "ДЕНЬ", "ημέρα", "दिन", "다섯", "x1", "2024", "it's", "snake_case", "e\u0301"),
]
SPACELESS = [*"我们在学习机器模型的时候需要很多数据", *"ひらがなカタカナ", *"ภาษาไทยง่าย", *"ភាសាខ្មែរ"]
MARKS = [" ", " ", " ", "\n", ", ", ". ", " - ", "\t", " 🙂 "]


def new_text(draw: random.Random) -> str:
    kind = draw.random()
    count = draw.choice((0, 1, 4, 5, 6, 9, 20, 60, 90, 200))
    if kind < 0.1:
        return draw.choice((" ", "🙂🙂", "...", "\u0301", "word", "ไ")) * draw.randint(0, 30)
    if kind < 0.2:
        return f"{draw.choice(WORDS)} " * count
    if kind < 0.4:
        return "".join(draw.choice(SPACELESS) for _ in range(count))
    vocabulary = WORDS if kind < 0.8 else [*WORDS, *SPACELESS]
    return "".join(draw.choice(vocabulary) + draw.choice(MARKS) for _ in range(count))


def corpus(seed: int, count: int) -> list[str]:
    """Random texts, half of them copies of earlier ones with changes of every size."""
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < count:
        if not texts or draw.random() < 0.5:
            texts.append(new_text(draw))
            continue
        text = draw.choice(texts)
        changes = (
            lambda text: text,
            lambda text: near_text.edited(text, draw.uniform(0.5, 1), draw),
            lambda text: near_text.edited(text, draw.uniform(0.75, 0.9), draw),
            lambda text: near_text.headed(text, draw),
            lambda text: near_text.moved(text, draw),
            lambda text: near_text.folded(text, draw),
            lambda text: near_text.shortened(text, draw),
            lambda text: text + text,
        )
        texts.append(draw.choice(changes)(text)[:20_000])
    return texts


@settings(max_examples=12)
@given(seed=st.integers(0, 10**9), threshold=st.sampled_from((0.5, 0.7, 0.8, 0.8, 0.9, 1.0)))
def test_what_is_dropped_is_near_to_what_stays(
    tmp_path_factory: pytest.TempPathFactory, seed: int, threshold: float
) -> None:
    texts = corpus(seed, 60)
    out = tmp_path_factory.mktemp("near") / "out"
    judged(texts, prepared(texts, out, near=threshold, task_bytes=5_000, threads=2), threshold)


@pytest.mark.parametrize("dedup", ["doc", "none"])
def test_near_copies_are_found(tmp_path: Path, dedup: str) -> None:
    texts = corpus(1, 400)
    made = prepared(texts, tmp_path / "out", near=0.8, dedup=dedup, task_bytes=20_000)
    near = judged(texts, made, 0.8, dedup)
    assert len(near) > 30
    sets = [shingles(text) for text in texts]
    found = {document.decode() for document in lines_of(made.path)}
    left = [number for number, text in enumerate(texts) if text in found and texts.index(text) == number]
    missed = [
        (one, other)
        for place, one in enumerate(left)
        for other in left[:place]
        if similarity(sets[one], sets[other]) >= CERTAIN
    ]
    assert missed == []


def test_threads_budgets_and_tasks_change_nothing(tmp_path: Path) -> None:
    texts = corpus(2, 300)
    wanted: dict[str, bytes] = {}
    runs: list[dict[str, Any]] = [
        {"threads": 1, "task_bytes": 4_000},
        {"threads": 2, "task_bytes": 4_000, "budget": 400_000_000},
        {"threads": 4, "task_bytes": 4_000},
        {"threads": 2, "task_bytes": 4_000, "budget": 80_000_000},
    ]
    for number, how in enumerate(runs):
        found = files(prepared(texts, tmp_path / str(number), near=0.8, **how).path)
        wanted = wanted or found
        assert found == wanted, how
    whole = prepared(texts, tmp_path / "whole", near=0.8, threads=2)
    parts = prepared(texts, tmp_path / "parts", near=0.8, threads=2, task_bytes=1_500)
    assert list(lines_of(whole.path)) == list(lines_of(parts.path))
    assert whole.manifest["ledger"] == parts.manifest["ledger"]


def left_of(made: Prepared) -> list[str]:
    return [document.decode() for document in lines_of(made.path)]


@pytest.mark.parametrize("append", [False, True])
def test_what_earlier_runs_kept_counts_too(tmp_path: Path, append: bool) -> None:
    """Two halves with one cache leave what the whole leaves."""
    texts = corpus(6, 240)
    whole = prepared(texts, tmp_path / "whole", near=0.8, task_bytes=5_000)
    judged(texts, whole, 0.8)
    (tmp_path / "halves").mkdir()
    (tmp_path / "late").mkdir()
    given: dict[str, Any] = {"near": 0.8, "task_bytes": 5_000, "dedup_cache": str(tmp_path / "cache")}
    first = left_of(prepared(texts[:120], tmp_path / "halves" / "out", **given))
    out = tmp_path / "late" / "out"
    if append:
        (tmp_path / "halves" / "out").rename(out)
        both = left_of(prepared(texts[120:], out, append=True, **given))
    else:
        both = first + left_of(prepared(texts[120:], out, **given))
    assert both == left_of(whole)


@pytest.mark.parametrize(
    "given",
    [
        {"tokenizer": "gpt2"},
        {"tokenizer": "char"},
        {"tokenizer": "byte", "max_tokens": 40},
        {"tokenizer": "byte", "pack": 64},
        {"tokenizer": "gpt2", "min_tokens": 4, "val_fraction": 0.3, "end_token": None},
    ],
    ids=str,
)
def test_tokens_and_splits_change_nothing(tmp_path: Path, given: dict[str, Any]) -> None:
    """The same documents are dropped, whatever becomes of the others."""
    texts = [text for text in corpus(7, 200) if len(units(text)) >= 5]
    wanted = prepared(texts, tmp_path / "bytes", near=0.8).manifest["ledger"]
    found = prepared(texts, tmp_path / "other", near=0.8, task_bytes=4_000, **given).manifest["ledger"]
    for unit in ("documents", "bytes"):
        assert found[unit]["dropped"] == wanted[unit]["dropped"]
        assert wanted[unit]["dropped"]["near_duplicate"] > 10


def sentence(draw: random.Random, count: int) -> str:
    return " ".join(f"{draw.choice(WORDS[:27])}{draw.randrange(50)}" for _ in range(count))


PATHOLOGICAL = {
    "nothing": ["", " ", "\n\n", "\u200b"],
    "short": ["word", "Word", "one two three four", "One two three four!", "我们在学", "我们 在学"],
    "one word": ["a " * 5, "a " * 500, "A, a; a: a! a?", "a " * 100_000, "a a a a a b"],
    "emoji": ["🙂" * 100, "🙂 " * 100, "🙂" * 101, "👩\u200d👩\u200d👧" * 50],
    "one letter": ["x" * 1_000_000, "x" * 999_998 + " y"],
    "characters": ["我们在学习机器", "我 们 在 学 习 机 器", "我们在学习机器。", "我們在學習機器"],
    "marks": ["ภาษาไทยง่ายนิดเดียว", "ภาษาไทยง่ายนิดเดียว!", "ภาษาไทยงายนิดเดียว"],
    "mixed": ["GPT模型v2 は速い and small", "gpt 模 型 V2 は 速 い, AND SMALL", "gpt模型v2は速い"],
    "case": [
        "ΟΔΟΣ ΣΑΣ ένας δύο τρία",
        "οδοσ σασ Ένας ΔΎΟ τρία",
        "İstanbul bir iki üç dört",
        "i̇stanbul BIR IKI üç dört",
    ],
}


def test_pathological_texts(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = sentence(draw, 80).split()
    ring = [" ".join((words * 2)[at : at + 84]) for at in (0, 13, 57)]
    assert shingles(ring[0]) == shingles(ring[1]) == shingles(ring[2]), "another order, the same set"
    for name, texts in {**PATHOLOGICAL, "ring": ring}.items():
        folder = tmp_path / name.replace(" ", "-")
        judged(texts, prepared(texts, folder, near=0.8), 0.8)
    together = [text for texts in PATHOLOGICAL.values() for text in texts] + ring
    draw.shuffle(together)
    near = judged(together, prepared(together, tmp_path / "together", near=0.8, task_bytes=10_000), 0.8)
    assert len(near) >= 8


def test_no_document_goes_because_of_one_that_goes(tmp_path: Path) -> None:
    """A chain: each is near to the one before it, and far from the first."""
    draw = random.Random(3)
    words = sentence(draw, 300).split()
    texts = []
    for number in range(40):
        words[number * 7] = f"changed{number}"
        texts.append(" ".join(words))
    sets = [shingles(text) for text in texts]
    assert similarity(sets[0], sets[1]) > 0.9
    assert similarity(sets[0], sets[-1]) < 0.3
    near = judged(texts, prepared(texts, tmp_path / "out", near=0.8), 0.8)
    assert 20 <= len(near) < 39


def test_twins_in_a_large_cluster_are_found(tmp_path: Path) -> None:
    """Documents of one template, none near enough to another, and then a copy of each with other marks."""
    draw = random.Random(4)
    words = sentence(draw, 200).split()
    template = []
    for number in range(150):
        own = list(words)
        for place in draw.sample(range(len(own)), 4):
            own[place] = f"own{number}x{place}"
        template.append(" ".join(own))
    assert 0.65 < similarity(shingles(template[0]), shingles(template[1])) < 0.8
    texts = [*template, *(text.replace(" ", ", ") for text in template)]
    near = judged(texts, prepared(texts, tmp_path / "out", near=0.9), 0.9)
    assert near[-150:] == list(range(150, 300))


@given(st.text(max_size=60) | st.lists(st.sampled_from([*WORDS, *SPACELESS, *MARKS, "Σ", "İ"])).map("".join))
def test_the_fast_oracle_is_the_slow_one(text: str) -> None:
    assert near_oracle.units(text) == units(text)


def test_the_oracle_of_all_pairs() -> None:
    texts = corpus(5, 120)
    sets = [shingles(text) for text in texts]
    found = near_oracle.near_pairs([near_oracle.shingles(text) for text in texts], 0.4)
    wanted = {
        (one, other): similarity(sets[one], sets[other])
        for other in range(len(texts))
        for one in range(other)
        if similarity(sets[one], sets[other]) >= 0.4
    }
    assert {(pair.earlier, pair.later): pair.similarity for pair in found} == wanted
    assert len(wanted) > 20
