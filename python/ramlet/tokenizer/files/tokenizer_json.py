"""HF's tokenizer.json: the one format that has everything, and that other libraries read.

    {"version": "1.0", "truncation": null, "padding": null,
     "added_tokens": [{"id": 1000, "content": "<|endoftext|>", "special": true, ...}],
     "normalizer": null,
     "pre_tokenizer": {"type": "ByteLevel", ...}        how text is split; or [Split by a regex, ByteLevel]
     "post_processor": null,
     "decoder": {"type": "ByteLevel", ...},
     "model": {"type": "BPE", ..., "vocab": {"!": 0, ...}, "merges": ["Ġ t", ...]}}

`read` returns a TokenizerModel for what the native core encodes exactly like HF: byte-level BPE with one pattern, and
our own byte and character files. For anything else it returns None and a reason, and the caller uses HF's library.
Truncation, padding and post-processing (begin-of-text tokens) are kept in the file but not applied: ids are those of
`encode(text, add_special_tokens=False)`.

`write` writes token by token, so that the vocabulary is never in memory a second time as text. Merges are written as
strings: libraries older than 2024 read nothing else. Special tokens are listed only in `added_tokens` if their ids
follow the ordinary ones, else (gaps in the ids) also in the vocabulary, because only then does HF's library keep their
ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import IO, Any

from ramlet.errors import TokenizerError
from ramlet.runtime.small_files import TOKENIZER, read_json
from ramlet.tokenizer.byte_alphabet import unspell
from ramlet.tokenizer.files.vocab_merges import parse_merges, parse_vocab, spelled_tokens, write_merges, write_vocab
from ramlet.tokenizer.model import TokenizerModel, place_token


class _Unsupported(Exception):
    """Raised for what the native core does not support, with the reason."""


def read(path: Path) -> tuple[TokenizerModel | None, str]:
    """The tokenizer, or None and the reason why HF's library has to run it."""
    document = read_json(path, TokenizerError, TOKENIZER)
    try:
        if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
            raise TokenizerError('it has no "model": is this a tokenizer.json?')
        return _model(document), ""
    except _Unsupported as reason:
        return None, str(reason)
    except TokenizerError as error:
        raise TokenizerError(f"{path} cannot be used: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise TokenizerError(f"{path} cannot be used: a part of it has the wrong type ({error})") from None


def _model(document: dict[str, Any]) -> TokenizerModel:
    model = document["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else None)
    if kind != "BPE":
        raise _Unsupported(f"its model is {kind}, not BPE")
    _refuse_short_merges(model)
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise _Unsupported(f"its model uses {name}")
    ids = parse_vocab(model.get("vocab"))
    listed = _added_tokens(document)
    frame = {key: value for key, value in document.items() if key != "model"}
    frame["model"] = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    named: dict[str, Any] = {
        "specials": {one["content"]: one["id"] for one in listed if one.get("special")},
        "added": {one["content"]: one["id"] for one in listed if not one.get("special")},
        "frame": frame,
        "kept_in_vocab": frozenset(one["content"] for one in listed if one["content"] in ids),
    }
    if document.get("pre_tokenizer") is None and not model.get("merges"):
        return _characters(document, ids, named)
    pattern = _pattern(document.get("pre_tokenizer"))
    decoder = document.get("decoder")
    if decoder is not None and decoder.get("type") != "ByteLevel":
        raise _Unsupported(f"its decoder is {decoder.get('type')}")
    merges = parse_merges(model.get("merges"), ids)
    in_merges = {number for merge in merges for number in merge}
    tokens = _tokens(ids, {one["content"] for one in listed}, in_merges)
    if model.get("unk_token") is not None and len([token for token in tokens if token and len(token) == 1]) < 256:
        raise _Unsupported("some bytes are missing and it has an unknown token")
    return TokenizerModel(
        tokens, merges, pattern, ignore_merges=bool(model.get("ignore_merges")), nfc=_uses_nfc(document), **named
    )


def _refuse_short_merges(model: dict[str, Any]) -> None:
    """HF's library cuts the prefix off the second part of every merge, and panics if that is shorter."""
    cut = len(model.get("continuing_subword_prefix") or "")
    for merge in model.get("merges") or () if cut else ():
        part = (merge.split(" ") if isinstance(merge, str) else merge)[-1].encode()
        if len(part) < cut or (part[cut : cut + 1] > b"\x7f" and part[cut] < 0xC0):
            raise TokenizerError(f"the merge {merge!r} has no continuing_subword_prefix")


def _tokens(ids: dict[str, int], named: set[str], in_merges: set[int]) -> list[bytes | None]:
    """The bytes of ordinary tokens by id. One that is also special or added counts if merges can produce it."""
    tokens: list[bytes | None] = []
    for name, number in ids.items():
        token = unspell(name)
        if name in named and number not in in_merges and (token is None or len(token) != 1):
            continue
        if not token:
            raise _Unsupported(f"the token {name!r} is not in the byte alphabet")
        place_token(tokens, number, token)
    return tokens


def _added_tokens(document: dict[str, Any]) -> list[dict[str, Any]]:
    listed = document.get("added_tokens") or []
    seen: dict[int, str] = {}
    vocab = document["model"]["vocab"]
    used = set(vocab.values()) if listed else set()
    for one in listed:
        number, content = one["id"], one["content"]
        if not isinstance(content, str) or not isinstance(number, int) or not 0 <= number < 1 << 24:
            raise TokenizerError(f"the added token {one!r} has no valid id and content")
        if seen.setdefault(number, content) != content:
            raise TokenizerError(f"the added tokens {seen[number]!r} and {content!r} have the same id {number}")
        if content not in vocab and number in used:
            raise TokenizerError(f"the added token {content!r} has the id {number} of an ordinary token")
        if content in vocab and vocab[content] != number:
            raise TokenizerError(
                f"the added token {content!r} has the id {number}, but {vocab[content]} in the vocabulary"
            )
        for trait in ("lstrip", "rstrip", "single_word"):
            if one.get(trait):
                raise _Unsupported(f"its added token {content!r} has {trait}")
        if one.get("normalized") and document.get("normalizer") is not None:
            raise _Unsupported(f"its added token {content!r} is matched in normalized text")
    usual = [one for one in listed if one["content"]]
    if len({bool(one.get("normalized")) for one in usual if not one.get("special")}) > 1:
        raise _Unsupported("its added tokens are matched in two passes")
    special = [one["content"] for one in usual if one.get("special")]
    others = [one["content"] for one in usual if not one.get("special")]
    if any(_can_cover(name, other) for other in others for name in special):
        raise _Unsupported("its special and added tokens overlap")
    return usual


def _can_cover(special: str, other: str) -> bool:
    """Whether a special token can cover another one that starts after it or is shorter.

    Then HF does not match the other one even where special tokens are plain text, and we would.
    """
    return other in special or any(
        special[at] == other[0] and other.startswith(special[at:]) for at in range(1, len(special))
    )


def _characters(document: dict[str, Any], ids: dict[str, int], named: dict[str, Any]) -> TokenizerModel:
    decoder = document.get("decoder") or {}
    if document.get("normalizer") is not None or decoder.get("type") != "Fuse" or document["model"].get("fuse_unk"):
        raise _Unsupported("it does not split text into bytes")
    name = document["model"].get("unk_token")
    unknown = (name, ids[name]) if name is not None else None
    tokens: list[bytes | None] = []
    for character, number in ids.items():
        if len(character) == 1:
            place_token(tokens, number, character.encode())
        elif character != name and character not in named["kept_in_vocab"]:
            raise _Unsupported(f"the token {character!r} is more than one character")
    return TokenizerModel(tokens, characters=True, unknown=unknown, **named)


def _uses_nfc(document: dict[str, Any]) -> bool:
    normalizer = document.get("normalizer")
    if normalizer is None:
        return False
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    kinds = [step.get("type") for step in steps]
    if any(kind != "NFC" for kind in kinds):
        raise _Unsupported(f"its normalizer is {' and '.join(map(str, kinds))}")
    return bool(kinds)


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    """The name of the pattern, or its regex if it has no name."""
    from ramlet import _native

    if pre_tokenizer is None:
        raise _Unsupported("it does not split text into bytes")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    kinds = [step.get("type") for step in steps]
    if kinds not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise _Unsupported(f"its pre-tokenizer is {' and '.join(map(str, kinds)) or 'empty'}")
    last = steps[-1]
    if last.get("add_prefix_space", True):
        raise _Unsupported("it adds a space before every text")
    if len(steps) == 1:
        return "gpt2" if last.get("use_regex", True) else "whole"
    if last.get("use_regex", True):
        raise _Unsupported("it splits text twice")
    split = steps[0]
    regex = split["pattern"].get("Regex")
    if regex is None:
        raise _Unsupported("it splits text at a fixed string")
    name = _native.recognise_pattern(regex)
    how = split.get("behavior"), bool(split.get("invert"))
    # A named pattern leaves no gaps between its matches, so what happens to gaps does not matter.
    if how != ("Isolated", False) and not (name and how in (("Removed", True), ("Isolated", True))):
        raise _Unsupported(f"it splits text with the behavior {split.get('behavior')}")
    return name or regex


def write(model: TokenizerModel, file: IO[str]) -> None:
    """Writes the tokenizer; everything else that was in a loaded file is kept."""
    merges, ignore_merges = (model.merges, model.ignore_merges) if model.frame else model.ranked_merges
    frame = model.frame or _frame(model, ignore_merges)
    in_vocab = model.kept_in_vocab if model.frame else _needed_in_vocab(model)
    put = file.write
    put("{")
    for at, (key, value) in enumerate(frame.items()):
        put(f"{',' if at else ''}\n  {json.dumps(key)}: ")
        if key != "model":
            put(json.dumps(value, ensure_ascii=False, indent=2).replace("\n", "\n  "))
            continue
        put("{")
        for name, setting in value.items():
            put(f"\n    {json.dumps(name)}: {json.dumps(setting, ensure_ascii=False)},")
        put('\n    "vocab": ')
        spelled = [] if model.characters else spelled_tokens(model)
        write_vocab(_entries(model, spelled, in_vocab), put)
        put(',\n    "merges": [')
        for number, line in enumerate(write_merges(spelled, merges)):
            put(f"{',' if number else ''}\n      {quoted(line)}")
        put("\n    ]\n  }")
    put("\n}\n")


def _entries(model: TokenizerModel, spelled: list[str], in_vocab: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Tokens as spelled in files, with their ids, in the order of the ids."""
    if model.unknown:
        in_vocab |= {model.unknown[0]}
    for number in range(model.size):
        token = model.tokens[number] if number < len(model.tokens) else None
        if token is not None:
            yield token.decode() if model.characters else spelled[number], number
        elif (name := model.named_tokens.get(number)) in in_vocab and name is not None:
            yield name, number


def _needed_in_vocab(model: TokenizerModel) -> frozenset[str]:
    """HF's library numbers added tokens after the others, by count, whatever ids the file has."""
    ordinary = sum(token is not None for token in model.tokens) + (model.unknown is not None)
    listed = {**model.specials, **model.added}
    follow = sorted(listed.values()) == list(range(ordinary, ordinary + len(listed)))
    return frozenset() if follow and model.size == ordinary + len(listed) else frozenset(listed)


def _frame(model: TokenizerModel, ignore_merges: bool) -> dict[str, Any]:
    listed = sorted((number, name) for name, number in {**model.specials, **model.added}.items())
    traits = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name, **traits, "special": name in model.specials} for number, name in listed
        ],
        "normalizer": {"type": "NFC"} if model.nfc else None,
        "pre_tokenizer": None if model.characters else _pre_tokenizer(model.pattern, byte_level),
        "post_processor": None,
        "decoder": {"type": "Fuse"} if model.characters else byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": model.unknown[0] if model.unknown else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
        },
    }


def _pre_tokenizer(pattern: str, byte_level: dict[str, Any]) -> dict[str, Any]:
    from ramlet import _native

    if pattern == "gpt2":
        return byte_level
    bytes_only = {**byte_level, "use_regex": False}
    if pattern == "whole":
        return bytes_only
    regex = {"Regex": _native.pattern_regex(pattern)}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, bytes_only]}
