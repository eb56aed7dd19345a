"""`ramlet tokenizer`: the commands as a user runs them."""

from __future__ import annotations

import doctest
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers

import ramlet.cli.passage
from conftest import RunRamlet
from oracles import hf_train, many_scripts
from ramlet import Tokenizer

# Runs a command, and prints the peak memory of its process.
PEAK = """
import re, sys
from ramlet.cli import main
code = main(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024, file=sys.stderr)
sys.exit(code)
"""
END = "<|endoftext|>"
DOCUMENTS = many_scripts(60_000, seed=2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes("\n".join(DOCUMENTS).encode())
    return path


@pytest.fixture
def out(tmp_path: Path, corpus: Path, ramlet: RunRamlet) -> Path:
    """A folder with a small tokenizer."""
    done = ramlet("tokenizer", "train", str(corpus), "--vocab-size", "700", "--special-token", END, "--out", "out")
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


def stats(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "stats.json").read_text())
    return result


def many_words(size: int) -> str:
    """Text whose distinct words grow with it: one to five random bytes each, in hexadecimal."""
    chance = np.random.default_rng(size)
    ends = np.cumsum(2 * chance.integers(1, 6, size // 7) + 1)
    letters = np.frombuffer(b"0123456789abcdef", "u1")[chance.integers(0, 16, ends[-1], "u1")]
    letters[ends - 1] = ord(" ")
    return letters[:-1].tobytes().decode()


def test_the_docstrings_examples() -> None:
    assert doctest.testmod(ramlet.cli.passage) == (0, 1)


class TestTrain:
    def test_what_it_leaves_and_says(self, out: Path, corpus: Path, ramlet: RunRamlet) -> None:
        assert sorted(os.listdir(out)) == ["stats.json", "tokenizer.json"]
        kept = stats(out)
        assert kept["settings"]["vocab_size"] == 700
        assert kept["tokenizer"]["special_tokens"] == {END: 699}
        assert kept["read"]["text_bytes"] == corpus.stat().st_size
        assert set(kept["stages"]) == {"counting", "sorting", "merging"}
        assert kept["distinct_pieces"] > 100
        assert 0 < kept["memory"]["peak"] < kept["memory"]["budget"]
        assert kept["memory"]["timeline"]
        assert kept["tokenizer"]["fingerprint"] == Tokenizer.load(out).fingerprint
        hf = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        assert hf.encode("The quick brown fox").ids == Tokenizer.load(out).encode("The quick brown fox")
        assert Tokenizer.load(out).merges == hf_train([corpus.read_bytes().decode()], 699)

    def test_its_lines(self, corpus: Path, ramlet: RunRamlet) -> None:
        words = ("tokenizer", "train", str(corpus), "--vocab_size", "1k", "--memory", "200MB", "--out", "new")
        done = ramlet(*words)
        first, last = done.stdout.splitlines()
        assert first == "1,000 tokens (744 merges learned) in new/tokenizer.json"
        assert last.startswith("peak ")
        assert last.endswith(" of 200 MB")
        assert done.stderr.startswith("read 1 file, 1 document, ")
        again = ramlet(*words)
        assert again.returncode == 0
        assert again.stdout == "new already has this tokenizer, from the same inputs and settings: nothing to do\n"

    def test_inside_its_input(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text(DOCUMENTS[ord(name)] * 20)
        words = ("tokenizer", "train", ".", "--vocab-size", "270")
        done = ramlet(*words, "--out", "new", "--spill-dir", "spilled", "--json")
        assert json.loads(done.stdout)["read"]["files"] == 2
        again = ramlet(*words, "--out", "new", "--spill-dir", "spilled")
        assert again.stdout == "new already has this tokenizer, from the same inputs and settings: nothing to do\n"
        first = (tmp_path / "new/tokenizer.json").read_bytes()
        assert ramlet(*words, "--out", "new", "--min-frequency", "1", "--force").returncode == 0
        assert (tmp_path / "new/tokenizer.json").read_bytes() == first  # not of its own files
        into = ramlet(*words, "--out", ".", "--force")
        assert (into.returncode, into.stderr) == (1, "error: . is where the result goes: it cannot also be an input\n")

    def test_json_and_quiet(self, corpus: Path, ramlet: RunRamlet) -> None:
        done = ramlet("tokenizer", "train", str(corpus), "-v", "300", "-o", "new", "--json")
        told = json.loads(done.stdout)
        assert (told["tokenizer"]["merges"], told["already_done"], done.stderr) == (44, False, "")
        assert json.loads(ramlet("tokenizer", "train", str(corpus), "-v", "300", "-o", "new", "--json").stdout)[
            "already_done"
        ]
        quiet = ramlet("tokenizer", "train", str(corpus), "-v", "300", "-o", "newer", "--quiet")
        assert quiet.stderr == ""

    def test_other_settings_or_inputs_are_refused(self, out: Path, corpus: Path, ramlet: RunRamlet) -> None:
        before = (out / "tokenizer.json").read_bytes()
        words = ("tokenizer", "train", str(corpus), "--special-token", END, "--out", "out")
        refused = ramlet(*words, "--vocab-size", "800")
        assert refused.returncode == 1
        sentence = (
            "out has a tokenizer trained with other inputs or settings: --force replaces it, or choose another folder"
        )
        assert refused.stderr == f"error: {sentence}\n"
        corpus.write_bytes(corpus.read_bytes() + b"more")
        assert ramlet(*words, "--vocab-size", "700").returncode == 1
        assert (out / "tokenizer.json").read_bytes() == before
        forced = ramlet(*words, "--vocab-size", "800", "--force")
        assert forced.returncode == 0, forced.stderr
        assert Tokenizer.load(out).vocab_size == 800
        assert ramlet(*words, "--vocab-size", "800").stdout.startswith("out already has this tokenizer")

    def test_a_tokenizer_that_was_changed_is_not_taken_for_finished(
        self, out: Path, corpus: Path, ramlet: RunRamlet
    ) -> None:
        (out / "tokenizer.json").write_text("{}")
        done = ramlet("tokenizer", "train", str(corpus), "-v", "700", "-s", END, "-o", "out")
        assert "other inputs or settings" in done.stderr

    def test_folders_of_others(self, corpus: Path, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("precious")
        words = ("tokenizer", "train", str(corpus), "-v", "300", "-o")
        refused = ramlet(*words, "mine")
        assert "mine is not empty (it contains thesis.tex): choose another folder" in refused.stderr
        assert ramlet(*words, "mine", "--force").returncode == 0
        assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"
        assert "corpus.txt is a file: give a folder" in ramlet(*words, "corpus.txt").stderr

    @pytest.mark.parametrize(
        ("words", "code", "sentence"),
        [
            (["-v", "255"], 1, "too small for the 256 bytes and 0 special tokens: it must be at least 256"),
            (["-v", "many"], 2, "--vocab-size must be a number like 2048, 32k or 10M, not 'many'"),
            (["-v", "300", "-s", "A"], 1, "is how tokenizer.json spells the ordinary token b'A'"),
            (["-v", "32k", "-m", "20MB", "-t", "2"], 1, "needs at least "),
            (["-v", "300", "-m", "lots"], 1, "cannot read 'lots' as memory"),
            (["-v", "300", "--docs", "page"], 1, "--docs must be one of file, line, not 'page'"),
            ([], 1, "no vocabulary size"),
            (["-v", "300", "-t", "0"], 2, "0 is not in the range"),
            (["-v", "300", "--format", "csv"], 1, "--input-format must be one of text, jsonl, parquet, not 'csv'"),
        ],
    )
    def test_one_sentence_for_what_is_wrong(
        self, corpus: Path, tmp_path: Path, ramlet: RunRamlet, words: list[str], code: int, sentence: str
    ) -> None:
        done = ramlet("tokenizer", "train", str(corpus), *words, "-o", "new")
        assert done.returncode == code
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "new" / "tokenizer.json").exists()

    def test_inputs_without_text(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "empty.txt").write_text("")
        done = ramlet("tokenizer", "train", "empty.txt", "-v", "300", "-o", "new")
        assert done.stderr == "error: the input has no text: there is nothing to train on\n"
        assert (
            "no such file or folder: nothing.txt"
            in ramlet("tokenizer", "train", "nothing.txt", "-v", "300", "-o", "x").stderr
        )

    def test_a_vocabulary_larger_than_the_text_fills(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "tiny.txt").write_text("aaaa")
        done = ramlet("tokenizer", "train", "tiny.txt", "-v", "1000", "-o", "new")
        assert done.returncode == 0
        assert "the text has no more pairs to merge: 258 tokens instead of the 1,000 asked for" in done.stderr

    def test_broken_lines(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "good words"}\n{"text": \n{"body": "x"}\n{"text": "good words"}\n')
        words = ("tokenizer", "train", "a.jsonl", "-v", "260", "-o", "new")
        stopped = ramlet(*words)
        assert stopped.returncode == 1
        assert "a.jsonl:2 is not valid JSON" in stopped.stderr
        skipped = ramlet(*words, "--on-error", "skip")
        assert skipped.returncode == 0, skipped.stderr
        assert "1 broken line was skipped" in skipped.stderr
        assert "1 line without the text field was skipped" in skipped.stderr

    def test_what_was_repaired_is_told(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "bad.txt").write_bytes(b"good \xff\xfe words " + b"x" * 10_000)
        done = ramlet("tokenizer", "train", "bad.txt", "-v", "270", "-o", "new")
        assert "2 invalid UTF-8 sequences were replaced" in done.stderr
        assert "longer than 4096 bytes split" in done.stderr

    def test_standard_input_and_compression(self, tmp_path: Path, corpus: Path, ramlet: RunRamlet) -> None:
        with open(corpus, "rb") as file:
            done = ramlet("tokenizer", "train", "-", "-v", "700", "-o", "piped", stdin=file)
        assert done.returncode == 0, done.stderr
        (tmp_path / "c.txt.gz").write_bytes(gzip.compress(corpus.read_bytes()))
        assert ramlet("tokenizer", "train", "c.txt.gz", "-v", "700", "-o", "unpacked").returncode == 0
        piped, unpacked = (tmp_path / name / "tokenizer.json" for name in ("piped", "unpacked"))
        assert piped.read_bytes() == unpacked.read_bytes()
        with open(corpus, "rb") as file:
            again = ramlet("tokenizer", "train", "-", "-v", "700", "-o", "piped", stdin=file)
        assert "other inputs or settings" in again.stderr

    def test_documents_by_line_and_separator(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "a.txt").write_text("one two\nthree\n")
        assert ramlet("tokenizer", "train", "a.txt", "-v", "256", "-o", "l", "--docs", "line").returncode == 0
        assert stats(tmp_path / "l")["read"]["documents"] == 2
        assert ramlet("tokenizer", "train", "a.txt", "-v", "256", "-o", "s", "--doc-separator", "t").returncode == 0
        assert stats(tmp_path / "s")["read"]["documents"] == 3

    def test_characters_and_bytes(self, corpus: Path, tmp_path: Path, ramlet: RunRamlet) -> None:
        done = ramlet("tokenizer", "train", str(corpus), "--type", "char", "--unknown", "unk", "-o", "c")
        assert done.returncode == 0, done.stderr
        assert Tokenizer.load(tmp_path / "c").vocab_size == len(set(corpus.read_bytes().decode())) + 1
        assert ramlet("tokenizer", "train", str(corpus), "--tokenizer-type", "byte", "-o", "b").returncode == 0
        assert Tokenizer.load(tmp_path / "b").encode("é") == [0xC3, 0xA9]

    def test_an_unknown_character_names_the_option(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "a.txt").write_text("na")
        ramlet("tokenizer", "train", "a.txt", "--type", "char", "-o", "c")
        done = ramlet("tokenizer", "encode", "-T", "c", "--text", "naï")
        assert done.stderr.endswith(", or with --unknown unk\n")

    def test_the_spill_folder_is_used_and_left_clean(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "words.txt").write_text(many_words(20_000_000))
        words = ("tokenizer", "train", "words.txt", "-v", "1000", "-t", "2")
        roomy = ramlet(*words, "-o", "roomy")
        tight = ramlet(*words, "-m", "45MB", "--spill-dir", "spilled", "-o", "tight", "--json")
        assert tight.returncode == 0, tight.stderr
        assert roomy.returncode == 0, roomy.stderr
        told = json.loads(tight.stdout)
        assert told["spilled_runs"] > 0
        assert told["memory"]["peak"] <= 45e6
        assert os.listdir(tmp_path / "spilled") == []
        assert sorted(os.listdir(tmp_path / "tight")) == ["stats.json", "tokenizer.json"]
        assert (tmp_path / "tight" / "tokenizer.json").read_bytes() == (
            tmp_path / "roomy" / "tokenizer.json"
        ).read_bytes()

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_interrupted_anywhere_the_same_command_goes_on(
        self, tmp_path: Path, ramlet: RunRamlet, how: signal.Signals
    ) -> None:
        (tmp_path / "words.txt").write_text(many_words(12_000_000))
        words = ["tokenizer", "train", "words.txt", "-v", "2000", "-m", "60MB", "-t", "2"]
        assert ramlet(*words, "-o", "whole").returncode == 0
        chance = random.Random(how.value)
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-m", "ramlet", *words, "-o", "out"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
            )
            while process.poll() is None and not (tmp_path / "out").exists():
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            process.send_signal(how)
            said = process.communicate()[1]
            if process.returncode == 130:
                assert "interrupted; run the same command to resume" in said
            if process.returncode == 0:
                break
            assert not (tmp_path / "out" / "stats.json").exists()
        assert ramlet(*words, "-o", "out").returncode == 0
        assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (
            tmp_path / "whole" / "tokenizer.json"
        ).read_bytes()
        assert sorted(os.listdir(tmp_path / "out")) == ["stats.json", "tokenizer.json"]


class TestEncodeAndDecode:
    def test_a_text(self, ramlet: RunRamlet) -> None:
        assert ramlet("tokenizer", "encode", "--text", "Hello world", "--tokenizer", "gpt2").stdout == "15496 995\n"
        assert json.loads(ramlet("tokenizer", "encode", "--text", "Hi", "-T", "byte", "--json").stdout) == {
            "ids": [72, 105]
        }
        assert ramlet("tokenizer", "decode", "15496", "995", "-T", "gpt2").stdout == "Hello world"
        assert ramlet("tokenizer", "decode", "[15496, 995]", "-T", "gpt2").stdout == "Hello world"
        assert json.loads(ramlet("tokenizer", "decode", "72", "-T", "byte", "--json").stdout) == {"text": "H"}

    def test_special_tokens_only_where_they_are_allowed(self, ramlet: RunRamlet) -> None:
        words = ("tokenizer", "encode", "--text", f"a{END}", "-T", "gpt2")
        assert "50256" not in ramlet(*words).stdout
        assert ramlet(*words, "--allow-special", "all").stdout == "64 50256\n"
        assert ramlet(*words, "--allow-special", END).stdout == "64 50256\n"

    def test_files_and_pipes(self, tmp_path: Path, out: Path, corpus: Path, ramlet: RunRamlet) -> None:
        tokenizer = Tokenizer.load(out)
        expected = tokenizer.encode(corpus.read_bytes().decode())
        printed = ramlet("tokenizer", "encode", str(corpus), "-T", "out")
        assert list(map(int, printed.stdout.split())) == expected
        done = ramlet("tokenizer", "encode", str(corpus), "-T", "out", "-o", "ids.bin", "--memory", "300MB")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == f"{len(expected):,} tokens of 1 document in ids.bin, uint16"
        assert done.stdout.splitlines()[1].endswith("of 300 MB")
        assert np.fromfile(tmp_path / "ids.bin", dtype="<u2").tolist() == expected
        program = [sys.executable, "-m", "ramlet", "tokenizer", "decode", "-T", "out"]
        piped = subprocess.run(program, cwd=tmp_path, capture_output=True, input=printed.stdout.encode())
        assert piped.stdout == corpus.read_bytes()
        decoded = subprocess.run(
            [sys.executable, "-m", "ramlet", "tokenizer", "decode", "ids.bin", "-T", "out"],
            cwd=tmp_path,
            capture_output=True,
        )
        assert decoded.stdout == corpus.read_bytes()

    def test_documents_longer_than_a_block_are_joined(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        text = (f"word{END} and " * 40_000) + "x" * 3_000_000
        (tmp_path / "long.txt").write_text(text)
        gpt2 = Tokenizer.load("gpt2")
        for words, allowed in (((), ()), (("--allow-special", "all"), "all")):
            done = ramlet("tokenizer", "encode", "long.txt", "-T", "gpt2", "-o", "ids.bin", "--json", *words)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["dtype"] == "uint16"
            ids = np.fromfile(tmp_path / "ids.bin", dtype="<u2").tolist()
            joined = gpt2.encode(text[:-3_000_000], allowed)
            assert ids[: len(joined) - 1] == joined[:-1]
            assert gpt2.decode(ids) == text

    @pytest.mark.parametrize("budget", [100, 140])
    def test_the_budget_is_kept(self, tmp_path: Path, ramlet: RunRamlet, budget: int) -> None:
        (tmp_path / "words.txt").write_text(many_words(15_000_000))
        words = ("tokenizer", "encode", "words.txt", "-T", "gpt2", "-o", "ids.bin", "--json", "-t", "2")
        done = ramlet(*words, "--memory", f"{budget}MB")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["memory"]["peak"] <= budget * 1e6

    @pytest.mark.parametrize(
        ("name", "budget", "words"),
        [
            ("byte", 140_000_000, []),
            ("byte", 140_000_000, ["--json"]),
            ("gpt2", 190_000_000, ["--allow-special", "all", "-o", "ids.bin"]),
        ],
    )
    def test_the_budget_is_kept_with_many_ids_per_byte(
        self, tmp_path: Path, name: str, budget: int, words: list[str]
    ) -> None:
        letters = np.array(list("éàüöñçß "))
        text = letters[np.random.default_rng(0).integers(0, len(letters), 6_000_000)].tobytes().decode("utf-32-le")
        (tmp_path / "letters.txt").write_text(text)
        command = ["tokenizer", "encode", "letters.txt", "-T", name, "-t", "2", "--memory", str(budget), *words]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *command], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stderr.split()[-1]) <= budget
        if "-o" in words:
            ids = np.fromfile(tmp_path / "ids.bin", dtype="<u2").tolist()
        else:
            ids = json.loads(done.stdout)["ids"] if words else [int(number) for number in done.stdout.split()]
        assert Tokenizer.load(name).decode(ids) == text

    def test_what_was_replaced_is_said_beside_printed_ids(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
        done = ramlet("tokenizer", "encode", "latin.txt", "-T", "byte")
        assert done.stdout.split() == [str(byte) for byte in "caf\ufffd".encode()]
        replaced, closing = done.stderr.splitlines()
        assert "1 invalid UTF-8 sequence was replaced" in replaced
        assert closing.startswith("peak ")

    @pytest.mark.parametrize("rows", [[b""] * 272 + [b"x" * 1_000_000] * 100, [b"x" * 5_000_000] * 20])
    def test_the_budget_is_kept_with_large_rows(self, tmp_path: Path, ramlet: RunRamlet, rows: list[bytes]) -> None:
        table = pyarrow.table({"text": pyarrow.array([row.decode() for row in rows])})
        # A page per row: the reader has a page in memory, whatever its size.
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet", write_batch_size=1, use_dictionary=False)
        words = ("tokenizer", "encode", "t.parquet", "-T", "byte", "-o", "ids.bin", "--json", "-t", "2")
        done = ramlet(*words, "--memory", "90MB")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["memory"]["peak"] <= 90e6

    def test_a_line_a_document(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "a.txt").write_text("ab\n\nc\n")
        plain = ramlet("tokenizer", "encode", "a.txt", "-T", "byte", "--docs", "line")
        assert plain.stdout.splitlines()[0].split() == ["97", "98"]
        as_json = ramlet("tokenizer", "encode", "a.txt", "-T", "byte", "--docs", "line", "--json")
        documents = [json.loads(line)["ids"] for line in as_json.stdout.splitlines()]
        assert [ids for ids in documents if ids] == [[97, 98], [99]]

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["encode", "--text", "x", "-T", "nothing.json"], "no such tokenizer file or folder: nothing.json"),
            (["encode", "--text", "x", "-T", "gpt2", "-o", "y"], "--text cannot be combined with inputs or --out"),
            (["encode", "odd.bin", "-T", "gpt2", "-m", "20MB"], "needs at least "),
            (["decode", "999999", "-T", "gpt2"], "no token has the id 999999"),
            (["decode", "1", "x", "-T", "gpt2"], "'x' is not a token id"),
            (["decode", "1" * 5000, "-T", "byte"], "is not a token id"),
            (["encode", "odd.bin", "-T", "byte", "-o", "."], ". is a folder, not a file: choose another path"),
            (["encode", "odd.bin", "-T", "byte", "-o", "./odd.bin"], "odd.bin is one of the inputs"),
            (["encode", ".", "-T", "byte", "--format", "text", "-o", "link.txt"], "link.txt is one of the inputs"),
            (["decode", "none.bin", "-T", "gpt2"], "cannot read none.bin: No such file"),
            (["decode", "odd.bin", "-T", "gpt2"], "does not contain uint16 ids"),
            (["decode", "odd.bin", "-T", "gpt2", "--dtype", "int8"], "uint16 or uint32, not 'int8'"),
            (["show", "missing.tiktoken"], "no such tokenizer file or folder"),
            (["compare", "-", "-v", "300"], "standard input can be read only once"),
        ],
    )
    def test_one_sentence_for_what_is_wrong(
        self, tmp_path: Path, ramlet: RunRamlet, words: list[str], sentence: str
    ) -> None:
        (tmp_path / "odd.bin").write_bytes(b"abc")
        (tmp_path / "link.txt").symlink_to("odd.bin")
        done = ramlet("tokenizer", *words)
        assert done.returncode == 1
        assert (tmp_path / "odd.bin").read_bytes() == b"abc"
        assert done.stderr.startswith("error: ")
        assert sentence in done.stderr


