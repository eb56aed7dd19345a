"""`ramlet prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, Debug, Json, Memory, Quiet
from ramlet.cli.progress import Progress, format_duration
from ramlet.cli.tokenizer.options import InputFlag, Threads, note, plural, print_json, reading_notes
from ramlet.errors import SettingsError
from ramlet.preparing.settings import OUTPUT, PrepareSettings
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import noun
from ramlet.settings.declared import options

UNITS = {"comparing": "hashes", "sharding": "tokens"}


@with_settings(*options(PrepareSettings), panels=(OUTPUT, MEMORY))
def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT... | CONFIG.yaml",
            show_default=False,
            help="Files, folders, globs, -, hub names or addresses (s3://...); or one config file that names them.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", "--out-dir", metavar="DIR", show_default=False, help="Folder for the dataset."),
    ] = None,
    memory: Memory = "",
    threads: Threads = None,
    append: Annotated[
        bool | None,
        typer.Option("--append", rich_help_panel=OUTPUT, help="Add to the dataset in --out, with its tokenizer."),
    ] = None,
    *,
    given: Given,
    input_flag: InputFlag = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn raw text into a clean, deduplicated, tokenized dataset, within a memory budget.

    Every document is accounted for. The budget changes how long it takes, never a byte of the result.
    Interrupted, the same command goes on where it was.

      ramlet prepare corpus/ --out data --tokenizer gpt2 --memory 2GB

      ramlet prepare more.jsonl.zst --out data --append

      ramlet prepare config.yaml
    """
    from ramlet.preparing import config_file
    from ramlet.preparing.run import prepare_to

    config = config_file.Config("")
    sources: list[Any] = list(inputs)
    if len(inputs) == 1 and inputs[0].lower().endswith((".yaml", ".yml")):
        config = config_file.load(inputs[0])
        sources = list(config.inputs)
        for line in config.notes:
            note(line, quiet=quiet or json)
        if not sources:
            raise SettingsError(f"{inputs[0]} names no inputs: add `inputs:` or `datasets:`")
    settings = config.prepare_settings(**given)
    target = out or (Path(config.out) if config.out else None)
    if target is None:
        target = _beside(sources, settings.output_format, config.path)
        note(f"no folder is named, so it goes to {target}", quiet=quiet or json)
    with Meter(Budget.parse(memory or config.memory or "auto")) as meter, Progress(meter, silent=quiet or json) as bar:
        result = prepare_to(
            sources,
            target,
            settings,
            meter=meter,
            threads=threads or config.threads,
            append=bool(config.append if append is None else append),
            own_tokenizer="tokenizer" not in {**config.settings, **given},
            shard_bytes=None if "tokens_per_shard" in given else config.shard_bytes,
            progress=lambda stage, done, total: bar.update(stage, done, total or None, UNITS.get(stage, "bytes")),
        )
    if json:
        print_json(
            {
                "path": str(result.path),
                "already_done": result.already_done,
                "nothing_new": result.nothing_new,
                **_figures(result.manifest),
                **result.statistics,
            }
        )
        return
    if result.already_done:
        print(f"{result.path} already holds this dataset, from the same inputs and settings: nothing to do")
        return
    if result.nothing_new:
        print(f"nothing new for {result.path}, which stays as it was: {result.nothing_new}")
        print(meter.closing_line())
        return
    _report(result.manifest, result.statistics, result.path, quiet)
    print(meter.closing_line())


def _beside(sources: list[Any], output_format: str, config: str) -> Path:
    """Where no folder is named: the file beside the text, or the folder beside the config file and named like it."""
    if output_format == "npy" and len(sources) == 1 and isinstance(sources[0], str) and Path(sources[0]).is_file():
        return Path(sources[0]).with_suffix(".npy")
    if config and output_format != "npy":
        return Path(config).with_suffix("")
    raise SettingsError("no folder to write to: name it with --out")


