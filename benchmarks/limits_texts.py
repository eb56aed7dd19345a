"""Texts for `limits.py`: ordinary ones, and those that need the most memory for their size.

texts = write_texts(folder, seed=1, size=1_000_000)      # {"prose": folder/"prose.txt", ...}
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["TEXTS", "write_texts"]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GROWING = "\U0001d160\u0958\ufb2c\u0390\u1e9b\u0323"
"""Characters that are longer in NFC, some of them up to three times, and a mark that NFC reorders."""


def _words(rng: random.Random, count: int, least: int = 2, most: int = 11) -> list[str]:
    return ["".join(rng.choices(LETTERS, k=rng.randint(least, most))) for _ in range(count)]


def prose(rng: random.Random, size: int) -> str:
    """Words with the frequencies of a language, in sentences and paragraphs."""
    known = _words(rng, 6000)
    weights = [1 / (rank + 3) for rank in range(len(known))]
    drawn = rng.choices(known, weights, k=size // 7)
    ends = rng.choices([" ", ", ", ". ", ".\n", ".\n\n"], [80, 9, 7, 3, 1], k=len(drawn))
    return "".join(word + end for word, end in zip(drawn, ends, strict=True))[:size]


def distinct(rng: random.Random, size: int) -> str:
    """Words that almost never repeat."""
    return " ".join(_words(rng, size // 9, 4, 13))[:size]


def every_character(rng: random.Random, size: int) -> str:
    """All of Unicode, in random order, in lines."""
    codes = [code for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    rng.shuffle(codes)
    text = "".join(map(chr, codes))
    return "\n".join(text[at : at + 200] for at in range(0, len(text), 200))


def many_words(rng: random.Random, size: int) -> str:
    """Like prose, with a far larger vocabulary."""
    known = _words(rng, 60_000, 3, 12)
    return " ".join(rng.choices(known, [1 / (rank + 3) for rank in range(len(known))], k=size // 5))


def one_word(rng: random.Random, size: int) -> str:
    """One word as long as the whole text."""
    return "".join(rng.choices(LETTERS, k=size))


def repeated(rng: random.Random, size: int) -> str:
    """Runs of one letter, of random lengths."""
    return "".join(rng.choice("ab ") * rng.randint(1, 900) for _ in range(size // 450))


def ideographs(rng: random.Random, size: int) -> str:
    return "".join(
        chr(rng.randrange(0x4E00, 0x9FFF)) + ("。\n" if rng.random() < 0.03 else "") for _ in range(size // 3)
    )


def symbols(rng: random.Random, size: int) -> str:
    """Marks, emoji and digits: pieces of a character or two."""
    some = [
        chr(code) for first, last in ((0x21, 0x7E), (0x300, 0x36F), (0x1F300, 0x1FAFF)) for code in range(first, last)
    ]
    return "".join(rng.choices(some, k=size // 3))


def short_lines(rng: random.Random, size: int) -> str:
    return "\n".join(rng.choice(LETTERS) + str(rng.randrange(99)) for _ in range(size // 4))


def growing(rng: random.Random, size: int) -> str:
    """Text that normalization makes longer."""
    return "".join(rng.choices(GROWING, k=size // 3))


PLAIN: dict[str, Callable[[random.Random, int], str]] = {
    "prose": prose,
    "many words": many_words,
    "distinct words": distinct,
    "all of Unicode": every_character,
    "one word": one_word,
    "runs of a letter": repeated,
    "ideographs": ideographs,
    "symbols": symbols,
    "short lines": short_lines,
}


def _jsonl(texts: Iterator[str]) -> str:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def _documents(text: str, length: int) -> Iterator[str]:
    return (f"{at} {text[at : at + length]}" for at in range(0, len(text), length))


def _bytes(path: Path, rng: random.Random, size: int) -> None:
    path.write_bytes(rng.randbytes(size).replace(b"\0", b"\1"))


def _tiny_files(path: Path, rng: random.Random, size: int) -> None:
    text = prose(rng, 400_000)
    for number in range(1500):
        (path / str(number % 30)).mkdir(parents=True, exist_ok=True)
        (path / str(number % 30) / f"{number}.txt").write_text(text[number * 250 :][:250])


def _parquet(path: Path, rng: random.Random, size: int) -> None:
    """Written by a separate process, because pyarrow is large."""
    rows = path.with_suffix(".rows")
    rows.write_text(json.dumps(list(_documents(prose(rng, size), 3000))))
    code = (
        "import json, sys, pyarrow as pa, pyarrow.parquet as pq\n"
        "rows = json.load(open(sys.argv[1]))\n"
        "pq.write_table(pa.table({'text': rows}), sys.argv[2], row_group_size=len(rows))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(rows), str(path)], check=True)
    rows.unlink()


def _growing_jsonl(path: Path, rng: random.Random, size: int) -> None:
    """Documents just below 1 MiB, the size at which they are split; in NFC they are up to three times as long."""
    thrice = ("\U0001d160" * 260_000, "\ufb2c" * 345_000, growing(rng, 1_000_000))
    path.write_text(_jsonl(f"{n} {text}" for n, text in enumerate(thrice * 2)))


def _near_copies(path: Path, rng: random.Random, size: int) -> None:
    """Documents just below 1 MiB with as many words as possible, and copies of them with a few other words."""
    words = [rng.choice(LETTERS) for _ in range(520_000)]
    copies = []
    for _ in range(4):
        for place in rng.sample(range(len(words)), 500):
            words[place] = rng.choice("0123456789")
        copies.append(" ".join(words))
    path.write_text(_jsonl(iter([*copies, prose(rng, 1_000_000), *copies])))


def _many_near_copies(path: Path, rng: random.Random, size: int) -> None:
    """One page again and again, with its number and another word."""
    page = prose(rng, 700).split(" ")
    places = ((n, n % len(page)) for n in range(size // 700))
    path.write_text(_jsonl(" ".join([*page[:place], f"x{n}", *page[place:]]) for n, place in places))


TEXTS: dict[str, tuple[str, Callable[[Path, random.Random, int], object]]] = {
    **{
        name: (f"{name.replace(' ', '-')}.txt", lambda path, rng, size, make=make: path.write_text(make(rng, size)))
        for name, make in PLAIN.items()
    },
    "random bytes": ("bytes.txt", _bytes),
    "tiny files": ("tiny", _tiny_files),
    "jsonl": ("prose.jsonl", lambda path, rng, size: path.write_text(_jsonl(_documents(prose(rng, size), 2000)))),
    "huge documents": (
        "huge.jsonl",
        lambda path, rng, size: path.write_text(_jsonl(_documents(prose(rng, 4_000_000), 1_040_000))),
    ),
    "huge documents of symbols": (
        "symbols.jsonl",
        lambda path, rng, size: path.write_text(_jsonl(_documents(symbols(rng, 4_000_000), 330_000))),
    ),
    "near copies of huge documents": ("near-huge.jsonl", _near_copies),
    "near copies of a page": ("near-page.jsonl", _many_near_copies),
    "texts that grow": ("growing.jsonl", _growing_jsonl),
    "parquet": ("prose.parquet", _parquet),
    "gzip": ("prose.txt.gz", lambda path, rng, size: path.write_bytes(gzip.compress(prose(rng, size).encode()))),
    "xz": (
        "prose.txt.xz",
        lambda path, rng, size: path.write_bytes(lzma.compress(prose(rng, size).encode(), preset=6)),
    ),
    "bzip2": ("prose.txt.bz2", lambda path, rng, size: path.write_bytes(bz2.compress(prose(rng, size).encode()))),
}


def write_texts(folder: Path, seed: int, size: int, names: Iterable[str] = TEXTS) -> dict[str, Path]:
    """Writes the texts; returns paths by name. The same seed gives the same bytes.

    Written by a separate process, because a child process inherits the high-water mark of the process that measures it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, __file__, str(folder), str(seed), str(size), *names], check=True)
    return {name: folder / TEXTS[name][0] for name in names}


if __name__ == "__main__":
    _folder, _seed, _size, *_names = sys.argv[1:]
    for _name in _names:
        TEXTS[_name][1](Path(_folder) / TEXTS[_name][0], random.Random(f"{_seed} {_name}"), int(_size))
