"""What the tokenizer commands share."""

from __future__ import annotations

from typing import Annotated, Any

from ramlet.cli.parameters import Option

TOKENIZERS = (
    "A tokenizer.json, its folder, vocab.json + merges.txt, a .tiktoken file, gpt2, byte, or a Hugging Face name."
)

TokenizerName = Annotated[str, Option("--tokenizer", "-T", metavar="TOKENIZER", shown=False, help=TOKENIZERS)]
Pattern = Annotated[
    str | None,
    Option(
        "--pattern",
        metavar="NAME",
        help="Pre-tokenization pattern, for files without one (.tiktoken): gpt2, cl100k, ... or a regex.",
    ),
]
AllowSpecial = Annotated[
    list[str] | None,
    Option(
        "--allow-special",
        metavar="TEXT|all",
        help="Special token to recognize in the text; may be given several times. Others are encoded as text.",
    ),
]


def allowed_special(given: list[str] | None) -> Any:
    """As `Tokenizer.encode` expects it."""
    return "all" if given and "all" in given else set(given or ())
