"""`ramlet tokenizer show`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.options import Json, print_json
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.passage import bar, token_text, write_tokens
from ramlet.cli.tokenizer.options import TOKENIZERS, AllowSpecial, Pattern, allowed_special
from ramlet.runtime.plurals import plural

if TYPE_CHECKING:
    from ramlet.tokenizer.tokenizer import Tokenizer

KINDS = {
    "bpe": "byte-level BPE",
    "byte": "bytes",
    "char": "characters",
    "hf": "another type, run by HF tokenizers",
}


def show(
    tokenizer: Annotated[str, Argument(metavar="TOKENIZER", shown=False, help=TOKENIZERS)],
    text: Annotated[str | None, Option("--text", metavar="TEXT", help="Show the tokens of this text.")] = None,
    allow_special: AllowSpecial = None,
    pattern: Pattern = None,
    json: Json = False,
) -> None:
    """Show statistics of a tokenizer, or the tokens of a text.

    ramlet tokenizer show my-tokenizer
    ramlet tokenizer show gpt2 --text "Hello, world"
    """
    from ramlet.tokenizer.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer, pattern=pattern)
    if text is not None:
        _show_text(loaded, text, loaded.encode(text, allowed_special(allow_special)), json)
        return
    statistics = _statistics(loaded)
    if json:
        print_json({"path": str(tokenizer), **statistics})
        return
    _show_statistics(statistics)


def _statistics(tokenizer: Tokenizer) -> dict[str, Any]:
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
        "longest": [{"id": number, "token": token_text(token)} for number, token in longest],
    }


def _show_statistics(statistics: dict[str, Any]) -> None:
    rows = [("type", KINDS[statistics["kind"]])]
    merges = f", {plural(statistics['merges'], 'merge')}" if statistics["merges"] else ""
    gaps = statistics["vocab_size"] - statistics["tokens"]
    rows.append(("vocabulary", plural(statistics["tokens"], "token") + merges))
    if gaps:
        rows.append(("ids", f"0 to {statistics['vocab_size'] - 1:,}, {gaps:,} of them unused"))
    specials = list(statistics["special_tokens"].items())
    names = ", ".join(f"{name} ({number})" for name, number in specials[:8])
    more = f" and {len(specials) - 8:,} more" if len(specials) > 8 else ""
    rows.append(("special", names + more or "none"))
    if statistics["pattern"]:
        rows.append(("pattern", statistics["pattern"]))
    rows.append(("fingerprint", statistics["fingerprint"]))
    for name, value in rows:
        print(f"{name:<12} {value}")
    print("\nbytes per token")
    counts = statistics["bytes_a_token"]
    most = max(counts.values(), default=1)
    for length, count in list(counts.items())[:16]:
        print(f"{length:>6} {count:>9,}  {bar(count, most)}")
    rest = sum(list(counts.values())[16:])
    if rest:
        print(f"  more {rest:>9,}  {bar(rest, most)}")
    print("\nlongest tokens")
    for one in statistics["longest"]:
        print(f"{one['id']:>9}  {one['token']}")


def _show_text(tokenizer: Tokenizer, text: str, ids: list[int], as_json: bool) -> None:
    vocabulary = tokenizer.vocabulary
    tokens = [vocabulary[number] for number in ids]
    if as_json:
        print_json({"ids": ids, "tokens": [token_text(token) for token in tokens]})
        return
    write_tokens(tokens)
    size = len(text.encode())
    ratio = f", {size / len(ids):.2f} bytes per token" if ids else ""
    print(f"\n{plural(len(ids), 'token')} of {plural(size, 'byte')}{ratio}")
