"""Creates the inputs of near.py; every file is deterministic and cached in benchmarks/data/near.

    python benchmarks/near_text.py natural                        # pages in forty languages, over 500 MB
    python benchmarks/near_text.py natural --size 20MB            # documents spread evenly over all of it
    python benchmarks/near_text.py code                           # the .c files of Linux
    python benchmarks/near_text.py planted --documents 20000      # both, with near-copies of every similarity
    python benchmarks/near_text.py cluster --documents 1000000    # one page, each time with small changes
    python benchmarks/near_text.py almost --documents 1000000     # the same below the threshold: all of them stay
    python benchmarks/near_text.py long --size 2GB                # one document in one text file
    python benchmarks/near_text.py short --documents 20000000     # a line each, a tenth are near-copies
    python benchmarks/near_text.py kills FOLDER                   # a megabyte of planted documents, for the kills

`natural`, `code`  documents as their authors wrote them (corpora.py), nothing planted. Those over 64 kB, such as a
           dictionary, are split at line ends into documents of 16 kB.
`planted`  a bit more than half are documents of natural and code, chosen by their hash; the rest are copies of these,
           in random order among them: exact, with other case and punctuation, with a header, shortened, with lines
           moved, with words replaced, inserted and deleted until about a Jaccard similarity between 0.5 and 1, and
           copies of copies, which are near to each other but not to the first.
`short`    24 words of a vocabulary of 4,096. Of ten lines one is a copy with another last word (a similarity of 0.9),
           one a copy with another word in the middle (0.6); of twenty one is an exact copy.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from corpora import DATA, describe, documents_of, known, parse_size, write_atomically
from prepare_inputs import LINES_A_BLOCK, as_lines, vocabulary, words_of

FOLDER = DATA / "near"
NATURAL = ("nat", "docs", "prose", "manuals")
LONGEST, PIECE = 1 << 16, 1 << 14
ORIGINALS = 0.55  # of the planted documents
WORDS_A_SHINGLE = 5
WORDS_A_DOCUMENT = 24
PAGE = (1500, 2500)  # bytes of the page of a cluster
MARGIN = 200  # lines that are in memory while they are put in another order
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
UNIT = re.compile(rf"[{SPACELESS}]|[^\W{SPACELESS}]+")
"""What is edited: a word, or a character of a script without spaces."""


def pieces(document: bytes) -> Iterator[bytes]:
    if len(document) <= LONGEST:
        yield document.rstrip(b"\n")
        return
    lines: list[bytes] = []
    size = 0
    for line in document.splitlines(keepends=True):
        lines.append(line)
        size += len(line)
        if size >= PIECE:
            yield b"".join(lines).rstrip(b"\n")
            lines, size = [], 0
    if lines:
        yield b"".join(lines).rstrip(b"\n")


def record(text: str, **more: int | str) -> bytes:
    return json.dumps({"text": text, **more}, ensure_ascii=False).encode() + b"\n"


def made(name: str, blocks: Callable[[list[str]], Iterator[bytes]]) -> Path:
    """The file, written if it is missing; `blocks` may add to the list of origins."""
    target = FOLDER / name
    if known(target) is None:
        origins: list[str] = ["near_text.py"]
        written, digest = write_atomically(target, blocks(origins))
        describe(target, written, digest, origins)
    return target


def corpus_records(names: tuple[str, ...], origins: list[str]) -> Iterator[bytes]:
    for name in names:
        made_from, documents = documents_of(name)
        origins += made_from
        for document in documents:
            for piece in pieces(document):
                if piece.strip():
                    yield record(piece.decode(errors="replace"))


def sample(source: Path, size: int) -> Iterator[bytes]:
    """Lines of about `size` bytes in all, evenly spread: the text is sorted by package and language."""
    total = source.stat().st_size
    seen = selected = 0
    with source.open("rb") as file:
        for line in file:
            seen += len(line)
            if selected * total < seen * size:
                selected += len(line)
                yield line


def natural(size: int = 0) -> Path:
    whole = made("natural.jsonl", lambda origins: corpus_records(NATURAL, origins))
    return made(f"natural-{size}.jsonl", lambda _: sample(whole, size)) if size else whole


def code(size: int = 0) -> Path:
    whole = made("code-files.jsonl", lambda origins: corpus_records(("code",), origins))
    return made(f"code-files-{size}.jsonl", lambda _: sample(whole, size)) if size else whole


def chosen(source: Path, count: int) -> list[str]:
    """`count` texts of a file, those with the smallest hashes, in the order of the hashes."""
    with source.open("rb") as file:
        hashed = ((hashlib.sha256(line).digest(), line) for line in file)
        return [json.loads(line)["text"] for _, line in heapq.nsmallest(count, hashed)]


def edited(text: str, similarity: float, draw: random.Random) -> str:
    """The text with as many words changed as bring its similarity to about that. Each is part of five shingles."""
    places = [match.span() for match in UNIT.finditer(text)]
    lost = (1 - similarity) / (1 + similarity)
    count = min(len(places), round(lost * len(places) / WORDS_A_SHINGLE))
    words = [text[start:end] for start, end in draw.sample(places, min(len(places), 50))] or ["word"]
    parts, rest = [], 0
    for start, end in sorted(draw.sample(places, count)):
        kind, other = draw.randrange(3), draw.choice(words)
        parts += [text[rest:start], ("", f"{other}x", f"{text[start:end]} {other}")[kind]]
        rest = end
    return "".join([*parts, text[rest:]])


def headed(text: str, draw: random.Random) -> str:
    head = f"Retrieved {draw.randrange(1990, 2030)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02} from page"
    return f"{head} {draw.randrange(10**6)}\n\n{text}\n"


def folded(text: str, draw: random.Random) -> str:
    """Other case and other marks between the words."""
    changed = text.upper() if draw.random() < 0.3 and text.upper().lower() == text.lower() else text.swapcase()
    if draw.random() < 0.5 or changed.lower() != text.lower():
        changed = text
    return "\t" + re.sub(r"(?<=[a-z]) (?=[a-z])", lambda _: draw.choice((" ", "  ", ", ", " - ")), changed) + " ."


def shortened(text: str, draw: random.Random) -> str:
    return text[: int(len(text) * draw.uniform(0.5, 1))]


def moved(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(draw.randint(1, 3)):
        lines.insert(draw.randrange(len(lines)), lines.pop(draw.randrange(len(lines)))) if lines else None
    return "".join(lines)


def copies(originals: list[str], count: int, draw: random.Random) -> Iterator[tuple[str, str, int]]:
    """(kind, text, number of the original): two thirds are edited words."""
    others = {"exact": lambda text, _: text, "folded": folded, "headed": headed, "cut": shortened, "moved": moved}
    left = count
    while left > 0:
        number = draw.randrange(len(originals))
        text, kind = originals[number], draw.choice([*["edited"] * 10, *others, "chain"])
        if kind == "edited":
            found = [edited(text, draw.uniform(0.5, 1), draw)]
        elif kind == "chain":
            found = [edited(text, draw.uniform(0.82, 0.95), draw)]
            for _ in range(draw.randint(1, 3)):
                found.append(edited(found[-1], draw.uniform(0.82, 0.95), draw))
        else:
            found = [others[kind](text, draw)]
        for one in found[:left]:
            yield kind, one, number
        left -= len(found)


def planted_records(count: int, seed: int, from_natural: Path, from_code: Path) -> Iterator[bytes]:
    draw = random.Random(seed)
    originals = round(count * ORIGINALS)
    texts = [*chosen(from_natural, originals * 2 // 3), *chosen(from_code, originals - originals * 2 // 3)]
    documents = [("original", text, number) for number, text in enumerate(texts)]
    documents += copies(texts, count - len(documents), draw)
    draw.shuffle(documents)
    for kind, text, number in documents:
        yield record(text, kind=kind, of=number)


def planted(count: int, seed: int = 0) -> Path:
    return made(f"planted-{count}-{seed}.jsonl", lambda _: planted_records(count, seed, natural(), code()))


def page() -> str:
    """A page of English prose."""
    with natural(20_000_000).open("rb") as file:
        texts = (json.loads(line)["text"] for line in file)
        return next(t for t in texts if PAGE[0] <= len(t) <= PAGE[1] and t.isascii() and t.count(" ") > len(t) / 8)


def cluster_records(count: int, replaced: float) -> Iterator[bytes]:
    """Copies of a page, each with a header of its own and this share of its words replaced."""
    draw = random.Random(0)
    parts = re.split(r"(\W+)", page())
    words = range(0, len(parts), 2)
    changes = max(1, round(len(words) * replaced))
    for number in range(count):
        copy = list(parts)
        for place in draw.sample(words, changes):
            copy[place] = f"w{draw.randrange(10**9)}"
        yield record(f"Visitor {number}\n\n{''.join(copy)}")


def cluster(count: int) -> Path:
    """Similarities of about 0.92."""
    return made(f"cluster-{count}.jsonl", lambda _: cluster_records(count, 0.004))


def almost(count: int) -> Path:
    """Similarities of about 0.75."""
    return made(f"almost-{count}.jsonl", lambda _: cluster_records(count, 0.017))


def running_text(size: int) -> Iterator[bytes]:
    """Natural text, again and again until it is enough, each time with its pages in another order."""
    draw = random.Random(0)
    written = 0
    while written < size:
        waiting: list[str] = []
        with natural().open("rb") as file:
            for line in file:
                waiting.append(json.loads(line)["text"])
                if len(waiting) >= MARGIN:
                    place = draw.randrange(len(waiting))
                    waiting[place], waiting[-1] = waiting[-1], waiting[place]
                    text = waiting.pop().encode() + b"\n"
                    yield text[: size - written]
                    written += len(text)
                    if written >= size:
                        return


def long(size: int) -> Path:
    return made(f"long-{size}.txt", lambda _: running_text(size))


def short_lines(count: int) -> Iterator[bytes]:
    import numpy as np

    words = vocabulary()
    source = np.random.PCG64(0)
    for start in range(0, count, LINES_A_BLOCK):
        place = np.arange(start, min(start + LINES_A_BLOCK, count), dtype=np.uint64)
        kind = place % np.uint64(20)
        older = source.random_raw(len(place)) % np.maximum(place, np.uint64(1))
        older -= older % np.uint64(20)  # a line whose number is a multiple of 20 is new
        numbers = words_of(np.where(np.isin(kind, (4, 9, 14, 19, 7)), older, place), WORDS_A_DOCUMENT)
        numbers[kind % np.uint64(10) == 9, -1] = words_of(place, 1)[kind % np.uint64(10) == 9, 0]
        middle = WORDS_A_DOCUMENT // 2
        numbers[kind % np.uint64(10) == 4, middle] = words_of(place, 1)[kind % np.uint64(10) == 4, 0]
        yield as_lines(numbers, words)


def short(count: int) -> Path:
    return made(f"short-{count}.txt", lambda _: short_lines(count))


def kills(folder: Path) -> None:
    """Planted documents in two jsonl files and one of lines; near-copies are in other files than what they copy."""
    lines = list(planted_records(240, 0, natural(2_000_000), code(2_000_000)))
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(b"".join(lines[:120]))
    (folder / "b.jsonl").write_bytes(b"".join(lines[120:]))
    (folder / "lines.txt").write_bytes(b"".join(short_lines(3000)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    by_size = {"natural": natural, "code": code, "long": long}
    by_count = {"planted": planted, "cluster": cluster, "almost": almost, "short": short}
    for name in by_size:
        kind = kinds.add_parser(name)
        kind.add_argument("--size", type=parse_size, default=0, help="[default: all of it]", required=name == "long")
    for name in by_count:
        kinds.add_parser(name).add_argument("--documents", type=int, required=True)
    kinds.add_parser("kills").add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.kind == "kills":
        kills(options.folder)
    elif options.kind in by_size:
        print(by_size[options.kind](options.size))
    else:
        print(by_count[options.kind](options.documents))


if __name__ == "__main__":
    main()
