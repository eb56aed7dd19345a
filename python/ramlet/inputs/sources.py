"""Inputs as a user names them -> files to read, one at a time.

    for source in expand(["corpus/", "more/**/*.jsonl.gz", "-"]):
        source.path, source.format, source.compression, source.size

An input is a file, a folder, a glob or `-` for standard input.

**A file** that is named is read. Its suffixes say how: `.parquet`, `.jsonl` and `.ndjson`, anything else is text;
followed by `.gz`, `.zst`, `.xz` or `.bz2`, it is compressed. A `.json` file is one text, not lines, unless
`format="jsonl"` is given for all inputs. Text with a NUL byte in its first kilobyte is a picture or a program named by
mistake: it is refused unless a format is given.

**A folder** is walked all the way down, in path order. Every regular file is read, source code and files without a
suffix included, except: hidden ones (and hidden folders), those with a suffix of pictures, archives, programs and the
like, and, if the suffix says nothing, those with a NUL byte in their first kilobyte. Linked folders are not followed,
linked files are read. A dataset or a run that ramlet wrote is not a folder of text: it is refused, or skipped if it is
inside of a folder.

**A glob** reads what it matches, by the rules of a folder; `*` never matches a hidden name. If it ends in a suffix
(`*.log`), files with it are text. Without `**`, a folder that it matches is walked.

A file that two inputs name is read once, where it comes first.

Nothing is kept for a file once it is handed out: memory holds the names of the folders being walked. At 8 us per file,
half of them opened, 100,000 files take about a second.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.formats import ARCHIVES, FORMAT_OF, FORMATS, first_bytes, split_suffixes
from ramlet.inputs.paths import check_path, nearest_path
from ramlet.inputs.walk import WILDCARD, Excluded, Source, Walk, is_result
from ramlet.runtime.digest import new_hash

__all__ = ["Paths", "Source", "Survey", "expand", "survey"]

SAMPLES = 32
"""Of the inputs, by which a machine of a cluster shows that it sees them all: each in another folder."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def expand(
    inputs: Paths,
    *,
    format: str | None = None,  # noqa: A002 - the name of the setting
    skipped: dict[str, int] | None = None,
    without: Collection[str] = (),
) -> Iterator[Source]:
    """The files that the inputs name, in order.

    Errors in the inputs are raised at once, before the first file. `skipped` is filled during the walk with the number
    of skipped files by reason: `hidden`, `binary`, `special` (sockets, devices, broken links), `repeated`, and of
    skipped folders: `result`. `without` are real paths of files and folders to skip silently: where the results go.
    """
    if format is not None and format not in FORMATS:
        raise SettingsError(f"unknown format {format!r}: use {', '.join(FORMATS)}")
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    plan = [_recognize(os.fspath(name), format, Excluded(without)) for name in names]
    if not plan:
        raise SourceError("no input: give a file, a folder, a glob, or - for standard input")
    return _walk_all(plan, {} if skipped is None else skipped)


@dataclass(frozen=True, slots=True)
class Survey:
    """What one walk over the inputs shows before anything is read."""

    total_bytes: int
    """On disk, of the files with a known size."""

    lasting: bool
    """Whether every file can be read again: standard input and pipes cannot."""

    fingerprint: str
    """A hash of path, format, size and modification time of every file; of standard input and pipes only the name."""

    decoding: int = 0
    """The least memory that the largest decoder takes; 0 if all files are plain text."""


def survey(
    inputs: Paths,
    *,
    format: str | None = None,  # noqa: A002
    text_field: str | None = None,
    without: Collection[str] = (),
) -> Survey:
    """Walks the inputs once; `without` as in `expand`. `decoding` is that of reading `text_field`; 0 if not given."""
    digest = new_hash()
    total, lasting, decoding = 0, True, 0
    for source in expand(inputs, format=format, without=without):
        total += source.size or 0
        decoding = max(decoding, 0 if text_field is None else source.decoding(text_field))
        lasting = lasting and source.size is not None
        path = source.path if source.size is None else os.path.abspath(source.path)
        fields = f"\0{source.format}\0{source.compression}\0{source.size}\0{source.modified}\0"
        digest.update(os.fsencode(path) + fields.encode())
    return Survey(total, lasting, digest.hexdigest(), decoding)


