"""The tokenizer object: training, encoding and decoding, against HF tokenizers and tiktoken."""

from __future__ import annotations

import copy
import doctest
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import ramlet.tokenizer.tokenizer
from conftest import AMPLE
from oracles import PATTERNS, hf_train, many_scripts
from ramlet import BrokenInput, BudgetError, SettingsError, SourceError, Tokenizer, TokenizerError, _native

END = "<|endoftext|>"
DOCUMENTS = many_scripts(120_000)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
WORDS = st.lists(
    st.sampled_from(["the ", "'S ", "1234", "\r\n", " \t", "naïve", "語", "e\u0301", END, "<|", "  "]), max_size=30
)
TEXT = UNICODE | WORDS.map("".join)


@pytest.fixture(scope="module", params=PATTERNS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(texts=DOCUMENTS, vocab_size=1500, pattern=request.param, special_tokens=[END, "<pad>"])


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.load("gpt2")


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.train(texts=DOCUMENTS, vocab_size=600, special_tokens=[END])


def in_hf(tokenizer: Tokenizer, folder: Path) -> tokenizers.Tokenizer:
    tokenizer.save(folder / "tokenizer.json")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def plain_ids(hf: tokenizers.Tokenizer, text: str) -> list[int]:
    hf.encode_special_tokens = True
    return hf.encode(text, add_special_tokens=False).ids


def special_ids(hf: tokenizers.Tokenizer, text: str) -> list[int]:
    hf.encode_special_tokens = False
    return hf.encode(text, add_special_tokens=False).ids


def test_the_docstrings_examples() -> None:
    for module in (ramlet.tokenizer.tokenizer, ramlet.tokenizer.model, ramlet.tokenizer.byte_alphabet):
        assert doctest.testmod(module).failed == 0


class TestTraining:
    def test_the_ids_are_bytes_then_merges_then_specials(self, trained: Tokenizer) -> None:
        vocabulary = trained.vocabulary
        assert sorted(vocabulary) == list(range(1500))
        assert {len(vocabulary[number]) for number in range(256)} == {1}
        assert [vocabulary[256 + at] for at in range(1242)] == [left + right for left, right in trained.merges]
        assert trained.special_tokens == {END: 1498, "<pad>": 1499}
        assert trained.end_of_text == 1498
        assert len(trained) == trained.vocab_size == 1500

    def test_the_merges_are_those_of_hf(self, trained: Tokenizer) -> None:
        assert trained.pattern is not None
        assert trained.merges == hf_train(DOCUMENTS, 1498, pattern=trained.pattern)

    def test_files_and_texts_give_the_same(self, tmp_path: Path) -> None:
        for number, document in enumerate(DOCUMENTS[:200]):
            (tmp_path / f"{number:04}.txt").write_bytes(document.encode())
        lines = "".join(json.dumps({"body": document}) + "\n" for document in DOCUMENTS[:200])
        (tmp_path / "all.jsonl").write_text(lines)
        from_texts = Tokenizer.train(iter(DOCUMENTS[:200]), vocab_size=700)
        from_files = Tokenizer.train(str(tmp_path / "*.txt"), vocab_size=700, memory=AMPLE, threads=1)
        from_lines = Tokenizer.train([tmp_path / "all.jsonl"], vocab_size=700, text_field="body")
        assert from_texts.fingerprint == from_files.fingerprint == from_lines.fingerprint
        assert from_files.statistics["read"]["files"] == 200
        assert from_lines.statistics["read"]["documents"] == 200
        assert from_lines.statistics["stages"]["counting"]["seconds"] >= 0

    def test_specials_are_cut_out_before_counting(self) -> None:
        texts = [f"ab{END}ab{END}ab"] * 10
        tokenizer = Tokenizer.train(texts=texts, vocab_size=400, special_tokens=[END])
        assert tokenizer.merges == [(b"a", b"b")]
        assert tokenizer.vocab_size == 258

    def test_ties_by_bytes(self) -> None:
        texts = ["low low low low low lower lower widest widest widest newest newest newest newest newest newest"]
        tokenizer = Tokenizer.train(texts=texts, vocab_size=262, pattern=r"\S+|\s", tie_break="bytes")
        assert tokenizer.merges[:6] == [
            (b"s", b"t"), (b"e", b"st"), (b"o", b"w"), (b"l", b"ow"), (b"w", b"est"), (b"n", b"e"),
        ]  # fmt: skip

    def test_min_frequency_and_longest_token(self) -> None:
        texts = ["abcabcabc", "xy"]
        assert (b"x", b"y") not in Tokenizer.train(texts=texts, vocab_size=300, min_frequency=2).merges
        longest = Tokenizer.train(texts=texts, vocab_size=300, max_token_bytes=2)
        assert max(map(len, longest.vocabulary.values())) == 2

    def test_a_work_dir_and_progress(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("to be or not to be " * 1000)
        stages = set()
        Tokenizer.train(
            tmp_path / "a.txt", vocab_size=260, work_dir=tmp_path / "work", progress=lambda *told: stages.add(told[0])
        )
        assert (tmp_path / "work").is_dir()
        assert stages <= {"counting", "sorting", "merging"}

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"vocab_size": 256, "special_tokens": [END]}, "256 bytes and 1 special token: it must be at least 257"),
            ({}, "no vocabulary size"),
            ({"vocab_size": 1 << 30}, "between 1 and 16,777,216"),
            ({"vocab_size": 300, "special_tokens": [END, END]}, "given twice"),
            ({"vocab_size": 300, "special_tokens": [""]}, "is empty"),
            ({"vocab_size": 300, "special_tokens": ["A"]}, "ordinary token b'A'"),
            ({"vocab_size": 300, "special_tokens": ["Ġthe"]}, "ordinary token b' the'"),
            ({"vocab_size": 300, "special_tokens": ["\ud800"]}, "lone surrogate"),
            ({"vocab_size": 300, "tie_break": "coin"}, "tie_break must be one of hf, bytes, not 'coin'"),
            ({"vocab_size": 300, "documents": "line", "doc_separator": "x"}, "not both"),
            ({"vocab_size": 300, "doc_separator": ""}, "doc_separator must be a string"),
            ({"vocab_size": 300, "threads": 0}, "threads must be at least 1, not 0"),
            ({"vocab_size": 300, "pattern": "("}, "is not a usable regex"),
            ({"vocab_size": 300, "min_frequency": -1}, "min_frequency must be at least 0, not -1"),
            ({"vocab_size": 300, "max_token_bytes": 0}, "max_token_bytes must be at least 1, not 0"),
            ({"vocab_size": 300, "kind": "word"}, "kind must be one of bpe, char, byte"),
        ],
    )  # fmt: skip
    def test_settings_that_make_no_sense(self, options: dict[str, object], sentence: str) -> None:
        with pytest.raises((SettingsError, TokenizerError)) as raised:
            Tokenizer.train(texts=["some text"], **options)  # type: ignore[arg-type]
        assert sentence in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_text_that_cannot_be_learned_from(self) -> None:
        with pytest.raises(SourceError, match="the input has no text"):
            Tokenizer.train(texts=["", ""], vocab_size=300)
        with pytest.raises(SourceError, match="the input has no text"):
            Tokenizer.train(texts=[], kind="char")
        with pytest.raises(BrokenInput, match="lone surrogate"):
            Tokenizer.train(texts=["a\ud800b"], vocab_size=300)
        with pytest.raises(BrokenInput, match="lone surrogate"):
            Tokenizer.train(texts=["a\ud800b"], kind="char")
        with pytest.raises(TypeError, match="texts must be str, not int"):
            Tokenizer.train(texts=[1], vocab_size=300)  # type: ignore[list-item]
        with pytest.raises(SettingsError, match="either inputs"):
            Tokenizer.train(vocab_size=300)

    def test_a_budget_below_the_floor_is_refused_with_the_floor(self) -> None:
        with pytest.raises(
            BudgetError, match=r"needs at least \d+MB: .* for Python and what it has loaded, .* for 2 threads"
        ):
            Tokenizer.train(texts=["text"], vocab_size=32_000, memory="8MB", threads=2)


