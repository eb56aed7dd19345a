"""The tables of settings in docs/ match the code and are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from documented import ROOT
from ramlet.settings.declared import declared, keys, with_flags
from ramlet.settings.owners import COMMANDS, owner
from ramlet.settings.tables import documented, updated

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_stale(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert updated(text) == text, f"python -m ramlet.settings.tables docs/{page.name} updates it"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_is_in_a_table(command: str) -> None:
    shown = {pair for page in PAGES for pair in documented(page.read_text(encoding="utf-8"))}
    assert [name for name in declared(owner(command)) if (command, name) not in shown] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_says_what_it_is(command: str) -> None:
    """One sentence; defaults are in `shown`, other settings are marked."""
    settings = declared(owner(command))
    for each in settings.values():
        line = with_flags(each.help, settings)
        assert line.endswith("."), each.name
        assert len(line) < 120, each.name
        assert each.panel, each.name
        assert "left out" not in line, each.name
        assert "--" not in each.help + each.shown, each.name


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_means_two_settings(command: str) -> None:
    settings = declared(owner(command))
    flags = [flag for each in settings.values() for flag in each.flags]
    assert len(flags) == len(set(flags))
    assert {key.setting.name for key in keys(owner(command)).values()} == set(settings)
