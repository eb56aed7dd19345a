"""One self-contained HTML page.

    html = page(lineages)               opens from disk
    html = page(lineages, live=True)    asks its server for a newer one, and keeps the scroll position

The page loads nothing: its content security policy forbids every address, and allows only the one script in it, by its
hash. So whatever a model wrote stays text. The same files give the same page, byte for byte.

`_sections` lists all sections in order: a new chart is a function in one of *_sections.py and a line there.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.reporting import data_sections, memory_sections, repetition_sections, run_sections
from ramlet.reporting.found import value_at
from ramlet.reporting.lineage import Lineage
from ramlet.reporting.markup import escape, setting_value, table, write_time
from ramlet.reporting.repeat import commands

BEGINNING = "<!DOCTYPE html>"


def page(lineages: Sequence[Lineage], *, live: bool = False) -> str:
    """One article per lineage; several runs are compared first."""
    runs = [lineage.run for lineage in lineages if lineage.run is not None]
    comparison = _section("Runs compared", run_sections.compared(runs)) if len(runs) > 1 else ""
    articles = "".join(_article(lineage, at) for at, lineage in enumerate(lineages))
    names = ", ".join(lineage.path.resolve().name for lineage in lineages)
    return _document(names, comparison + articles, live=live)


def sentence_page(sentence: str) -> str:
    """A page that is served while there is nothing else to show."""
    body = f"<header><h1>Nothing to show yet</h1><p class=lead>{escape(sentence)}</p></header>"
    return _document("ramlet", body, live=True)


def _document(names: str, body: str, *, live: bool) -> str:
    style, script = _asset("page.css"), _asset("page.js") + (_asset("live.js") if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'; connect-src '{'self' if live else 'none'}'"
    )
    refresh = "<noscript><meta http-equiv=refresh content=5></noscript>" if live else ""
    return (
        f"{BEGINNING}\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(names)} - ramlet report</title>{refresh}'
        f"<style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>Made by ramlet {__version__} from the files that its stages wrote.</footer>"
        f"<script>{script}</script></body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _article(lineage: Lineage, number: int) -> str:
    sections = "".join(_section(title, content) for title, content in _sections(lineage))
    settings = _section("Settings", _settings(lineage, number))
    return f"<article>{_head(lineage)}{sections}{settings}</article>"


def _sections(lineage: Lineage) -> Iterator[tuple[str, str]]:
    """Titles and contents, in the order of the page; empty ones are left out."""
    run = lineage.run
    if run is not None:
        metrics = run.metrics
        curves = (run_sections.losses, run_sections.forgetting, run_sections.lr_and_grad_norm)
        yield "Learning", "".join(draw(metrics) for draw in curves)
        yield "Speed", run_sections.speed(metrics)
    yield "Memory", memory_sections.memory_over_time(lineage)
    if run is not None:
        yield "Predicted and measured", memory_sections.predicted(run)
    for dataset in lineage.datasets:
        name = f": {dataset.path.name}" if len(lineage.datasets) > 1 else ""
        yield f"Where the data went{name}", data_sections.ledger(dataset)
        yield f"Document lengths{name}", data_sections.lengths(dataset)
        yield f"Near-duplicates{name}", repetition_sections.near_duplicates(dataset)
        yield f"Repeated text{name}", repetition_sections.repetition(dataset)
    if run is not None:
        prompt = value_at(run.settings, "all_settings", "sample_prompt")
        yield "Samples", run_sections.samples(run.metrics, prompt if isinstance(prompt, str) else "")
        yield "Measures", run_sections.measures(run)


def _head(lineage: Lineage) -> str:
    if lineage.run is not None:
        kind, lead = "run", run_sections.run_head(lineage.run, [each.path.name for each in lineage.datasets])
    elif lineage.datasets:
        kind, lead = "dataset", data_sections.dataset_head(lineage.datasets[0])
    else:
        kind, lead = "tokenizer", data_sections.tokenizer_head(lineage.tokenizers[0])
    lines = [*lineage.notes, *(note for dataset in lineage.datasets for note in dataset.notes)]
    notes = f"<ul class=notes>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""
    return f"<header><p class=kind>{kind}</p><h1>{escape(lineage.path.resolve().name)}</h1>{lead}{notes}</header>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _settings(lineage: Lineage, number: int) -> str:
    """The commands to reproduce it, when and by what it was made, and every setting, folded."""
    parts = [f"<h3>To reproduce it</h3><pre class=code>{escape(chr(10).join(commands(lineage)))}</pre>"]
    parts.append(table(("", "written", "by"), _written(lineage)))
    for name, values in _all_settings(lineage):
        if not isinstance(values, dict):
            continue
        rows = [(escape(key), setting_value(value)) for key, value in _flat(values)]
        key = f"settings-{number}-{name}".replace(" ", "-")
        parts.append(
            f'<details data-key="{escape(key)}"><summary>{escape(name)}, {len(rows)} settings</summary>'
            f"{table(('', ''), rows)}</details>"
        )
    return "".join(parts)


def _written(lineage: Lineage) -> Iterator[tuple[str, str, str]]:
    def row(kind: str, path: Path, file: Path, by: str) -> tuple[str, str, str]:
        return f"{kind} <code>{escape(path)}</code>", write_time(file) or "", escape(by)

    def ramlet(recorded: Any) -> str:
        version = value_at(recorded, "ramlet")
        return f"ramlet {version}" if version else ""

    for tokenizer in lineage.tokenizers:
        yield row("tokenizer", tokenizer.path, tokenizer.files[0], ramlet(tokenizer.statistics))
    for dataset in lineage.datasets:
        yield row("dataset", dataset.path, dataset.files[0], dataset.manifest.created_by)
    if (run := lineage.run) is not None:
        yield row("run", run.path, run.files[1 if run.statistics is None else 2], ramlet(run.settings))


def _all_settings(lineage: Lineage) -> Iterator[tuple[str, Any]]:
    if (run := lineage.run) is not None:
        yield "run as requested", value_at(run.settings, "all_settings")
        yield "run as decided", value_at(run.settings, "job")
        yield "plan", value_at(run.settings, "plan")
    for dataset in lineage.datasets:
        runs = dataset.manifest.runs
        yield f"dataset {dataset.path.name}", value_at(runs[-1], "settings") if runs else None
    for tokenizer in lineage.tokenizers:
        yield f"tokenizer {tokenizer.path.name}", value_at(tokenizer.statistics, "settings")


def _flat(values: dict[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
