"""`prepare --exclude`: no document shares n words in a row with the evaluation set, as a slow comparison finds."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramlet
from conftest import AMPLE, RunRamlet
from ramlet.errors import RamletError, SettingsError, SourceError
from ramlet.preparing import core
from ramlet.preparing.run import Prepared, prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

PASSAGE = "the quick brown fox jumps over the lazy dog while seven small cats are watching it"
UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF))


def words(text: str) -> list[str]:
    """The definition in docs/design/exclude.md, character by character."""
    found: list[str] = []
    joins = False
    for character in text:
        if unicodedata.category(character)[0] not in "LMN":
            joins = False
            continue
        alone = any(first <= ord(character) <= last for first, last in UNSPACED)
        if joins and not alone:
            found[-1] += character.lower()
        else:
            found.append(character.lower())
        joins = not alone
    return found


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    all_words = words(text)
    return [tuple(all_words[at : at + n]) for at in range(len(all_words) - n + 1)]


def contaminated(texts: list[str], evaluation: list[str], n: int) -> list[bool]:
    known = {each for text in evaluation for each in ngrams(text, n)}
    return [not known.isdisjoint(ngrams(text, n)) for text in texts]


def jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path


def run(inputs: Any, out: Path, **given: Any) -> Prepared:
    return ramlet.prepare(
        inputs, out, **{"tokenizer": "byte", "memory": AMPLE, "threads": 1, "val_fraction": 0, "dedup": "none", **given}
    )


def kept(out: Path) -> list[str]:
    dataset = ramlet.Dataset(out)
    return [dataset.tokenizer.decode(ids[:-1]) for ids in dataset.documents("train")]


def dropped(made: Prepared) -> tuple[int, int]:
    ledger = made.manifest["ledger"]
    return ledger["documents"]["dropped"]["contaminated"], ledger["bytes"]["dropped"]["contaminated"]


def examples(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "contaminated.jsonl").read_text().splitlines()]


def few_words(count: int, seed: int, vocabulary: str = "a b c d E F’s ü 漢 か ก x1") -> Iterator[str]:
    source = random.Random(seed)
    for _ in range(count):
        length = source.randrange(1, 14)
        yield "".join(source.choice(vocabulary.split()) + source.choice([" ", ", ", "\n"]) for _ in range(length)) + "."


def test_what_shares_a_passage_is_dropped_and_shown(tmp_path: Path) -> None:
    shouted = f"It said: {PASSAGE.upper().replace(' ', ', ')}!"
    twelve = " ".join(PASSAGE.split()[:12]) + " and nothing else"
    corpus = jsonl(tmp_path / "corpus.jsonl", ["first", shouted, twelve, "last"])
    (tmp_path / "eval.txt").write_text(f"Question: {PASSAGE}?\n")
    made = run(corpus, tmp_path / "out", exclude=tmp_path / "eval.txt")
    assert kept(tmp_path / "out") == ["first", twelve, "last"]
    assert dropped(made) == (1, len(shouted.encode()))
    [example] = examples(tmp_path / "out")
    assert words(example["passage"]) == words(PASSAGE)[:13]
    assert example["passage"] in shouted
    assert (example["source"], example["document"]) == (str(corpus), 1)
    assert (example["excluded_source"], example["excluded_document"]) == (str(tmp_path / "eval.txt"), 0)
    assert made.statistics["exclude"] | {"identity": ""} == {
        "ngram": 13,
        "documents": 1,
        "too_short": 0,
        "ngrams": len(ngrams(f"Question: {PASSAGE}", 13)),
        "identity": "",
    }
    again = run(corpus, tmp_path / "out", exclude=tmp_path / "eval.txt")
    assert again.already_done


@pytest.mark.parametrize("n", [2, 3, 5])
def test_as_the_slow_comparison(tmp_path: Path, n: int) -> None:
    texts, evaluation = list(few_words(300, n)), list(few_words(12, 100 + n))
    corpus = jsonl(tmp_path / "corpus.jsonl", texts)
    made = run(
        corpus, tmp_path / "out", exclude=jsonl(tmp_path / "eval.jsonl", evaluation), exclude_ngram=n, normalize=False
    )
    hits = contaminated(texts, evaluation, n)
    assert 0 < sum(hits) < len(texts)
    assert kept(tmp_path / "out") == [text for text, hit in zip(texts, hits) if not hit]
    assert dropped(made) == (sum(hits), sum(len(text.encode()) for text, hit in zip(texts, hits) if hit))
    known = {each for text in evaluation for each in ngrams(text, n)}
    shown = examples(tmp_path / "out")
    assert len(shown) == min(100, sum(hits))
    for each in shown:
        text = texts[each["document"]]
        assert words(each["passage"]) == list(next(one for one in ngrams(text, n) if one in known))
        first = next(at for at, one in enumerate(evaluation) if tuple(words(each["passage"])) in ngrams(one, n))
        assert each["excluded_document"] == first
    assert [each["document"] for each in shown] == sorted(each["document"] for each in shown)
    assert made.statistics["exclude"]["too_short"] == sum(len(words(text)) < n for text in evaluation)


def test_any_kind_of_evaluation_set(tmp_path: Path) -> None:
    texts = [f"number {at} {PASSAGE} {at}" if at % 3 == 0 else f"clean text {at}" for at in range(9)]
    corpus = jsonl(tmp_path / "corpus.jsonl", texts)
    clean = [text for text in texts if text.startswith("clean")]
    field = jsonl(tmp_path / "questions.jsonl", [PASSAGE], "question")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("nothing in here")
    (folder / "b.md").write_text(PASSAGE)
    evaluation = jsonl(tmp_path / "evaluation.jsonl", [f"some {at} {PASSAGE}" for at in range(20)])
    run(evaluation, tmp_path / "dataset", tokenizer="gpt2", val_fraction=0.4)
    cases: dict[str, dict[str, Any]] = {
        "field": {"exclude": field, "exclude_field": "question"},
        "folder": {"exclude": [folder]},
        "glob": {"exclude": (str(folder / "*.md"), str(folder / "a.txt"))},
        "all": {"exclude": str(tmp_path / "dataset")},
        "split": {"exclude": f"{tmp_path / 'dataset'}:val"},
    }
    for name, given in cases.items():
        run(corpus, tmp_path / "out" / name, **given)
        assert kept(tmp_path / "out" / name) == clean, name
    assert examples(tmp_path / "out" / "split")[0]["excluded_source"] == f"{tmp_path / 'dataset'}:val"
    assert examples(tmp_path / "out" / "folder")[0]["excluded_source"] == str(folder / "b.md")


def test_a_contaminated_document_is_not_the_first_of_its_lines(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", [f"a line that is here twice\n{PASSAGE}", "a line that is here twice"])
    (tmp_path / "eval.txt").write_text(PASSAGE)
    made = run(corpus, tmp_path / "out", exclude=tmp_path / "eval.txt", dedup="line")
    assert kept(tmp_path / "out") == ["a line that is here twice"]
    assert made.manifest["ledger"]["lines"]["dropped"]["duplicate_line"] == 0


def test_characters_of_dropped_documents_are_not_learned(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["abc", f"ß {PASSAGE}"])
    (tmp_path / "eval.txt").write_text(PASSAGE)
    run(corpus, tmp_path / "out", exclude=tmp_path / "eval.txt", tokenizer="char")
    assert "ß".encode() not in ramlet.Dataset(tmp_path / "out").tokenizer.vocabulary.values()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A corpus of several tasks, and an evaluation set with more n-grams than a pass holds in the least memory."""
    folder = tmp_path_factory.mktemp("large")
    source = random.Random(5)
    numbers = [source.randrange(1 << 32) for _ in range(450_000)]
    (folder / "eval.txt").write_text(" ".join(map(str, numbers)))
    texts = []
    for at in range(400):
        words_of_it = [str(source.randrange(1 << 32)) for _ in range(200)]
        if at % 4 == 0:
            for _ in range(2):
                first, place = source.randrange(len(numbers) - 13), source.randrange(200)
                words_of_it[place:place] = map(str, numbers[first : first + 13])
        texts.append(f"{at} " + " ".join(words_of_it))
    return jsonl(folder / "corpus.jsonl", texts), folder / "eval.txt"


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "stats.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def with_tasks(large: tuple[Path, Path], out: Path, threads: int) -> Prepared:
    settings = PrepareSettings(tokenizer="byte", exclude=(str(large[1]),))
    with Meter(Budget.parse(AMPLE)) as meter:
        return prepare_to([large[0]], out, settings, meter=meter, threads=threads, task_bytes=100_000)


