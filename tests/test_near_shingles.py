"""The shingles of a text are what docs/design/near.md says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramlet import _native
from oracles_near import shingle_hashes

pieces = st.sampled_from(
    ["word", "Ünï ", " ", "\n", "我", "です", "ข้าว", "ញ", "x1", "_", "İ", "ΣΑΣ", "é", "—", "🙂", "ﾊ"]
)


@given(st.lists(pieces, max_size=60).map("".join) | st.text(max_size=80))
def test_shingles_are_as_defined(text: str) -> None:
    # Characters that are newer than this Python's Unicode tables are letters to one side only.
    assert _native.shingles(text) == shingle_hashes(text)


def test_a_text_with_few_words_has_none() -> None:
    assert _native.shingles("") == _native.shingles("one two three four") == []
    assert len(_native.shingles("one two three four five")) == 1
