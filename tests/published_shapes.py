"""Tokenizer files as the models of the field have them, made from small vocabularies, and HF's word on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from oracles import many_scripts
from ramlet import Tokenizer

END = "<|endoftext|>"
DOCUMENTS = many_scripts(80_000, seed=1)
TEXTS = [
    *DOCUMENTS[:60],
    "",
    " ",
    f"a{END}b <|im_start|>user\n",
    "e\u0301 e\u0301x Å A\u030a",
    "don't DON'T 12345 \r\n\r\n x",
]

# As published with Llama 3, Qwen 2 and GPT-4o.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


def document_of(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """The tokenizer's file, to be changed."""
    tokenizer.save(folder / "made.json")
    document: dict[str, Any] = json.loads((folder / "made.json").read_text())
    return document


def stored(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def split(regex: str, **options: Any) -> dict[str, Any]:
    """A Split and a ByteLevel, as these files write them."""
    cut = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **options}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [cut, byte_level]}


def added(number: int, content: str, **traits: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content, **usual, **traits}


def assert_same_as_hf(path: Path, texts: list[str] = TEXTS) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    hf = tokenizers.Tokenizer.from_file(str(path))
    hf.encode_special_tokens = True
    for text in texts:
        assert tokenizer.encode(text) == hf.encode(text, add_special_tokens=False).ids, text
    hf.encode_special_tokens = False
    for text in texts:
        assert tokenizer.encode(text, "all") == hf.encode(text, add_special_tokens=False).ids, text
    return tokenizer
