"""`ramlet eval --task`, compared with the definition; benchmarks/eval_tasks.py compares with lm-evaluation-harness."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ramlet
from conftest import AMPLE, RunRamlet
from oracles_engine import CountingEngine
from oracles_model import GROUPED, GROUPED_QK_NORM, model_of
from oracles_tasks import Harness
from oracles_training import sentences
from ramlet.engines import SHARED
from ramlet.engines.opening import has_jax, open_engine
from ramlet.engines.torch.model_files import save_model
from ramlet.errors import BrokenInput, BudgetError, ModelError, SettingsError, SourceError
from ramlet.model.folder import find_model
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training import evaluate_tasks as tasks
from ramlet.training import open_model
from ramlet.training.evaluate_tasks import Answered, TaskScore, evaluate_tasks
from ramlet.training.task_file import LONGEST_LINE, Item, TaskFile
from ramlet.training.task_rows import Encoding

torch.set_num_threads(1)
END = "<|endoftext|>"
GIVEN: dict[str, Any] = {"device": "cpu", "memory": AMPLE, "threads": 1}
ENGINES = ["native", "torch", pytest.param("jax", marks=pytest.mark.skipif(not has_jax(), reason="JAX is missing"))]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of its own for what JAX compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with BPE and a context of 48."""
    folder = tmp_path_factory.mktemp("tasks")
    tokenizer = Tokenizer.train(texts=[sentences(300)], vocab_size=300, special_tokens=[END], memory=AMPLE)
    tokenizer.save(folder / "tokenizer.json")
    shape = replace(GROUPED_QK_NORM, vocab_size=tokenizer.vocab_size)
    save_model(model_of(shape), folder / "run", tokenizer_file=folder / "tokenizer.json", end_id=tokenizer.end_of_text)
    return folder / "run"


