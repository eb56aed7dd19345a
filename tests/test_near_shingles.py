"""The shingles of a text are what docs/design/near.md says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oracles_near import shingle_hashes
from ramlet import _native

PIECES = ["word", "Ünï ", " ", "\n", "我", "です", "ข้าว", "ញ", "x1", "_", "İ", "ΣΑΣ", "é", "—", "🙂", "ﾊ"]
# Characters that are newer than this Python's tables could be letters to one side only.
KNOWN = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=80)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | KNOWN)
def test_shingles_are_as_defined(text: str) -> None:
    assert _native.shingles(text) == shingle_hashes(text)


def test_a_text_with_few_words_has_none() -> None:
    assert _native.shingles("") == _native.shingles("one two three four") == []
    assert len(_native.shingles("one two three four five")) == 1
