"""`prepare --near`: what is dropped is similar to a document that is kept, and everything is accounted for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oracles_near as oracle
from conftest import AMPLE, RunRamlet
from ramlet.dataset.duplicates import FILE
from ramlet.dataset.reader import Dataset
from ramlet.errors import BudgetError, SettingsError
from ramlet.preparing import core
from ramlet.preparing.entry import prepare
from ramlet.preparing.near import bands_for
from ramlet.preparing.run import Prepared, prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer
from test_prepare_same_bytes import files

WORDS = [
    f"{start}{end}" for start in ("ka", "lo", "mi", "Nu", "é", "re") for end in ("n", "st", "r", "12", "bel", "漢")
]


def texts(seed: int, originals: int = 60, copies: int = 200) -> list[str]:
    """Documents on one line each, many of them copies of others with some words replaced."""
    chance = random.Random(seed)
    made = [chance.choices(WORDS, k=chance.choice([3, 12, 40, 120])) for _ in range(originals)]
    for _ in range(copies):
        words = list(chance.choice(made))
        rate = chance.choice([0.0, 0.01, 0.03, 0.06, 0.2])
        made.append([chance.choice(WORDS) if chance.random() < rate else word for word in words])
    chance.shuffle(made)
    return [" ".join(words) + chance.choice(["", "!", " ..."]) for words in made]


def written(folder: Path, documents: list[str], parts: int = 3) -> Path:
    folder.mkdir()
    for n in range(parts):
        (folder / f"{n}.txt").write_text("".join(f"{text}\n" for text in documents[n::parts]))
    return folder


def run(inputs: Path, out: Path, *, task_bytes: int | None = None, budget: int = 0, **given: Any) -> Prepared:
    others = {name: given.pop(name) for name in ("threads", "append") if name in given}
    chosen = PrepareSettings(**{"tokenizer": "byte", "documents": "line", "near": 0.8, **given})
    total = resident_memory() * 32 // 31 + budget if budget else AMPLE
    with Meter(Budget.parse(total)) as meter:
        return prepare_to(str(inputs), out, chosen, meter=meter, task_bytes=task_bytes, **others)


def kept_texts(out: Path) -> list[str]:
    tokenizer = Tokenizer.load(out / "tokenizer.json")
    return [tokenizer.decode(ids[:-1]) for split in ("train", "val") for ids in Dataset(out).documents(split)]


def check(inputs: list[str], kept: list[str], threshold: float) -> None:
    """Every dropped document is similar to an earlier one that is kept; equal sets are never kept twice."""
    sets = {text: oracle.shingles(text) for text in inputs}
    first = {text: number for number, text in reversed(list(enumerate(inputs)))}
    assert len(set(kept)) == len(kept)
    stay = sorted(kept, key=first.__getitem__)
    for text in sorted(set(inputs) - set(kept), key=first.__getitem__):
        before = (other for other in stay if first[other] < first[text])
        assert any(oracle.similarity(sets[text], sets[other]) >= threshold for other in before), text
    shingled = [frozenset(sets[text]) for text in kept if sets[text]]
    assert len(set(shingled)) == len(shingled)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("dedup", ["doc", "none"])
def test_only_what_is_similar_goes(tmp_path: Path, threshold: float, dedup: str) -> None:
    documents = texts(int(threshold * 10))
    if dedup == "none":
        documents = list(dict.fromkeys(documents))
    inputs = written(tmp_path / "in", documents, parts=1)
    result = run(inputs, tmp_path / "out", near=threshold, dedup=dedup, task_bytes=5000)
    kept = kept_texts(tmp_path / "out")
    check(documents, kept, threshold)
    wanted = [documents[n] for n in oracle.kept(documents, threshold)]
    # Some pairs are never compared; all that matter here are far above the threshold.
    assert len(set(wanted) ^ set(kept)) <= 0.1 * len(wanted)
    ledger = result.manifest["ledger"]
    dropped = ledger["documents"]["dropped"]
    assert dropped["near_duplicate"] > 0
    assert ledger["documents"]["read"] == len(documents) == len(kept) + sum(dropped.values())
    assert ledger["characters"] == sum(map(len, kept))
    assert ledger["bytes"]["kept"] == sum(len(text.encode()) for text in kept)
    assert sum(result.manifest["lengths"]) == len(kept)


def test_threads_budgets_and_resuming_change_nothing(tmp_path: Path) -> None:
    inputs = written(tmp_path / "in", texts(1))
    run(inputs, tmp_path / "a", threads=1, task_bytes=3000)
    wanted = files(tmp_path / "a")
    assert FILE in wanted
    run(inputs, tmp_path / "b", threads=3, budget=80_000_000, task_bytes=3000)
    assert files(tmp_path / "b") == wanted


@pytest.mark.parametrize("given", [{"max_tokens": 60}, {"pack": 64}, {"dedup": "line"}, {"tokenizer": "char"}])
def test_with_other_settings(tmp_path: Path, given: dict[str, Any]) -> None:
    inputs = written(tmp_path / "in", texts(2))
    result = run(inputs, tmp_path / "out", task_bytes=4000, **given)
    dropped = result.manifest["ledger"]["documents"]["dropped"]
    assert dropped["near_duplicate"] > 0
    run(inputs, tmp_path / "plain", task_bytes=4000, **given, near=None)
    plain = json.loads((tmp_path / "plain" / "dataset_metadata.json").read_text())
    assert plain["ledger"]["documents"]["kept"] > result.manifest["ledger"]["documents"]["kept"]


def test_the_pairs_are_told(tmp_path: Path) -> None:
    documents = list(dict.fromkeys(texts(3)))
    inputs = written(tmp_path / "in", documents, parts=1)
    result = run(inputs, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / FILE).read_text().splitlines()]
    pairs = [line for line in lines if "similarity" in line]
    count = result.manifest["ledger"]["documents"]["dropped"]["near_duplicate"]
    assert len(pairs) == min(count, 200)
    for pair in pairs:
        dropped, kept = (documents[pair[side]["document"]] for side in ("dropped", "kept"))
        assert pair["dropped"]["source"] == str(inputs / "0.txt")
        assert pair["dropped"]["text"] in dropped
        assert pair["kept"]["text"] in kept
        exact = oracle.similarity(oracle.shingles(dropped), oracle.shingles(kept))
        assert exact >= 0.8
        assert pair["similarity"] == pytest.approx(exact, abs=1e-6)
    clusters = [line["documents"] for line in lines if "cluster" in line]
    assert clusters == sorted(clusters, reverse=True)
    assert len(clusters) == 20 or sum(clusters) == count


def test_a_cache_finds_what_earlier_runs_kept(tmp_path: Path) -> None:
    documents = list(dict.fromkeys(texts(4)))
    half = len(documents) // 2
    early = written(tmp_path / "early", documents[:half], parts=1)
    late = written(tmp_path / "late", documents[half:], parts=1)
    cache = tmp_path / "cache"
    run(early, tmp_path / "a", dedup_cache=str(cache), task_bytes=4000)
    run(late, tmp_path / "b", dedup_cache=str(cache), task_bytes=4000)
    run(written(tmp_path / "in", documents, parts=1), tmp_path / "whole", task_bytes=4000)
    both = [*kept_texts(tmp_path / "a"), *kept_texts(tmp_path / "b")]
    check(documents, both, 0.8)
    assert sorted(both) == sorted(kept_texts(tmp_path / "whole"))
    with pytest.raises(SettingsError, match=r"0\.8, not 0\.7"):
        run(late, tmp_path / "c", dedup_cache=str(cache), near=0.7)
    with pytest.raises(SettingsError, match="different cleaning settings"):
        run(late, tmp_path / "c", dedup_cache=str(cache), max_symbols=0.9, dedup="none")
    assert not (tmp_path / "c").exists()  # refused before any work was done


def between_stages(monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], None]) -> None:
    """Calls `happens` before the first stage of this name begins."""
    real, left = core.run_native, [name]

    def stage(work: Path, out: Any, stage: str, *given: Any, **named: Any) -> None:
        if stage in left:
            left.remove(stage)
            happens()
        real(work, out, stage, *given, **named)

    monkeypatch.setattr(core, "run_native", stage)


@pytest.mark.parametrize("stage", ["settle", "pair", "compare", "decide", "near", "layout"])
def test_a_run_that_finishes_meanwhile_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Two runs with one cache: each is compared with what was there when it was planned."""
    documents = list(dict.fromkeys(texts(4)))
    half = len(documents) // 2
    early = written(tmp_path / "early", documents[:half], parts=1)
    late = written(tmp_path / "late", documents[half:], parts=1)
    for name in ("alone", "shared"):
        run(early, tmp_path / name / "a", dedup_cache=str(tmp_path / name / "cache"), task_bytes=4000)
    run(late, tmp_path / "alone" / "b", dedup_cache=str(tmp_path / "alone" / "cache"), task_bytes=4000)
    cache = tmp_path / "shared" / "cache"

    def another() -> None:
        before = set(cache.iterdir())
        run(late, tmp_path / "shared" / "other", dedup_cache=str(cache), task_bytes=4000)
        for added in set(cache.iterdir()) - before:
            added.rename(cache / f"0{added.suffix}")  # first in the folder, whatever its id is

    between_stages(monkeypatch, stage, another)
    run(late, tmp_path / "shared" / "b", dedup_cache=str(cache), task_bytes=4000)
    assert (cache / "0.near").exists()
    assert kept_texts(tmp_path / "shared" / "b") == kept_texts(tmp_path / "alone" / "b")