def test_any_memory_threads_and_interruptions(
    large: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = with_tasks(large, tmp_path / "one", threads=1)
    assert dropped(expected)[0] == 100
    assert len(examples(tmp_path / "one")) == 100
    run_stage = core.run_native
    screened: list[Path] = []

    def with_least_memory(work: Path, out: Path, stage: str, *args: Any, **given: Any) -> None:
        run_stage(work, out, stage, *args, **{**given, "memory": 0})
        screened.extend((work / "exclude").glob("*.hits"))

    class Stop(Exception):
        pass

    def stopping(work: Path, out: Path, stage: str, parts: Any, *args: Any, **given: Any) -> None:
        for part in (0, 2):
            with_least_memory(work, out, stage, [part], *args, **given)
        # As if it had been stopped between the passes over task 0 and its scan.
        (work / "scan" / "000000.json").unlink()
        raise Stop

    monkeypatch.setattr(core, "run_native", stopping)
    with pytest.raises(Stop):
        with_tasks(large, tmp_path / "two", threads=2)
    assert len(screened) == 3, "one pass was enough"
    # The rest with all the memory: it resumes from whatever was compared.
    monkeypatch.setattr(core, "run_native", run_stage)
    with_tasks(large, tmp_path / "two", threads=2)
    assert tree(tmp_path / "two") == tree(tmp_path / "one")
    monkeypatch.setattr(core, "run_native", with_least_memory)
    with_tasks(large, tmp_path / "three", threads=2)
    assert tree(tmp_path / "three") == tree(tmp_path / "one")


def test_appending_and_a_changed_set(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path / "a.jsonl", ["one", f"two {PASSAGE}"])
    more = jsonl(tmp_path / "b.jsonl", ["three", f"four {PASSAGE}", f"five {PASSAGE[::-1]}"])
    evaluation = tmp_path / "eval.txt"
    evaluation.write_text(PASSAGE)
    run(corpus, tmp_path / "out", exclude=evaluation)
    evaluation.rename(tmp_path / "moved.txt")
    assert run(corpus, tmp_path / "out", exclude=tmp_path / "moved.txt").already_done
    run(more, tmp_path / "out", exclude=tmp_path / "moved.txt", append=True)
    assert [(Path(each["source"]).name, each["document"]) for each in examples(tmp_path / "out")] == [
        ("a.jsonl", 1),
        ("b.jsonl", 1),
    ]
    assert kept(tmp_path / "out") == ["one", "three", f"five {PASSAGE[::-1]}"]
    evaluation.write_text(PASSAGE[::-1])
    with pytest.raises(SettingsError, match="other inputs or settings"):
        run(corpus, tmp_path / "out", exclude=evaluation)
    added = run(more, tmp_path / "out", exclude=evaluation, append=True)
    assert dropped(added)[0] == 3
    assert not added.already_done


@pytest.mark.parametrize(
    ("content", "given", "sentence"),
    [
        (None, {}, "exclude: no such file or folder"),
        ("", {}, "no text in"),
        ("  \n ", {}, "no document in .* has 13 words"),
        ("only a few words", {}, "no document in .* has 13 words"),
        ("a b", {"exclude_ngram": 1}, "exclude_ngram must be between 2 and 256, not 1"),
        ("a b", {"exclude_ngram": 257}, "exclude_ngram must be between 2 and 256, not 257"),
    ],
)
def test_useless_sets(tmp_path: Path, content: str | None, given: dict[str, Any], sentence: str) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["one"])
    if content is not None:
        (tmp_path / "eval.txt").write_text(content)
    with pytest.raises((SettingsError, SourceError), match=sentence):
        run(corpus, tmp_path / "out", exclude=tmp_path / "eval.txt", **given)
    assert not (tmp_path / "out").exists()


