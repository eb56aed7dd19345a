"""Amounts are read alike everywhere: on the command line, in YAML, in Python."""

from __future__ import annotations

import doctest

import pytest

from ramlet.errors import SettingsError
from ramlet.runtime import amounts
from ramlet.runtime.amounts import COUNTS, SIZES, amount
from ramlet.settings.declared import read
from ramlet.settings.kinds import Count, Kind, Memory, Number, Place, Size, Strings, Switch, Text
from ramlet.training.settings import RunSettings


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10M", 10**7),
        ("1.5b", 15 * 10**8),
        ("1.005M", 1_005_000),
        ("300k", 300_000),
        ("64Ki", 65_536),
        ("1e6", 10**6),
        (" 7 G", 7 * 10**9),
        ("1,000", 1000),
        ("50_257", 50_257),
        (".5k", 500),
        (5, 5),
        (1e6, 10**6),
    ],
)
def test_counts(text: object, count: int) -> None:
    assert read(RunSettings, "params", text) == Count().read(text) == count


@pytest.mark.parametrize("text", ["", "M", "ten", "10X", "1..5M", "0", "-5M", "inf", "nan", "1.5", "1,0", "9" * 5000])
def test_no_counts(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^params must be (a number like 2048, 32k or 10M|at least 1)"):
        read(RunSettings, "params", text)


def test_a_b_is_a_billion_or_a_byte() -> None:
    assert (amount("2b", COUNTS), amount("2b", SIZES)) == (2 * 10**9, 2)
    assert Size().read("64KiB") == 65_536


def test_a_comma_is_no_decimal_point() -> None:
    assert amount("2,5GB", SIZES) is None


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Switch(), "yes", "must be true or false, not 'yes'"),
        (Text(), 2024, "must be a string, not 2024: put it in quotes if you mean the text"),
        (Place(what="a folder"), " ", "must be a folder, not ' '"),
        (Strings(what="some text", spaces=True), ["a", ""], "must be some text, not ''"),
        (Number(above=0, most=1), 0, "must be above 0 and at most 1, not 0"),
        (Number(above=0), "inf", "must be above 0, not inf"),
        (Number(), [1], "must be a number like 0.1, not a list"),
        (Count(least=2, most=9), 10, "must be between 2 and 9, not 10"),
        (Memory(), True, "must be a size like 512MB, 2GB, 50% or auto, not True"),
    ],
)
def test_what_it_should_be(kind: Kind, value: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        kind.read(value)
    assert str(caught.value) == words


def test_one_word_is_a_list_of_one() -> None:
    assert Strings().read("a") == ("a",)
    assert Strings().read(iter(["a", "b"])) == ("a", "b")


def test_examples() -> None:
    assert doctest.testmod(amounts).failed == 0