@pytest.mark.parametrize(("stage", "ending"), [("settle", "hashes"), ("pair", "near"), ("compare", "near")])
def test_a_cache_that_loses_a_file_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, ending: str
) -> None:
    inputs = written(tmp_path / "in", texts(4), parts=1)
    cache = tmp_path / "cache"
    run(inputs, tmp_path / "a", dedup_cache=str(cache))
    [path] = cache.glob(f"*.{ending}")
    late = written(tmp_path / "late", texts(5), parts=1)
    with monkeypatch.context() as patch:
        between_stages(patch, stage, path.unlink)
        with pytest.raises(SettingsError, match=rf"\.{ending} of the dedup cache was removed or changed"):
            run(late, tmp_path / "b", dedup_cache=str(cache))
    run(late, tmp_path / "b", dedup_cache=str(cache))  # planned again, without it


@pytest.mark.parametrize("cached", [False, True])
def test_more_documents_than_the_budget_has_bits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    inputs = written(tmp_path / "in", texts(4), parts=1)
    cache = {"dedup_cache": str(tmp_path / "cache")} if cached else {}
    with monkeypatch.context() as patch:
        patch.setattr(core.Core, "_compared", lambda _: 10**12)
        with pytest.raises(BudgetError, match="one bit for each of 1,000,000,000,000 documents") as refused:
            run(inputs, tmp_path / "out", **cache)
        assert refused.value.facts["needed"] > 10**12 // 8
        if cached:  # as `finish` on another machine, with another budget
            patch.setattr(core.Core, "_compared", lambda _: 0)
            between_stages(patch, "assemble", lambda: patch.setattr(core.Core, "_compared", lambda _: 10**12))
            with pytest.raises(BudgetError, match="one bit for each"):
                run(inputs, tmp_path / "out", **cache)
    run(inputs, tmp_path / "out", **cache)