class TestEncoding:
    @settings(max_examples=150, deadline=None)
    @given(text=TEXT)
    def test_as_hf_and_back(self, trained: Tokenizer, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        hf = _cached_hf(trained, tmp_path_factory)
        ids = trained.encode(text)
        assert ids == plain_ids(hf, text)
        assert trained.decode(ids) == text
        assert trained.encode(text, allowed_special="all") == special_ids(hf, text)
        assert trained.decode(trained.encode(text, allowed_special={END})) == text

    @settings(max_examples=100, deadline=None)
    @given(text=TEXT)
    def test_gpt2_as_tiktoken(self, gpt2: Tokenizer, text: str) -> None:
        assert gpt2.encode(text) == _tiktoken_of(gpt2, "gpt2").encode_ordinary(text)
        assert gpt2.encode(text, "all") == _tiktoken_of(gpt2, "gpt2").encode(text, allowed_special="all")

    def test_trained_ones_as_tiktoken(self, trained: Tokenizer) -> None:
        assert trained.pattern is not None
        theirs = _tiktoken_of(trained, trained.pattern)
        for document in DOCUMENTS[:200]:
            assert trained.encode(document) == theirs.encode_ordinary(document)

    def test_a_special_token_in_text_is_text(self, small: Tokenizer) -> None:
        number = small.special_tokens[END]
        assert number not in small.encode(f"a{END}b")
        assert small.encode(f"a{END}b", {END}).count(number) == 1
        assert small.encode(END, END) == [number]
        assert small.decode([number]) == END
        with pytest.raises(
            TokenizerError, match=r"'<eos>' is not a special token of this tokenizer \(it has <\|endoftext"
        ):
            small.encode("a", {"<eos>"})

    def test_lone_surrogates_are_one_sentence(self, small: Tokenizer) -> None:
        for call in (
            lambda: small.encode("ab\udc00c"),
            lambda: small.encode_batch(["fine", "ab\udc00c"]),
            lambda: list(small.encode_iterable(["ab\udc00c"])),
        ):
            with pytest.raises(TokenizerError, match=r"lone surrogate, U\+DC00 at character 2"):
                call()

    def test_a_million_equal_characters(self, small: Tokenizer) -> None:
        for character in "a \n語":
            text = character * 1_000_000
            assert small.decode(small.encode(text)) == text

    def test_a_batch(self, small: Tokenizer) -> None:
        ids, ends = small.encode_batch(DOCUMENTS)
        assert (ids.dtype, ends.dtype) == (np.uint16, np.uint64)
        assert ids.tolist() == [number for document in DOCUMENTS for number in small.encode(document)]
        assert ends.tolist() == list(itertools.accumulate(len(small.encode(document)) for document in DOCUMENTS))
        for threads in (1, 2, 5):
            same, _ = small.encode_batch(iter(DOCUMENTS), threads=threads)
            assert np.array_equal(ids, same)

    def test_a_batch_of_bytes(self, small: Tokenizer) -> None:
        ids, ends = small.encode_batch([document.encode() for document in DOCUMENTS])
        expected, expected_ends = small.encode_batch(DOCUMENTS)
        assert np.array_equal(ids, expected)
        assert np.array_equal(ends, expected_ends)
        mixed, _ = small.encode_batch([n % 2 * document or document.encode() for n, document in enumerate(DOCUMENTS)])
        assert np.array_equal(mixed, expected)
        with pytest.raises(TokenizerError, match="document 1 of the batch is not UTF-8 at byte 3"):
            small.encode_batch(["fine", b"abc\xff", b"\xff"])
        for one in ("abc", b"abc"):
            with pytest.raises(SettingsError, match="takes a list of documents"):
                small.encode_batch(one)  # type: ignore[arg-type]

    def test_batches_of_nothing(self, small: Tokenizer) -> None:
        ids, ends = small.encode_batch([])
        assert (len(ids), len(ends), ids.dtype) == (0, 0, np.uint16)
        ids, ends = small.encode_batch(["", "a", ""])
        assert ends.tolist() == [0, 1, 1]

    def test_the_width_of_ids(self, small: Tokenizer) -> None:
        wide, _ = small.encode_batch(["some text"], dtype=np.uint32)
        assert wide.dtype == np.uint32
        assert wide.tolist() == small.encode("some text")
        with pytest.raises(SettingsError, match="uint16 or uint32, not int64"):
            small.encode_batch(["a"], dtype="int64")
        vocab = {number: bytes([number]) for number in range(256)} | {70_000: b"ab"}
        large = Tokenizer.from_merges(vocab, [(b"a", b"b")])
        assert large.encode_batch(["ab"])[0].tolist() == [70_000]
        with pytest.raises(SettingsError, match="do not fit uint16"):
            large.encode_batch(["ab"], dtype=np.uint16)

    def test_special_ids_beyond_two_bytes(self) -> None:
        vocab = {number: bytes([number]) for number in range(256)}
        vocab |= {256 + number: b"\xff" + number.to_bytes(3, "big") for number in range(65_280)}
        tokenizer = Tokenizer.from_merges(vocab, [], [END])
        ids, _ = tokenizer.encode_batch([f"a{END}"], allowed_special="all")
        assert ids.tolist() == [97, 65_536]

    @settings(max_examples=100, deadline=None)
    @given(text=TEXT, seed=st.integers(0, 1000))
    def test_a_stream_is_the_whole(self, trained: Tokenizer, text: str, seed: int) -> None:
        chance = random.Random(seed)
        cuts = sorted(chance.randint(0, len(text)) for _ in range(5))
        parts = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
        assert list(trained.encode_iterable(parts)) == trained.encode(text)
        assert list(trained.encode_iterable(parts, "all")) == trained.encode(text, "all")

    def test_a_stream_is_lazy(self, small: Tokenizer) -> None:
        taken = 0

        def endless() -> Iterator[str]:
            nonlocal taken
            while True:
                taken += 1
                yield "word after word "

        first = list(itertools.islice(small.encode_iterable(endless()), 1000))
        assert len(first) == 1000
        assert taken < 2000

    def test_decoding_is_safe_for_bytes(self, small: Tokenizer) -> None:
        ids = small.encode("語")
        assert small.decode(ids[:-1]) == "\ufffd"
        assert small.decode_bytes(ids[:-1]) + small.decode_bytes(ids[-1:]) == "語".encode()
        assert small.decode(np.array(ids, dtype=np.uint16)) == "語"
        assert small.decode([]) == ""
        with pytest.raises(UnicodeDecodeError):
            small.decode(ids[:-1], errors="strict")

    @pytest.mark.parametrize("wrong", [-1, 601, 10**9])
    def test_ids_that_are_none(self, small: Tokenizer, wrong: int) -> None:
        with pytest.raises(TokenizerError, match=f"no token has the id {wrong}: ids go from 0 to 599"):
            small.decode([1, wrong])

    def test_memory_for_the_cache(self) -> None:
        tokenizer = Tokenizer.load("gpt2", memory="8MB")
        assert tokenizer.encode("Hello world") == [15496, 995]

    def test_a_smaller_cache_after_the_first_text(self, small: Tokenizer) -> None:
        tokenizer = copy.copy(small)
        ids, before = tokenizer.encode("Hello world"), tokenizer.engine
        tokenizer.limit_cache(1 << 20)
        assert tokenizer.engine is not before
        assert tokenizer.encode("Hello world") == ids

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_encoding_in_batches_takes_little_memory(self) -> None:
        """Text that never repeats, 64 MB of it in batches of 4 MB, two threads."""
        program = """
import random, ramlet
tokenizer = ramlet.Tokenizer.load("gpt2")
chance = random.Random(1)
for _ in range(16):
    noise = chance.randbytes(3_000_000).hex()
    texts = [" ".join(noise[at + n:at + n + 8] for n in range(0, 16000, 8)) for at in range(0, 4_000_000, 16000)]
    tokenizer.encode_batch(texts, threads=2)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert int(done.stdout) * 1024 < 200e6


class TestCharactersAndBytes:
    def test_characters(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.train(texts=["héllo wörld"], kind="char", special_tokens=[END])
        assert b"".join(tokenizer.vocabulary[number] for number in range(9)).decode() == "".join(
            sorted(set("héllo wörld"))
        )
        assert tokenizer.special_tokens == {END: 9}
        assert (tokenizer.kind, tokenizer.pattern) == ("char", None)
        hf = in_hf(tokenizer, tmp_path)
        for text in ("hello", "wörld héllo", ""):
            assert tokenizer.encode(text.replace("e", "é")) == plain_ids(hf, text.replace("e", "é"))
        assert tokenizer.encode(f"h{END}o", "all") == special_ids(hf, f"h{END}o")
        assert (
            hf.decode(tokenizer.encode("wörld héllo"))
            == "wörld héllo"
            == tokenizer.decode(tokenizer.encode("wörld héllo"))
        )
        with pytest.raises(TokenizerError, match=r"the character 'x' \(U\+0078, after \"hé\"\) is not in this"):
            tokenizer.encode("héx")
        loaded = Tokenizer.load(tmp_path)
        assert (loaded.kind, loaded.fingerprint) == ("char", tokenizer.fingerprint)

    def test_unknown_characters_by_choice(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.train(texts=["aaabbc"], kind="char", unknown="unk")
        hf = in_hf(tokenizer, tmp_path)
        for text in ("abcx語yab", "<unk>", "xx"):
            known = "".join(character if character in "abc" else "x" for character in text)
            assert tokenizer.encode(text) == plain_ids(hf, text) == tokenizer.encode(known)
        assert tokenizer.encode("x") == [3]
        assert tokenizer.decode([0, 3]) == "a<unk>"
        assert Tokenizer.load(tmp_path).encode("ax") == [0, 3]
        frequent = Tokenizer.train(texts=["aaabbc"], kind="char", unknown="unk", vocab_size=3)
        assert frequent.vocabulary == {0: b"a", 1: b"b", 2: b"<unk>"}
        with pytest.raises(
            SettingsError, match="the text has 3 different characters, but the vocabulary size allows 2"
        ):
            Tokenizer.train(texts=["aaabbc"], kind="char", vocab_size=2)
        with pytest.raises(TokenizerError, match="'<unk>' is an ordinary token"):
            Tokenizer.train(texts=["abc"], kind="char", unknown="unk", special_tokens=["<unk>"])

    def test_characters_of_files(self, tmp_path: Path) -> None:
        text = "".join(DOCUMENTS)
        (tmp_path / "all.txt").write_bytes(text.encode())
        from_file = Tokenizer.train(tmp_path / "all.txt", kind="char")
        assert from_file.fingerprint == Tokenizer.train(texts=DOCUMENTS, kind="char").fingerprint
        assert from_file.decode(from_file.encode(text)) == text
        assert from_file.statistics["distinct_characters"] == len(set(text))

    @settings(max_examples=50, deadline=None)
    @given(text=TEXT)
    def test_bytes(self, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        tokenizer = Tokenizer.load("byte")
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.encode(text) == plain_ids(_cached_hf(tokenizer, tmp_path_factory), text)
        assert list(tokenizer.encode_iterable(text)) == list(text.encode())

    def test_a_byte_tokenizer_with_specials(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.train(texts=[], kind="byte", special_tokens=[END])
        assert tokenizer.encode(f"é{END}", "all") == [0xC3, 0xA9, 256]
        assert special_ids(in_hf(tokenizer, tmp_path), f"é{END}") == [0xC3, 0xA9, 256]
        assert (tokenizer.kind, Tokenizer.load(tmp_path).kind) == ("byte", "byte")


class TestFromMerges:
    def test_round_trip(self, trained: Tokenizer) -> None:
        assert trained.pattern is not None
        again = Tokenizer.from_merges(trained.vocabulary, trained.merges, [END, "<pad>"], pattern=trained.pattern)
        assert again.fingerprint == trained.fingerprint
        assert again.encode("The quick brown fox") == trained.encode("The quick brown fox")

    def test_special_tokens_in_the_vocabulary_first(self) -> None:
        vocab = {0: END.encode()} | {number + 1: bytes([number]) for number in range(256)} | {257: b"ab"}
        tokenizer = Tokenizer.from_merges(vocab, [(b"a", b"b")], [END, "<pad>"])
        assert tokenizer.encode(f"ab{END}", "all") == [257, 0]
        assert tokenizer.special_tokens == {END: 0, "<pad>": 258}

    def test_what_cannot_be(self) -> None:
        with pytest.raises(TokenizerError, match=r"merge 1, b'a' \+ b'b', needs b'ab', which is not in the vocabulary"):
            Tokenizer.from_merges({0: b"a", 1: b"b"}, [(b"a", b"b")])
        with pytest.raises(TokenizerError, match="has two ids, 0 and 1"):
            Tokenizer.from_merges({0: b"a", 1: b"a"}, [])
        lacking = Tokenizer.from_merges({0: b"a"}, [])
        with pytest.raises(TokenizerError, match="no token for byte 0x62"):
            lacking.encode("ab")


def test_the_fingerprint_moves_with_what_decides_the_ids(small: Tokenizer) -> None:
    vocabulary, merges = small.vocabulary, small.merges
    same = Tokenizer.from_merges(vocabulary, merges, [END])
    assert same.fingerprint == small.fingerprint
    for other in (
        Tokenizer.from_merges(vocabulary, merges, [END], pattern="llama3"),
        Tokenizer.from_merges(vocabulary, merges[:-1], [END]),
        Tokenizer.from_merges(vocabulary, merges, [END, "<pad>"]),
        Tokenizer.from_merges(vocabulary, merges),
    ):
        assert other.fingerprint != small.fingerprint
    by_name = Tokenizer.from_merges(vocabulary, merges, [END], pattern=_native.pattern_regex("gpt2"))
    assert by_name.fingerprint == small.fingerprint


def test_nothing_heavy_is_loaded_for_training() -> None:
    program = (
        "import sys, ramlet.tokenizer.folder, ramlet.cli.tokenizer; "
        "print(sorted({'numpy', 'rich', 'tokenizers', 'hashlib', 'tempfile', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"


_HF: dict[int, tokenizers.Tokenizer] = {}


def _cached_hf(tokenizer: Tokenizer, folders: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    key = hash(tokenizer.fingerprint)
    if key not in _HF:
        _HF[key] = in_hf(tokenizer, folders.mktemp("hf"))
    return _HF[key]


_TIKTOKEN: dict[str, tiktoken.Encoding] = {}


def _tiktoken_of(tokenizer: Tokenizer, pattern: str) -> tiktoken.Encoding:
    if tokenizer.fingerprint not in _TIKTOKEN:
        specials = tokenizer.special_tokens
        ranks = {token: number for number, token in tokenizer.vocabulary.items() if number not in specials.values()}
        _TIKTOKEN[tokenizer.fingerprint] = tiktoken.Encoding(
            "test", pat_str=_native.pattern_regex(pattern), mergeable_ranks=ranks, special_tokens=specials
        )
    return _TIKTOKEN[tokenizer.fingerprint]
