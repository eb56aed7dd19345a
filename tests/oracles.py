"""Reference implementations: slow, obvious versions of what the native core does fast.

Splitting with the reference regex and Python's `regex`; counting with a Counter; BPE training that recounts all pairs
before every merge; encoding that searches for the best pair each time. Also the same with HF tokenizers, and functions
that call the native core.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import sysconfig
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import regex
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ramlet import _native

PATTERNS = ("gpt2", "cl100k", "o200k", "llama3", "qwen2")
LONGEST_PIECE = 4096
UNLIMITED = 1 << 30

_PRINTS = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = _PRINTS + [byte for byte in range(256) if byte not in _PRINTS]
"""`BYTES[id]` is the byte with that id, in the order of GPT-2's vocabulary."""

BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTS} | {chr(256 + n): b for n, b in enumerate(BYTES[188:])}
CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}

Merge = tuple[bytes, bytes]


def to_characters(token: bytes) -> str:
    """A token as it is written in byte-level tokenizer files."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in token)


def to_bytes(token: str) -> bytes:
    return bytes(BYTE_OF_CHARACTER[character] for character in token)


# Texts

SENTENCES = (
    "The quick brown fox didn't jump over 13 lazy dogs; they'll've sworn IT'S they who jumped.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, für 1.234,56 €.",
    "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis. L'été, c'est où ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; añoraba a su querido cachorro.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак ґанок єдність.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τάχιστη αλώπηξ βαφής ψημένη γη.",
    "נקניקיות, שלום עולם! דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. ١٢٣٤٥",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "いろはにほへと ちりぬるを、わかよたれそ。ウヰノオクヤマ、今日は2024年です。",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。我能吞下玻璃而不傷身體。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "Do bạch kim rất quý nên sẽ dùng để lắp vô xương. Tiếng Việt có dấu.",
    "Փոքրիկ աղվեսը ցատկեց։ საქართველო ლამაზია. ጥቁር ቀበሮ ዘለለ። ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "👩‍👩‍👧‍👦 said 🏳️‍🌈!!  e\u0301 vs é\t\ttabs\r\nlines\n\n\n   spaces   \x00 nul \u200b zero",
)


def many_scripts(size: int, seed: int = 0) -> list[str]:
    """Documents in many scripts, about `size` characters in total: the words of SENTENCES, shuffled."""
    chance = random.Random(seed)
    documents: list[str] = []
    while size > 0:
        words = chance.choice(SENTENCES).split(" ")
        chance.shuffle(words)
        document = chance.choice((" ", " ", "\n", "  ", "")).join(words)
        documents.append(document if chance.random() < 0.8 else document.upper())
        size -= len(document)
    return documents


def real_documents(size: int) -> list[str]:
    """Real text that every machine has: the source code of the standard library, and the names of all characters."""
    documents: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        documents.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, documents)) > size * 2 // 3:
            break
    names = (
        f"{chr(code)}\t{unicodedata.name(chr(code), '')}\n"
        for code in range(0xA0, 0xFFFF)
        if not 0xD800 <= code < 0xE000
    )
    listing = "".join(names)
    chance = random.Random(size)
    while sum(map(len, documents)) < size:
        start = chance.randrange(len(listing))
        documents.append(listing[start : start + 4000])
    return documents


# Characters on which the engines agree

CLASSES = (r"\s", *(f"\\p{{{name}}}" for name in ("L", "Lu", "Lt", "Ll", "Lm", "Lo", "M", "N")))


def class_members(name: str) -> frozenset[str]:
    """The members of a class according to Oniguruma, which can only be reached through HF's Split."""
    rest = pre_tokenizers.Split(tokenizers.Regex(f"{name}+"), "removed").pre_tokenize_str(assigned_planes())
    return frozenset(assigned_planes()).difference(*(piece for piece, _ in rest))


@functools.cache
def assigned_planes() -> str:
    """Planes 0 to 3 and the start of 14; the others are empty or for private use, in every version of Unicode."""
    return "".join(chr(code) for code in (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)))