def test_appending_with_a_cache(tmp_path: Path) -> None:
    documents = list(dict.fromkeys(texts(5)))
    early = written(tmp_path / "early", documents[:100], parts=1)
    late = written(tmp_path / "late", documents[60:], parts=1)
    given = {"dedup_cache": str(tmp_path / "cache")}
    run(early, tmp_path / "out", **given)
    run(late, tmp_path / "out", **given, append=True)
    check(documents, kept_texts(tmp_path / "out"), 0.8)
    assert (tmp_path / "out" / FILE).exists()


@pytest.mark.parametrize("value", [0, -0.5, 1.5, "much"])
def test_thresholds_are_checked(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"above 0 and at most 1|number like"):
        PrepareSettings(near=value)


def test_npy_has_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(SettingsError, match="npy file has no documents"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "a.npy", near=0.8, output_format="npy", tokenizer="byte")


def test_the_expected_recall_is_told(tmp_path: Path, ramlet: RunRamlet) -> None:
    (tmp_path / "in.txt").write_text("one two three four five six\n" * 3)
    shown = ramlet("prepare", "in.txt", "-T", "byte", "--out", "out", "--near", "0.8").stdout
    assert "16 bands of 8 find 94.7% of pairs with a similarity of 0.8, 99.4% of pairs with" in shown


