"""Loads a tokenizer from a file, a folder, a known name or a name on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramlet.errors import SettingsError, TokenizerError, option
from ramlet.tokenizer.engines import HfEngine
from ramlet.tokenizer.files import gpt2, hub, tiktoken, tokenizer_json, vocab_merges
from ramlet.tokenizer.model import TokenizerModel, byte_model

_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))

Specials = Mapping[str, int] | Iterable[str]


def load(source: str | os.PathLike[str], pattern: str | None, special_tokens: Specials) -> TokenizerModel | HfEngine:
    """See `ramlet.Tokenizer.load`. A known name wins over a file of that name: write ./gpt2 for the file."""
    name = os.fspath(source)
    if name in ("gpt2", "byte"):
        _no_settings(name, pattern, special_tokens)
        return gpt2.read() if name == "gpt2" else byte_model()
    if name == "char":
        raise TokenizerError(
            "a character tokenizer has the characters of its training text: "
            f"train one ({option('kind', 'char')}) and give its folder"
        )
    path = Path(name)
    try:
        if path.is_dir():
            return _folder(path, pattern, special_tokens)
        if path.exists():
            return _file(path, pattern, special_tokens)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TokenizerError(f"cannot read {path}: {reason}") from None
    if not hub.looks_like_a_name(name):
        raise TokenizerError(
            f"no such tokenizer file or folder: {name} (known names: gpt2, byte; on the hub: owner/name)"
        )
    return _file(hub.download(name, "tokenizer.json"), pattern, special_tokens)


def load_object(given: Any, pattern: str | None, special_tokens: Specials) -> TokenizerModel | HfEngine:
    """From an object of HF tokenizers, or a fast tokenizer of transformers, which contains one."""
    inside = getattr(given, "backend_tokenizer", given)
    if not hasattr(inside, "to_str"):
        raise TokenizerError(
            f"a tokenizer is a name, a file, a folder, or an object of ramlet or HF, not {type(given).__name__}"
        )
    with TemporaryDirectory(prefix="ramlet-") as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(inside.to_str(), encoding="utf-8")
        return _file(path, pattern, special_tokens)


def _folder(folder: Path, pattern: str | None, special_tokens: Specials) -> TokenizerModel | HfEngine:
    if (folder / "tokenizer.json").exists():
        return _file(folder / "tokenizer.json", pattern, special_tokens)
    for vocab, merges in _PAIRS:
        if (folder / vocab).exists() and (folder / merges).exists():
            return _pair(folder / vocab, folder / merges, pattern, special_tokens)
    found = sorted(folder.glob("*.tiktoken"))
    if len(found) == 1:
        return tiktoken.read(found[0], pattern, special_tokens)
    raise TokenizerError(f"no tokenizer in the folder {folder}: neither tokenizer.json nor vocab.json and merges.txt")


def _file(path: Path, pattern: str | None, special_tokens: Specials) -> TokenizerModel | HfEngine:
    for vocab, merges in _PAIRS:
        if path.name in (vocab, merges):
            missing = path.with_name(merges if path.name == vocab else vocab)
            if not missing.exists():
                raise TokenizerError(f"{path} is half a tokenizer: {missing.name} is missing next to it")
            return _pair(path.with_name(vocab), path.with_name(merges), pattern, special_tokens)
    if path.suffix == ".tiktoken":
        return tiktoken.read(path, pattern, special_tokens)
    _no_settings(str(path), pattern, special_tokens)
    model, reason = tokenizer_json.read(path)
    return HfEngine(str(path), reason) if model is None else model


def _pair(vocab: Path, merges: Path, pattern: str | None, special_tokens: Specials) -> TokenizerModel:
    if special_tokens:
        raise SettingsError(f"{vocab} has its own special tokens: do not give {option('special_tokens')}")
    return vocab_merges.read(vocab, merges, pattern)


def _no_settings(name: str, pattern: str | None, special_tokens: Specials) -> None:
    if pattern is not None or special_tokens:
        what, setting = ("pattern", "pattern") if pattern is not None else ("special tokens", "special_tokens")
        raise SettingsError(f"{name} has its own {what}: do not give {option(setting)}")
