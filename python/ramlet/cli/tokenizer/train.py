"""`ramlet tokenizer train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, Debug, Inputs, Json, Memory, Quiet
from ramlet.cli.progress import Progress, format_duration
from ramlet.cli.tokenizer.options import InputFlag, Processes, note, plural, print_json, reading_notes
from ramlet.inputs.settings import READING
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.settings.declared import options
from ramlet.tokenizer.settings import MERGES, VOCABULARY, TrainSettings

UNITS = {"counting": "bytes", "sorting": "parts", "merging": "tokens"}


@with_settings(*options(TrainSettings), panels=(VOCABULARY, MERGES, READING, MEMORY))
def train(
    inputs: Inputs,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", "--output-prefix", metavar="DIR", show_default=False, help="Folder for the result."
        ),
    ],
    memory: Memory = "auto",
    threads: Processes = None,
    spill_dir: Annotated[
        Path | None,
        typer.Option(
            "--spill-dir",
            metavar="DIR",
            show_default="in --out",
            rich_help_panel=MEMORY,
            help="Folder for counts on disk.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into --out whatever is there.")] = False,
    *,
    given: Given,
    input_flag: InputFlag = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn a tokenizer from text, within a memory budget.

    Writes tokenizer.json and stats.json into --out. The budget changes how long it takes, never the result.
    Interrupted, the same command goes on where it was.

      ramlet tokenizer train corpus/ -v 32k -s "<|endoftext|>" -m 2GB --out tok
      ramlet tokenizer train "logs/*.jsonl.zst" -v 8k -s "<|eot|>" -o my-tokenizer
      ramlet tokenizer train book.txt --type char --out my-tokenizer
    """
    from ramlet.tokenizer.folder import train_to_folder

    settings = TrainSettings(**given)
    budget = Budget.parse(memory)
    with Meter(budget) as meter, Progress(meter, silent=quiet or json) as bar:
        latest = ("", 0)

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal latest
            if latest[0] not in ("", stage):
                # The core is asked now and then, not at the very end of a stage.
                bar.update(latest[0], latest[1], latest[1], UNITS[latest[0]])
            latest = (stage, max(done, total))
            bar.update(stage, done, total or None, UNITS[stage])

        result = train_to_folder(
            inputs, out, settings, meter=meter, threads=threads, spill_dir=spill_dir, force=force, progress=tell
        )
        if latest[0] == "merging":
            made = result.statistics["tokenizer"]
            bar.update("merging", made["vocab_size"] - len(made["special_tokens"]), latest[1], "tokens")
    if json:
        print_json({"path": str(out), **result.statistics, "already_done": result.already_done})
        return
    if result.already_done:
        print(f"{out} already holds this tokenizer, from the same inputs and settings: nothing to do")
        return
    _report(result.statistics, out, settings.vocab_size, quiet)
    print(meter.closing_line())


def _report(statistics: dict[str, Any], out: Path, wanted: int | None, quiet: bool) -> None:
    made, read = statistics["tokenizer"], statistics.get("read")
    specials = len(made["special_tokens"])
    parts = [f"{plural(made['merges'], 'merge')} learned"] if statistics["settings"]["kind"] == "bpe" else []
    parts += [f"{specials:,} special"] if specials else []
    of_them = f" ({', '.join(parts)})" if parts else ""
    print(f"{plural(made['vocab_size'], 'token')}{of_them} in {out}/tokenizer.json")
    if read is None:
        return
    figures = [plural(read["files"], "file"), plural(read["documents"], "document")]
    figures.append(f"{format_bytes(read['text_bytes'])} of text")
    if "pieces" in statistics:
        figures.append(f"{plural(statistics['pieces'], 'piece')}, {statistics['distinct_pieces']:,} of them distinct")
    note(f"read {', '.join(figures)} in {format_duration(statistics['seconds'])}", quiet=quiet)
    for line in reading_notes(read):
        note(line)  # what is lost is told also where notes are not wanted
    if statistics.get("cut_pieces"):
        note(f"{plural(statistics['cut_pieces'], 'piece')} longer than 4096 bytes cut", quiet=quiet)
    if statistics.get("regex_failures"):
        note(f"the regex gave up on {plural(statistics['regex_failures'], 'piece')}", quiet=quiet)
    passed_over = statistics["inputs"]["passed_over"]
    if passed_over:
        shown = ", ".join(f"{count:,} {reason}" for reason, count in passed_over.items())
        note(f"files passed over: {shown}", quiet=quiet)
    if wanted is not None and made["vocab_size"] < wanted and statistics["settings"]["kind"] == "bpe":
        note(
            f"the text has no more pairs to merge: {made['vocab_size']:,} tokens instead of the {wanted:,} asked for",
            quiet=quiet,
        )