@functools.cache
def disputed() -> frozenset[str]:
    """Characters that the two reference engines put in different classes.

    They follow different versions of Unicode: Oniguruma (HF tokenizers), regex-syntax and fancy-regex (the native
    core, tiktoken) use 16.0, Python's `regex` a newer one. Newly assigned characters are unassigned in the older
    version, and a few letters changed class (U+0295 from Ll to Lo). For these HF is right, because a tokenizer.json
    must mean the same there and here.
    """
    found: set[str] = set()
    for name in CLASSES:
        found |= set(regex.findall(name, assigned_planes())) ^ class_members(name)
    return frozenset(found)


def undisputed(text: str) -> str:
    return "".join(character for character in text if character not in disputed())


# Splitting


def split(pattern: str, text: str, cap: int | None = None) -> list[str]:
    """The matches of `pattern` and the text between them. With a cap, a match sees that many bytes from its start."""
    compiled = regex.compile(pattern)
    if cap is None or len(text.encode()) <= cap:
        ends = [0, *(end for match in compiled.finditer(text) for end in match.span()), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(ends) if start < end]
    pieces: list[str] = []
    start = 0
    while start < len(text):
        seen = start + len(text[start : start + cap].encode()[:cap].decode(errors="ignore"))
        found = next((match for match in compiled.finditer(text, start, seen) if match.end() > start), None)
        end = seen
        if found is not None:
            end = found.start() if found.start() > start else found.end()
        pieces.append(text[start:end])
        start = end
    return pieces


def cut_out(text: str, specials: Sequence[str]) -> list[tuple[str, bool]]:
    """Splits text at special tokens, in order: the leftmost match wins, and of several at one place the longest."""
    parts: list[tuple[str, bool]] = []
    start = at = 0
    while at < len(text):
        found = max((special for special in specials if text.startswith(special, at)), key=len, default=None)
        if found is None:
            at += 1
            continue
        if at > start:
            parts.append((text[start:at], False))
        parts.append((found, True))
        start = at = at + len(found)
    if start < len(text):
        parts.append((text[start:], False))
    return parts


def count_pieces(
    documents: Iterable[str], pattern: str, specials: Sequence[str] = (), cap: int | None = LONGEST_PIECE
) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for document in documents:
        for part, is_special in cut_out(document, specials):
            if not is_special:
                counts.update(piece.encode() for piece in split(pattern, part, cap))
    return counts


# Training


def merge_all(symbols: list[int], left: int, right: int, made: int) -> list[int]:
    """Left to right, without overlap."""
    merged: list[int] = []
    at = 0
    while at < len(symbols):
        if symbols[at : at + 2] == [left, right]:
            merged.append(made)
            at += 2
        else:
            merged.append(symbols[at])
            at += 1
    return merged


