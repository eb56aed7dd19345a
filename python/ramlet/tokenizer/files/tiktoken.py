"""`.tiktoken` files: one token a line, `base64 SP rank LF`, the rank being the id.

They hold no pattern, no special tokens and no merges: two neighbours whose bytes together are a token
merge, the lowest rank first, and a piece that is a token is taken as it is. The pattern is never guessed.
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
from ramlet.tokenizer.files.vocab_merges import check_gaps
from ramlet.tokenizer.model import PATTERNS, TokenizerModel, canonical_merges, check_names

__all__ = ["read", "write"]


def read(
    path: Path, pattern: str | None = None, special_tokens: Mapping[str, int] | Iterable[str] = ()
) -> TokenizerModel:
    """The tokenizer of the file; special tokens come with their ids, or take the next ones."""
    if pattern is None:
        raise TokenizerError(
            f"{path} does not say how text is cut into pieces: give {option('pattern')}, "
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
            raise TokenizerError(f"{path} line {at} gives the rank {number} a second time")
    if not ranks:
        raise TokenizerError(f"{path} holds no tokens")
    try:
        check_gaps(ranks)
    except TokenizerError as error:
        raise TokenizerError(f"{path} cannot be used: {error}") from None
    tokens = [ranks.get(number) for number in range(max(ranks) + 1)]
    if len(set(ranks.values())) < len(ranks):
        raise TokenizerError(f"{path} gives a token two ranks")
    if isinstance(special_tokens, Mapping):
        specials = dict(special_tokens)
    else:
        specials = {name: len(tokens) + at for at, name in enumerate(special_tokens)}
    check_names(list(specials), tokens)
    for name, number in specials.items():
        if number in ranks:
            raise TokenizerError(f"the special token {name!r} has the id {number} of an ordinary token of {path}")
    return TokenizerModel(tokens, [], pattern, specials, rank_by_id=True, ignore_merges=True)


_STRICT = sys.version_info >= (3, 11)  # before, base64 could not be checked


def write(model: TokenizerModel, path: str | os.PathLike[str]) -> None:
    """The file; refused where reading it would not give the same tokenizer."""
    what = ""
    if model.characters:
        what = "a character tokenizer"
    elif model.nfc or model.added:
        what = "a tokenizer that normalizes text or has added tokens"
    elif not model.rank_by_id:
        # The merges must be what the ranks alone say.
        merges, ignore_merges = model.settled
        canonical, complete = canonical_merges(model.tokens)
        if (ignore_merges and not complete) or (merges != canonical) or not complete:
            what = "merges that do not follow from the order of the ids"
    if what:
        raise TokenizerError(f'a .tiktoken file cannot hold {what}: save it with format="json"')
    with replacing(path, streams=True) as file:
        for number, token in enumerate(model.tokens):
            if token is not None:
                file.write(f"{binascii.b2a_base64(token, newline=False).decode()} {number}\n")
