"""`ramlet data verify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from click.exceptions import Exit

from ramlet.cli.data.options import DatasetPath, within
from ramlet.cli.options import Json, Memory, Quiet, note, print_json
from ramlet.cli.parameters import Option
from ramlet.cli.wording import sentence_of
from ramlet.errors import RamletError
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural


def verify(
    dataset: DatasetPath,
    adopt: Annotated[
        bool, Option("--adopt", help="First add the shards in train/ and val/ that the manifest does not list.")
    ] = False,
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every file, checksum, count and id of a dataset, and that kept and dropped documents add up.

    Lists all problems; if there are any, the exit code is 1. To add shards of your own, copy them into train/ or val/
    under unused file names: --adopt gives them the next numbers, and splits one without an .idx file at the EOS id.

      ramlet data verify my-dataset
      ramlet data verify my-dataset --adopt
    """
    from ramlet.dataset.adopt import Adopted, moved_over
    from ramlet.dataset.adopt import adopt as adopt_shards
    from ramlet.dataset.manifest import Manifest
    from ramlet.dataset.verify import verify as check
    from ramlet.runtime.budget import Budget, using_budget

    adopted = Adopted()
    with using_budget(Budget.parse(memory)):
        vocabulary = Manifest.read(dataset).vocab_size
    with within(memory, silent=quiet or json, vocabulary=vocabulary) as (meter, bar):
        if adopt:
            adopted = adopt_shards(dataset, progress=lambda done, total: bar.update("adopting", done, total))
        report = check(dataset, progress=lambda done, total: bar.update("verifying", done, total))
    if adopt and not report.sound:
        told = moved_over(Manifest.read(dataset), report.problems)
        report.notes += [sentence_of(RamletError(line)) for line in told]
    if json:
        added = {
            "shards": [shard.file for shard in adopted.shards],
            "renamed": dict(adopted.renamed),
            "tokens": adopted.tokens,
            "documents": adopted.documents,
        }
        problems = [str(problem) for problem in report.problems]
        found = {"sound": report.sound, **asdict(report), "problems": problems, "adopted": added}
        print_json({"path": str(dataset), **found, "memory": meter.summary()})
    else:
        for old, new in adopted.renamed:
            note(f"{old} is now {new}", quiet=quiet)
        if adopt:
            content = f"{plural(adopted.documents, 'document')}, {plural(adopted.tokens, 'token')}"
            note(f"adopted {plural(len(adopted.shards), 'shard')}: {content}", quiet=quiet)
        for line in report.notes:
            note(line, quiet=quiet)
        for problem in report.problems:
            print(problem)
        if report.adoptable and not adopt:
            note(f"--adopt adds {plural(len(report.adoptable), 'shard')} that the manifest does not list")
        if report.sound:
            counts = [plural(report.shards, "shard"), plural(report.documents, "document")]
            counts += [plural(report.tokens, "token"), format_bytes(report.bytes)]
            print(f"{dataset} is sound: {', '.join(counts)}")
        else:
            print(f"{dataset} has {plural(len(report.problems), 'problem')}")
        print(meter.closing_line())
    if not report.sound:
        raise Exit(1)