def test_another_field_is_named(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["one"])
    questions = jsonl(tmp_path / "questions.jsonl", [PASSAGE], "question")
    with pytest.raises(SourceError, match=r'exclude: .*questions.jsonl:1 has no field "text".* with exclude_field'):
        run(corpus, tmp_path / "out", exclude=questions)
    assert not (tmp_path / "out").exists()


def test_everything_contaminated_is_told(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", [PASSAGE])
    with pytest.raises(RamletError, match="1 as contaminated"):
        run(corpus, tmp_path / "out", exclude=corpus)


def test_damage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["one", PASSAGE])
    run_stage = core.run_native

    def damaging(work: Path, out: Path, stage: str, *args: Any, **given: Any) -> None:
        name = {"scan": work / "exclude" / "ngrams", "write": work / "scan" / "000000.hits"}[stage]
        if stage == hurt:
            data = bytearray(name.read_bytes())
            data[3] ^= 1
            name.write_bytes(data)
        run_stage(work, out, stage, *args, **given)

    monkeypatch.setattr(core, "run_native", damaging)
    for hurt, named in (("scan", "exclude/ngrams is damaged"), ("write", "scan/000000.hits is damaged")):
        with pytest.raises(RamletError, match=named):
            run(corpus, tmp_path / hurt, exclude=corpus, allow_empty=True)


