"""`ramlet tokenizer encode`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, Json, Memory, Quiet, Threads, note, print_json, reading_notes
from ramlet.cli.parameters import Argument, Option
from ramlet.cli.progress import Progress
from ramlet.cli.tokenizer.options import AllowSpecial, Pattern, TokenizerName, allowed_special
from ramlet.errors import SettingsError, SourceError
from ramlet.inputs.settings import READING, ReadSettings
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.runtime.progress import format_duration
from ramlet.settings.declared import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ramlet.tokenizer.engines import Arrays
    from ramlet.tokenizer.tokenizer import Tokenizer


PRINTED_IDS = 1 << 14
"""How many ids are printed at a time: an id as a Python int and as text takes about a hundred bytes."""


@with_settings(*options(ReadSettings), panels=(READING, MEMORY))
def encode(
    tokenizer: TokenizerName,
    inputs: Annotated[
        list[str] | None,
        Argument(metavar="[INPUT...]", shown="standard input", help="Files, folders, globs, or - for standard input."),
    ] = None,
    text: Annotated[str | None, Option("--text", metavar="TEXT", help="Encode this text instead of files.")] = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help="File for the ids: little-endian uint16 or uint32, no header."),
    ] = None,
    allow_special: AllowSpecial = None,
    pattern: Pattern = None,
    memory: Memory = "auto",
    threads: Threads = None,
    *,
    given: Given,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Encode text as token ids.

    Prints the ids, one document per line; with --out, writes all of them to one file. Memory stays bounded.

      ramlet tokenizer encode --tokenizer my-tokenizer --text "Hello, world"
      ramlet tokenizer encode --tokenizer gpt2 corpus/ --memory 1GB --out ids.bin
    """
    from tempfile import TemporaryDirectory

    from ramlet.inputs.sources import survey
    from ramlet.runtime.memory import peak_memory
    from ramlet.runtime.threads import available_threads
    from ramlet.tokenizer.encode import divide_memory, encode_files
    from ramlet.tokenizer.tokenizer import Tokenizer

    allowed = allowed_special(allow_special)
    budget = Budget.parse(memory)
    loaded = Tokenizer.load(tokenizer, pattern=pattern)
    if text is not None:
        if inputs or out is not None:
            raise SettingsError("--text cannot be combined with inputs or --out: its ids are printed")
        ids = loaded.encode(text, allowed)
        print_json({"ids": ids}) if json else print(*ids)
        return
    settings = ReadSettings(**given)
    names = inputs or ["-"]
    if names == ["-"] and sys.stdin.isatty():
        note("reading text from the terminal; press Ctrl-D to end it", quiet=quiet)
    threads = threads or available_threads()
    decoding = survey(names, format=settings.format, text_field=settings.text_field).decoding
    whole = loaded.kind == "hf"
    size = loaded.vocab_size
    cache, block_bytes = divide_memory(
        budget, size, threads, decoding, streamed=bool(allowed), whole=whole, peak=peak_memory()
    )
    if not whole:
        loaded.limit_cache(cache)
    with Meter(budget) as meter, TemporaryDirectory(prefix="ramlet-") as scratch:
        options: dict[str, Any] = {"threads": threads, "allowed_special": allowed, "block_bytes": block_bytes}
        if whole:
            options["whole_bytes"] = cache
        if out is None:
            result: dict[str, Any] = {"read": {}}
            counters = result["read"].update
            _print_ids(encode_files(loaded, names, settings, Path(scratch), counters=counters, **options), json)
        else:
            with Progress(meter, silent=quiet or json) as bar:
                result = _write_ids(loaded, names, settings, Path(scratch), options, out, bar)
    if out is None:
        for line in reading_notes(result["read"]):
            note(line)
        note(meter.closing_line(), quiet=quiet or json)  # standard output has only ids
        return
    if json:
        print_json({"path": str(out), **result, "memory": meter.summary()})
        return
    tokens, read = result["tokens"], result["read"]
    print(f"{plural(tokens, 'token')} of {plural(read['documents'], 'document')} in {out}, {result['dtype']}")
    ratio = f"{read['text_bytes'] / tokens:.2f} bytes per token"  # an output without tokens is an error
    seconds = format_duration(result["seconds"])
    note(f"read {format_bytes(read['text_bytes'])} of text, {ratio}, in {seconds}", quiet=quiet)
    for line in reading_notes(read):
        note(line)  # lost data is reported even with --quiet
    print(meter.closing_line())


def _print_ids(blocks: Iterator[Arrays], as_json: bool) -> None:
    """One document per line; a document may span several blocks."""
    put = sys.stdout.write
    before, between, after = ('{"ids": [', ", ", "]}\n") if as_json else ("", " ", "\n")
    lead = before  # printed before the next id of the line
    for ids, ends in blocks:
        start = 0
        for end in [*ends.tolist(), None]:
            stop = len(ids) if end is None else end
            for at in range(start, stop, PRINTED_IDS):
                put(lead + between.join(map(str, ids[at : min(at + PRINTED_IDS, stop)].tolist())))
                lead = between
            if end is not None:
                put(after if lead == between else before + after)
                lead, start = before, end


def _write_ids(
    tokenizer: Tokenizer,
    names: list[str],
    settings: ReadSettings,
    scratch: Path,
    options: dict[str, Any],
    out: Path,
    bar: Progress,
) -> dict[str, Any]:
    from ramlet.inputs import sources
    from ramlet.runtime.atomic_files import replacing
    from ramlet.runtime.folder_lock import hold
    from ramlet.tokenizer.encode import encode_files

    total = 0
    for source in sources.expand(names, format=settings.format):
        total += source.size or 0
        if source.size is not None and out.exists() and out.samefile(source.path):
            raise SettingsError(f"{out} is one of the inputs, which --out would replace: choose another file")
    read: dict[str, Any] = {}

    def show_progress(counters: dict[str, Any]) -> None:
        read.update(counters)
        bar.update("encoding", counters["bytes_on_disk"], total or None)

    began = time.monotonic()
    tokens = 0
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    with hold(out, "tokenizer encode", makes_folder=False), replacing(out, binary=True, streams=True) as file:
        for ids, _ in encode_files(tokenizer, names, settings, scratch, counters=show_progress, **options):
            file.write(ids.astype(dtype, copy=False).data)
            tokens += len(ids)
        if not tokens:
            raise SourceError("no text to encode: every input is empty")
    return {
        "tokens": tokens,
        "dtype": "uint16" if dtype == "<u2" else "uint32",
        "fingerprint": tokenizer.fingerprint,
        "read": read,
        "seconds": round(time.monotonic() - began, 3),
    }
