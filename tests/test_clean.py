"""Cleaning: the native core against the definitions over all of Unicode, and each rule by an example."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles_clean as oracle
from oracles_clean import native as clean_text
from ramlet import _native
from ramlet.dataset.ledger import RULES
from ramlet.errors import SettingsError
from ramlet.preparing.settings import PrepareSettings

ALL = PrepareSettings()
UNFILTERED = PrepareSettings(filter=False)

TELLING = [
    *("\n", "\n\n\n\n", "\r\n", "\r", "\x85", "\u2028", "\u2029", " ", "  ", "\t", "\xa0", "\u2000", "\u3000"),
    *("\0", "\x0b", "\x0c", "\x1c", "\x7f", "\x80", "\ufeff", "\ufffe", "\ufdd0", "\U0001ffff", "\ufffd", "\u200b"),
    *(
        "e",
        "ê",
        "\u0301",
        "\u0302",
        "\u0323",
        "\u0344",
        "\u1e69",
        "\u212b",
        "क",
        "\u093c",
        "\u0958",
        "\u09c7",
        "\u09be",
    ),
    *("\u1100", "\u1161", "\u11a8", "가", "각", "\u0f71", "\u0f73", "\U0001d160", "\U0002f800", "}", "the same line\n"),
]
"""What the steps and rules turn on: line ends, blanks, what goes, what composes and reorders."""

texts = st.lists(
    st.one_of(
        st.sampled_from(TELLING),
        st.deferred(lambda: st.sampled_from(oracle.known_characters())),
        st.text("abc ,.\n", max_size=70),
    ),
    max_size=30,
).map("".join)

shares = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


@st.composite
def any_settings(draw: st.DrawFn) -> PrepareSettings:
    normalize = draw(st.booleans())
    least, least_line = draw(st.integers(0, 20)), draw(st.integers(0, 8))
    return PrepareSettings(
        normalize=normalize,
        collapse_blanks=normalize and draw(st.booleans()),
        filter=draw(st.booleans()),
        min_chars=least,
        max_chars=draw(st.sampled_from([0, least + 1, 80])),
        max_symbols=draw(shares),
        max_repeated=draw(shares),
        max_invalid=draw(shares),
        min_line_chars=least_line,
        max_line_chars=draw(st.sampled_from([0, least_line + 1, 40])),
        max_line_symbols=draw(shares),
    )


@settings(max_examples=1500)
@given(texts, any_settings())
def test_cleaning_is_what_the_definitions_say(text: str, chosen: PrepareSettings) -> None:
    assert clean_text(text, chosen) == oracle.clean(text, chosen)


@settings(max_examples=1000)
@given(texts)
def test_cleaning_as_it_comes_is_what_the_definitions_say(text: str) -> None:
    assert clean_text(text) == oracle.clean(text, ALL)


@settings(max_examples=1000)
@given(st.text(), any_settings())
def test_cleaning_twice_is_cleaning_once(text: str, chosen: PrepareSettings) -> None:
    """Over all code points, also those that only one of the two Unicode versions knows."""
    once = clean_text(text, chosen)
    if once.text is not None:
        assert clean_text(once.text, chosen) == (once.text, None, {})


def test_every_known_character_alone_and_among_others() -> None:
    chosen = dataclasses.replace(ALL, max_symbols=0.2, max_invalid=1.0)
    for character in oracle.known_characters():
        # Of the ideographs, the syllables of Hangul and private use, which are alike, a tenth.
        alike = "\u3400" <= character <= "\uf8ff" or character >= "\U00020000"
        if not alike or ord(character) % 10 == 0 or oracle.is_noncharacter(character):
            text = f"a{character} \u0323{character}\u0301\n{character}b"
            assert clean_text(text, chosen) == oracle.clean(text, chosen), hex(ord(character))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\x85d\u2028e\u2029f\n\rg", "a\nb\nc\nd\ne\nf\n\ng"),
        ("\ufeffa\0b\x7fc\x9fd\ufffe\tz", "abcd\tz"),
        ("e\u0301 e\ufeff\u0301 \u212b", "é é Å"),
        ("a \t\u3000\nb", "a\nb"),
        ("a\n\n\nb\n\n\n\nc\n \n\t\n \n \nd", "a\n\n\nb\n\n\nc\n\n\nd"),
        (" \n\n   indented  text\n\n", "   indented  text"),
        ("a\r\0\nb", "a\n\nb"),
    ],
)
def test_normalising_by_example(text: str, expected: str) -> None:
    assert clean_text(text, UNFILTERED).text == expected == oracle.normalise(text)


def test_runs_of_blanks_collapse_but_indentation_stays() -> None:
    collapse = dataclasses.replace(UNFILTERED, collapse_blanks=True)
    assert clean_text("  a  b\tc\xa0d\n\t \te   f ", collapse).text == "  a b c d\n\t \te f"
    assert clean_text("  a  b").text == "  a  b"


CODE = "def f():\n    return {\n        1: 2,\n    }\n\n\ndef g():\n    return {\n        3: 4,\n    }\n"


@pytest.mark.parametrize(
    ("text", "changes", "rule"),
    [
        ("", {}, "empty"),
        (" \n\t\u3000\0", {}, "empty"),
        (" \n\t\u3000", {"normalize": False, "filter": False}, "empty"),
        ("four", {"min_chars": 5}, "too_short"),
        ("four", {"min_chars": 4}, None),
        ("日本語です", {"max_chars": 4}, "too_long"),
        ("日本語です", {"max_chars": 5}, None),
        ("--- ab ----", {}, "symbols"),
        ("--- ab ----", {"filter": False}, None),
        ("ab\u0301ab\u0302", {"max_symbols": 0.0}, None),
        ("buy now\n" * 4, {}, "repeated_lines"),
        ("buy now\n" * 4, {"max_repeated": 0.75}, None),
        ("buy now\n" * 3, {}, None),
        (CODE, {}, None),
        ("a\ufffd" * 2 + "b" * 96, {}, None),
        ("a\ufffd" * 3 + "b" * 94, {}, "bad_encoding"),
        # The first rule that applies is the one that is named.
        ("\ufffd\n" * 9, {"min_chars": 50}, "too_short"),
        ("\ufffd\n" * 9, {"max_symbols": 0.5}, "symbols"),
        ("\ufffd\n" * 9, {"max_symbols": 1.0}, "repeated_lines"),
    ],
)
def test_document_rules_by_example(text: str, changes: dict[str, object], rule: str | None) -> None:
    chosen = dataclasses.replace(ALL, **changes)  # type: ignore[arg-type]
    assert clean_text(text, chosen).rule == rule == oracle.clean(text, chosen)[1]


def test_line_rules_by_example() -> None:
    chosen = PrepareSettings(min_line_chars=3, max_line_chars=12, max_line_symbols=0.5)
    text = "ab\nkept\n\n-=-=-=-\nmuch too long a line\n\n\nалфавит\nx"
    cleaned = clean_text(text, chosen)
    assert cleaned.text == "kept\n\n\nалфавит"
    assert cleaned.lines == {"line_too_short": (2, 4), "line_symbols": (1, 8), "line_too_long": (1, 21)}
    assert clean_text(text, dataclasses.replace(chosen, normalize=False)).text == "kept\n\n\n\nалфавит\n"


def test_a_document_can_lose_all_its_lines() -> None:
    assert clean_text("ab\ncd", PrepareSettings(min_line_chars=3)) == (None, "empty", {"line_too_short": (2, 5)})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        " " * 1_000_000,
        "\n" * 1_000_000,
        "\r\n " * 300_000,
        "x" * 1_000_000,
        "\ufeff" * 300_000,
        "a\n" * 300_000,
        "\n".join(map(str, range(150_000))),
        "e\u0301" * 300_000,
        "e" + "\u0301\u0323" * 300_000,
        "\u1100\u1161\u11a8" * 100_000,
        "\U0001d160" * 100_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_pathological_texts_are_cleaned_in_time(text: str) -> None:
    once = clean_text(text, UNFILTERED)
    assert clean_text(text).rule in (None, *(rule.name for rule in RULES))
    if once.text is not None:
        assert clean_text(once.text, UNFILTERED).text == once.text


def test_the_native_core_wants_every_setting() -> None:
    given = PrepareSettings().cleaning()
    _native.clean_text("text", json.dumps(given))
    del given["filter"]
    with pytest.raises(SettingsError, match="filter"):
        _native.clean_text("text", json.dumps(given))
