"""Creates the inputs of prepare.py from the corpora; every file is deterministic and cached in benchmarks/data.

    python benchmarks/prepare_inputs.py jsonl nat               # nat.txt as documents of about 4 kB: nat.jsonl
    python benchmarks/prepare_inputs.py jsonl code --size 40MB  # documents spread evenly over all of it, 40 MB in total
    python benchmarks/prepare_inputs.py lines --lines 100000000 # 4.4 GB, half of the lines duplicates
    python benchmarks/prepare_inputs.py formats FOLDER          # half a megabyte in every format, for the kills

`jsonl`  a document ends at the first blank line after 3,072 bytes, or at the first line end after 4,608, because nat
         lost its blank lines with its markup.
`lines`  every even line is new, every odd line is a copy of a random earlier new line. A line has eight words of 3 to 6
         letters, 31 to 55 bytes; they are chosen by 96 bits, so that two new lines are never the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import DATA, corpus, describe, known, parse_size, write_atomically

LEAST, MOST = 3072, 4608  # bytes of a document
LINES_A_BLOCK = 1 << 16
WORDS_A_LINE = 8


def documents(text: Path) -> Iterator[bytes]:
    """Splits the text into documents; joined by newlines they give the text again, except blank lines in between."""
    lines: list[bytes] = []
    size = 0
    with text.open("rb") as file:
        for line in file:
            lines.append(line)
            size += len(line)
            if size >= MOST or (size >= LEAST and not line.strip()):
                yield b"".join(lines).rstrip(b"\n")
                lines, size = [], 0
    if lines:
        yield b"".join(lines).rstrip(b"\n")


def records(text: Path, size: int) -> Iterator[bytes]:
    """JSON lines of all documents, or of about `size` bytes, evenly spread (nat is sorted by language)."""
    total = text.stat().st_size
    seen = selected = 0
    for document in documents(text):
        seen += len(document) + 1
        if size and selected * total >= seen * size:
            continue
        selected += len(document) + 1
        yield json.dumps({"text": document.decode()}, ensure_ascii=False).encode() + b"\n"


def jsonl(name: str, size: int = 0) -> Path:
    target = DATA / (f"{name}-{size}.jsonl" if size else f"{name}.jsonl")
    if known(target) is None:
        text = corpus(name)
        written, digest = write_atomically(target, records(text, size))
        describe(target, written, digest, [f"prepare_inputs.py, {text.name}"])
    return target


def mixed(numbers: Any) -> Any:
    """SplitMix64's finisher: a permutation of 64-bit numbers."""
    import numpy as np

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def vocabulary() -> Any:
    """4,096 words of 3 to 6 letters, each a row of bytes that ends in a space; zeros fill it up."""
    import numpy as np

    # The first three letters identify a word; up to three more make the lengths differ.
    number = np.arange(4096)
    letters = np.frombuffer(b"abdefgiklmnorstu", dtype=np.uint8)
    words = np.zeros((4096, 7), dtype=np.uint8)
    for letter in range(3):
        words[:, letter] = letters[(number >> (4 * letter)) % 16]
        longer = number * 7 % 4 > letter
        words[longer, 3 + letter] = letters[(number >> 2 * letter) % 16][longer]
    words[:, 6] = ord(" ")
    return words


def words_of(chosen: Any, count: int) -> Any:
    """Numbers of `count` words for each 64-bit number: the same number has the same words, another one others."""
    import numpy as np

    found = np.empty((len(chosen), count), dtype=np.uint16)
    quarters = -(-count // 4)
    for word in range(count):
        if word % 4 == 0:
            bits = mixed(chosen * np.uint64(quarters) + np.uint64(word // 4 + 1))
        found[:, word] = (bits >> np.uint64(12 * (word % 4))) & np.uint64(0xFFF)
    return found


def as_lines(numbers: Any, words: Any) -> bytes:
    """A line of words for each row of their numbers."""
    rows = words[numbers]
    rows[:, -1, -1] = ord("\n")
    flat = rows.reshape(-1)
    found: bytes = flat[flat != 0].tobytes()
    return found


def line_blocks(count: int) -> Iterator[bytes]:
    import numpy as np

    words = vocabulary()
    source = np.random.PCG64(0)
    for start in range(0, count, LINES_A_BLOCK):
        place = np.arange(start, min(start + LINES_A_BLOCK, count), dtype=np.uint64)
        newest = place >> np.uint64(1)
        drawn = source.random_raw(len(place)) % (newest + np.uint64(1))
        chosen = np.where(place & np.uint64(1), drawn, newest)
        yield as_lines(words_of(chosen, WORDS_A_LINE), words)


def lines(count: int) -> Path:
    target = DATA / f"lines-{count}.txt"
    if known(target) is None:
        DATA.mkdir(parents=True, exist_ok=True)
        written, digest = write_atomically(target, line_blocks(count))
        describe(target, written, digest, ["prepare_inputs.py"])
    return target


def halves(source: Path, folder: Path) -> list[Path]:
    """Splits a jsonl file in two at a line end, because the other tools distribute work by files."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / "0.jsonl", folder / "1.jsonl"]
    middle = source.stat().st_size // 2
    written = 0
    with source.open("rb") as file, parts[0].open("wb") as first, parts[1].open("wb") as second:
        for line in file:
            (first if written < middle else second).write(line)
            written += len(line)
    return parts


def formats(folder: Path) -> None:
    """Half a megabyte of nat and code in every format that prepare reads, with duplicates, empty and broken texts."""
    import pyarrow
    import pyarrow.parquet

    texts = []
    for name in ("nat", "code"):
        with jsonl(name, 1_000_000).open("rb") as file:
            texts += [json.loads(line)["text"] for _, line in zip(range(60), file)]
    texts = [*texts, "", "  \n ", "ab\ufffd\ufffd\ufffd", *texts[::3]]
    as_json = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    (folder / "texts").mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number:03}.txt").write_bytes(text.encode())
    (folder / "lines.txt").write_bytes("\n".join(texts).encode())
    (folder / "a.jsonl").write_bytes(as_json)
    (folder / "b.jsonl").write_bytes(b"".join(reversed(as_json.splitlines(keepends=True))) + b'{"text": "only here"}\n')
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(as_json, mtime=0))
    with pyarrow.CompressedOutputStream(os.fspath(folder / "b.jsonl.zst"), "zstd") as file:
        file.write(as_json)
    table = pyarrow.table({"text": texts, "number": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("jsonl")
    kind.add_argument("name", choices=["nat", "code"])
    kind.add_argument("--size", type=parse_size, default=0, help="size of a sample [default: the whole corpus]")
    kind = kinds.add_parser("lines")
    kind.add_argument("--lines", type=int, default=100_000_000)
    kind = kinds.add_parser("formats")
    kind.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.kind == "jsonl":
        print(jsonl(options.name, options.size))
    elif options.kind == "lines":
        print(lines(options.lines))
    else:
        formats(options.folder)


if __name__ == "__main__":
    main()
