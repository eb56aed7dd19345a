"""`ramlet data duplicates`, the repetitiveness in `ramlet data inspect`, and both in the report."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ramlet as package
from conftest import AMPLE, RunRamlet
from ramlet.dataset.duplicates import Cluster, Pair, differences, examples
from ramlet.dataset.reader import Dataset
from ramlet.dataset.repetition import measure, saved
from ramlet.errors import DatasetError

MENU = "Home | About | Contact"
PASSAGE = "we use cookies to make this site work and to learn how it is used by you"


def dataset(folder: Path, texts: list[str], **given: Any) -> Path:
    source = folder / "corpus.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {"tokenizer": "byte", "memory": AMPLE, "threads": 1, "dedup": "none", **given}
    package.prepare(source, folder / "data", **settings)
    return folder / "data"


def document(number: int, text: str) -> dict[str, Any]:
    return {"source": "corpus.jsonl", "document": number, "text": text}


def near_duplicates(folder: Path, count: int = 3) -> Path:
    """A dataset as `prepare --near` leaves it."""
    made = dataset(folder, ["some text"])
    old, new = "Printed on May 3.\nThe same text follows, word by word.", "Printed on June 4.\nThe same text follows."
    lines: list[dict[str, Any]] = [
        {"dropped": document(10 + at, f"{old} {at}"), "kept": document(at, f"{new} {at}"), "similarity": 0.9 - at / 100}
        for at in range(count)
    ]
    lines += [{"cluster": document(5, f"copy\n of {size}"), "documents": size} for size in (7, 40_000, 12)]
    (made / "near_duplicates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def test_differences_by_word() -> None:
    left, right = differences("one two  three.", "one 2  three!")
    assert left == [("one ", False), ("two", True), ("  three", False), (".", True)]
    assert right == [("one ", False), ("2", True), ("  three", False), ("!", True)]
    assert differences("", "a b") == ([], [("a b", True)])
    assert differences("same", "same") == ([("same", False)], [("same", False)])


def test_pairs_side_by_side_and_one_above_the_other(tmp_path: Path, ramlet: RunRamlet) -> None:
    near_duplicates(tmp_path)
    wide = ramlet("data", "duplicates", "data", "--limit", "2")
    assert wide.returncode == 0
    lines = wide.stdout.splitlines()
    assert lines[0] == "pair 1 of 3: similarity 0.900"
    assert lines[1].startswith("dropped: corpus.jsonl, document 10")
    assert " | kept: corpus.jsonl, document 0" in lines[1]
    assert lines[2].startswith("Printed on [-May 3-].")
    assert " | Printed on {+June 4+}." in lines[2]
    assert "[-, word by word-]" in lines[3]
    assert all(len(line) <= 100 for line in lines)
    clusters = lines[lines.index("texts with the most near-duplicates") + 1 :]
    assert clusters[0].split() == ["40,000", "dropped", "corpus.jsonl,", "document", "5:", "copy", "of", "40000"]
    assert clusters[1].split()[0] == "12"
    assert clusters[2] == "1 pair more: --limit 3 shows all"
    narrow = ramlet("data", "duplicates", "data", env={"PATH": "", "COLUMNS": "60"}).stdout.splitlines()
    assert narrow[1] == "dropped: corpus.jsonl, document 10"
    assert "kept: corpus.jsonl, document 0" in narrow
    assert all(" | " not in line for line in narrow)
    colored = ramlet("data", "duplicates", "data", env={"PATH": "", "COLUMNS": "60", "FORCE_COLOR": "1"}).stdout
    assert "Printed on \x1b[31mMay 3\x1b[0m." in colored
    assert "Printed on \x1b[32mJune 4\x1b[0m." in colored
    assert "[-" not in colored


def test_pairs_as_json(tmp_path: Path, ramlet: RunRamlet) -> None:
    near_duplicates(tmp_path)
    found = json.loads(ramlet("data", "duplicates", "data", "--limit", "1", "--json").stdout)
    assert [pair["dropped"]["document"] for pair in found["pairs"]] == [10]
    assert found["clusters"] == [{"cluster": document(5, "copy\n of 40000"), "documents": 40_000}]


def test_without_near_duplicates_and_damaged(tmp_path: Path, ramlet: RunRamlet) -> None:
    made = dataset(tmp_path, ["some text"])
    told = ramlet("data", "duplicates", "data")
    assert (told.returncode, told.stdout) == (1, "")
    assert "was prepared without `ramlet prepare --near`" in told.stderr
    assert "Traceback" not in told.stderr
    with pytest.raises(DatasetError):
        list(examples(tmp_path))
    for line in ("{", "[]", '{"dropped": 1}', '{"cluster": {"source": "a"}}', '{"cluster": null}', "1"):
        (made / "near_duplicates.jsonl").write_text(line + "\n")
        with pytest.raises(DatasetError, match=r"near_duplicates.jsonl is damaged in line 1"):
            list(examples(made))
    (made / "near_duplicates.jsonl").write_text("")
    assert "no near-duplicates were dropped" in ramlet("data", "duplicates", "data").stdout


def test_the_lines_of_the_file(tmp_path: Path) -> None:
    found = list(examples(near_duplicates(tmp_path, 2)))
    assert [type(each) for each in found] == [Pair, Pair, Cluster, Cluster, Cluster]


def repetitive() -> list[str]:
    texts = [f"{MENU}\nText about {at * at} things, number {at}.\n{PASSAGE}, {at}" for at in range(40)]
    return [*texts, *texts[:10], "short"]


def test_repetition_is_counted_exactly(tmp_path: Path) -> None:
    texts = repetitive()
    found = measure(Dataset(dataset(tmp_path, texts)))
    assert found["documents"] == {"total": 51, "sampled": 51, "copies": 10, "share": 10 / 51}
    lines = Counter(line for text in texts for line in text.split("\n"))
    listed = [(each["text"], each["count"]) for each in found["lines"]["most_frequent"]]
    assert listed[0] == (MENU, 50)
    assert all(lines[text] == count for text, count in listed)
    assert [count for _, count in listed] == sorted(lines.values(), reverse=True)[: len(listed)]
    assert found["lines"]["total"] == sum(lines.values())
    assert found["lines"]["unlisted_at_most"] == 0
    first = found["ngrams"]["most_frequent"][0]
    assert first == {"text": " ".join(PASSAGE.split()[:13]), "count": 50}
    # The n-grams one word further on are the same passage.
    assert [each["count"] for each in found["ngrams"]["most_frequent"]].count(50) == 1


def test_the_share_of_near_duplicates_is_estimated(tmp_path: Path) -> None:
    """400 texts of 60 words, and 100 copies of them in which one word is another: a similarity of 51/61."""
    words = [[f"w{text}x{at}" for at in range(60)] for text in range(400)]
    changed = [[*each[:30], "another", *each[31:]] for each in words[:100]]
    found = measure(Dataset(dataset(tmp_path, [" ".join(each) for each in [*words, *changed]])))
    assert found["documents"]["copies"] == 0
    assert found["near_duplicates"]["sampled"] == 500
    assert found["near_duplicates"]["share"] == pytest.approx(0.2, abs=0.03)


def test_inspect_measures_small_datasets_and_saves_on_request(tmp_path: Path, ramlet: RunRamlet) -> None:
    made = dataset(tmp_path, repetitive())
    shown = ramlet("data", "inspect", "data", "--samples", "0").stdout
    assert "19.61% of the documents are copies of another" in shown
    assert f"50  {MENU}" in shown
    assert "most frequent 13-grams" in shown
    assert not (made / "repetition.json").exists()
    assert "repetition" not in ramlet("data", "inspect", "data", "--no-repetition").stdout
    found = json.loads(ramlet("data", "inspect", "data", "--repetition", "--json").stdout)["repetition"]
    assert saved(made, Dataset(made).manifest) == found
    assert found["near_duplicates"]["sampled"] == 50  # one is too short
    # Another dataset in its place: what was measured is not about it.
    package.prepare(tmp_path / "corpus.jsonl", made, memory=AMPLE, append=True, dedup="line")
    assert saved(made, Dataset(made).manifest) is None


def test_the_report_has_both(tmp_path: Path, ramlet: RunRamlet) -> None:
    made = near_duplicates(tmp_path)
    assert ramlet("data", "inspect", str(made), "--repetition").returncode == 0
    assert ramlet("report", str(made), "--out", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert "Near-duplicates" in page
    assert "Printed on <mark>May 3</mark>." in page
    assert "40,000" in page
    assert "Repeated text" in page
    assert "of the documents are copies of another" in page
