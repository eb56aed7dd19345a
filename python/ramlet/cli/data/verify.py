"""`ramlet data verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ramlet.cli.data.options import DatasetPath, within
from ramlet.cli.options import Debug, Json, Memory, Quiet
from ramlet.cli.tokenizer.options import note, plural, print_json
from ramlet.runtime.budget import format_bytes


def verify(
    dataset: DatasetPath,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="First take in shards that were moved into train/ or val/ by hand.")
    ] = False,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check every file, checksum, count and id of a dataset, and that its ledger adds up.

    Lists all that is wrong and exits with 1. --adopt gives shards without a place in the manifest the next
    numbers; one without an .idx is cut into documents at the end id. Move them in under names that are free.

      ramlet data verify my-dataset
      ramlet data verify my-dataset --adopt
    """
    from ramlet.dataset.adopt import Adopted, moved_over
    from ramlet.dataset.adopt import adopt as take_in
    from ramlet.dataset.manifest import Manifest
    from ramlet.dataset.verify import verify as check
    from ramlet.runtime.budget import Budget, using_budget

    adopted = Adopted()
    with using_budget(Budget.parse(memory)):
        vocabulary = Manifest.read(dataset).vocab_size
    with within(memory, silent=quiet or json, vocabulary=vocabulary) as (meter, bar):
        if adopt:
            adopted = take_in(dataset, progress=lambda done, total: bar.update("adopting", done, total))
        report = check(dataset, progress=lambda done, total: bar.update("verifying", done, total))
    if adopt and not report.sound:
        report.notes += moved_over(Manifest.read(dataset), report.problems)
    if json:
        taken = {
            "shards": [shard.file for shard in adopted.shards],
            "renamed": dict(adopted.renamed),
            "tokens": adopted.tokens,
            "documents": adopted.documents,
        }
        problems = [str(problem) for problem in report.problems]
        found = {"sound": report.sound, **asdict(report), "problems": problems, "adopted": taken}
        print_json({"path": str(dataset), **found, "memory": meter.summary()})
    else:
        for old, new in adopted.renamed:
            note(f"{old} is now {new}", quiet=quiet)
        if adopt:
            words = f"{plural(adopted.documents, 'document')}, {plural(adopted.tokens, 'token')}"
            note(f"adopted {plural(len(adopted.shards), 'shard')}: {words}", quiet=quiet)
        for line in report.notes:
            note(line, quiet=quiet)
        for problem in report.problems:
            print(problem)
        if report.adoptable and not adopt:
            note(f"--adopt takes in {plural(len(report.adoptable), 'shard')} that the manifest does not have")
        if report.sound:
            figures = [plural(report.shards, "shard"), plural(report.documents, "document")]
            figures += [plural(report.tokens, "token"), format_bytes(report.bytes)]
            print(f"{dataset} is sound: {', '.join(figures)}")
        else:
            print(f"{dataset} has {plural(len(report.problems), 'problem')}")
        print(meter.closing_line())
    if not report.sound:
        raise typer.Exit(1)
