"""BPE training against its definition, against HF tokenizers, and against itself under every budget and division."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracles import (
    BYTES,
    LONGEST_PIECE,
    PATTERNS,
    UNLIMITED,
    count_pieces,
    hf_train,
    many_scripts,
    merges_of,
    native_train,
    real_documents,
    split,
    text_file,
    train,
    undisputed,
)
from ramlet._native import least_memory, pattern_regex
from ramlet.errors import BudgetError, SettingsError

SMALL = 2 * least_memory(5, 512)


def random_words(size: int, alphabet: str, shortest: int, longest: int, seed: int = 0) -> str:
    """Words of independent letters: hardly one comes twice, and no pair stands out."""
    chance = np.random.default_rng(seed)
    codes = chance.choice(np.array(list(map(ord, alphabet)), dtype="<u4"), size)
    ends = np.cumsum(chance.integers(shortest + 1, longest + 2, size // (shortest + 1)))
    codes[ends[ends < size]] = ord(" ")
    return codes.tobytes().decode("utf-32-le")


# The definition


FEW_LETTERS = st.text(st.sampled_from("ab "), max_size=60)
MANY_LETTERS = st.text(st.sampled_from("aabbcde '\n1!\u00e9\u4e2d\x00"), max_size=60)
ANY_TEXT = st.text(max_size=20).map(undisputed)
CORPUS = st.lists(FEW_LETTERS | MANY_LETTERS | ANY_TEXT, min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    documents=CORPUS,
    merges=st.integers(0, 60),
    min_frequency=st.integers(0, 4),
    max_token_bytes=st.sampled_from([2, 3, 5, UNLIMITED]),
    tie_break=st.sampled_from(["hf", "bytes"]),
    pattern=st.sampled_from(PATTERNS),
    threads=st.sampled_from([1, 2, 5]),
)
@example(["a" * 4097, "a" * 9000], 12, 0, UNLIMITED, "hf", "gpt2", 1)
@example(["aaaa aaaaaaa aaa aaaaa"], 9, 0, UNLIMITED, "hf", "gpt2", 1)
@example([""], 5, 0, UNLIMITED, "hf", "gpt2", 1)
def test_equals_the_definition(
    documents: list[str],
    merges: int,
    min_frequency: int,
    max_token_bytes: int,
    tie_break: str,
    pattern: str,
    threads: int,
) -> None:
    rules: dict[str, Any] = {
        "min_frequency": min_frequency,
        "max_token_bytes": max_token_bytes,
        "tie_break": tie_break,
    }
    pieces = count_pieces(documents, pattern_regex(pattern))
    tokens = 256 + merges
    trained = native_train(documents, tokens=tokens, pattern=pattern, threads=threads, memory=SMALL, batch=2, **rules)
    assert merges_of(trained) == train(pieces, tokens, **rules)
    assert trained["tokens"][:256] == [bytes([byte]) for byte in BYTES]
    assert trained["distinct_pieces"] == len(pieces)
    assert trained["pieces"] == pieces.total()
    # A piece's merging never reaches over its ends, and inside them it depends on nothing else: two different
    # pairs cannot come to make the same token.
    assert len(set(trained["tokens"])) == len(trained["tokens"]) == 256 + len(trained["merges"])
    assert [trained["tokens"][made] for _, _, made in trained["merges"]] == trained["tokens"][256:]


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12),
    letters=st.sampled_from(["a", "ab", "aab"]),
    merges=st.integers(1, 60),
)
def test_runs_of_equal_letters_never_make_a_token_twice(
    words: list[tuple[int, int]], letters: str, merges: int
) -> None:
    # Where left-to-right matters most: runs of every length, merged in halves and rests.
    documents = [" " + (letters * length)[:length] for length, count in words for _ in range(count)]
    trained = native_train(documents, tokens=256 + merges, memory=SMALL)
    assert len(set(trained["tokens"])) == 256 + len(trained["merges"])
    assert merges_of(trained) == train(count_pieces(documents, pattern_regex("gpt2")), 256 + merges)
    assert merges_of(trained) == hf_train(documents, 256 + merges)


AROUND_SPECIALS = ["<e>", "<e><e>", "ab", "x x", "e", "<", " a", "b\n"]


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.sampled_from(AROUND_SPECIALS)).map("".join), min_size=1, max_size=5),
    merges=st.integers(0, 30),
)
def test_special_tokens_are_cut_out(documents: list[str], merges: int) -> None:
    specials = ["<e>", "<e><e>", "x x", "abab"]
    pieces = count_pieces(documents, pattern_regex("gpt2"), specials)
    trained = native_train(documents, tokens=256 + merges, specials=specials, memory=SMALL)
    assert merges_of(trained) == train(pieces, 256 + merges)
    assert trained["pieces"] == pieces.total()


def test_special_tokens_across_the_blocks_of_a_file(tmp_path: Path) -> None:
    chance = random.Random(3)
    words = ("<|end|>", "<|", "end", "|>", " word", "\n", "<|end|><|end|>", "x", "é")
    text = "".join(chance.choices(words, k=150_000))
    path = tmp_path / "text.txt"
    path.write_text(text, newline="")
    specials = ["<|end|>", "<|end|><|end|>", "x<|end|>"]
    pieces = count_pieces([text], pattern_regex("gpt2"), specials)
    trained = native_train(
        files=[text_file(path)], tokens=290, specials=specials, threads=2, memory=least_memory(2, 290)
    )
    assert trained["pieces"] == pieces.total()
    assert trained["distinct_pieces"] == len(pieces)
    assert merges_of(trained) == train(pieces, 290)


@pytest.mark.slow
def test_counts_do_not_end_at_32_bits(tmp_path: Path) -> None:
    # One file of letters without a space, 64 times: each of its 16389 pieces has 4095 pairs. Sums of 32 bits would
    # come out at 261,824, below the 300,000 of the other file.
    path, other = tmp_path / "run.txt", tmp_path / "other.txt"
    path.write_text("a" * (16_389 * LONGEST_PIECE))
    other.write_text("bc " * 300_000)
    trained = native_train(files=[text_file(other), *[text_file(path)] * 64], tokens=257, threads=2)
    assert trained["pieces"] == 300_001 + 64 * 16_389
    assert merges_of(trained) == [(b"a", b"a")]


# HF tokenizers


@pytest.mark.parametrize("pattern", PATTERNS)
def test_hf_learns_the_same_merges_from_real_text(pattern: str) -> None:
    documents = many_scripts(60_000) + real_documents(2_000_000)
    ours = native_train(documents, tokens=5000, pattern=pattern, memory=64 << 20)
    assert len(ours["merges"]) == 5000 - 256
    assert merges_of(ours) == hf_train(documents, 5000, pattern=pattern)


@pytest.mark.parametrize("options", [{"min_frequency": 7}, {"max_token_bytes": 4}, {"max_token_bytes": 2}])
def test_hf_agrees_on_every_rule(options: dict[str, int]) -> None:
    documents = many_scripts(60_000, seed=1)
    ours = native_train(documents, tokens=3000, memory=SMALL, **options)
    assert merges_of(ours) == hf_train(documents, 3000, **options)
    assert 100 < len(ours["merges"]) < 3000 - 256


@settings(max_examples=60, deadline=None)
@given(documents=CORPUS, merges=st.integers(0, 80), min_frequency=st.integers(0, 3))
def test_hf_agrees_on_small_corpora(documents: list[str], merges: int, min_frequency: int) -> None:
    # HF has no longest piece, and takes an empty corpus for a mistake of its own.
    tokens = 256 + merges
    ours = native_train(documents, tokens=tokens, min_frequency=min_frequency, memory=SMALL)
    assert merges_of(ours) == hf_train(documents, tokens, min_frequency=min_frequency)


# Any budget, any division of the work


def write_jsonl(path: Path, documents: list[str]) -> None:
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(documents)))


def write_parquet(path: Path, documents: list[str]) -> None:
    table = pyarrow.table({"id": list(range(len(documents))), "text": documents})
    pyarrow.parquet.write_table(table, path, row_group_size=97)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_every_budget_division_and_format_learns_the_same(tmp_path: Path, pattern: str) -> None:
    documents = many_scripts(120_000) + real_documents(2_500_000)
    tokens = 1500
    expected = merges_of(native_train(documents, tokens=tokens, pattern=pattern, memory=1 << 30, threads=1))
    assert len(expected) == tokens - 256

    paths = []
    for n, document in enumerate(documents[:40]):
        paths.append(tmp_path / f"{n:03}.txt")
        paths[-1].write_text(document, newline="")
    write_jsonl(tmp_path / "rest.jsonl", documents[40:])
    files = [*map(text_file, paths), text_file(tmp_path / "rest.jsonl", form="jsonl")]
    for threads in (1, 2, 5):
        least = least_memory(threads, tokens)
        for memory in (least, least * 3 // 2, least * 10):
            trained = native_train(files=files, tokens=tokens, pattern=pattern, threads=threads, memory=memory)
            assert merges_of(trained) == expected, (threads, memory)
            assert trained["read"]["documents"] == len(documents)

    write_jsonl(tmp_path / "all.jsonl", documents)
    write_parquet(tmp_path / "all.parquet", documents)
    for form in ("jsonl", "parquet"):
        plain = (tmp_path / f"all.{form}").read_bytes()
        for packer, pack in {"": bytes, **PACKERS}.items():
            path = tmp_path / f"packed.{form}.{packer}"
            path.write_bytes(pack(plain))
            file = text_file(path, packer, form)
            trained = native_train(
                files=[file], tokens=tokens, pattern=pattern, threads=2, memory=least_memory(2, tokens)
            )
            assert merges_of(trained) == expected, (form, packer)
            assert trained["read"]["documents"] == len(documents)


@pytest.mark.parametrize("documents_are", ["line", "separator"])
def test_documents_in_one_text_file(tmp_path: Path, documents_are: str) -> None:
    separator = "\n" if documents_are == "line" else "<|sep|>"
    documents = [document.replace("\r\n", " ").replace("\n", " ") for document in many_scripts(400_000)]
    path = tmp_path / "text.txt"
    path.write_text(separator.join(documents) + separator, newline="")
    expected = native_train(documents, tokens=900)
    trained = native_train(
        files=[text_file(path)],
        tokens=900,
        threads=2,
        memory=least_memory(2, 900),
        read={"documents": documents_are, "separator": separator},
    )
    assert merges_of(trained) == merges_of(expected)
    assert trained["read"]["documents"] == len(documents)
    assert trained["pieces"] == expected["pieces"]


def test_what_does_not_fit_is_spilled_and_merged_in_phases(tmp_path: Path) -> None:
    # Several hundred thousand distinct words: many times what the memory holds.
    path = tmp_path / "words.txt"
    path.write_text(random_words(5_000_000, "".join(map(chr, range(0xA0, 0x800))), 3, 9))
    tokens = 3000
    ample = native_train(files=[text_file(path)], tokens=tokens, memory=1 << 30)
    assert ample["spilled_runs"] == 0
    assert ample["distinct_pieces"] > 500_000
    for threads in (1, 2):
        tight = native_train(
            files=[text_file(path)], tokens=tokens, threads=threads, memory=least_memory(threads, tokens)
        )
        assert tight["spilled_runs"] >= 5
        assert tight["merge_phases"] >= 2 * ample["merge_phases"] >= 4
        assert merges_of(tight) == merges_of(ample)
        for total in ("pieces", "distinct_pieces"):
            assert tight[total] == ample[total]


@pytest.mark.parametrize("times", [1, 1.5])
def test_the_least_memory_is_enough_where_no_pair_stands_out(tmp_path: Path, times: float) -> None:
    path = tmp_path / "words.txt"
    path.write_text(random_words(4_000_000, "etaoinshrdlu", 4, 9))
    tokens = 4000
    ample = native_train(files=[text_file(path)], tokens=tokens, memory=1 << 30)
    tight = native_train(files=[text_file(path)], tokens=tokens, memory=int(times * least_memory(1, tokens)))
    assert merges_of(tight) == merges_of(ample)


UNITS = ["a", "1", " ", "\n", "é", "!", "\u4e2d", "'s", " \n", "\r\n", "aB"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("unit", UNITS)
def test_text_without_a_place_to_cut_is_cut_the_same_everywhere(tmp_path: Path, pattern: str, unit: str) -> None:
    text = unit * (150_000 // len(unit)) + " end"
    path = tmp_path / "run.txt"
    path.write_text(text, newline="")
    expected = split(pattern_regex(pattern), text, LONGEST_PIECE)
    merges = train(Counter(piece.encode() for piece in expected), 280)
    for memory in (least_memory(1, 280), 100 << 20):
        trained = native_train(files=[text_file(path)], tokens=280, pattern=pattern, memory=memory)
        assert (trained["pieces"], trained["distinct_pieces"]) == (len(expected), len(set(expected)))
        assert merges_of(trained) == merges


def test_cut_pieces_are_counted_the_same_under_every_budget(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text("a" * 500_000)
    cut = [
        native_train(files=[text_file(path)], memory=memory)["cut_pieces"] for memory in (least_memory(1, 256), 1 << 30)
    ]
    assert cut == [500_000 // LONGEST_PIECE] * 2


# Memory


MEASURED = """
import json, sys
sys.path.insert(0, sys.argv[2])
from oracles import native_train, text_file
from pathlib import Path
import psutil
settings = json.loads(sys.argv[3])
native_train(["the code itself takes memory too, when it first runs"], tokens=260)
before = psutil.Process().memory_info().rss
# As `Budget` divides it: 1/32 is kept as a safety margin.
total = (before + settings["memory"]) * 32 // 31
Path("/proc/self/clear_refs").write_text("5")
trained = native_train(files=[text_file(Path(sys.argv[1]))], resident_limit=total, **settings)
peak = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps([before, peak, total, trained["spilled_runs"], trained["distinct_pieces"]]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_memory_stays_within_its_share(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    letters = "eeeeeeeetttttaaaaooooiiinnnsssrrhhldcumfpgwybvkxjqz\u00e9\u00fc\u0434\u4e2d"
    with path.open("w") as file:
        for part in range(14):
            file.write(random_words(2_000_000, letters, 3, 12, seed=part) + "\n")
    assert path.stat().st_size > 28 << 20
    for threads, tokens, extra in ((1, 280, 1 << 20), (2, 400, 16 << 20)):
        settings = {"threads": threads, "tokens": tokens, "memory": least_memory(threads, tokens) + extra}
        command = [sys.executable, "-c", MEASURED, str(path), str(Path(__file__).parent), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        before, peak, total, spilled, distinct = json.loads(done.stdout)
        assert spilled > 10
        assert distinct > 1_000_000
        assert peak <= total, f"{(peak - before) >> 10} KB of {(total - before) >> 10} KB with {settings}"


# Refusals


def test_too_little_memory_is_refused_at_once() -> None:
    with pytest.raises(BudgetError, match="needs at least"):
        native_train(["text"], tokens=300, memory=least_memory(1, 300) - 1)


def test_an_unknown_tie_break_is_refused() -> None:
    with pytest.raises(SettingsError, match="tie break"):
        native_train(["text"], tie_break="random")


def test_an_empty_special_token_is_refused() -> None:
    with pytest.raises(SettingsError, match="empty"):
        native_train(["text"], specials=[""])


def test_an_error_of_the_iterator_comes_out_as_it_is() -> None:
    def documents() -> Any:
        yield "text"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        native_train(documents(), threads=2, batch=1)


def test_an_error_of_the_callback_stops_the_work() -> None:
    def fail(stage: str, done: int, total: int) -> None:
        raise LookupError(stage)

    with pytest.raises(LookupError):
        native_train(itertools.cycle(many_scripts(100_000)), tokens=5000, progress=fail)  # would never end by itself


def test_progress_tells_stage_and_amount(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = tmp_path / "words.txt"
    threads = psutil.Process().num_threads()
    size = 20_000_000
    # It is told twenty times a second: where a stage is over before, it takes more text.
    while {stage for stage, _, _ in seen} != {"counting", "sorting", "merging"}:
        seen.clear()
        path.write_text(random_words(size, "etaoinshrdlu", 2, 9))
        size *= 2
        native_train(
            files=[text_file(path)],
            tokens=600,
            memory=least_memory(1, 600),
            progress=lambda stage, done, total: seen.append((stage, done, total)),
        )
    for stage in ("counting", "merging"):
        amounts = [done for name, done, _ in seen if name == stage]
        assert amounts == sorted(amounts)
    assert max(done for name, done, _ in seen if name == "counting") <= os.path.getsize(path)
    assert psutil.Process().num_threads() <= threads  # none are left behind