def train(
    pieces: dict[bytes, int],
    tokens: int,
    *,
    min_frequency: int = 0,
    max_token_bytes: int = UNLIMITED,
    tie_break: str = "hf",
) -> list[Merge]:
    """The definition of BPE: count all pairs, merge the most frequent pair everywhere, repeat."""
    vocabulary = [bytes([byte]) for byte in BYTES]
    ids = {token: number for number, token in enumerate(vocabulary)}
    words = [([ids[bytes([byte])] for byte in piece], count) for piece, count in pieces.items()]
    merges: list[Merge] = []
    while len(vocabulary) < tokens:
        pairs: Counter[tuple[int, int]] = Counter()
        for symbols, count in words:
            for left, right in itertools.pairwise(symbols):
                if len(vocabulary[left]) + len(vocabulary[right]) <= max_token_bytes:
                    pairs[left, right] += count
        if not pairs:
            break
        most = max(pairs.values())
        if most < max(min_frequency, 1):
            break
        tied = [pair for pair, count in pairs.items() if count == most]
        if tie_break == "hf":
            left, right = min(tied)
        else:
            left, right = max(tied, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges.append((vocabulary[left], vocabulary[right]))
        token = vocabulary[left] + vocabulary[right]
        if token not in ids:
            ids[token] = len(vocabulary)
            vocabulary.append(token)
        words = [(merge_all(symbols, left, right, ids[token]), count) for symbols, count in words]
    return merges


def hf_tokenizer(pattern: str) -> tokenizers.Tokenizer:
    """An untrained HF tokenizer that splits by the pattern of this name."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = hf_pre_tokenizer(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def hf_pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(tokenizers.Regex(_native.pattern_regex(pattern)), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def hf_train(
    documents: Iterable[str],
    tokens: int,
    *,
    pattern: str = "gpt2",
    min_frequency: int = 0,
    max_token_bytes: int | None = None,
) -> list[Merge]:
    """The merges that HF tokenizers learns from the same documents."""
    tokenizer = hf_tokenizer(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        # HF's limit is exclusive.
        max_token_length=None if max_token_bytes is None else max_token_bytes + 1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(to_bytes(left), to_bytes(right)) for left, right in merges]


# Encoding


def encode_piece(piece: bytes, merges: Sequence[tuple[int, int, int]], byte_ids: dict[int, int]) -> list[int]:
    """Merges one pair at a time: the one with the lowest rank, the leftmost of equals."""
    ranks: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (left, right, made) in enumerate(merges):
        ranks.setdefault((left, right), (rank, made))
    symbols = [byte_ids[byte] for byte in piece]
    while True:
        found = [(*ranks[pair], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        if not found:
            return symbols
        _, made, at = min(found, key=lambda candidate: (candidate[0], candidate[2]))
        symbols[at : at + 2] = [made]


# The native core


def native_train(
    documents: Iterable[str] | None = None,
    *,
    files: Iterable[Sequence[Any]] | None = None,
    tokens: int = 256,
    pattern: str = "gpt2",
    specials: Sequence[str] = (),
    min_frequency: int = 0,
    max_token_bytes: int = UNLIMITED,
    tie_break: str = "hf",
    threads: int = 1,
    memory: int = 256 << 20,
    resident_limit: int = 1 << 40,
    work_dir: str | Path | None = None,
    signature: str = "test",
    checkpoint_seconds: float = 1e6,
    batch: int = 100,
    read: dict[str, Any] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """`train_bpe` with defaults for tests."""
    texts: Iterator[list[str]] | None = None
    if documents is not None:
        remaining = iter(documents)
        texts = iter(lambda: list(itertools.islice(remaining, batch)), [])
    with tempfile.TemporaryDirectory() as scratch:
        return _native.train_bpe(
            files=None if files is None else map(tuple, files),
            texts=texts,
            total_bytes=0,
            read={"documents": "file", "separator": None, "text_field": "text", "skip_broken": False, **(read or {})},
            pattern_name=pattern,
            specials=list(specials),
            tokens=tokens,
            min_frequency=min_frequency,
            max_token_bytes=max_token_bytes,
            tie_break=tie_break,
            threads=threads,
            memory=memory,
            resident_limit=resident_limit,
            work_dir=str(work_dir or Path(scratch) / "work"),
            signature=signature,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )


def text_file(path: Path, compression: str = "", form: str = "text") -> tuple[str, str, str, int, int]:
    """The file as the native core expects it."""
    found = path.stat()
    return str(path), form, compression, found.st_size, found.st_mtime_ns


def merges_of(trained: dict[str, Any]) -> list[Merge]:
    tokens: list[bytes] = trained["tokens"]
    return [(tokens[left], tokens[right]) for left, right, _ in trained["merges"]]


def encoder_of(
    trained: dict[str, Any], pattern: str = "gpt2", *, cache_bytes: int = 1 << 20, **options: Any
) -> _native.Encoder:
    settings: dict[str, Any] = {"ignore_merges": False, "rank_by_id": False, "nfc": False, "added": [], **options}
    return _native.Encoder.bpe(
        trained["tokens"], trained["merges"], pattern_name=pattern, cache_bytes=cache_bytes, **settings
    )
