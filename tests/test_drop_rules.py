"""Every reason to drop something is said once, in Rust; datasets of versions with fewer or more of them open."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from oracles_dataset import write_dataset
from ramlet import Dataset
from ramlet.dataset import ledger
from ramlet.dataset.inspect import figures
from ramlet.dataset.ledger import RULES, Rule
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.merge import merge
from ramlet.dataset.unchanged import identity
from ramlet.dataset.verify import verify
from ramlet.errors import DatasetError
from ramlet.preparing.settings import PrepareSettings
from ramlet.settings.declared import declared

DOCS = Path(__file__).resolve().parents[1] / "docs/preparing-data.md"
NEWER = Rule("emoji", "document", "max_emoji", "too many emoji")
PLACES = (("documents", "dropped"), ("bytes", "dropped"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d", [[1, 2, 3], [4, 5]], [[6]])


def change(path: Path, edit: Any) -> None:
    """Edits every ledger of a dataset."""
    file = path / "dataset_metadata.json"
    record = json.loads(file.read_text())
    for account in (record["ledger"], *(run["ledger"] for run in record["runs"])):
        edit(account)
    file.write_text(json.dumps(record))


def test_the_names_that_stand_in_manifests() -> None:
    assert [(rule.name, rule.unit) for rule in RULES if rule != NEWER] == [
        *((name, "document") for name in ("empty", "too_short", "too_long", "symbols", "repeated_lines")),
        *((name, "document") for name in ("bad_encoding", "duplicate", "too_few_tokens", "too_many_tokens")),
        ("near_duplicate", "document"),
        *((name, "line") for name in ("line_too_short", "line_too_long", "line_symbols", "duplicate_line")),
    ]


def test_each_is_steered_by_a_setting_and_says_what_it_means() -> None:
    known = {each.name for each in fields(PrepareSettings)}
    assert {rule.setting for rule in RULES} <= known | {""}
    assert all(rule.meaning and rule.meaning[0].islower() for rule in RULES)


def test_the_table_in_the_docs() -> None:
    defaults = {each.name: each.default for each in fields(PrepareSettings)}

    def row(rule: Rule) -> str:
        option, default = "", ""
        if rule.setting:
            value = defaults[rule.setting]
            option = f"`--{rule.setting.replace('_', '-')}`"
            default = "none" if value is None else f"`{value}`" if isinstance(value, str) else f"{value:,}"
        return f"| `{rule.name}` | {option} | {default} | {rule.unit}s: {rule.meaning} |"

    wanted = [row(rule) for unit in ("line", "document") for rule in RULES if rule.unit == unit]
    table = DOCS.read_text(encoding="utf-8").partition("| Rule | Option | Default | Drops |\n|---|---|---|---|\n")[2]
    assert table.partition("\n\n")[0].splitlines() == wanted


def test_a_rule_that_an_older_version_did_not_have_counts_nothing(path: Path, tmp_path: Path) -> None:
    def before_symbols(account: dict[str, Any]) -> None:
        for group, key in PLACES:
            assert account[group][key].pop("symbols") == 0

    change(path, before_symbols)
    manifest = Manifest.read(path)
    for account in (manifest.ledger, manifest.runs[0]["ledger"]):
        assert account["documents"]["dropped"]["symbols"] == account["bytes"]["dropped"]["symbols"] == 0
    assert verify(path).problems == []
    assert [row["rule"] for row in figures(Dataset(path))["dropped"]] == ["too_short"]
    merged = merge([path, write_dataset(tmp_path / "other", [[7]])], tmp_path / "merged").manifest
    assert merged.ledger["documents"]["dropped"]["symbols"] == 0
    assert verify(tmp_path / "merged").problems == []


def test_what_was_made_before_a_rule_came_is_known_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_dataset(tmp_path / "other", [[7]])
    merge([path, other], tmp_path / "merged")
    named = identity(Manifest.read(path))
    monkeypatch.setattr(ledger, "RULES", (*RULES, NEWER))
    assert Manifest.read(path).ledger["documents"]["dropped"]["emoji"] == 0
    assert identity(Manifest.read(path)) == named
    assert merge([path, other], tmp_path / "merged").already_done


def test_a_rule_of_a_newer_version_counts_and_is_shown(path: Path, tmp_path: Path) -> None:
    def with_emoji(account: dict[str, Any]) -> None:
        account["documents"]["read"] += 3
        account["documents"]["dropped"]["emoji"] = 3
        account["bytes"]["read"] += 40
        account["bytes"]["dropped"]["emoji"] = 40

    change(path, with_emoji)
    assert verify(path).problems == []
    assert figures(Dataset(path))["dropped"][0] == {
        "rule": "emoji",
        "why": "a rule of a newer ramlet",
        "count": 3,
        "bytes": 40,
    }
    merged = merge([path, write_dataset(tmp_path / "other", [[7]])], tmp_path / "merged").manifest
    assert merged.ledger["documents"]["dropped"]["emoji"] == 3
    assert verify(tmp_path / "merged").problems == []


@pytest.mark.parametrize(
    ("rule", "count", "said"),
    [
        ("emoji", -1, "ledger.documents.dropped.emoji is not a count"),
        ("emoji", "x", "ledger.documents.dropped.emoji is not a count"),
        ("\x1b[31m", 1, "ledger.documents.dropped is not counts by the names of rules"),
    ],
)
def test_what_is_no_rule_or_no_count(path: Path, rule: str, count: Any, said: str) -> None:
    change(path, lambda account: account["documents"]["dropped"].update({rule: count}))
    with pytest.raises(DatasetError, match=re.escape(said)):
        Manifest.read(path)


def test_a_later_setting_counts_only_where_it_is_not_at_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    always, other = PrepareSettings(), PrepareSettings(max_symbols=0.3)
    known = (always.parts(), always.cleaning_parts())
    assert b"max_symbols" in known[0]
    settings = declared(PrepareSettings)
    monkeypatch.setitem(settings, "max_symbols", replace(settings["max_symbols"], later=True))
    for parts, mine, theirs in zip(
        known, (always.parts(), always.cleaning_parts()), (other.parts(), other.cleaning_parts())
    ):
        assert mine == parts.replace(b'"max_symbols": 0.6, ', b"")
        assert theirs == parts.replace(b'"max_symbols": 0.6', b'"max_symbols": 0.3')
