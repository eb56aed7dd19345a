"""`ramlet data inspect`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.data.options import DatasetPath, within
from ramlet.cli.options import Json, Memory, print_json
from ramlet.cli.parameters import Option
from ramlet.cli.passage import bar, token_text, write_tokens
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural

if TYPE_CHECKING:
    from ramlet.cli.progress import Progress
    from ramlet.dataset.reader import Dataset

SAMPLES = "Samples"


def inspect(
    dataset: DatasetPath,
    samples: Annotated[
        int,
        Option("--samples", "-n", metavar="N", min=0, panel=SAMPLES, help="Number of documents to show."),
    ] = 3,
    seed: Annotated[
        int,
        Option("--seed", metavar="N", panel=SAMPLES, help="Seed for picking the documents."),
    ] = 0,
    split: Annotated[str, Option("--split", metavar="train|val", panel=SAMPLES, help="Split to pick from.")] = "train",
    sample_tokens: Annotated[
        int,
        Option("--sample-tokens", metavar="N", min=1, panel=SAMPLES, help="Number of tokens to show of each."),
    ] = 200,
    repetition: Annotated[
        bool | None,
        Option(
            "--repetition/--no-repetition",
            shown="measure only up to 10M tokens",
            help="Measure how repetitive the text is, reading all of it twice, and save it for the report.",
        ),
    ] = None,
    memory: Memory = "auto",
    json: Json = False,
) -> None:
    """Show what is in a dataset: statistics, what was dropped and why, and random documents.

    ramlet data inspect my-dataset
    ramlet data inspect my-dataset --samples 10 --seed 7 --split val
    ramlet data inspect my-dataset --repetition
    """
    from ramlet.dataset.inspect import figures, samples_bytes
    from ramlet.dataset.inspect import samples as pick
    from ramlet.dataset.reader import Dataset
    from ramlet.runtime.budget import Budget, using_budget

    with using_budget(Budget.parse(memory)):
        opened = Dataset(dataset)
    measured, measures = _measured(opened, repetition)
    parts = {"the samples": samples_bytes(opened, split, samples, sample_tokens), **_longest(opened, measures)}
    with within(memory, silent=json, vocabulary=opened.vocab_size, more=parts) as (_, bar):
        described = figures(opened)
        picked = pick(opened, split, samples, seed, sample_tokens)
        if not json:
            _show_statistics(described)
            _show_lengths(described)
            _show_dropped(described)
        if measures:
            measured = _measure(opened, bar, wanted=bool(repetition))
        bar.close()
        if json:
            for one in picked:
                tokens = one["tokens"]
                one["text"] = None if tokens is None else b"".join(tokens).decode("utf-8", "replace")
                one["tokens"] = None if tokens is None else [token_text(token) for token in tokens]
            print_json({**described, "repetition": measured, "samples": picked})
            return
        _show_repetition(measured)
        _show_samples(picked, packed=described["packed"] is not None)


def _show_statistics(described: dict[str, Any]) -> None:
    tokenizer = described["tokenizer"]
    rows = [
        ("tokenizer", f"{tokenizer['name']} ({tokenizer['kind']}), {tokenizer['fingerprint']}"),
        ("ids", f"{described['dtype']}, vocabulary size {described['vocab_size']:,}"),
        ("end id", "none" if described["end_id"] is None else str(described["end_id"])),
    ]
    if described["packed"]:
        packed = described["packed"]
        share = packed["padding"] / max(1, described["tokens"])
        rows.append(
            (
                "packed",
                f"{plural(packed['sequences'], 'sequence')} of {packed['sequence_length']:,}, {share:.1%} padding, "
                f"{plural(packed['truncated_documents'], 'document')} split",
            )
        )
    for name, split in described["splits"].items():
        documents = plural(split["documents"], "piece" if described["packed"] else "document")
        rows.append((name, f"{plural(split['tokens'], 'token')}, {documents}, {plural(split['shards'], 'shard')}"))
    rows.append(("total", f"{plural(described['tokens'], 'token')}, {format_bytes(described['bytes'])}"))
    if described["characters_a_token"] is not None:
        rows.append(
            ("per token", f"{described['characters_a_token']:.2f} characters, {described['bytes_a_token']:.2f} bytes")
        )
    rows.append(("made in", plural(described["runs"], "run")))
    for name, value in rows:
        print(f"{name:<12} {value}")


def _show_lengths(described: dict[str, Any]) -> None:
    filled = [row for row in described["lengths"] if row["documents"]]
    if not filled:
        return
    print("\ntokens per document")
    most = max(row["documents"] for row in filled)
    between = [row for row in described["lengths"] if filled[0]["from"] <= row["from"] <= filled[-1]["from"]]
    labels = [f"{row['from']:,}" if row["from"] == row["to"] else f"{row['from']:,}-{row['to']:,}" for row in between]
    width = max(map(len, labels))
    for label, row in zip(labels, between):
        count = row["documents"]
        print(f"  {label:>{width}} {count:>11,}  {bar(count, most)}".rstrip())


def _show_dropped(described: dict[str, Any]) -> None:
    for title, rows in (("documents dropped", described["dropped"]), ("lines dropped", described["lines_dropped"])):
        if not rows:
            continue
        of = f", of {described['documents_read']:,} read" if title.startswith("documents") else ""
        print(f"\n{title}{of}")
        for row in rows:
            print(f"  {row['rule']:<16} {row['count']:>11,}  {format_bytes(row['bytes']):>8}  {row['why']}")
            for example in described["examples"].get(row["rule"], [])[:3]:
                where = f"{example.get('file')}, {example.get('document')}"
                print(f"      {where}: {token_text(str(example.get('text', ''))[:80].encode(errors='replace'))}")


def _measured(dataset: Dataset, wanted: bool | None) -> tuple[dict[str, Any] | None, bool]:
    """How repetitive the dataset was found to be before, and whether to measure it now."""
    from ramlet.dataset.repetition import QUICK_TOKENS, saved

    found = None if wanted else saved(dataset.path, dataset.manifest)
    small = sum(split.tokens for split in dataset.splits.values()) <= QUICK_TOKENS
    return found, found is None and wanted is not False and (bool(wanted) or small)


def _longest(dataset: Dataset, measures: bool) -> dict[str, int]:
    from ramlet.dataset.texts import longest_text
    from ramlet.errors import RamletError

    if not measures:
        return {}
    with suppress(RamletError, OSError):  # as below
        return {"the longest document": longest_text(dataset)}
    return {}


def _measure(dataset: Dataset, bar: Progress, *, wanted: bool) -> dict[str, Any] | None:
    from ramlet.dataset.repetition import measure, save
    from ramlet.errors import RamletError

    try:
        found = measure(dataset, lambda done, total: bar.update("counting repetitions", done, total, "tokens"))
    except (RamletError, OSError):
        # Without a tokenizer there is no text; `verify` reports what is wrong with it.
        if wanted:
            raise
        return None
    if wanted:
        save(dataset, found)
    return found


def _show_repetition(found: dict[str, Any] | None) -> None:
    if found is None:
        return
    documents = found["documents"]
    sampled = documents["sampled"]
    estimated = f", estimated from {sampled:,}" if sampled < documents["total"] else ""
    print(f"\nrepetition\n  {documents['share']:.2%} of the documents are copies of another{estimated}")
    near = found.get("near_duplicates")  # not in what earlier versions saved
    if near:
        what = f"near-duplicates (similarity {near['similarity']} or more)"
        print(f"  about {near['share']:.2%} are {what} of an earlier one")
    for name, part in (("lines", "lines"), (f"{found['ngram']}-grams", "ngrams")):
        counted = found[part]
        if not counted["most_frequent"]:
            print(f"  no {name} occur twice" if not counted["unlisted_at_most"] else f"  no frequent {name}")
            continue
        print(f"  most frequent {name}, of {counted['total']:,}")
        for each in counted["most_frequent"]:
            text = token_text(" ".join(each["text"].split())[:100].encode(errors="replace"))
            print(f"    {each['count']:>11,}  {text}")


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
