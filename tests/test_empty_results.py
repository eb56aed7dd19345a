"""A result that would be empty is an error that names what dropped everything, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ramlet
from conftest import AMPLE
from ramlet.cli import main
from ramlet.dataset.merge import merge
from ramlet.dataset.verify import verify
from ramlet.errors import DatasetError, SourceError

TEXTS = [f"This is document number {number}, with some words in it." for number in range(20)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def run(text: Path, out: Path, **given: Any) -> ramlet.Prepared:
    settings = {"tokenizer": "byte", "documents": "line", "memory": AMPLE, "threads": 1, **given}
    return ramlet.prepare(text, out, **settings)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("unit", ["doc", "line"])
def test_all_duplicates_of_a_cache(tmp_path: Path, text: Path, unit: str) -> None:
    given = {"dedup": unit, "dedup_cache": str(tmp_path / "cache")}
    run(text, tmp_path / "first", **given)
    before = files(tmp_path)
    for _ in range(2):  # the first try must not decide the second
        with pytest.raises(SourceError) as caught:
            run(text, tmp_path / "second", **given)
        said = str(caught.value)
        assert f"20 as duplicate (an earlier document has the same text; the dedup cache {tmp_path}" in said
        assert "allow_empty" in said
        assert not (tmp_path / "second").exists()
        assert files(tmp_path) == before
    made = run(text, tmp_path / "second", allow_empty=True, **given)
    assert made.manifest["ledger"]["documents"]["dropped"]["duplicate"] == 20
    assert verify(made.path).problems == []


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({"min_chars": 1000}, ["20 as too_short (fewer characters than min_chars)"]),
        ({"min_tokens": 1000}, ["20 as too_few_tokens (fewer tokens than min_tokens)"]),
        (
            {"min_line_chars": 1000},
            ["20 as empty", "20 lines as line_too_short (fewer characters than min_line_chars)"],
        ),
        ({"max_chars": 49, "max_symbols": 0.0}, ["10 as too_long", "10 as symbols"]),
        ({"tokenizer": "char", "min_chars": 1000}, ["20 as too_short"]),
        ({"output_format": "npy", "min_chars": 1000}, ["20 as too_short"]),
        ({"pack": 16, "min_chars": 1000}, ["20 as too_short"]),
    ],
)
def test_all_dropped_by_rules(tmp_path: Path, text: Path, given: dict[str, Any], rules: list[str]) -> None:
    before = files(tmp_path)
    with pytest.raises(SourceError, match="every document was dropped") as caught:
        run(text, tmp_path / "out.npy", **given)
    for rule in rules:
        assert rule in str(caught.value)
    assert files(tmp_path) == before
    assert not (tmp_path / "out.npy").exists()


def test_no_document_at_all(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"other": 1}\n' * 3)
    with pytest.raises(SourceError, match=r"no document was read \(3 without text\)"):
        run(tmp_path / "text.jsonl", tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_of_the_user_stays(tmp_path: Path, text: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SourceError):
        run(text, tmp_path / "out", min_chars=1000)
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_new_to_append(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = str(tmp_path / "cache")
    run(text, tmp_path / "out", dedup_cache=cache)
    before = files(tmp_path)
    made = ramlet.prepare(
        text, tmp_path / "out", append=True, documents="line", dedup_cache=cache, memory=AMPLE, threads=1
    )
    assert made.nothing_new.startswith("every document was dropped: 20 as duplicate")
    assert not made.already_done
    assert made.statistics["ledger"]["documents"]["read"] == 20
    command = ["prepare", str(text), "-o", str(tmp_path / "out"), "--append", "--docs", "line", "--memory", AMPLE]
    assert main([*command, "--dedup-cache", cache]) == 0
    assert "nothing new for" in (said := capsys.readouterr().out)
    assert "which is unchanged: every document was dropped: 20 as duplicate" in said
    assert main([*command, "--min-chars", "1000", "--json"]) == 0
    assert "too_short" in json.loads(capsys.readouterr().out)["nothing_new"]
    assert files(tmp_path) == before


def test_flag_and_key(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--docs", "line", "--min-chars", "1000", "--tokenizer", "byte", "--memory", AMPLE, "-q"]
    assert main(["prepare", str(text), "-o", str(tmp_path / "a"), *common]) == 1
    assert "20 as too_short" in capsys.readouterr().err
    assert main(["prepare", str(text), "-o", str(tmp_path / "a"), *common, "--allow-empty"]) == 0
    said = capsys.readouterr()
    assert "0 tokens in" in said.out
    assert "validation" not in said.err
    config = tmp_path / "config.yaml"
    config.write_text(f"inputs: {text}\nout: {tmp_path / 'b'}\ndocs: line\nmin_chars: 1000\nallow_empty: true\n")
    assert main(["prepare", str(config), "--tokenizer", "byte", "--memory", AMPLE, "-q"]) == 0


def test_what_is_made_of_nothing(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        run(text, tmp_path / name, min_chars=1000, allow_empty=True)
    with pytest.raises(DatasetError, match="nothing to merge"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    run(text, tmp_path / "c")
    assert merge([tmp_path / "a", tmp_path / "c"], tmp_path / "merged").manifest.ledger["documents"]["kept"] == 20
    (tmp_path / "empty.txt").write_text("")
    encode = ["tokenizer", "encode", str(tmp_path / "empty.txt"), "--tokenizer", "byte", "--memory", AMPLE]
    assert main([*encode, "--out", str(tmp_path / "ids.bin")]) == 1
    assert "no text to encode" in capsys.readouterr().err
    assert not (tmp_path / "ids.bin").exists()


def test_training_always_gets_something(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a single document\n")
    made = ramlet.prepare(tmp_path / "one.txt", tmp_path / "out", tokenizer="byte", val_fraction=0.99999, memory=AMPLE)
    assert made.manifest["splits"]["train"]["documents"] == 1
