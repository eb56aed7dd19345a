"""Stories -> one HTML page that needs nothing but itself.

    html = page(stories)               opens from disk
    html = page(stories, live=True)    asks its server for a newer one, and keeps the place where one reads

The page loads nothing: its policy forbids every address, and lets run only the one script that is in it, known by its
hash. So whatever a model wrote stays text. The same files give the same page, byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.reporting import data_sections, memory_sections, run_sections
from ramlet.reporting.found import Run, look
from ramlet.reporting.markup import answer, escape, moment, table
from ramlet.reporting.repeat import commands
from ramlet.reporting.story import Story

__all__ = ["page", "sentence_page"]


def page(stories: Sequence[Story], *, live: bool = False) -> str:
    """All stories, one below the other; before several runs stands a comparison."""
    runs = [story.run for story in stories if story.run is not None]
    beside = _section("Runs beside each other", run_sections.compared(runs)) if len(runs) > 1 else ""
    told = "".join(_story(story, at) for at, story in enumerate(stories))
    names = ", ".join(story.path.resolve().name for story in stories)
    return _document(names, beside + told, live=live)


def sentence_page(sentence: str) -> str:
    """A page that is served while there is nothing else to tell."""
    return _document(
        "ramlet", f"<header><h1>Nothing to show yet</h1><p class=lead>{escape(sentence)}</p></header>", True
    )


def _document(names: str, body: str, live: bool) -> str:
    style, script = _beside("page.css"), _beside("page.js") + (_beside("live.js") if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'; connect-src '{'self' if live else 'none'}'"
    )
    again = "<noscript><meta http-equiv=refresh content=5></noscript>" if live else ""
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(names)} - ramlet report</title>{again}'
        f"<style>{style}</style></head>\n<body><main>{body}</main>"
        f"<footer>Made by ramlet {__version__} from what its stages wrote.</footer>"
        f"<script>{script}</script></body></html>\n"
    )


@cache
def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _story(story: Story, number: int) -> str:
    run = story.run
    parts = [_head(story)]
    if run is not None:
        metrics = run.metrics
        parts += [
            _section(
                "Learning",
                run_sections.losses(metrics) + run_sections.forgetting(metrics) + run_sections.thrift(metrics),
            ),
            _section("Speed", run_sections.speed(metrics)),
        ]
    parts.append(_section("Memory", memory_sections.memory_over_time(story)))
    if run is not None:
        parts.append(_section("Predicted and measured", memory_sections.predicted(run)))
    for dataset in story.datasets:
        many = f": {dataset.path.name}" if len(story.datasets) > 1 else ""
        parts.append(_section(f"Where the data went{many}", data_sections.ledger(dataset)))
        parts.append(_section(f"How long documents are{many}", data_sections.lengths(dataset)))
    if run is not None:
        prompt = look(run.settings, "all_settings", "sample_prompt")
        wrote = run_sections.samples(run.metrics, prompt if isinstance(prompt, str) else "")
        parts.append(_section("What it writes", wrote))
        parts.append(_section("Measures", run_sections.measures(run)))
    parts.append(_section("Settings", _settings(story, number)))
    return f"<article>{''.join(parts)}</article>"


def _head(story: Story) -> str:
    if story.run is not None:
        kind, words = "run", run_sections.run_head(story.run, [each.path.name for each in story.datasets])
    elif story.datasets:
        kind, words = "dataset", data_sections.dataset_head(story.datasets[0])
    else:
        kind, words = "tokenizer", data_sections.tokenizer_head(story.tokenizers[0])
    notes = [*story.notes, *(note for dataset in story.datasets for note in dataset.notes)]
    told = f"<ul class=notes>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""
    return f"<header><p class=kind>{kind}</p><h1>{escape(story.path.resolve().name)}</h1>{words}{told}</header>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _settings(story: Story, number: int) -> str:
    """The commands to repeat it, when and with what it was made, and every setting, folded."""
    repeat = "\n".join(commands(story))
    parts = [f"<h3>To do it again</h3><pre class=code>{escape(repeat)}</pre>"]
    made = [row for row in _made(story) if row]
    parts.append(table(("", "written", "by"), made))
    for name, values in _all_settings(story):
        rows = [(escape(key), answer(value)) for key, value in values]
        key = f"settings-{number}-{name}".replace(" ", "-")
        parts.append(
            f'<details data-key="{escape(key)}"><summary>{escape(name)}, {len(rows)} settings</summary>'
            f"{table(('', ''), rows)}</details>"
        )
    return "".join(parts)


def _made(story: Story) -> Iterable[tuple[str, str, str]]:
    for tokenizer in story.tokenizers:
        version = look(tokenizer.statistics, "ramlet")
        yield _row("tokenizer", tokenizer.path, tokenizer.files[0], f"ramlet {version}" if version else "")
    for dataset in story.datasets:
        yield _row("dataset", dataset.path, dataset.files[0], dataset.manifest.created_by)
    if story.run is not None:
        finished = story.run.statistics is not None
        version = look(story.run.settings, "ramlet")
        yield _row("run", story.run.path, story.run.files[2 if finished else 1], f"ramlet {version}" if version else "")


def _row(kind: str, path: Path, file: Path, version: Any) -> tuple[str, str, str]:
    return f"{kind} <code>{escape(path)}</code>", moment(file) or "", escape(version)


def _all_settings(story: Story) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
    run = story.run
    if run is not None:
        yield from _run_settings(run)
    for dataset in story.datasets:
        runs = dataset.manifest.runs
        values = look(runs[-1], "settings") if runs else None
        if isinstance(values, dict):
            yield f"dataset {dataset.path.name}", list(values.items())
    for tokenizer in story.tokenizers:
        values = look(tokenizer.statistics, "settings")
        if isinstance(values, dict):
            yield f"tokenizer {tokenizer.path.name}", list(values.items())


def _run_settings(run: Run) -> Iterable[tuple[str, list[tuple[str, Any]]]]:
    for name, title in (
        ("all_settings", "run as it was asked for"),
        ("job", "run as it was decided"),
        ("plan", "plan"),
    ):
        values = look(run.settings, name)
        if isinstance(values, dict):
            yield title, list(_flat(values))


def _flat(values: dict[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
