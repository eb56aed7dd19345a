"""`ramlet tokenizer train`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import (
    CLUSTER,
    MEMORY,
    Cluster,
    InputFlag,
    Inputs,
    Json,
    Memory,
    Processes,
    Quiet,
    note,
    print_json,
    reading_notes,
)
from ramlet.cli.parameters import Option
from ramlet.cli.progress import Progress, show_status
from ramlet.inputs.settings import READING
from ramlet.runtime.budget import AUTO, Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.runtime.progress import format_duration
from ramlet.settings.declared import options
from ramlet.tokenizer.settings import MERGES, VOCABULARY, TrainSettings

UNITS = {"counting": "bytes", "sorting": "parts", "merging": "tokens"}


@with_settings(*options(TrainSettings), panels=(VOCABULARY, MERGES, READING, MEMORY, CLUSTER))
def train(
    inputs: Inputs,
    out: Annotated[
        Path,
        Option("--out", "-o", "--output-prefix", metavar="DIR", shown=False, help="Folder for the tokenizer."),
    ],
    memory: Memory = "auto",
    threads: Processes = None,
    spill_dir: Annotated[
        Path | None,
        Option(
            "--spill-dir",
            metavar="DIR",
            shown="in --out",
            panel=MEMORY,
            help="Folder for temporary files.",
        ),
    ] = None,
    cluster: Cluster = None,
    force: Annotated[
        bool, Option("--force", help="Write into --out even if it is not empty, and replace another tokenizer there.")
    ] = False,
    *,
    given: Given,
    input_flag: InputFlag = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a tokenizer on text within a memory budget.

    Writes tokenizer.json and stats.json to --out. The budget affects the speed, never the result. After an
    interruption, the same command resumes.

      ramlet tokenizer train corpus/ -v 32k -s "<|endoftext|>" -m 2GB --out tok
      ramlet tokenizer train "logs/*.jsonl.zst" -v 8k -s "<|eot|>" -o my-tokenizer
      ramlet tokenizer train book.txt --type char --out my-tokenizer
      ramlet tokenizer train corpus/ -v 32k --out tok --cluster ray
    """
    from ramlet.tokenizer.folder import train_to_folder

    settings = TrainSettings(**given)
    budget = Budget.parse(memory)
    with Meter(budget) as meter, Progress(None if cluster else meter, silent=quiet or json) as bar:
        latest = ("", 0)

        def show_progress(stage: str, done: int, total: int) -> None:
            nonlocal latest
            if latest[0] not in ("", stage):
                # The native core reports now and then, not at the very end of a stage.
                bar.update(latest[0], latest[1], latest[1], UNITS[latest[0]])
            latest = (stage, max(done, total))
            bar.update(stage, done, total or None, UNITS[stage])

        result = train_to_folder(
            inputs,
            out,
            settings,
            meter=meter,
            threads=threads,
            spill_dir=spill_dir,
            force=force,
            progress=show_progress,
            cluster=cluster,
            report=partial(show_status, bar),
            auto_memory=memory == AUTO,
        )
        if latest[0] == "merging":
            made = result.statistics["tokenizer"]
            bar.update("merging", made["vocab_size"] - len(made["special_tokens"]), latest[1], "tokens")
    if json:
        print_json({"path": str(out), **result.statistics, "already_done": result.already_done})
        return
    if result.already_done:
        print(f"{out} already has this tokenizer, from the same inputs and settings: nothing to do")
        return
    _report(result.statistics, out, settings.vocab_size, quiet)
    print(meter.closing_line())


def _report(statistics: dict[str, Any], out: Path, wanted: int | None, quiet: bool) -> None:
    made, read = statistics["tokenizer"], statistics.get("read")
    specials = len(made["special_tokens"])
    parts = [f"{plural(made['merges'], 'merge')} learned"] if statistics["settings"]["kind"] == "bpe" else []
    parts += [f"{specials:,} special"] if specials else []
    detail = f" ({', '.join(parts)})" if parts else ""
    print(f"{plural(made['vocab_size'], 'token')}{detail} in {out}/tokenizer.json")
    if read is None:
        return
    counts = [plural(read["files"], "file"), plural(read["documents"], "document")]
    counts.append(f"{format_bytes(read['text_bytes'])} of text")
    if "pieces" in statistics:
        counts.append(f"{plural(statistics['pieces'], 'piece')}, {statistics['distinct_pieces']:,} of them distinct")
    note(f"read {', '.join(counts)} in {format_duration(statistics['seconds'])}", quiet=quiet)
    for line in reading_notes(read):
        note(line)  # lost data is reported even with --quiet
    if statistics.get("cut_pieces"):
        note(f"{plural(statistics['cut_pieces'], 'piece')} longer than 4096 bytes split", quiet=quiet)
    if statistics.get("regex_failures"):
        note(f"the regex failed on {plural(statistics['regex_failures'], 'piece')}", quiet=quiet)
    if skipped := statistics["inputs"]["passed_over"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        note(f"skipped files: {reasons}", quiet=quiet)
    if wanted is not None and made["vocab_size"] < wanted and statistics["settings"]["kind"] == "bpe":
        note(
            f"the text has no more pairs to merge: {made['vocab_size']:,} tokens instead of the {wanted:,} asked for",
            quiet=quiet,
        )
