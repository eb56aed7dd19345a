"""The least budget that a command names is enough: in the same run and the next, for any text, with the same result.

The short form of `benchmarks/limits.py`, which has every command and option: here those that went over.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from conftest import AMPLE
from ramlet import Tokenizer
from ramlet.errors import BudgetError
from ramlet.runtime.budget import Budget, with_reserve

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from limits import STEPS, Limits
from limits_cases import KEEP, Case
from limits_texts import write_texts

TRAIN = "tokenizer train {text} --out {out} --quiet"
PREPARE = "prepare {text} --out {out} --quiet"
CASES = (
    Case("bpe", f"{TRAIN} -v 2000 --threads 2", ("distinct words", "runs of a letter", "xz")),
    Case("o200k", f"{TRAIN} -v 600 --pattern o200k --threads 1", ("symbols",)),
    Case("char", f"{TRAIN} --type char --threads 1 -v 5000 --unknown unk", ("all of Unicode",)),
    Case("byte", f"{TRAIN} --type byte", ("prose",)),
    Case("encode", "tokenizer encode {text} --out {out}/ids.bin -T gpt2 --threads 2 --quiet", ("one word",)),
    Case("prepare", f"{PREPARE} -T byte --threads 2 {KEEP}", ("texts that grow",)),
    Case("prepare", f"{PREPARE} -T {{vocabulary}} --threads 2 {KEEP}", ("prose",)),
    Case("prepare", f"{PREPARE} -T byte --pack 64 --docs line --threads 1", ("short lines",)),
)
NAMES = sorted({text for case in CASES for text in case.texts})


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Limits:
    folder = tmp_path_factory.mktemp("limits")
    texts = write_texts(folder / "texts", 1, 300_000, NAMES)
    vocabulary = folder / "vocabulary"
    Tokenizer.train(texts["prose"], vocab_size=600, special_tokens=["<|endoftext|>"], memory=AMPLE).save(vocabulary)
    return Limits(folder, texts, {"vocabulary": vocabulary}, sys.executable)


@pytest.mark.parametrize(("case", "text"), [(case, text) for case in CASES for text in case.texts])
def test_at_the_least_budget(limits: Limits, case: Case, text: str) -> None:
    before = limits.tallies.get(case.group)
    wrong = before.wrong if before else 0
    limits.run(case, text, STEPS[0])
    tally = limits.tallies[case.group]
    assert tally.wrong == wrong, tally.problems[-1]


class TestWhatIsNamed:
    """Whatever is resident now, the budget that is named is accepted where a little more is."""

    @pytest.mark.parametrize("resident", [21_900_000, 22_099_999, 300_000_000, 5_000_000_000])
    @pytest.mark.parametrize("need", [0, 7_000_000, 90_000_000, 4_000_000_000])
    def test_is_accepted_by_the_next_run(self, monkeypatch: pytest.MonkeyPatch, resident: int, need: int) -> None:
        monkeypatch.setattr("ramlet.runtime.budget.resident_memory", lambda: resident)
        with pytest.raises(BudgetError) as refused:
            Budget(2_000_000).grant({"work": need})
        named = re.match(r"needs at least (\d+MB): ", str(refused.value))
        assert named is not None
        for more in (0, 4_700_000, resident // 40):
            monkeypatch.setattr("ramlet.runtime.budget.resident_memory", lambda now=resident + more: now)
            assert Budget.parse(named[1]).grant({"work": need}) >= need

    def test_is_the_same_for_runs_that_differ_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = set()
        for resident in range(22_050_000, 22_950_000, 50_000):
            monkeypatch.setattr("ramlet.runtime.budget.resident_memory", lambda now=resident: now)
            with pytest.raises(BudgetError) as refused:
                Budget(2_000_000).grant({"work": 10_000_000})
            said.add(str(refused.value).split(":")[0])
        assert len(said) == 1

    def test_is_not_less_than_what_was_held_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that is parsed takes more than what is made of it."""
        monkeypatch.setattr("ramlet.runtime.budget.resident_memory", lambda: 30_000_000)
        with pytest.raises(BudgetError, match=r"^needs at least 95MB: 95\.0 MB for it, while it was loaded"):
            Budget(80_000_000).grant({"work": 10_000_000}, "it", peak=90_000_000)

    @pytest.mark.parametrize(
        "sizes", [(22_149_999, 6_930_001, 40_000), (1, 1, 1), (333_333_333, 333_333_333, 1_234_567)]
    )
    def test_adds_up(self, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
        monkeypatch.setattr("ramlet.runtime.budget.resident_memory", lambda: 22_149_999)
        with pytest.raises(BudgetError) as refused:
            Budget(2_000_000).grant({f"part {n}": size for n, size in enumerate(sizes)})
        whole = re.match(r"needs at least (\d+)MB", str(refused.value))
        assert whole is not None
        shown = re.findall(r"([\d,]+\.\d) MB for ", str(refused.value))
        assert sum(round(float(size.replace(",", "")) * 10) for size in shown) == int(whole[1]) * 10

    def test_with_reserve_is_the_least(self) -> None:
        for work in (0, 1, 5_000_000, 61_999_999, 62_000_000, 62_000_001, 10**10 + 7):
            total = with_reserve(work)
            room = [Budget(each).total - Budget(each).reserve for each in (total - 2, total)]
            assert room[0] <= work <= room[1]


class TestAStageOfAPipeline:
    """It is given the budget as it was asked for, and told what the process that waits holds of it."""

    def test_the_budget_that_was_asked_for_is_what_is_said(self) -> None:
        budget = Budget.parse("1GB-32MB")
        assert (budget.total, budget.asked, str(budget)) == (968_000_000, 10**9, "1.00 GB")
        with pytest.raises(BudgetError, match=r"^needs at least 1232MB: .*, 32\.0 MB for the process that waits"):
            budget.require(1_200_000_000, {"work": 1_200_000_000})

    def test_a_command_says_it_too(self, tmp_path: Path, limits: Limits) -> None:
        from measure import measure

        words = TRAIN.format(text=limits.texts["prose"], out=tmp_path / "out").split()
        command = [sys.executable, "-m", "ramlet", *words, "-v", "300", "--memory", "1GB-900MB", "--json"]
        told = json.loads(measure(command).output)
        assert told["memory"]["budget"] == 10**9