def written(path: Path, items: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return path


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Some too long for the context, some without a question, some that end with spaces, some with equal choices."""
    chance = random.Random(seed)
    words = sentences(40, seed).split()
    made = []
    for number in range(count):
        question = " ".join(chance.choices(words, k=chance.choice([0, 1, 5, 12, 60])))
        choices = [" ".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(chance.randint(2, 6))]
        if number % 7 == 0:
            question, choices = f"{question} \n ", [*choices, choices[0], "ünï 東"]
        answer = chance.randrange(len(choices))
        made.append({"question": question.lstrip(), "choices": choices, "answer": answer})
    return made


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    lines = sentences(count, seed).splitlines()
    return [
        {"sentence_good": line, "sentence_bad": " ".join(chance.sample(line.split(), len(line.split())))}
        for line in lines
    ]


def answered(run: Path, path: Path, **given: Any) -> tuple[list[Answered], TaskScore]:
    found: list[Answered] = []
    scores = evaluate_tasks(run, {"one": path}, answered=lambda _, each: found.append(each), **{**GIVEN, **given})
    return found, scores["one"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [questions, pairs])
def test_likelihoods_are_those_of_the_definition(run: Path, tmp_path: Path, engine: str, kind: Any) -> None:
    path = written(tmp_path / "task.jsonl", kind(30))
    harness = Harness(run)
    found, score = answered(run, path, engine=engine)
    expected = [harness.likelihoods(item) for item in TaskFile.open(path)]
    for one, theirs in zip(found, expected, strict=True):
        assert one.likelihoods == pytest.approx(theirs, abs=1e-4), one.item
    right = [
        float(np.argmax(theirs) == item.answer) for item, theirs in zip(TaskFile.open(path), expected, strict=True)
    ]
    assert score.acc == statistics.mean(right)
    assert score.acc_stderr == pytest.approx(statistics.stdev(right) / math.sqrt(len(right)))
    per_character = [
        float(np.argmax(np.array(theirs) / [len(text) for text in item.choices]) == item.answer)
        for item, theirs in zip(TaskFile.open(path), expected, strict=True)
    ]
    assert score.acc_norm == (None if kind is pairs else statistics.mean(per_character))


def test_bytes_and_a_llama(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(texts=["abc"], kind="byte", special_tokens=[END], memory=AMPLE)
    tokenizer.save(tmp_path / "tokenizer.json")
    shape = replace(GROUPED, vocab_size=257)
    save_model(model_of(shape), tmp_path / "run", tokenizer_file=tmp_path / "tokenizer.json", end_id=256)
    short = [
        {"ctx": "a b", "endings": ["über", "c d", "c e"], "label": "2"},
        {"query": "", "options": ["x", "y"], "gold": 1},
    ]
    path = written(tmp_path / "task.jsonl", short)
    harness = Harness(tmp_path / "run")
    for one in answered(tmp_path / "run", path)[0]:
        assert one.likelihoods == pytest.approx(harness.likelihoods(one.item), abs=1e-4)


def test_the_same_for_every_budget_window_and_thread(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "task.jsonl", questions(25))
    first = [one.likelihoods for one in answered(run, path, engine="native")[0]]
    division = open_engine("cpu", 1, name="native").division
    smallest = division(find_model(run).shape(), seq_len=48, precision="fp32", budget=_budget(), document_mask=True)
    monkeypatch.setattr(tasks, "WINDOW_ROWS", 3)
    assert [one.likelihoods for one in answered(run, path, engine="native", threads=2)[0]] == first
    one_row = smallest._replace(micro_batch=1)
    monkeypatch.setattr(tasks.Opening, "division", lambda *given: one_row)
    assert [one.likelihoods for one in answered(run, path, engine="native")[0]] == first


def _budget() -> Any:
    return ramlet.Budget.parse(AMPLE)


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, run: Path) -> Any:
    found = find_model(run)
    opened = open_engine("cpu", 1, name=request.param)
    division = opened.division(found.shape(), seq_len=48, precision="fp32", budget=_budget(), document_mask=True)
    return opened.load(found, "fp32", division=division, seq_len=48)


@pytest.mark.parametrize("shared", [0, 1, 17, 36])
def test_what_is_shared_is_seen_by_all_documents(model: Any, shared: int) -> None:
    """The contract of an engine: documents that begin alike, together and one by one."""
    lengths = (3, 1, 8)
    total = shared + sum(lengths)
    ids = np.random.default_rng(1).integers(0, 257, total)
    targets, positions, documents = ids[::-1].copy(), np.arange(total), np.full(total, SHARED)
    start, alone = shared, []
    for number, length in enumerate(lengths):
        end = start + length
        positions[start:end], documents[start:end] = np.arange(shared, shared + length), number
        own = np.r_[0:shared, start:end]
        alone.append(model.token_losses({"input_ids": ids[None, own], "targets": targets[None, own]})[0])
        start = end
    arrays = {"input_ids": ids, "targets": targets, "position_ids": positions, "document_ids": documents}
    together = model.token_losses({name: array[None].astype(np.int64) for name, array in arrays.items()})[0]
    assert together[:shared] == pytest.approx(alone[0][:shared], abs=1e-5)
    assert together[shared:] == pytest.approx([loss for one in alone for loss in one[shared:]], abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_is_not_a_number_has_no_score(run: Path, tmp_path: Path, engine: str) -> None:
    """Comparisons with NaN are false: the first sentence of every pair, which is the right one, would win."""
    broken = model_of(replace(GROUPED_QK_NORM, vocab_size=find_model(run).shape().vocab_size))
    broken.weights.matrices.fill_(math.nan)
    (end_id,) = find_model(run).end_ids()
    save_model(broken, tmp_path / "broken", tokenizer_file=run / "tokenizer.json", end_id=end_id)
    path = written(tmp_path / "pairs.jsonl", pairs(3))
    with pytest.raises(ModelError, match=r"loss on line 1 of .*pairs\.jsonl is NaN or infinite: .* need precision"):
        evaluate_tasks(tmp_path / "broken", path, engine=engine, **GIVEN)


def test_ignored_targets_change_no_other_loss(run: Path) -> None:
    found = find_model(run)
    opened = open_engine("cpu", 2, name="native")
    division = opened.division(found.shape(), seq_len=32, precision="fp32", budget=_budget(), document_mask=False)
    model = opened.load(found, "fp32", division=division._replace(chunk=7), seq_len=32)
    chance = np.random.default_rng(2)
    ids, targets = chance.integers(0, 257, (3, 32)), chance.integers(0, 257, (3, 32))
    every = np.array(model.token_losses({"input_ids": ids, "targets": targets}))
    kept = chance.random((3, 32)) < 0.3
    some = np.array(model.token_losses({"input_ids": ids, "targets": np.where(kept, targets, -100)}))
    assert np.array_equal(some, np.where(kept, every, 0))
    none = model.token_losses({"input_ids": ids, "targets": np.full_like(targets, -100)})
    assert none == [[0.0] * 32] * 3


class TestItems:
    def items(self, tmp_path: Path, *objects: Any) -> list[Any]:
        return list(TaskFile.open(written(tmp_path / "task.jsonl", objects)))

    @pytest.mark.parametrize(
        ("answer", "expected"), [(2, 2), ("B", 1), ("c", 2), ("1", 1), ("Rome", 0), ("x", 2)]
    )  # fmt: skip
    def test_answers(self, tmp_path: Path, answer: Any, expected: int) -> None:
        (item,) = self.items(tmp_path, {"question": "q", "choices": ["Rome", "Paris", "x"], "answer": answer})
        assert item.answer == expected

    def test_published_sets(self, tmp_path: Path) -> None:
        arc = {"question": "q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
        hellaswag = {"ctx": "q", "endings": ["a", "b"], "label": "1"}
        assert [item.answer for item in self.items(tmp_path, arc, hellaswag)] == [1, 1]

    def test_a_label_may_be_a_number(self, tmp_path: Path) -> None:
        first = {"question": "q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": 1}
        last = {"question": "q", "choices": {"text": ["a", "b"], "label": [1, 2]}, "answerKey": "2"}
        assert [item.answer for item in self.items(tmp_path, first, last)] == [0, 1]

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ("", "has no items: a task has a JSON object on each line"),
            ("\n \n", "has no items"),
            ('{"question": "q"', r"line 1 of .* is not valid JSON: fix it, or remove the line"),
            ("[1]", "line 1 of .* is not a JSON object"),
            ('\n{"text": "a"}', "line 2 of .* is neither a question with choices nor a pair of sentences: it needs"),
            ('{"question": "q", "choices": ["a", "b"]}', "line 1 of .* has no answer: add the index or the letter"),
            ('{"question": "q", "choices": ["a", "b"], "answer": 2}', "has 2 choices, and the answer 2: give 0 to 1"),
            ('{"question": "q", "choices": ["a", "b"], "answer": "C"}', "the answer 'C': give 0 to 1 or A to B"),
            ('{"question": "q", "choices": ["a", "b"], "answer": true}', "the answer True"),
            ('{"question": "q", "choices": ["a"], "answer": 0}', "has fewer than two choices"),
            ('{"question": "q", "choices": ["a", ""], "answer": 0}', r"has an empty choice \(2\)"),
            ('{"question": "q", "choices": ["a", 3], "answer": 0}', r"has no text as its choice \(2\)"),
            ('{"question": 7, "choices": ["a", "b"], "answer": 0}', "has a question that is not text"),
            ('{"sentence_good": "a", "sentence_bad": null}', r"has no text as its sentence \(2\)"),
            ('{"sentence_good": "\\ud800", "sentence_bad": "b"}', "is not valid JSON"),
            (
                '{"sentence_good": "a", "sentence_bad": "b"}\n{"question": "q", "choices": ["a", "b"], "answer": 0}',
                "line 2 of .* is a question, but the first item is of pairs of sentences: use two files",
            ),
            ("x" * (LONGEST_LINE + (1 << 17)), "line 1 of .* is longer than 1 MiB"),
        ],
    )  # fmt: skip
    def test_bad_lines(self, run: Path, tmp_path: Path, lines: str, message: str) -> None:
        (tmp_path / "task.jsonl").write_text(lines)
        with pytest.raises(SourceError, match=message):
            evaluate_tasks(run, tmp_path / "task.jsonl", **GIVEN)

    def test_other_mistakes(self, run: Path, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"cannot read the task .*: No such file"):
            evaluate_tasks(run, tmp_path / "none.jsonl", **GIVEN)
        with pytest.raises(SettingsError, match="give at least one task"):
            evaluate_tasks(run, [], **GIVEN)
        with pytest.raises(SettingsError, match="two tasks have the same file name"):
            evaluate_tasks(run, ["a/x.jsonl", "b/x.jsonl"], **GIVEN)
        long = written(tmp_path / "long.jsonl", [{"question": "q", "choices": ["a", "b " * 60], "answer": 0}])
        with pytest.raises(
            BrokenInput, match=r"choice 2 in line 1 of .*long.jsonl has .* tokens, more than the model's context"
        ):
            evaluate_tasks(run, long, **GIVEN)

    def test_a_model_without_an_end_of_text(self, tmp_path: Path) -> None:
        Tokenizer.load("byte").save(tmp_path / "tokenizer.json")
        save_model(
            model_of(replace(GROUPED, vocab_size=257)), tmp_path / "run", tokenizer_file=tmp_path / "tokenizer.json"
        )
        with pytest.raises(ModelError, match="no token that ends a text, which stands for an empty question"):
            evaluate_tasks(tmp_path / "run", written(tmp_path / "task.jsonl", pairs(2)), **GIVEN)
        scores = evaluate_tasks(tmp_path / "run", written(tmp_path / "two.jsonl", [
            {"question": "a", "choices": ["b", "c"], "answer": 0}]), **GIVEN)  # fmt: skip
        assert scores["two"].to_dict()["acc_stderr"] is None


def test_the_command(ramlet: RunRamlet, run: Path, tmp_path: Path) -> None:
    written(tmp_path / "asked.jsonl", questions(12))
    written(tmp_path / "blimp.jsonl", pairs(9))
    words = ("eval", str(run), "--task", "asked.jsonl", "--task", "grammar=blimp.jsonl", "--device", "cpu")
    done = ramlet(*words)
    assert "asked: acc 0." in done.stdout
    assert ", 12 items\n" in done.stdout
    told = json.loads(ramlet(*words, "--json").stdout)["scores"]
    assert list(told["grammar"]) == ["acc", "acc_stderr", "items"]
    here = evaluate_tasks(run, {"asked": tmp_path / "asked.jsonl"}, **GIVEN)["asked"]
    assert told["asked"] == here.to_dict()
    (tmp_path / "blimp.jsonl").write_text("{}\n")
    refused = ramlet(*words)
    assert refused.returncode == 1
    assert "line 1 of blimp.jsonl is neither" in refused.stderr
    assert "needs at least" in ramlet("eval", str(run), "--task", "asked.jsonl", "--memory", "20MB").stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_set_aside_counts(run: Path, engine: str) -> None:
    given: dict[str, Any] = {"seq_len": 48, "precision": "fp32", "budget": _budget(), "document_mask": True}
    with pytest.raises(BudgetError, match=r"needs at least 103\d{6}MB: .* MB for an item"):
        open_engine("cpu", 1, name=engine).division(find_model(run).shape(), **given, aside={"an item": 10**14})


def test_on_a_device_what_is_set_aside_has_to_be_free_in_ram(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CountingEngine()
    device.uses_host_memory = False
    monkeypatch.setattr(open_model, "open_engine", lambda *_, **__: device)
    opening = open_model.Opening(find_model(run), document_mask=True, memory="1GB")
    opening.division(48, {"an item": 1000})
    with pytest.raises(BudgetError, match=r"needs at least 100000000MB: .* MB for an item"):
        opening.division(48, {"an item": 10**14})


def test_one_refusal_names_the_largest_item(run: Path, tmp_path: Path) -> None:
    """Not that of the first line that is too large: the next one would be refused again."""
    lines = [{"question": "q", "choices": ["a", "b"] * count, "answer": 0} for count in (5_000, 10_000, 7_000)]
    large = written(tmp_path / "large.jsonl", lines)
    small = written(tmp_path / "small.jsonl", questions(3))
    with pytest.raises(BudgetError, match=r"for line 2 of .*large.jsonl with 20,000 choices"):
        evaluate_tasks(run, [small, large], **{**GIVEN, "memory": "20MB"})


def test_long_questions_do_not_wait_for_each_other(run: Path) -> None:
    """The model sees their last tokens, but all of their text is kept until they are scored."""
    found = find_model(run)
    encoding = Encoding(Tokenizer.load(found.tokenizer_file), min(found.end_ids()), found.shape().context)
    opening = tasks.Opening(found, document_mask=True, engine="native", **GIVEN)
    model = opening.load(48, opening.division(48))
    read = []

    def long() -> Iterator[Item]:
        for line in range(60):
            read.append(line)
            yield Item(line, "of " * 100_000, ("a", "b"), 0)

    next(tasks.answers(model, long(), encoding, 48))
    assert len(read) == -(-tasks.WINDOW_TEXT // 300_000)


PEAK = """
import sys
from ramlet import cli
code = cli.main(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
sys.exit(code)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
class TestMemory:
    def measured(self, run: Path, path: Path, memory: int) -> tuple[str, int]:
        """What a command with so many megabytes says, and its peak in bytes, in a process of its own."""
        words = ("eval", run, "--task", path, "--memory", f"{memory}MB", "--device", "cpu", "--engine", "native")
        command = [sys.executable, "-c", PEAK, *map(str, words), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        *_, told, peak = done.stdout.splitlines()
        return told, int(peak) * 1024

    def item(self, choices: int, question: int) -> dict[str, Any]:
        return {"question": "of " * question, "choices": [f"w{number}" for number in range(choices)], "answer": 0}

    def test_a_line_that_takes_too_much_is_refused_before_it_is_encoded(self, run: Path, tmp_path: Path) -> None:
        path = written(tmp_path / "task.jsonl", [self.item(2, 5), self.item(30_000, 700)])
        told, peak = self.measured(run, path, 120)
        assert f"MB for line 2 of {path} with 30,000 choices" in told
        assert json.loads(told)["error"]["needed"] > 250_000_000
        assert peak < 120_000_000

    def test_the_smallest_budget_is_enough(self, run: Path, tmp_path: Path) -> None:
        path = written(tmp_path / "task.jsonl", [self.item(3, 5), self.item(3000, 30), self.item(3000, 3)])
        needed = json.loads(self.measured(run, path, 40)[0])["error"]["needed"]
        told, peak = self.measured(run, path, needed // 10**6)
        assert json.loads(told)["scores"]["task"]["items"] == 3
        assert peak <= needed
