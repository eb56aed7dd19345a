"""What a model wrote, as commands show it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramlet.cli.passage import passage


def test_lines_have_a_margin_and_nothing_that_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert passage("def f():\n\tx = 1\n\n  \x1b[2J\r\x85é\n\n") == [
        "  | def f():",
        "  |     x = 1",
        "  |",
        "  |   \\x1b[2J\\r\\x85é",
    ]
    assert passage("") == ["  |"]
    assert passage("a\nb\nc", most=2) == ["  | a", "  | b"]


def test_long_lines_go_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert passage("the quick brown fox jumps over") == ["  | the quick brown fox", "  | jumps over"]
    assert passage("x" * 45) == ["  | " + "x" * 20, "  | " + "x" * 20, "  | " + "x" * 5]


@given(st.text(max_size=200))
def test_any_text_is_shown(text: str) -> None:
    shown = passage(text)
    assert all(line.isprintable() and line.startswith("  |") for line in shown)
    visible = "".join(character for character in text if character.isalnum())
    assert "".join(c for line in shown for c in line[3:] if c.isalnum()) == visible or not text.isprintable()
