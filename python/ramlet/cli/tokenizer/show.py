"""`ramlet tokenizer show`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramlet.cli.color import colored
from ramlet.cli.options import Debug, Json
from ramlet.cli.tokenizer.encode import AllowSpecial
from ramlet.cli.tokenizer.options import Pattern, plural, print_json

if TYPE_CHECKING:
    from ramlet.tokenizer.tokenizer import Tokenizer

KINDS = {
    "bpe": "byte-level BPE",
    "byte": "bytes",
    "char": "characters",
    "hf": "another family, run by HF's library",
}
COLOURS = (153, 223, 157, 217, 189, 229)
"""Of the terminal's 256: light ones, under black letters."""

BAR = 40


def show(
    tokenizer: Annotated[
        str,
        typer.Argument(
            metavar="X",
            show_default=False,
            help="A tokenizer.json, its folder, vocab.json + merges.txt, a .tiktoken, gpt2, byte, or a hub name.",
        ),
    ],
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Show this text cut into its tokens.")
    ] = None,
    allow_special: AllowSpecial = None,
    pattern: Pattern = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a tokenizer's figures, or a text cut into tokens.

    ramlet tokenizer show my-tokenizer
    ramlet tokenizer show gpt2 --text "Hello, world"
    """
    from ramlet.tokenizer.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer, pattern=pattern)
    if text is not None:
        allowed: Any = "all" if allow_special and "all" in allow_special else set(allow_special or ())
        _show_text(loaded, text, loaded.encode(text, allowed), json)
        return
    figures = _figures(loaded)
    if json:
        print_json({"path": str(tokenizer), **figures})
        return
    _show_figures(figures)


def _figures(tokenizer: Tokenizer) -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary
    special = set(tokenizer.special_tokens.values())
    ordinary = {number: token for number, token in vocabulary.items() if number not in special}
    longest = sorted(ordinary.items(), key=lambda item: (-len(item[1]), item[0]))[:10]
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "tokens": len(vocabulary),
        "merges": len(tokenizer.merges) if tokenizer.kind == "bpe" else 0,
        "special_tokens": tokenizer.special_tokens,
        "end_of_text": tokenizer.end_of_text,
        "pattern": tokenizer.pattern,
        "fingerprint": tokenizer.fingerprint,
        "bytes_a_token": dict(sorted(Counter(map(len, ordinary.values())).items())),
        "longest": [{"id": number, "token": shown(token)} for number, token in longest],
    }


def _show_figures(figures: dict[str, Any]) -> None:
    rows = [("type", KINDS[figures["kind"]])]
    merges = f", {plural(figures['merges'], 'merge')}" if figures["merges"] else ""
    gaps = figures["vocab_size"] - figures["tokens"]
    rows.append(("vocabulary", plural(figures["tokens"], "token") + merges))
    if gaps:
        rows.append(("ids", f"0 to {figures['vocab_size'] - 1:,}, {gaps:,} of them without a token"))
    specials = list(figures["special_tokens"].items())
    words = ", ".join(f"{name} ({number})" for name, number in specials[:8])
    more = f" and {len(specials) - 8:,} more" if len(specials) > 8 else ""
    rows.append(("special", words + more or "none"))
    if figures["pattern"]:
        rows.append(("pattern", figures["pattern"]))
    rows.append(("fingerprint", figures["fingerprint"]))
    for name, value in rows:
        print(f"{name:<12} {value}")
    print("\nbytes a token")
    counts = figures["bytes_a_token"]
    most = max(counts.values(), default=1)
    for length, count in list(counts.items())[:16]:
        print(f"{length:>6} {count:>9,}  {'█' * max(1, round(BAR * count / most))}")
    rest = sum(list(counts.values())[16:])
    if rest:
        print(f"  more {rest:>9,}  {'█' * max(1, round(BAR * rest / most))}")
    print("\nlongest tokens")
    for one in figures["longest"]:
        print(f"{one['id']:>9}  {one['token']}")


def shown(token: bytes) -> str:
    """The token on one line: what is no whole character, or does not print, is escaped.

    >>> shown(" naïve".encode()), shown(b"\\n"), shown("語".encode()[:2])
    (' naïve', '\\\\n', '\\\\xe8\\\\xaa')
    """
    text = token.decode("utf-8", "backslashreplace")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def write_tokens(tokens: Iterable[bytes]) -> None:
    """The tokens side by side, told apart by colours, or by brackets where there are none."""
    in_colours = colored(sys.stdout)
    for at, token in enumerate(tokens):
        # The line ends where the text's does, as well as being shown.
        end = "\n" if token.endswith(b"\n") else ""
        if in_colours:
            sys.stdout.write(f"\x1b[30;48;5;{COLOURS[at % len(COLOURS)]}m{shown(token)}\x1b[0m{end}")
        else:
            sys.stdout.write(f"[{shown(token)}]{end}")


def _show_text(tokenizer: Tokenizer, text: str, ids: list[int], as_json: bool) -> None:
    vocabulary = tokenizer.vocabulary
    tokens = [vocabulary[number] for number in ids]
    if as_json:
        print_json({"ids": ids, "tokens": [shown(token) for token in tokens]})
        return
    write_tokens(tokens)
    size = len(text.encode())
    ratio = f", {size / len(ids):.2f} bytes a token" if ids else ""
    print(f"\n{plural(len(ids), 'token')} of {plural(size, 'byte')}{ratio}")