class TestShow:
    def test_the_figures(self, out: Path, ramlet: RunRamlet) -> None:
        shown = ramlet("tokenizer", "show", "out").stdout
        assert "vocabulary   700 tokens, 443 merges\n" in shown
        assert f"special      {END} (699)\n" in shown
        assert "pattern      gpt2\n" in shown
        assert f"fingerprint  {Tokenizer.load(out).fingerprint}\n" in shown
        assert "     1       256  █" in shown
        told = json.loads(ramlet("tokenizer", "show", "out", "--json").stdout)
        assert (told["vocab_size"], told["merges"], told["end_of_text"]) == (700, 443, 699)
        assert sum(told["bytes_a_token"].values()) == 699

    def test_a_text_cut_into_tokens(self, ramlet: RunRamlet) -> None:
        plain = ramlet("tokenizer", "show", "gpt2", "--text", "Hello wörld\n\x1b[0m日").stdout
        assert plain.startswith("[Hello][ w][ör][ld][\\n]\n[\\x1b][[][0][m][\\xe6\\x97][\\xa5]\n")
        assert "11 tokens of 20 bytes" in plain
        told = json.loads(ramlet("tokenizer", "show", "gpt2", "--text", "Hello", "--json").stdout)
        assert told == {"ids": [15496], "tokens": ["Hello"]}

    @pytest.mark.parametrize("name", ["gpt2", "byte"])
    def test_known_names(self, ramlet: RunRamlet, name: str) -> None:
        assert ramlet("tokenizer", "show", name).returncode == 0


class TestCompare:
    @pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
    def test_both_learn_the_same(self, corpus: Path, ramlet: RunRamlet, pattern: str) -> None:
        words = ("tokenizer", "compare", str(corpus), "--vocab-size", "600", "--memory", "100MB", "--pattern", pattern)
        done = ramlet(*words)
        assert done.returncode == 0, done.stderr
        assert "both learned the same 344 merges" in done.stdout
        assert "ramlet --memory 100MB" in done.stdout
        told = json.loads(ramlet(*words, "--json").stdout)
        assert told["same_merges"] is True
        assert told["ramlet"]["peak"] < 100e6
        assert told["hf"]["seconds"] > 0

    def test_a_failure_is_told(self, tmp_path: Path, ramlet: RunRamlet) -> None:
        (tmp_path / "a.jsonl").write_text("broken\n")
        done = ramlet("tokenizer", "compare", "a.jsonl", "--vocab-size", "600")
        assert done.returncode == 1
        assert "a.jsonl" in done.stderr
        assert "Traceback" not in done.stderr
