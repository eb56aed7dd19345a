"""Text of any size with an ever-growing number of distinct words, at over 50 MB/s in constant memory.

Word ranks follow a Zipf-Mandelbrot law with an infinite tail, P(rank > r) = (1 + r/10) ** -1/3, so that n words
contain about n ** 0.75 distinct ones (Heaps' law): 12 GB has about 29 million among 2.2 billion. A rank is written
as its bijective base-32 numeral with consonant-vowel syllables as digits, so different ranks are different words.
Punctuation, capitals and newlines come from the same random bits. A word and its blank take 5.4 bytes on average,
about as in English.

It uses only PCG64's raw stream (which NumPy promises not to change), integers, one division and a few
multiplications, so the same seed gives the same bytes everywhere.

    python benchmarks/synthetic.py 10MB --seed 3 > text      # or through corpora.py, cached
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

BLOCK_WORDS = 1 << 18
TABLED_RANKS = 1 << 20  # 98% of all words, spelled in advance
FRESH_RANKS = 1 << 48  # above this the law's tail is replaced by uniform draws, which never repeat
SYLLABLES = np.array([list((c + v).encode()) for c in "dklmnrst" for v in "aeio"], dtype=np.uint8)
BASE = len(SYLLABLES)
LONGEST = 10  # syllables: BASE ** 10 is more than 2 * FRESH_RANKS
MARK, LINE_END = 1 + 2 * LONGEST, 2 + 2 * LONGEST  # columns of a word's row, after its blank and its letters
WIDTH = LINE_END + 1

Matrix = npt.NDArray[np.uint8]


def spell(ranks: npt.NDArray[np.uint64]) -> Matrix:
    """One row per word: syllables from column 1, then zeros. Rank 0 is "da", 32 is "dada"."""
    rows = np.zeros((len(ranks), WIDTH), dtype=np.uint8)
    left = ranks.astype(np.int64) + 1
    for column in range(1, MARK, 2):
        spelled = left > 0
        if not spelled.any():
            break
        digit = (left - 1) % BASE
        rows[:, column : column + 2] = np.where(spelled[:, None], SYLLABLES[digit], 0)
        left = np.where(spelled, (left - 1) // BASE, 0)
    return rows


def words_of(raw: npt.NDArray[np.uint64], fresh: npt.NDArray[np.uint64], table: Matrix) -> Matrix:
    """The words that the random numbers select, spelled."""
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    inverse = 1.0 / uniform
    ranks = 10.0 * (inverse * inverse * inverse - 1.0)
    tail = ranks >= TABLED_RANKS
    rows = table[np.where(tail, 0.0, ranks).astype(np.int64)]
    far = ranks[tail]
    unheard = np.uint64(FRESH_RANKS) + (fresh[tail] & np.uint64(FRESH_RANKS - 1))
    rows[tail] = spell(np.where(far < FRESH_RANKS, np.minimum(far, FRESH_RANKS).astype(np.uint64), unheard))
    return rows


def punctuate(rows: Matrix, bits: npt.NDArray[np.uint64]) -> None:
    """Adds blanks between words, a comma per ten words, a period per twelve; every fourth period ends a line."""
    draw = (bits & np.uint64(0xFFFF)).astype(np.uint16)
    stop = draw < 5461
    comma = ~stop & (draw < 5461 + 6554)
    line_end = stop & (draw < 1365)
    rows[:, MARK][stop] = ord(".")
    rows[:, MARK][comma] = ord(",")
    rows[:, LINE_END][line_end] = ord("\n")
    rows[1:, 0] = ord(" ")
    rows[0, 0] = 0
    rows[1:, 0][line_end[:-1]] = 0
    starts = np.empty(len(rows), dtype=bool)
    starts[0] = True
    starts[1:] = stop[:-1]
    rows[:, 1][starts] &= 0xDF
    rows[-1, MARK] = ord(".")
    rows[-1, LINE_END] = ord("\n")


def synthetic_blocks(size: int | None, seed: int = 0, never_repeating: bool = False) -> Iterator[bytes]:
    """Blocks of about 1.5 MB, `size` bytes in total (None: unlimited), each but the last ending in a newline.

    `never_repeating` draws every word uniformly from 2**40: practically all of them are new, which is the worst
    case for any cache of words.
    """
    source = np.random.PCG64(seed)
    table = spell(np.arange(TABLED_RANKS, dtype=np.uint64))
    written = 0
    while size is None or written < size:
        fresh = source.random_raw(BLOCK_WORDS)
        if never_repeating:
            rows = spell(fresh >> np.uint64(24))
        else:
            rows = words_of(source.random_raw(BLOCK_WORDS), fresh, table)
        punctuate(rows, fresh >> np.uint64(48) if not never_repeating else fresh)
        flat = rows.reshape(-1)
        block = flat[flat != 0].tobytes()
        if size is not None:
            block = block[: size - written]
        written += len(block)
        yield block


def main() -> None:
    import argparse
    import os
    import sys

    from corpora import parse_size

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", type=parse_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--never-repeating", action="store_true")
    options = parser.parse_args()
    try:
        for block in synthetic_blocks(options.size, options.seed, options.never_repeating):
            sys.stdout.buffer.write(block)
    except BrokenPipeError:  # the reader has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
