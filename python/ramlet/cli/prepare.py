"""`ramlet prepare`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import (
    CLUSTER,
    MEMORY,
    Cluster,
    InputFlag,
    Json,
    Memory,
    Quiet,
    Threads,
    note,
    print_json,
    reading_notes,
)
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress, show_status
from ramlet.cluster.parts import Slice
from ramlet.errors import SettingsError
from ramlet.preparing.settings import OUTPUT, PrepareSettings
from ramlet.preparing.stages import NAMES
from ramlet.runtime.budget import AUTO, Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import noun, plural
from ramlet.runtime.progress import format_duration
from ramlet.settings.declared import options

if TYPE_CHECKING:
    from ramlet.preparing.parts import StageDone


@with_settings(*options(PrepareSettings), panels=(OUTPUT, MEMORY, CLUSTER))
def prepare(
    inputs: Annotated[
        list[str],
        Argument(
            metavar="INPUT... | CONFIG.yaml",
            shown=False,
            help="Files, folders, globs, - (standard input), Hugging Face datasets or URLs (s3://...); or "
            "one config file that lists them.",
        ),
    ],
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            "--out-dir",
            metavar="DIR",
            shown="named like CONFIG.yaml or, for npy, like the text file; otherwise required",
            help="Folder for the dataset, or the .npy file.",
        ),
    ] = None,
    memory: Memory = "",
    threads: Threads = None,
    append: Annotated[
        bool | None,
        Option("--append", panel=OUTPUT, help="Add to the dataset in --out, using its tokenizer."),
    ] = None,
    cluster: Cluster = None,
    stage: Annotated[
        str | None,
        Option(
            "--stage",
            metavar="STAGE",
            panel=CLUSTER,
            shown="all",
            help="Run only this stage, as a job of Slurm or another scheduler. In this order: "
            + ", ".join(NAMES)
            + ".",
        ),
    ] = None,
    part: Annotated[
        str | None,
        Option(
            "--part",
            metavar="K/N",
            panel=CLUSTER,
            shown="1/1",
            help="Run part K of N of the stage: 3/16 in the third of 16 jobs.",
        ),
    ] = None,
    *,
    given: Given,
    input_flag: InputFlag = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn raw text into a clean, deduplicated, tokenized dataset within a memory budget.

    The dataset records how many documents were kept, and why others were dropped. The budget affects the speed, never a
    byte of the result. After an interruption, the same command resumes.

      ramlet prepare corpus/ --out data --tokenizer gpt2 --memory 2GB

      ramlet prepare more.jsonl.zst --out data --append

      ramlet prepare config.yaml

      ramlet prepare corpus/ --out data --cluster ray

      ramlet prepare corpus/ --out data --stage scan --part 3/16
    """
    from ramlet.preparing import config_file
    from ramlet.preparing.run import prepare_to
    from ramlet.preparing.stages import UNITS

    if part is not None and stage is None:
        raise SettingsError("--part is a slice of a stage: give --stage too")

    config = config_file.Config("")
    sources: list[Any] = list(inputs)
    if len(inputs) == 1 and inputs[0].lower().endswith((".yaml", ".yml")):
        config = config_file.load(inputs[0])
        sources = list(config.inputs)
        for line in config.notes:
            note(line, quiet=quiet or json)
        if not sources:
            raise SettingsError(f"{inputs[0]} lists no inputs: add `inputs:` or `datasets:`")
    settings = config.prepare_settings(**given)
    target = out or (Path(config.out) if config.out else None)
    if target is None:
        target = _default_out(sources, settings.output_format, config.path)
        note(f"no output folder given: writing to {target}", quiet=quiet or json)
    where = cluster or config.cluster
    if where is not None and stage is not None:
        raise SettingsError("--stage is for a scheduler, and --cluster runs all stages: give one of them")
    budget = memory or config.memory or AUTO
    with Meter(Budget.parse(budget)) as meter, Progress(None if where else meter, silent=quiet or json) as bar:
        command: dict[str, Any] = {
            "meter": meter,
            "threads": threads or config.threads,
            "append": bool(config.append if append is None else append),
            "own_tokenizer": "tokenizer" not in {**config.settings, **given},
            "shard_bytes": None if "tokens_per_shard" in given else config.shard_bytes,
            "progress": lambda what, done, total: bar.update(what, done, total or None, UNITS.get(what, "bytes")),
        }
        if stage is not None:
            from ramlet.preparing.parts import prepare_stage

            done = prepare_stage(sources, target, settings, stage, Slice.parse(part or "1/1"), **command)
        else:
            result = prepare_to(
                sources,
                target,
                settings,
                cluster=where,
                auto_memory=budget == AUTO,
                report=partial(show_status, bar),
                **command,
            )
    if stage is not None:
        if done.prepared is None or json:
            _stage_done(done, part or "1/1", meter, json, quiet)
            return
        result = done.prepared
    if json:
        print_json(
            {
                "path": str(result.path),
                "already_done": result.already_done,
                "nothing_new": result.nothing_new,
                **_summary(result.manifest),
                **result.statistics,
            }
        )
        return
    if result.already_done:
        print(f"{result.path} already has this dataset, from the same inputs and settings: nothing to do")
        return
    if result.nothing_new:
        print(f"nothing new for {result.path}, which is unchanged: {result.nothing_new}")
        print(meter.closing_line())
        return
    _report(result.manifest, result.statistics, result.path, quiet)
    print(meter.closing_line())


