"""Sections about data: where documents and bytes went, how long documents are, what the tokenizer learned."""

from __future__ import annotations

from collections.abc import Callable

from ramlet.dataset.ledger import dropped_by_rule
from ramlet.reporting.bars import Branch, flow
from ramlet.reporting.charts import histogram
from ramlet.reporting.found import DatasetFound, TokenizerFound, number_at, value_at
from ramlet.reporting.lengths import EDGES
from ramlet.reporting.markup import escape, highlights, number, share, short, size, table
from ramlet.reporting.memory_sections import peak_of_budget
from ramlet.reporting.run_sections import memory_highlight
from ramlet.runtime.plurals import plural

KEPT, DROPPED, ALTERED = 3, 5, 2


def dataset_head(dataset: DatasetFound) -> str:
    """What it is in a sentence, and the result in three numbers."""
    manifest = dataset.manifest
    tokens = {name: split.tokens for name, split in manifest.splits.items()}
    documents = manifest.ledger["documents"]
    read = documents["read"] + documents["cut"]
    packed = f", packed in sequences of {manifest.packed.sequence_length:,}" if manifest.packed else ""
    lead = (
        f"<p class=lead>A dataset of <b>{sum(tokens.values()):,} tokens</b> in "
        f"{plural(len(manifest.shards), 'shard')}{packed}, made with the tokenizer "
        f"{escape(manifest.tokenizer.name)} of {manifest.vocab_size:,} tokens.</p>"
    )
    split = f"{tokens['train']:,} for training, {tokens['val']:,} for validation"
    kept = f"{share(documents['kept'], read)} of {read:,} read, {size(manifest.ledger['bytes']['kept'])}"
    return lead + highlights(
        [
            ("tokens", short(sum(tokens.values())), split),
            ("documents kept", f"{documents['kept']:,}", kept),
            memory_highlight(*peak_of_budget(dataset.statistics)),
        ]
    )


def tokenizer_head(tokenizer: TokenizerFound) -> str:
    """What it is in a sentence, and the result in three numbers."""
    statistics = tokenizer.statistics
    size_of = number_at(statistics, "tokenizer", "vocab_size")
    kind = value_at(statistics, "settings", "kind")
    vocabulary = number(size_of) if size_of is not None else "unknown"
    text, files = number_at(statistics, "read", "text_bytes"), number_at(statistics, "read", "files")
    merges, distinct = number_at(statistics, "tokenizer", "merges"), number_at(statistics, "distinct_pieces")
    learned = [
        plural(int(merges), "merge") + " learned" if merges is not None else "",
        f"from {number(distinct)} distinct pieces" if distinct is not None else "",
    ]
    return f"<p class=lead>A tokenizer ({escape(kind or 'of unknown kind')}).</p>" + highlights(
        [
            ("tokens in the vocabulary", vocabulary, " ".join(filter(None, learned))),
            ("text read", size(text or 0), "" if files is None else plural(int(files), "file")),
            memory_highlight(*peak_of_budget(statistics)),
        ]
    )


def ledger(dataset: DatasetFound) -> str:
    """Where documents and bytes went: everything that was read, and each rule that dropped some of it."""
    account = dataset.manifest.ledger
    documents, sizes = account["documents"], account["bytes"]
    read = documents["read"] + documents["cut"]
    of_documents: list[Branch] = [("kept", documents["kept"], _count(documents["kept"], read), KEPT)]
    dropped = dropped_by_rule(account, "document")
    of_documents += _dropped([(row.rule.name, row.units) for row in dropped], lambda count: _count(count, read))
    of_bytes: list[Branch] = [("kept", sizes["kept"], _bytes(sizes["kept"], sizes["read"]), KEPT)]
    for rows in (dropped, dropped_by_rule(account, "line")):
        of_bytes += _dropped([(row.rule.name, row.bytes) for row in rows], lambda count: _bytes(count, sizes["read"]))
    if sizes["normalised"] > 0:
        of_bytes.append(("normalization", sizes["normalised"], _bytes(sizes["normalised"], sizes["read"]), ALTERED))
    cut = f", {documents['cut']:,} of them parts of longer ones" if documents["cut"] else ""
    about = f"{documents['kept']:,} of {read:,} documents were kept"
    drawn = flow("Documents", f"{read:,} read{cut}", of_documents, about=about)
    drawn += flow("Bytes", f"{size(sizes['read'])} read", of_bytes, about=f"{size(sizes['kept'])} were kept")
    return f'<div class="pair">{drawn}</div>{_reasons(dataset)}' if drawn else ""


def _dropped(amounts: list[tuple[str, int]], form: Callable[[int], str]) -> list[Branch]:
    return [
        (rule.replace("_", " "), amount, form(amount), DROPPED)
        for rule, amount in sorted(amounts, key=lambda pair: -pair[1])
        if amount
    ]


def _count(count: int, total: int) -> str:
    return f"{count:,}, {share(count, total)}"


def _bytes(count: int, total: int) -> str:
    return f"{size(count)}, {share(count, total)}"


def _reasons(dataset: DatasetFound) -> str:
    """A table of the rules, with an example of what each dropped."""
    rows = []
    for unit in ("document", "line"):
        for rule, count, amount in dropped_by_rule(dataset.manifest.ledger, unit):
            examples = dataset.manifest.examples.get(rule.name) or [{}]
            shown = escape(str(examples[0].get("text") or "")[:90])
            example = f"<br><q>{shown}</q>" if shown else ""
            name = f"<b>{escape(rule.name.replace('_', ' '))}</b> <small>{escape(rule.meaning)}</small>{example}"
            rows.append((count, (name, f"{count:,} {unit}s", size(amount))))
    cells = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    return table(("dropped by", "count", "bytes"), cells, numbers=(1, 2)) if cells else ""


def lengths(dataset: DatasetFound) -> str:
    """A histogram of the tokens per document, with two bins per doubling."""
    found = dataset.lengths
    if found is None or not found.documents:
        return ""
    columns = list(zip(found.counts["train"], found.counts["val"]))
    filled = [at for at, counts in enumerate(columns) if any(counts)]
    first, last = filled[0], filled[-1]
    bins = [
        (f"{EDGES[at]:,} to {EDGES[at + 1] - 1:,} tokens", columns[at])
        for at in range(first, last + 1)
        if at + 1 < len(EDGES)
    ]
    edges = [at for at in range(first, last + 2) if at < len(EDGES)]
    # Every second, third, ... edge, if there are many: about nine labels fit.
    every = -(-len(edges) // 9)
    ticks = [(at - first, f"{EDGES[at]:,}" if EDGES[at] < 100_000 else short(EDGES[at])) for at in edges[::every]]
    what = "pieces" if dataset.manifest.packed else "documents"
    middle, large = found.quantile(0.5), found.quantile(0.95)
    about = f"Half of the {what} have fewer than {middle:,} tokens, 95% fewer than {large:,}"
    drawn = histogram(
        f"Tokens in {what}", bins, about=about, parts=(("train", 1), ("val", 2)), ticks=ticks, x_name="tokens"
    )
    rows = [
        (name, f"{split.documents:,}", f"{split.tokens:,}", short(split.tokens / max(1, split.documents)))
        for name, split in dataset.manifest.splits.items()
    ]
    total = table(("split", what, "tokens", f"per {what.rstrip('s')}"), rows, numbers=(1, 2, 3))
    return f"{drawn}<p class=note>{about}.</p>{total}"
