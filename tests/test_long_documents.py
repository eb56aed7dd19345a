"""Documents of a dataset that are larger than any block: they are read in parts, or are counted in the budget."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ramlet
from oracles_dataset import checksums, write_dataset  # noqa: F401
from ramlet.dataset.export import llm_c
from ramlet.dataset.texts import pieces

MB = 1_000_000
TEXT = "über words — and 😀, a few "


def documents(seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(256) for _ in range(chance.choice([1, 2, 9, 40, 99]))] for _ in range(40)]


@pytest.mark.parametrize("pack", [None, 7])
@pytest.mark.parametrize("end", [False, True])
def test_parts_add_up_to_the_documents(tmp_path: Path, pack: int | None, end: bool) -> None:
    dataset = ramlet.Dataset(write_dataset(tmp_path / "d", documents(1), end=end, pack=pack))
    whole = [ids.tolist() for ids in dataset.documents("train")]
    assert dataset.longest("train") == max(map(len, whole))
    assert dataset.longest("val") == 0
    for size in (1, 3, 10, 64, 1000):
        found: list[list[int]] = []
        for ids, starts, ends in dataset.document_parts("train", size):
            assert len(ids) <= size
            if len(starts) == len(ends) > 0:
                found += [ids[begin:stop].tolist() for begin, stop in zip(starts.tolist(), ends.tolist())]
                continue
            assert (starts.tolist() or [0], ends.tolist() or [len(ids)]) == ([0], [len(ids)])
            found += [[]] * len(starts)
            found[-1] = found[-1] + ids.tolist()
        assert found == whole


def test_the_beginning_of_a_document(tmp_path: Path) -> None:
    dataset = ramlet.Dataset(write_dataset(tmp_path / "d", documents(2)))
    for number, ids in enumerate(dataset.documents("train")):
        found, length = dataset.beginning("train", number, 5)
        assert (found.tolist(), length) == (ids[:5].tolist(), len(ids))


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 16])
def test_texts_in_pieces(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a piece ends inside of a character, and where only the end id is left for the last."""
    monkeypatch.setattr("ramlet.dataset.reader.BLOCK_IDS", size)
    monkeypatch.setattr("ramlet.dataset.texts.SLICE", max(1, size // 2))
    texts = [TEXT * count for count in (1, 2, 3)] + ["a", ""]
    dataset = ramlet.Dataset(write_dataset(tmp_path / "d", [list(text.encode()) for text in texts]))
    monkeypatch.setattr(ramlet.Dataset.document_parts, "__defaults__", (size,))
    found, counted, text = [], 0, b""
    for piece, ids, ends in pieces(dataset, "train"):
        text, counted = text + piece, counted + ids
        if ends:
            found.append(text.decode())
            text = b""
    assert (found, counted) == (texts, dataset.splits["train"].tokens)


def test_llm_c_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ramlet.Dataset(write_dataset(tmp_path / "d", documents(3)))
    expected = [number for ids in dataset.documents("train") for number in [256, *ids[:-1].tolist()]]
    for size in (1, 3, 10, 64, 1000):
        monkeypatch.setattr(ramlet.Dataset.document_parts, "__defaults__", (size,))
        blocks = list(llm_c._end_id_first(dataset, "train", 256))
        assert np.concatenate(blocks).tolist() == expected


MEASURED = (
    "import sys; from ramlet.cli import main; from ramlet.runtime.memory import peak_memory; "
    "code = main(sys.argv[1:]); print(code, peak_memory(), file=sys.stderr)"
)


def measured(folder: Path, *words: str) -> tuple[int, int, str]:
    """The exit code and the peak of a command, and what it printed to standard output."""
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, cwd=folder)
    code, peak = map(int, done.stderr.splitlines()[-1].split())
    return code, peak, done.stdout


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a document of 11 MB, an id a byte."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "text.txt").write_text((TEXT * 20 + "\n") * 17_000)
    words = ("--out", "d", "--document-bytes", "16MB", "--max-line-chars", "0", "--max-repeated", "1")
    assert measured(folder, "prepare", "text.txt", "-T", "byte", "--val-fraction", "0", *words)[0] == 0
    assert ramlet.Dataset(folder / "d").longest("train") > 10 * MB
    return folder / "d"


COMMANDS = {
    "samples": "data inspect DATASET --no-repetition",
    "repetition": "data inspect DATASET --repetition",
    "llm.c": "data export DATASET --to llm.c --out out",
    "hf": "data export DATASET --to hf --out out",
    "exclude": "prepare small.txt -T byte --out out --exclude DATASET --exclude-ngram 3 --threads 1",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_least_budget_that_is_named_is_kept(command: str, long: Path, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("a text of its own")
    words = [*COMMANDS[command].replace("DATASET", str(long)).split(), "--json"]
    code, _, refused = measured(tmp_path, *words, "--memory", "9MB")
    assert code == 1
    least = re.search(r"needs at least (\d+)MB", json.loads(refused)["error"]["message"])
    assert least is not None
    code, peak, said = measured(tmp_path, *words, "--memory", f"{least[1]}MB")
    assert code == 0, said
    assert peak <= int(least[1]) * MB


def test_the_tokenizer_of_an_evaluation_set_is_counted(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("a text of its own")
    assert measured(tmp_path, "prepare", "small.txt", "-T", "gpt2", "--out", "tests", "--val-fraction", "0")[0] == 0
    words = ("prepare", "small.txt", "-T", "byte", "--out", "out", "--exclude", "tests", "--exclude-ngram", "9")
    code, _, refused = measured(tmp_path, *words, "--threads", "1", "--json", "--memory", "9MB")
    assert code == 1
    least = re.search(r"needs at least (\d+)MB", json.loads(refused)["error"]["message"])
    assert least is not None
    _, _, said = measured(tmp_path, *words, "--threads", "1", "--json", "--memory", f"{least[1]}MB")
    assert "no document in tests has 9 words" in json.loads(said)["error"]["message"]  # so it has been read