def test_bands_follow_from_the_threshold() -> None:
    assert bands_for(0.8) == (16, 8)
    for threshold in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        bands = bands_for(threshold)
        assert bands.recall(threshold) >= 0.94
        assert bands.recall(min(1, threshold + 0.05)) >= 0.98


def test_without_near_nothing_is_different(tmp_path: Path) -> None:
    """A run of an older version is recognized: the setting is part of a signature only if it is given."""
    assert PrepareSettings().parts() == PrepareSettings(near=None).parts()
    assert b"near" not in PrepareSettings().parts()


def test_a_tokenizer_of_another_library(tmp_path: Path) -> None:
    """Its ids are decoded by that library."""
    tokenizers = pytest.importorskip("tokenizers")
    documents = list(dict.fromkeys(texts(6)))
    other = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    other.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["<unk>", "</s>"], show_progress=False)
    other.train_from_iterator(documents, trainer)
    other.save(str(tmp_path / "tokenizer.json"))
    inputs = written(tmp_path / "in", documents, parts=1)
    run(inputs, tmp_path / "out", tokenizer=str(tmp_path / "tokenizer.json"), task_bytes=4000)
    run(inputs, tmp_path / "bytes", task_bytes=4000)
    pairs = [(folder / FILE).read_text() for folder in (tmp_path / "out", tmp_path / "bytes")]
    dropped = [
        {json.loads(line)["dropped"]["document"] for line in text.splitlines() if "dropped" in line} for text in pairs
    ]
    assert dropped[0] == dropped[1] != set()


def test_config_files_have_it(tmp_path: Path) -> None:
    from ramlet.preparing.config_file import load

    (tmp_path / "config.yaml").write_text("inputs: [in]\nnear: 0.8\n")
    assert load(tmp_path / "config.yaml").prepare_settings().near == 0.8
    (tmp_path / "config.yaml").write_text("inputs: [in]\nnear: 1.2\n")
    with pytest.raises(SettingsError, match=r"2: near must be above 0 and at most 1"):
        load(tmp_path / "config.yaml")


def test_the_files_of_pairs_are_named(tmp_path: Path) -> None:
    text = " ".join(f"word{n}" for n in range(50))
    (tmp_path / "in").mkdir()
    for n in range(4):
        (tmp_path / "in" / f"{n}.txt").write_text(
            f"{text} {n}\n" if n % 2 else f"{n} other words here in this one {n}\n"
        )
    run(tmp_path / "in", tmp_path / "out")
    [pair, cluster] = [json.loads(line) for line in (tmp_path / "out" / FILE).read_text().splitlines()]
    assert [Path(pair[side]["source"]).name for side in ("dropped", "kept")] == ["3.txt", "1.txt"]
    assert pair["dropped"]["text"].endswith("word49 3")
    assert (Path(cluster["cluster"]["source"]).name, cluster["documents"]) == ("1.txt", 1)


def test_an_older_pipeline_is_not_rebuilt(tmp_path: Path) -> None:
    from ramlet.pipeline.file import load
    from ramlet.pipeline.stages import stages

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("some text")
    path = tmp_path / "pipeline.yaml"
    for given, known in (("val_fraction: 0.2", False), ("near: 0.7", True)):
        path.write_text(f"text: {tmp_path / 'in'}\nwork: {tmp_path / 'out'}\ntokenizer: byte\ndata: {{{given}}}\n")
        [data] = [stage for stage in stages(load(path)) if stage.name == "data"]
        assert ("near" in data.settings) == known