def _figures(manifest: dict[str, Any]) -> dict[str, Any]:
    splits = {
        split: {key: of[key] for key in ("tokens", "documents")} | {"shards": len(of.get("shards", ()))}
        for split, of in manifest["splits"].items()
    }
    return {"splits": splits, "dataset_ledger": manifest["ledger"]}


def _report(manifest: dict[str, Any], statistics: dict[str, Any], path: Path, quiet: bool) -> None:
    from ramlet.dataset.ledger import dropped_by_rule

    ledger = statistics["ledger"]
    documents, amounts, tokens = ledger["documents"], ledger["bytes"], ledger["tokens"]
    rows = [("documents read", documents["read"], amounts["read"])]
    if documents["cut"]:
        rows.append(("  parts of those that were cut", documents["cut"], None))
    rows += [
        (f"  {words}: {rule.name.replace('_', ' ')}", count, size)
        for unit, words in (("document", "dropped"), ("line", "lines dropped"))
        for rule, count, size in dropped_by_rule(ledger, unit)
    ]
    if amounts["normalised"]:
        rows.append(("  removed by normalization", None, amounts["normalised"]))
    rows.append(("documents kept", documents["kept"], amounts["kept"]))
    latest = len(manifest["runs"]) - 1
    for line in _left_out({**ledger["input"], **statistics["skipped"]}):
        note(line)  # what is lost is told also where notes are not wanted
    if not quiet:
        _print_table(rows)
        for split in ("train", "val"):
            shards = [shard for shard in manifest["splits"][split].get("shards", ()) if shard["run"] == latest]
            made = f" in {plural(len(shards), 'shard')}" if shards else ""
            print(f"{split:<6} {tokens[split]:>15,} {noun(tokens[split], 'token')}{made}")
        real = tokens["train"] + tokens["val"] - tokens["end_ids"] - tokens["padding"]
        if real > 0:
            print(f"{ledger['characters'] / real:.2f} characters a token")
        if manifest["packed"]:
            packed = manifest["packed"]
            whole = "the whole dataset: " if latest else ""
            share = packed["padding"] / max(1, packed["sequences"] * packed["sequence_length"])
            print(
                f"{whole}{plural(packed['sequences'], 'sequence')} of {packed['sequence_length']:,}: "
                f"{share:.2%} padding, "
                f"{plural(packed['truncated_documents'], 'document')} cut"
            )
        for stage, used in statistics["memory"]["stages"].items():
            print(f"  {stage:<11} {format_duration(used['seconds']):>10}   peak {format_bytes(used['peak'])}")
    if manifest["end_id"] is None and statistics["settings"]["end_token"] is None:
        note(
            "the tokenizer has no token that ends a document, so nothing in the ids parts one from the next: "
            "only the .idx files do (--end-token none says that this is meant)",
            quiet=quiet,
        )
    if documents["kept"] and manifest["val_fraction"] > 0 and manifest["splits"]["val"]["tokens"] == 0:
        note(
            "nothing went to validation: there are too few documents; --docs line makes more of text files", quiet=quiet
        )
    made = plural(tokens["train"] + tokens["val"], "token")
    if latest:
        in_all = sum(split["tokens"] for split in manifest["splits"].values())
        print(f"{made} added to {path}, which has {in_all:,} now")
    else:
        print(f"{made} in {path}")


def _left_out(read: dict[str, Any]) -> list[str]:
    """What of the input never became a document, and so is in no other figure."""
    notes = reading_notes(read)
    if passed_over := sum(read["skipped_files"].values()):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(read["skipped_files"].items()))
        notes.append(plural(passed_over, "file was passed over", "files were passed over") + f": {reasons}")
    return notes


def _print_table(rows: list[tuple[str, int | None, int | None]]) -> None:
    width = max(len(name) for name, _, _ in rows)
    for name, count, size in rows:
        shown = "" if count is None else f"{count:,}"
        print(f"{name:<{width}}  {shown:>15}  {'' if size is None else format_bytes(abs(size)):>10}".rstrip())


def add_to(root: typer.Typer) -> None:
    """Adds the command."""
    root.command("prepare")(prepare)
