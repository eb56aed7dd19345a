"""The hand-written patterns against their reference regexes, on Python's `regex` and on Oniguruma."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracles import PATTERNS, disputed, hf_pre_tokenizer, native_train, split, text_file, to_bytes, undisputed
from ramlet._native import least_memory, pattern_regex, recognise_pattern, split_pieces
from ramlet.errors import SettingsError

# Everything that a pattern looks at: contractions in both cases and with the two foreign letters that fold to
# "s" and "k", letters of every kind, marks, digits of several scripts, white space that is and that is not, line ends.
NASTY = (
    *"'sStTrReEvVmMlLdD\u017f\u212a",
    *"aZ\u00e9\u01c5\u02b0\u4e2d\u05d0\u00df\u0130\u0131",
    *"\u0301\u0903\u20dd\u200d\ufe0f",
    *"09\u0663\u00b2\u2167\u3007\U0001d7d8",
    *" \t\n\r\x0b\x0c\x85\u00a0\u2003\u2028\u3000",
    *"\u200b\u180e\ufeff\x1c\x1f\x00",
    *"!/.-_\u2019\u20ac\U0001f600\ufffd\U0010ffff",
)


def around(character: str) -> str:
    """The character behind and before a letter of each case, a digit, itself, a space and punctuation."""
    return f"x{character}x1{character}X{character}{character} {character}!\n"


def hf_split(name: str, text: str) -> list[str]:
    # ByteLevel spells every byte as a character; where it cuts, whole characters end.
    return [to_bytes(piece).decode() for piece, _ in hf_pre_tokenizer(name).pre_tokenize_str(text)]


def sampled_characters() -> list[str]:
    """Every character of the first two planes, of the others the first and the last of every 64."""
    codes = (
        *range(0xD800),
        *range(0xE000, 0x20000),
        *(code + edge for code in range(0x20000, 0x110000, 64) for edge in (0, 63)),
    )
    return list(map(chr, codes))


def test_the_two_oracles_dispute_only_what_is_newer_than_unicode_16() -> None:
    assert 0 < len(disputed()) < 25_000
    # No character of a script that people had before 2024 is left out: only a lone Latin letter of that age.
    assert sorted(c for c in disputed() if ord(c) < 0x530) == ["\u0295"]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_character_equals_the_regex(name: str) -> None:
    reference = pattern_regex(name)
    characters = [c for c in sampled_characters() if c not in disputed()]
    for first in range(0, len(characters), 4096):
        group = characters[first : first + 4096]
        text = "".join(map(around, group))
        if split_pieces(text, name) != split(reference, text):
            wrong = [hex(ord(c)) for c in group if split_pieces(around(c), name) != split(reference, around(c))]
            pytest.fail(f"{wrong or 'only together'}")


@pytest.mark.parametrize("name", PATTERNS)
def test_disputed_characters_equal_hf(name: str) -> None:
    characters = sorted(disputed())[::7] + sorted(c for c in disputed() if ord(c) < 0x10000)
    text = "".join(map(around, characters))
    assert split_pieces(text, name) == hf_split(name, text)


TOGETHER = ("'ll", "'RE", " a", "  ", "\r\n", "A\u0301", "123")
NASTY_TEXT = st.lists(st.sampled_from((*NASTY, *TOGETHER))).map("".join)
ANY_TEXT = st.text().map(undisputed)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=250, deadline=None)
@given(text=NASTY_TEXT | ANY_TEXT)
@example(text="\r\n1")
@example(text="'\n/")
@example(text="'\u017f it'\u017f")
@example(text="a  \n  b")
@example(text="A\u4e2dB's")
@example(text="\u0301\u0301A")
@example(text="x \u200b\x1c y\u180e")
def test_any_text_equals_the_regex(name: str, text: str) -> None:
    assert split_pieces(text, name) == split(pattern_regex(name), text)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.sampled_from(NASTY), st.integers(1, 200)), min_size=1, max_size=12),
    shift=st.integers(0, 70),
)
def test_runs_across_the_wide_blocks_equal_the_regex(name: str, parts: list[tuple[str, int]], shift: int) -> None:
    # The splitter looks at 64 bytes at a time where they are ASCII: runs that begin and end anywhere in them.
    text = "a" * shift + "".join(character * length for character, length in parts)
    assert split_pieces(text, name) == split(pattern_regex(name), text)


@pytest.mark.parametrize("name", PATTERNS)
def test_seeded_ascii_equals_the_regex(name: str) -> None:
    # Few kinds of characters, many of them: what hypothesis, which prefers short texts, does not reach.
    chance = random.Random(name)
    reference = pattern_regex(name)
    for alphabet in ("aB '\n", "a1 !/\r\n", "'sStlLe aA1", "".join(map(chr, range(128))), "".join(NASTY)):
        text = "".join(chance.choices(alphabet, k=40_000))
        assert split_pieces(text, name) == split(reference, text)


UNITS = ["a", "1", " ", "\n", "!", "\u0301", "\u4e2d", "aB", "A\u4e2d", "' ", " \n", "\r\n", "'s", "\u00a0"]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("unit", UNITS)
def test_long_runs_equal_the_regex_and_take_linear_time(name: str, unit: str) -> None:
    """Quadratic time would be hours, and a test has ten minutes."""
    text = unit * (20_000 // len(unit)) + "x"
    assert split_pieces(text, name) == split(pattern_regex(name), text)
    pieces = split_pieces(unit * (2_000_000 // len(unit)), name)
    assert "".join(pieces) == unit * (2_000_000 // len(unit))


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=40, deadline=None)
@given(text=NASTY_TEXT)
def test_hf_cuts_the_same(name: str, text: str) -> None:
    assert split_pieces(text, name) == hf_split(name, text)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_known_by_its_own_regex(name: str) -> None:
    assert recognise_pattern(pattern_regex(name)) == name


# As their projects publish them, possessive quantifiers and all.
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PUBLISHED = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "cl100k",
    WORDS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END: "llama3",
    WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END: "qwen2",
}


@pytest.mark.parametrize(("spelling", "name"), PUBLISHED.items())
@settings(max_examples=120, deadline=None)
@given(text=NASTY_TEXT)
@example(text="a \n ")
@example(text="a\n\n b\n")
@example(text=" \n\n")
def test_published_spellings_mean_what_they_are_taken_for(spelling: str, name: str, text: str) -> None:
    assert recognise_pattern(spelling) == name
    assert split_pieces(text, spelling) == split(spelling, text)


CUSTOM = (
    r"\w+|\s+",
    r"\p{Lu}?\p{Ll}+",
    r"x*",
    r"(?<=a)b+|[^b]|b",
    r"\b\w|\w+",
    r"\w+(?=\s)|\s+",
    r"[^\S\n]+|\n",
    r"(?i:ab|c)\d{1,2}+",
)


@pytest.mark.parametrize("pattern", CUSTOM)
@settings(max_examples=80, deadline=None)
@given(text=st.text(st.sampled_from("abcABx1 9\n\t.é中")))
def test_other_regexes_keep_the_gaps_between_matches(pattern: str, text: str) -> None:
    assert split_pieces(text, pattern) == split(pattern, text)


def long_text(seed: int, size: int = 600_000) -> str:
    chance = random.Random(seed)
    words = ("".join(chance.choices("abcdefgh", k=chance.randint(1, 9))) for _ in range(size // 6))
    return " ".join(words)


@pytest.mark.parametrize("pattern", [r"\w+|\s+", r"\w+(?=\s)|\s+", r"\p{L}{1,4}|\P{L}+"])
def test_other_regexes_do_not_see_where_a_file_is_read_in_blocks(tmp_path: Path, pattern: str) -> None:
    check_blocks(tmp_path, pattern)


@pytest.mark.parametrize("pattern", [r"(?<= )\w+|\W+|\w", r"\b\w|\w+|\W", r"^\w+|\w|\W"])
def test_regexes_that_look_back_do_not_see_blocks_either(tmp_path: Path, pattern: str) -> None:
    check_blocks(tmp_path, pattern)


def check_blocks(tmp_path: Path, pattern: str) -> None:
    text = long_text(5)
    path = tmp_path / "text.txt"
    path.write_text(text)
    in_blocks = native_train(files=[text_file(path)], pattern=pattern, memory=least_memory(1, 256))
    pieces = split(pattern, text)
    assert (in_blocks["pieces"], in_blocks["distinct_pieces"]) == (len(pieces), len(set(pieces)))


def test_a_regex_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(SettingsError, match="is not a usable regex"):
        split_pieces("text", "(unclosed")