def _recognize(name: str, form: str | None, excluded: Excluded) -> Source | Walk:
    """What an input is, after all checks."""
    check_path(name)
    if not name:
        raise SourceError("an input is empty: give a file, a folder, a glob, or - for standard input")
    if name == "-":
        return Source("-", form or "text", "", None)
    if name.startswith("hf://"):
        raise SourceError(f"cannot read {name} from the hub: download it and give the folder")
    try:
        status = os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(name):
            raise SourceError(
                f"{name} is a link to {os.readlink(name)}, which does not exist: fix or remove it"
            ) from None
        if not WILDCARD.search(name):
            raise SourceError(f"no such file or folder: {name}{nearest_path(name)}") from None
        try:
            glob = Walk.of_glob(name, form, excluded)
        except re.error:
            raise SourceError(f"cannot read {name} as a pattern: check its [...]") from None
        if next(glob.files({}), None) is None:
            raise SourceError(f"nothing matches {name}: check the pattern") from None
        return glob
    except OSError as error:
        raise SourceError(f"cannot read {name}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        if os.path.realpath(name) in excluded.paths:
            raise SourceError(f"{name} is where the result goes: it cannot also be an input")
        _refuse_own(name)
        folder = Walk.of_folder(name, form, excluded)
        if next(folder.files({}), None) is None:
            raise SourceError(f"no text in the folder {name}: all in it is hidden, binary or made by ramlet")
        return folder
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or _is_standard_input(status)):
        raise SourceError(f"{name} is a device or a socket, which has no end: give a file, or pipe it in as -")
    suffix, compression = split_suffixes(name)
    if suffix in ARCHIVES:
        raise SourceError(f"{name} is an archive: unpack it and give the folder")
    if not os.access(name, os.R_OK):
        raise SourceError(f"cannot read {name}: no permission")
    sized = stat.S_ISREG(status.st_mode) and not _has_no_size(name, status)
    if sized and form is None and not compression and suffix not in FORMAT_OF and _begins_binary(name):
        raise SourceError(
            f"{name} is not text, it has NUL bytes: give another file, or {option('format', 'text')} to read it anyway"
        )
    size, modified = (status.st_size, status.st_mtime_ns) if sized else (None, 0)
    return Source(name, form or FORMAT_OF.get(suffix, "text"), compression, size, modified)


def _is_standard_input(status: os.stat_result) -> bool:
    """By another name, like /dev/stdin, which may be a terminal."""
    try:
        return os.path.samestat(status, os.fstat(0))
    except OSError:
        return False


def _has_no_size(path: str, status: os.stat_result) -> bool:
    """Kernel files, like /proc/cpuinfo, report a size of 0: they are read like pipes."""
    return not status.st_size and first_bytes(path, 1) != b""


def _refuse_own(folder: str) -> None:
    """Results of ramlet contain JSON, which would silently be read as text."""
    if what := is_result(folder):
        use = "train on it as data" if what == "a dataset" else "use it with ramlet generate"
        raise SourceError(f"{folder} is {what}, not text: {use}, or give the text it was made from")


def _begins_binary(path: str) -> bool:
    """NUL bytes near the beginning, without the byte order mark of UTF-16 or UTF-32, which the reader reports."""
    begin = first_bytes(path, 1024)
    return b"\0" in begin and not begin.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))


def _walk_all(plan: list[Source | Walk], skipped: dict[str, int]) -> Iterator[Source]:
    # A file belongs to the first input that includes it. The inputs alone decide which one that is, so no list of
    # seen files is kept.
    first: dict[str, int] = {}
    walks: list[Walk] = []
    for order, each in enumerate(plan):
        if isinstance(each, Source):
            first.setdefault(_real(each), order)
    for order, each in enumerate(plan):
        folder = real_folder = ""
        for source in each.files(skipped) if isinstance(each, Walk) else [each]:
            if len(plan) == 1:
                yield source
                continue
            if isinstance(each, Source):
                real = _real(each)
            else:
                here, name = os.path.split(source.path)
                if here != folder:
                    folder, real_folder = here, os.path.realpath(here)
                real = os.path.join(real_folder, name)
            covered = source.size is not None and any(other.covers(real) for other in walks)
            if covered or first.get(real, order) < order:
                skipped["repeated"] = skipped.get("repeated", 0) + 1
            else:
                yield source
        if isinstance(each, Walk):
            walks.append(each)


def _real(source: Source) -> str:
    return source.path if source.path == "-" else os.path.realpath(source.path)
