"""The page's sections about data: where documents and bytes went, how long they are, what the tokenizer learned."""

from __future__ import annotations

from collections.abc import Callable

from ramlet.dataset.ledger import dropped_by_rule
from ramlet.reporting.bars import Way, flow
from ramlet.reporting.charts import histogram
from ramlet.reporting.found import DatasetFound, TokenizerFound, figure, look
from ramlet.reporting.lengths import EDGES
from ramlet.reporting.markup import escape, figures, number, share, short, size, table
from ramlet.reporting.memory_sections import peak_of_budget
from ramlet.reporting.run_sections import memory_figure
from ramlet.runtime.plurals import plural

__all__ = ["dataset_head", "ledger", "lengths", "tokenizer_head"]

KEPT, DROPPED, ALTERED = 3, 5, 2


def dataset_head(dataset: DatasetFound) -> str:
    """What it is in a sentence, and the result in three figures."""
    manifest = dataset.manifest
    tokens = {name: split.tokens for name, split in manifest.splits.items()}
    documents = manifest.ledger["documents"]
    read = documents["read"] + documents["cut"]
    packed = f", packed in sequences of {manifest.packed.sequence_length:,}" if manifest.packed else ""
    words = (
        f"<p class=lead>A dataset of <b>{sum(tokens.values()):,} tokens</b> in "
        f"{plural(len(manifest.shards), 'shard')}{packed}, made with the tokenizer "
        f"{escape(manifest.tokenizer.name)} of {manifest.vocab_size:,} tokens.</p>"
    )
    split = f"{tokens['train']:,} to learn from, {tokens['val']:,} to validate on"
    kept = f"{share(documents['kept'], read)} of {read:,} read, {size(manifest.ledger['bytes']['kept'])}"
    return words + figures(
        [
            ("tokens", short(sum(tokens.values())), split),
            ("documents kept", f"{documents['kept']:,}", kept),
            memory_figure(*peak_of_budget(dataset.statistics)),
        ]
    )


def tokenizer_head(tokenizer: TokenizerFound) -> str:
    """What it is in a sentence, and the result in three figures."""
    statistics = tokenizer.statistics
    size_of = figure(statistics, "tokenizer", "vocab_size")
    kind = look(statistics, "settings", "kind")
    vocabulary = number(size_of) if size_of is not None else "not known"
    text, files = figure(statistics, "read", "text_bytes"), figure(statistics, "read", "files")
    merges, distinct = figure(statistics, "tokenizer", "merges"), figure(statistics, "distinct_pieces")
    learned = [
        plural(int(merges), "merge") + " learned" if merges is not None else "",
        f"from {number(distinct)} distinct pieces" if distinct is not None else "",
    ]
    return f"<p class=lead>A tokenizer ({escape(kind or 'of unknown kind')}).</p>" + figures(
        [
            ("tokens in the vocabulary", vocabulary, " ".join(filter(None, learned))),
            ("text read", size(text or 0), "" if files is None else plural(int(files), "file")),
            memory_figure(*peak_of_budget(statistics)),
        ]
    )


def ledger(dataset: DatasetFound) -> str:
    """Where documents and bytes went: all that was read, and every named reason that something is not there."""
    account = dataset.manifest.ledger
    documents, held = account["documents"], account["bytes"]
    read = documents["read"] + documents["cut"]
    ways: list[Way] = [("kept", documents["kept"], _counted(documents["kept"], read), KEPT)]
    dropped = dropped_by_rule(account, "document")
    ways += _ways([(row.rule.name, row.units) for row in dropped], lambda count: _counted(count, read))
    of_bytes: list[Way] = [("kept", held["kept"], _weighed(held["kept"], held["read"]), KEPT)]
    for rows in (dropped, dropped_by_rule(account, "line")):
        of_bytes += _ways([(row.rule.name, row.bytes) for row in rows], lambda count: _weighed(count, held["read"]))
    if held["normalised"] > 0:
        of_bytes.append(("normalization", held["normalised"], _weighed(held["normalised"], held["read"]), ALTERED))
    cut = f", {documents['cut']:,} of them parts of longer ones" if documents["cut"] else ""
    drawn = flow(
        "Documents", f"{read:,} read{cut}", ways, about=f"{documents['kept']:,} of {read:,} documents were kept"
    ) + flow("Bytes", f"{size(held['read'])} read", of_bytes, about=f"{size(held['kept'])} were kept")
    return f'<div class="pair">{drawn}</div>{_reasons(dataset)}' if drawn else ""


def _ways(amounts: list[tuple[str, int]], words: Callable[[int], str]) -> list[Way]:
    return [
        (rule.replace("_", " "), amount, words(amount), DROPPED)
        for rule, amount in sorted(amounts, key=lambda pair: -pair[1])
        if amount
    ]


def _edge(tokens: int) -> str:
    return f"{tokens:,}" if tokens < 100_000 else short(tokens)


def _counted(count: int, total: int) -> str:
    return f"{count:,}, {share(count, total)}"


def _weighed(count: int, total: int) -> str:
    return f"{size(count)}, {share(count, total)}"


def _reasons(dataset: DatasetFound) -> str:
    """A table of the reasons, and an example of what each left out."""
    rows = []
    for unit in ("document", "line"):
        for rule, count, amount in dropped_by_rule(dataset.manifest.ledger, unit):
            examples = dataset.manifest.examples.get(rule.name) or [{}]
            shown = escape(str(examples[0].get("text") or "")[:90])
            example = f"<br><q>{shown}</q>" if shown else ""
            name = f"<b>{escape(rule.name.replace('_', ' '))}</b> <small>{escape(rule.meaning)}</small>{example}"
            rows.append((count, (name, f"{count:,} {unit}s", size(amount))))
    cells = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    return table(("left out because", "how many", "bytes"), cells, numbers=(1, 2)) if cells else ""


def lengths(dataset: DatasetFound) -> str:
    """How many documents have how many tokens, in bins that double every second time."""
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
    # Of many edges every second, third, ...: there is room for about nine.
    every = -(-len(edges) // 9)
    ticks = [(at - first, _edge(EDGES[at])) for at in edges[::every]]
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
    total = table(("split", what, "tokens", "a " + what.rstrip("s")), rows, numbers=(1, 2, 3))
    return f"{drawn}<p class=note>{about}.</p>{total}"