def test_missing_hits_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["one", PASSAGE])
    run_stage = core.run_native

    def losing(work: Path, out: Path, stage: str, *args: Any, **given: Any) -> None:
        if stage == "write":
            (work / "scan" / "000000.hits").unlink()
        run_stage(work, out, stage, *args, **given)

    monkeypatch.setattr(core, "run_native", losing)
    with pytest.raises(RamletError, match=r"scan/000000\.hits is missing"):
        run(corpus, tmp_path / "out", exclude=corpus, allow_empty=True)


def test_config_file_and_command_line(tmp_path: Path, ramlet: RunRamlet) -> None:
    corpus = jsonl(tmp_path / "corpus.jsonl", ["one", f"two {PASSAGE}"])
    evaluation = jsonl(tmp_path / "eval.jsonl", [PASSAGE, "a short one"])
    config = tmp_path / "config.yaml"
    config.write_text(f"inputs: [{corpus}]\nexclude: [{evaluation}]\nexclude_ngram: 12\ntokenizer: byte\n")
    told = ramlet("prepare", str(config), "--out", "out").stdout
    assert "dropped: contaminated" in told
    assert "2 documents with 5 12-grams; 1 have fewer than 12 words" in told
    given = ("--tokenizer=byte", "--exclude", str(evaluation), "--exclude-ngram=12")
    done = ramlet("prepare", str(corpus), "--out", "out", *given)
    assert "nothing to do" in done.stdout


def test_the_evaluation_sets_of_a_pipeline(tmp_path: Path) -> None:
    from ramlet.pipeline.file import load
    from ramlet.pipeline.stages import stages

    corpus = jsonl(tmp_path / "corpus.jsonl", ["one", f"two {PASSAGE}"])
    evaluation = jsonl(tmp_path / "eval.jsonl", [f"some {at} {PASSAGE}" for at in range(20)])
    run(evaluation, tmp_path / "general", val_fraction=0.4)
    run(evaluation, tmp_path / "whole")
    file = tmp_path / "pipeline.yaml"

    def data_stage(data: str) -> Any:
        evals = "training: {eval: {general: general/, whole: whole/}, max_steps: 5}"
        file.write_text(f"text: [{corpus}]\ntokenizer: byte\ndata: {{{data}}}\nmodel: {{params: 100k}}\n{evals}\n")
        return next(stage for stage in stages(load(file)) if stage.name == "data")

    plain, named = data_stage("dedup: doc"), data_stage("exclude: eval.jsonl")
    assert "exclude" not in {**plain.options, **plain.settings, **plain.reads}
    assert named.options["exclude"] == (str(evaluation),)
    both = data_stage("exclude: [eval.jsonl], exclude_eval: true")
    assert both.options["exclude"] == (str(evaluation), f"{tmp_path / 'general'}:val", str(tmp_path / "whole"))
    words_of_it = both.argv()
    assert [words_of_it[at + 1] for at, word in enumerate(words_of_it) if word == "--exclude"] == list(
        both.options["exclude"]
    )
    jsonl(evaluation, ["another set"])
    assert data_stage("exclude: eval.jsonl").fingerprint != named.fingerprint
    assert data_stage("dedup: doc").fingerprint == plain.fingerprint
    with pytest.raises(SettingsError, match="exclude_eval without an evaluation set"):
        file.write_text(f"text: [{corpus}]\ndata: {{exclude_eval: true}}\nmodel: {{params: 100k}}\n")
        load(file)
