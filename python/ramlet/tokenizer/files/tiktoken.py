"""`.tiktoken` files: one token per line, `base64 SP rank LF`; the rank is the id.

They have no pattern, no special tokens and no merges: two neighbors whose bytes together are a token merge, the lowest
rank first, and a piece that is a token becomes that token. The pattern is never guessed.
"""

from __future__ import annotations

import binascii
import io
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ramlet.errors import TokenizerError, option
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.small_files import TOKENIZER, read_bytes
from ramlet.tokenizer.files.vocab_merges import check_gaps, check_plain_bpe, not_representable
from ramlet.tokenizer.model import PATTERNS, TokenizerModel, canonical_merges, check_ids, check_names


def read(
    path: Path, pattern: str | None = None, special_tokens: Mapping[str, int] | Iterable[str] = ()
) -> TokenizerModel:
    """The tokenizer of the file; special tokens are given with their ids, or get the next ones."""
    if pattern is None:
        raise TokenizerError(
            f"{path} does not say how to split text into pieces: set {option('pattern')} to "
            f"{', '.join(PATTERNS)} or a regex"
        )
    ranks: dict[int, bytes] = {}
    for at, line in enumerate(io.BytesIO(read_bytes(path, TokenizerError, TOKENIZER)), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            number = int(rank)
            decoded = binascii.a2b_base64(token, strict_mode=True) if _STRICT else binascii.a2b_base64(token)
        except ValueError:
            raise TokenizerError(f"{path} line {at} is not `base64 rank`: is this a .tiktoken file?") from None
        if not decoded or not 0 <= number < 1 << 24:
            raise TokenizerError(f"{path} line {at} has an empty token or an impossible rank")
        if ranks.setdefault(number, decoded) is not decoded:
            raise TokenizerError(f"{path} line {at} repeats the rank {number}")
    if not ranks:
        raise TokenizerError(f"{path} has no tokens")
    try:
        check_gaps(ranks)
    except TokenizerError as error:
        raise TokenizerError(f"{path} cannot be used: {error}") from None
    tokens = [ranks.get(number) for number in range(max(ranks) + 1)]
    if len(set(ranks.values())) < len(ranks):
        raise TokenizerError(f"{path} has a token with two ranks")
    if isinstance(special_tokens, Mapping):
        specials = dict(special_tokens)
    else:
        names = list(special_tokens)
        check_names(names, tokens)
        specials = {name: len(tokens) + at for at, name in enumerate(names)}
    check_names(list(specials), tokens)
    check_ids(specials.values(), "a special token")
    owners: dict[int, str] = {}
    for name, number in specials.items():
        if owners.setdefault(number, name) != name:
            raise TokenizerError(f"the special tokens {owners[number]!r} and {name!r} have the same id {number}")
        if number in ranks:
            raise TokenizerError(f"the special token {name!r} has the id {number} of an ordinary token of {path}")
    return TokenizerModel(tokens, [], pattern, specials, rank_by_id=True, ignore_merges=True)


_STRICT = sys.version_info >= (3, 11)  # older versions cannot check base64


def write(model: TokenizerModel, path: str | os.PathLike[str]) -> None:
    """Writes the file; an error if reading it would not give the same tokenizer."""
    check_plain_bpe(model, "a .tiktoken file")
    if not model.rank_by_id:
        # The merges must follow from the ranks alone.
        canonical, complete = canonical_merges(model.tokens)
        if not complete or model.ranked_merges[0] != canonical:
            raise not_representable("a .tiktoken file", "merges that do not follow from the order of the ids")
    with replacing(path, streams=True) as file:
        for number, token in enumerate(model.tokens):
            if token is not None:
                file.write(f"{binascii.b2a_base64(token, newline=False).decode()} {number}\n")
