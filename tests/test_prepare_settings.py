"""Every setting of prepare is checked, explained, and part of the signature."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ramlet
from ramlet.errors import SettingsError
from ramlet.preparing.settings import PrepareSettings
from ramlet.settings.declared import declared, read

NAMES = [each.name for each in fields(PrepareSettings)]

OTHER: dict[str, Any] = {
    "documents": "line",
    "doc_separator": "<|end|>",
    "text_field": "content",
    "format": "jsonl",
    "on_error": "skip",
    "tokenizer": "byte",
    "end_token": "none",
    "unknown": "unk",
    "normalize": False,
    "collapse_blanks": True,
    "filter": False,
    "min_chars": 20,
    "max_chars": 9000,
    "max_symbols": 0.3,
    "max_repeated": 0.2,
    "max_invalid": 0.0,
    "min_line_chars": 3,
    "max_line_chars": 0,
    "max_line_symbols": 0.9,
    "dedup": "line",
    "near": 0.8,
    "dedup_cache": "cache",
    "exclude": ("benchmark.jsonl",),
    "exclude_ngram": 8,
    "exclude_field": "question",
    "document_bytes": 4096,
    "min_tokens": 5,
    "max_tokens": 512,
    "long_documents": "drop",
    "val_fraction": 0.0,
    "tokens_per_shard": 1000,
    "pack": 128,
    "output_format": "npy",
    "allow_empty": True,
}


def test_defaults_are_valid() -> None:
    settings = PrepareSettings()
    assert (settings.largest_document, settings.largest_whole_file) == (1 << 20, 1 << 16)
    assert settings.end_token_wanted
    for name in NAMES:
        assert read(PrepareSettings, name, getattr(settings, name)) == getattr(settings, name)


def test_other_values_are_there_for_every_setting() -> None:
    assert set(OTHER) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_changes_the_signature(name: str) -> None:
    same = PrepareSettings(**{name: OTHER[name]}).parts() == PrepareSettings().parts()
    assert same == (name == "allow_empty")  # which decides whether there is a result, not what is in it


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_has_one_line_of_help(name: str) -> None:
    text = declared(PrepareSettings)[name].help
    assert text.endswith(".")
    assert len(text) < 120
    assert "\n" not in text


WRONG: list[tuple[str, Any, str]] = [
    ("tokenizer", "", "gpt2, byte, char, a file, a folder or a name on the hub"),
    ("tokenizer", 7, "gpt2, byte, char, a file, a folder or a name on the hub"),
    ("dedup", "document", "one of doc, line, none"),
    ("dedup", ["doc"], "one of doc, line, none"),
    ("dedup_cache", " ", "a folder"),
    ("exclude", "", "files, folders, or datasets of ramlet"),
    ("exclude_ngram", 1, "between 2 and 256"),
    ("normalize", "yes", "true or false"),
    ("filter", 1, "true or false"),
    ("collapse_blanks", None, "true or false"),
    ("min_chars", -1, "at least 0"),
    ("min_chars", True, "a whole number"),
    ("max_chars", 1.5, "a whole number"),
    ("min_tokens", "-5", "a number like 2048, 32k or 10M"),
    ("max_tokens", 0, "at least 1"),
    ("tokens_per_shard", 0, "at least 1"),
    ("pack", 1, "at least 2"),
    ("max_symbols", 1.1, "between 0 and 1"),
    ("max_repeated", -0.1, "between 0 and 1"),
    ("max_invalid", math.nan, "between 0 and 1"),
    ("max_line_symbols", "half", "a number like 0.1"),
    ("val_fraction", 1, "at least 0 and below 1"),
    ("val_fraction", False, "at least 0 and below 1"),
    ("long_documents", "cut", "one of split, drop"),
    ("output_format", "parquet", "one of shards, npy"),
    ("document_bytes", 15, "between 16 and 268,435,456"),
    ("tokens_per_shard", 1 << 63, "at most 9,223,372,036,854,775,807"),
    ("max_tokens", 1 << 63, "at most 9,223,372,036,854,775,807"),
    ("max_chars", 1 << 64, "at most 9,223,372,036,854,775,807"),
    ("document_bytes", 1 << 30, "between 16 and 268,435,456"),
    ("unknown", "skip", "one of error, unk"),
    ("end_token", "", "a token of the tokenizer, or none"),
    ("format", "csv", "one of text, jsonl, parquet"),
    ("documents", "page", "one of file, line"),
    ("text_field", "", "the name of a field"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_a_wrong_value_is_named_with_what_it_may_be(name: str, value: Any, allowed: str) -> None:
    for make in (lambda: PrepareSettings(**{name: value}), lambda: read(PrepareSettings, name, value)):
        with pytest.raises(SettingsError) as caught:
            make()
        shown = "a list" if isinstance(value, list) else repr(value)
        told = str(caught.value).removesuffix(": put it in quotes if you mean the text")
        assert told == f"{name} must be {allowed}, not {shown}"
        assert (caught.value.settings, caught.value.facts["setting"]) == ([name], name)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_chars": 10, "max_chars": 9}, "min_chars is 10, more than max_chars, 9"),
        ({"min_line_chars": 10, "max_line_chars": 9}, "min_line_chars is 10, more than max_line_chars, 9"),
        ({"min_tokens": 10, "max_tokens": 9}, "min_tokens is 10, more than max_tokens, 9"),
        ({"pack": 2048, "tokens_per_shard": 1000}, "less than one sequence of pack, 2,048"),
        ({"documents": "line", "doc_separator": "---"}, "not both"),
    ],
)
def test_two_that_make_no_sense_together(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        PrepareSettings(**given)


def test_whole_and_real_numbers_are_the_same_setting() -> None:
    assert PrepareSettings(max_symbols=1).parts() == PrepareSettings(max_symbols=1.0).parts()


def test_a_cache_that_moved_is_the_same_setting() -> None:
    assert PrepareSettings(dedup_cache="a").parts() == PrepareSettings(dedup_cache="b").parts()
    unused = PrepareSettings(dedup="none", dedup_cache="a")
    assert unused.cache_folder is None
    assert unused.parts() == PrepareSettings(dedup="none").parts()


def test_cleaning_is_apart_from_the_rest() -> None:
    plain = PrepareSettings().cleaning_parts()
    assert PrepareSettings(tokenizer="byte", dedup="line", pack=64).cleaning_parts() == plain
    assert PrepareSettings(collapse_blanks=True).cleaning_parts() != plain
    assert set(PrepareSettings().cleaning()) == {
        *("normalise", "collapse_blanks", "filter", "min_chars", "max_chars", "max_symbols", "max_repeated"),
        *("max_invalid", "min_line_chars", "max_line_chars", "max_line_symbols"),
    }


def test_a_setting_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape("unknown setting 'dedupe': did you mean dedup?")):
        ramlet.prepare("text.txt", tmp_path / "data", tokenizer="byte", dedupe="line")
    assert list(tmp_path.iterdir()) == []


def test_amounts_are_read_as_everywhere() -> None:
    settings = PrepareSettings(tokens_per_shard="10M", min_chars="1,000", document_bytes="64KiB", val_fraction="1e-3")
    assert (settings.tokens_per_shard, settings.min_chars) == (10_000_000, 1000)
    assert (settings.document_bytes, settings.val_fraction) == (65536, 0.001)
