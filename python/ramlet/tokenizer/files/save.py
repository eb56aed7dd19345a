"""Saves a tokenizer in any format that can represent it."""

from __future__ import annotations

from pathlib import Path

from ramlet.errors import SettingsError, TokenizerError
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.folder_lock import hold
from ramlet.tokenizer.engines import HfEngine
from ramlet.tokenizer.files import tiktoken, tokenizer_json, vocab_merges
from ramlet.tokenizer.model import TokenizerModel

FORMATS = ("json", "tiktoken", "vocab")


def save(model: TokenizerModel | HfEngine, path: Path, form: str | None) -> None:
    """See `ramlet.Tokenizer.save`."""
    if form is None:
        form = "tiktoken" if path.suffix == ".tiktoken" else "json"
    if form not in FORMATS:
        raise SettingsError(f"unknown format {form!r}: use {', '.join(FORMATS)}")
    try:
        if form == "json":
            if path.suffix != ".json":
                path.mkdir(parents=True, exist_ok=True)
                path /= "tokenizer.json"
            with replacing(path, streams=True) as file:
                if isinstance(model, HfEngine):
                    file.write(model.text)
                else:
                    tokenizer_json.write(model, file)
        elif isinstance(model, HfEngine):
            raise TokenizerError('only tokenizer.json can represent this tokenizer: save it with format="json"')
        elif form == "tiktoken":
            tiktoken.write(model, path)
        else:
            with hold(path, "Tokenizer.save", instead="folder"):  # two files that belong together
                vocab_merges.write(model, path)
    except OSError as error:
        if error.strerror is None:
            raise
        raise TokenizerError(f"cannot write {path}: {error.strerror}") from None
