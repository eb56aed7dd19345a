"""`ramlet data inspect`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ramlet.cli.data.options import DatasetPath
from ramlet.cli.options import Debug, Json
from ramlet.cli.tokenizer.options import plural, print_json
from ramlet.cli.tokenizer.show import BAR, shown, write_tokens
from ramlet.runtime.budget import format_bytes

SAMPLES = "Samples"


def inspect(
    dataset: DatasetPath,
    samples: Annotated[
        int, typer.Option("--samples", "-n", metavar="N", min=0, rich_help_panel=SAMPLES, help="Documents to show.")
    ] = 3,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", rich_help_panel=SAMPLES, help="Which ones: the same seed, the same ones."),
    ] = 0,
    split: Annotated[
        str, typer.Option("--split", metavar="train|val", rich_help_panel=SAMPLES, help="Where they come from.")
    ] = "train",
    sample_tokens: Annotated[
        int,
        typer.Option(
            "--sample-tokens", metavar="N", min=1, rich_help_panel=SAMPLES, help="Show so many tokens of each."
        ),
    ] = 200,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is in a dataset: its figures, what was dropped and why, and documents picked at random.

    ramlet data inspect my-dataset
    ramlet data inspect my-dataset --samples 10 --seed 7 --split val
    """
    from ramlet.dataset.inspect import figures
    from ramlet.dataset.inspect import samples as pick
    from ramlet.dataset.reader import Dataset

    opened = Dataset(dataset)
    told = figures(opened)
    picked = pick(opened, split, samples, seed, sample_tokens)
    if json:
        for one in picked:
            tokens = one["tokens"]
            one["text"] = None if tokens is None else b"".join(tokens).decode("utf-8", "replace")
            one["tokens"] = None if tokens is None else [shown(token) for token in tokens]
        print_json({**told, "samples": picked})
        return
    _show_figures(told)
    _show_lengths(told)
    _show_dropped(told)
    _show_samples(picked, packed=told["packed"] is not None)


def _show_figures(told: dict[str, Any]) -> None:
    tokenizer = told["tokenizer"]
    rows = [
        ("tokenizer", f"{tokenizer['name']} ({tokenizer['kind']}), {tokenizer['fingerprint']}"),
        ("ids", f"{told['dtype']}, of a vocabulary of {told['vocab_size']:,}"),
        ("end id", "none" if told["end_id"] is None else str(told["end_id"])),
    ]
    if told["packed"]:
        packed = told["packed"]
        share = packed["padding"] / max(1, told["tokens"])
        rows.append(
            (
                "packed",
                f"{plural(packed['sequences'], 'sequence')} of {packed['sequence_length']:,}, {share:.1%} padding, "
                f"{plural(packed['truncated_documents'], 'document')} in several pieces",
            )
        )
    for name, split in told["splits"].items():
        documents = plural(split["documents"], "piece" if told["packed"] else "document")
        rows.append((name, f"{plural(split['tokens'], 'token')}, {documents}, {plural(split['shards'], 'shard')}"))
    rows.append(("in all", f"{plural(told['tokens'], 'token')}, {format_bytes(told['bytes'])}"))
    if told["characters_a_token"] is not None:
        rows.append(("a token", f"{told['characters_a_token']:.2f} characters, {told['bytes_a_token']:.2f} bytes"))
    rows.append(("made in", plural(told["runs"], "run")))
    for name, value in rows:
        print(f"{name:<12} {value}")


def _show_lengths(told: dict[str, Any]) -> None:
    filled = [row for row in told["lengths"] if row["documents"]]
    if not filled:
        return
    print("\ntokens a document")
    most = max(row["documents"] for row in filled)
    between = [row for row in told["lengths"] if filled[0]["from"] <= row["from"] <= filled[-1]["from"]]
    labels = [f"{row['from']:,}" if row["from"] == row["to"] else f"{row['from']:,}-{row['to']:,}" for row in between]
    width = max(map(len, labels))
    for label, row in zip(labels, between):
        count = row["documents"]
        bar = "█" * max(1, round(BAR * count / most)) if count else ""
        print(f"  {label:>{width}} {count:>11,}  {bar}".rstrip())


def _show_dropped(told: dict[str, Any]) -> None:
    for title, rows in (("documents dropped", told["dropped"]), ("lines dropped", told["lines_dropped"])):
        if not rows:
            continue
        of = f", of {told['documents_read']:,} read" if title.startswith("documents") else ""
        print(f"\n{title}{of}")
        for row in rows:
            print(f"  {row['rule']:<16} {row['count']:>11,}  {format_bytes(row['bytes']):>8}  {row['why']}")
            for example in told["examples"].get(row["rule"], [])[:3]:
                where = f"{example.get('file')}, {example.get('document')}"
                print(f"      {where}: {shown(str(example.get('text', ''))[:80].encode(errors='replace'))}")


def _show_samples(picked: list[dict[str, Any]], *, packed: bool) -> None:
    for one in picked:
        what = "piece" if packed else "document"
        print(f"\n{one['split']}, {what} {one['document']:,}: {plural(one['tokens_in_all'], 'token')}")
        if one["tokens"] is None:
            print(*one["ids"])
        else:
            write_tokens(one["tokens"])
            print()
        left = one["tokens_in_all"] - len(one["ids"])
        if left:
            print(f"... and {plural(left, 'token')} more")