def _stage_done(done: StageDone, part: str, meter: Meter, json: bool, quiet: bool) -> None:
    if json:
        counts = {"stage": done.stage, "part": part, "parts": done.parts, "of": done.of}
        print_json({"path": str(done.path), **counts, "already_done": done.already_done, "peak": meter.peak})
    elif done.already_done:
        print(f"{done.path} already has this dataset: nothing to do")
    elif not done.of:
        print(f"{done.stage}: not needed with these settings")
    else:
        of = "" if done.of == 1 else f" of {done.of:,}"
        print(f"{done.stage} {part}: {plural(done.parts, 'part')}{of} done   {meter.closing_line()}")


def _default_out(sources: list[Any], output_format: str, config: str) -> Path:
    """Without --out: the text file's or the config file's path, with .npy or without a suffix."""
    if output_format == "npy" and len(sources) == 1 and isinstance(sources[0], str) and Path(sources[0]).is_file():
        return Path(sources[0]).with_suffix(".npy")
    if config and output_format != "npy":
        return Path(config).with_suffix("")
    raise SettingsError("no output folder: give one with --out")


def _summary(manifest: dict[str, Any]) -> dict[str, Any]:
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
        rows.append(("  parts from splitting", documents["cut"], None))
    rows += [
        (f"  {label}: {rule.name.replace('_', ' ')}", count, size)
        for unit, label in (("document", "dropped"), ("line", "lines dropped"))
        for rule, count, size in dropped_by_rule(ledger, unit)
    ]
    if amounts["normalised"]:
        rows.append(("  removed by normalization", None, amounts["normalised"]))
    rows.append(("documents kept", documents["kept"], amounts["kept"]))
    latest = len(manifest["runs"]) - 1
    for line in _skipped({**ledger["input"], **statistics["skipped"]}):
        note(line)  # lost data is reported even with --quiet
    if not quiet:
        _print_table(rows)
        if "exclude" in statistics:
            print(_excluded(statistics["exclude"]))
        if "near" in statistics:
            print(_compared(statistics["near"]))
        for split in ("train", "val"):
            shards = [shard for shard in manifest["splits"][split].get("shards", ()) if shard["run"] == latest]
            made = f" in {plural(len(shards), 'shard')}" if shards else ""
            print(f"{split:<6} {tokens[split]:>15,} {noun(tokens[split], 'token')}{made}")
        real = tokens["train"] + tokens["val"] - tokens["end_ids"] - tokens["padding"]
        if real > 0:
            print(f"{ledger['characters'] / real:.2f} characters per token")
        if manifest["packed"]:
            packed = manifest["packed"]
            whole = "the whole dataset: " if latest else ""
            share = packed["padding"] / max(1, packed["sequences"] * packed["sequence_length"])
            print(
                f"{whole}{plural(packed['sequences'], 'sequence')} of {packed['sequence_length']:,}: "
                f"{share:.2%} padding, {plural(packed['truncated_documents'], 'document')} cut"
            )
        for node in statistics.get("nodes", ()):
            print(
                f"  {node['node']}: {plural(node['parts'], 'part')} in {plural(node['workers'], 'worker')}   "
                f"peak {format_bytes(node['peak'])}"
            )
        for stage, used in statistics["memory"]["stages"].items():
            print(f"  {stage:<11} {format_duration(used['seconds']):>10}   peak {format_bytes(used['peak'])}")
    if manifest["end_id"] is None and statistics["settings"]["end_token"] is None:
        note(
            "the tokenizer has no end-of-text token, so only the .idx files mark where documents end "
            "(use --end-token none if that is intended)",
            quiet=quiet,
        )
    if documents["kept"] and manifest["val_fraction"] > 0 and manifest["splits"]["val"]["tokens"] == 0:
        note(
            "the validation split is empty: there are too few documents; for text files, --docs line gives more",
            quiet=quiet,
        )
    made = plural(tokens["train"] + tokens["val"], "token")
    if latest:
        in_all = sum(split["tokens"] for split in manifest["splits"].values())
        print(f"{made} added to {path}, which now has {in_all:,}")
    else:
        print(f"{made} in {path}")


def _compared(near: dict[str, Any]) -> str:
    """What the bands of --near can be expected to find."""
    found = near["expected_recall"]
    expected = [f"{each['recall']:.1%} of pairs with a similarity of {each['similarity']}" for each in found]
    return f"{near['bands']} bands of {near['rows']} find {', '.join(expected)}"


def _excluded(found: dict[str, Any]) -> str:
    ngrams = plural(found["ngrams"], f"{found['ngram']}-gram")
    line = f"evaluation set to exclude: {plural(found['documents'], 'document')} with {ngrams}"
    if found["too_short"]:
        line += f"; {found['too_short']:,} have fewer than {found['ngram']} words and cannot be found in the text"
    return line


def _skipped(read: dict[str, Any]) -> list[str]:
    """Notes on input that never became a document, and so is not in the table."""
    notes = reading_notes(read)
    if count := sum(read["skipped_files"].values()):
        reasons = ", ".join(f"{each:,} {reason}" for reason, each in sorted(read["skipped_files"].items()))
        notes.append(plural(count, "file was skipped", "files were skipped") + f": {reasons}")
    return notes


def _print_table(rows: list[tuple[str, int | None, int | None]]) -> None:
    width = max(len(name) for name, _, _ in rows)
    for name, count, size in rows:
        shown = "" if count is None else f"{count:,}"
        print(f"{name:<{width}}  {shown:>15}  {'' if size is None else format_bytes(abs(size)):>10}".rstrip())
