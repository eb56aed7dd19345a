"""Inputs as a user names them -> files to read, one at a time.

    for source in expand(["corpus/", "more/**/*.jsonl.gz", "-"]):
        source.path, source.format, source.compression, source.size

An input is a file, a folder, a glob or `-` for standard input.

**A file** named outright is taken. Its suffixes say how to read it: `.parquet`, `.jsonl` and
`.ndjson`, anything else is text; `.gz`, `.zst`, `.xz` or `.bz2` after that, it is compressed. A
`.json` file is one text, not lines; `format="jsonl"` says otherwise for all inputs. Text with a NUL
byte in its first kilobyte is a picture or a program named by mistake: it is refused unless a format is given.

**A folder** is walked all the way down, in the order of the paths. Every regular file is taken, source
code and files without a suffix included, except: hidden ones (and hidden folders), those whose suffix
tells a picture, archive, program or the like, and, where the suffix says nothing, those with a NUL
byte in their first kilobyte. Linked folders are not followed, linked files are read. A dataset or a run
of ours is no folder of text, and refused.

**A glob** takes what it matches, by the rule of a folder; `*` never matches a hidden name. When it
ends in a suffix (`*.log`), that suffix is taken for text. Without `**`, a folder it matches is walked.

A file that two inputs name is read once, where it comes first.

Nothing is kept for a file once it is handed out: memory is the names of the folders being walked. At
8 us a file, half of them looked into, 100,000 files take about a second.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ramlet.errors import SettingsError, SourceError
from ramlet.inputs.settings import FORMATS
from ramlet.runtime.atomic_files import is_temporary
from ramlet.settings.names import nearest

__all__ = ["Source", "Survey", "check_path", "expand", "fingerprint", "nearest_path", "survey"]

_FORMAT_OF = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
DECODER_BYTES = {"": 0, "gz": 1 << 20, "bz2": 6 << 20, "zst": 11 << 20, "xz": 11 << 20}
"""What a decoder of each compression holds, with the window of 8 MiB that any budget has room for."""
PARQUET_BYTES = 8 << 20
"""Pages of a column, packed and unpacked, its dictionary and the values of a batch; larger pages take more."""
_COMPRESSION_OF = {".gz": "gz", ".zst": "zst", ".zstd": "zst", ".xz": "xz", ".bz2": "bz2"}


def _suffixes(words: str) -> frozenset[str]:
    return frozenset("." + word for word in words.split())


_ARCHIVES = _suffixes("zip tar tgz tbz tbz2 txz tzst 7z rar")

# Not text for sure; a folder's file with one of these is passed over.
_BINARY = _ARCHIVES | _suffixes(
    "png jpg jpeg gif bmp ico tif tiff webp heic avif psd xcf mp3 wav flac ogg oga opus m4a aac wma mid "
    "mp4 mkv avi mov webm wmv flv m4v jar war whl egg deb rpm iso img dmg cab apk lz lz4 lzma br "
    "o a so dylib dll exe lib obj ko class pyc pyo pyd wasm bc rlib rmeta pdf doc docx xls xlsx ppt pptx "
    "odt ods odp odg epub mobi djvu ttf otf woff woff2 eot npy npz pkl pickle pt pth ckpt safetensors gguf "
    "onnx tflite h5 hdf5 arrow feather orc avro bin idx db sqlite sqlite3 mdb rdb mo gmo swp"
)

# Text for sure; these spare a folder's walk a look into the file.
_TEXT = _suffixes(
    "txt text md markdown rst adoc org tex bib log csv tsv html htm xhtml xml svg json yaml yml toml ini cfg "
    "conf srt vtt po pot properties py pyi pyx c h cc cpp cxx hh hpp hxx cu cuh rs go java kt kts scala groovy "
    "js mjs cjs jsx ts tsx vue svelte css scss less sql sh bash zsh fish ps1 bat rb php pl pm lua r jl m mm hs "
    "ml mli ex exs erl hrl clj cljs lisp el scm rkt swift dart zig nim f f90 f95 pas asm s v sv vhd tcl cmake "
    "mk dts dtsi proto thrift graphql tf gradle diff patch ipynb"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read."""

    path: str
    """As the input named it; `-` is standard input."""

    format: str
    """`text`, `jsonl` or `parquet`."""

    compression: str
    """`gz`, `zst`, `xz`, `bz2`, or nothing."""

    size: int | None
    """Bytes on disk; None for standard input and pipes, whose end is not known."""

    modified: int = 0
    """Time of the last change, in nanoseconds."""

    @property
    def decoding(self) -> int:
        """Bytes that its decoder takes at least, windows and pages included."""
        return DECODER_BYTES[self.compression] + (PARQUET_BYTES if self.format == "parquet" else 0)

    def spec(self) -> tuple[str, str, str, int, int]:
        """As the native core takes it: (path, format, compression, size or -1, time of the last change)."""
        return self.path, self.format, self.compression, -1 if self.size is None else self.size, self.modified


Input = str | os.PathLike[str]


def expand(
    inputs: Input | Iterable[Input],
    *,
    format: str | None = None,  # noqa: A002 - the word users know it by
    skipped: dict[str, int] | None = None,
    without: Collection[str] = (),
) -> Iterator[Source]:
    """The files that the inputs name, in order.

    What is wrong with an input is told at once, before the first file is handed out. `skipped` is
    filled, as the walk goes, with how many files were passed over, by reason: `hidden`, `binary`,
    `special` (sockets, devices, dangling links), `repeated`. `without` are real paths that are passed over
    without a word, with all that is in them: where the results go.
    """
    if format is not None and format not in FORMATS:
        raise SettingsError(f"no format {format!r}: it is one of {', '.join(FORMATS)}")
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    plan = [_recognise(os.fspath(name), format, _Without(without)) for name in names]
    if not plan:
        raise SourceError("no input: name a file, a folder, a glob, or - for standard input")
    return _walk_all(plan, {} if skipped is None else skipped)


@dataclass(frozen=True, slots=True)
class Survey:
    """What one walk over the inputs tells before anything is read."""

    total_bytes: int
    """On disk, of the files whose size is known."""

    lasting: bool
    """Whether every file can be read again: not so for standard input and pipes."""

    fingerprint: str
    """A hash over path, reading, size and time of change of every file; it moves when one of them does.
    Standard input and pipes have no size or time: they hash by name alone."""

    decoding: int = 0
    """Bytes that the decoder of any one of them takes at least; 0 where none is packed."""


def survey(inputs: Input | Iterable[Input], *, format: str | None = None) -> Survey:  # noqa: A002
    """Walks the inputs once."""
    # hashlib would load OpenSSL, 3.5 MB of RSS; Python's own BLAKE2 is there without it.
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    digest = blake2b(digest_size=16)
    total, lasting, decoding = 0, True, 0
    for source in expand(inputs, format=format):
        total += source.size or 0
        decoding = max(decoding, source.decoding)
        lasting = lasting and source.size is not None
        path = source.path if source.size is None else os.path.abspath(source.path)
        fields = f"\0{source.format}\0{source.compression}\0{source.size}\0{source.modified}\0"
        digest.update(os.fsencode(path) + fields.encode())
    return Survey(total, lasting, digest.hexdigest(), decoding)


def fingerprint(inputs: Input | Iterable[Input], *, format: str | None = None) -> str:  # noqa: A002
    """The fingerprint of a survey, alone."""
    return survey(inputs, format=format).fingerprint


def _recognise(name: str, form: str | None, without: _Without) -> _File | _Folder | _Glob:
    """The input as what it is, checked."""
    check_path(name)
    if not name:
        raise SourceError("an input is empty: name a file, a folder, a glob, or - for standard input")
    if name == "-":
        return _File(Source("-", form or "text", "", None), "-")
    if name.startswith("hf://"):
        raise SourceError(f"cannot read {name} from the hub: download it and give the folder")
    try:
        status = os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(name):
            raise SourceError(
                f"{name} is a link to {os.readlink(name)}, which is not there: mend or remove it"
            ) from None
        if not _WILD.search(name):
            raise SourceError(f"no such file or folder: {name}{nearest_path(name)}") from None
        try:
            glob = _Glob(name, form, without)
        except re.error:
            raise SourceError(f"cannot read {name} as a pattern: check its [...]") from None
        if next(glob.files({}), None) is None:
            raise SourceError(f"nothing matches {name}: check the pattern") from None
        return glob
    except OSError as error:
        raise SourceError(f"cannot read {name}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        if os.path.realpath(name) in without.paths:
            raise SourceError(f"{name} is where the result goes: it cannot be an input too")
        _refuse_own(name)
        folder = _Folder(name, form, without)
        if next(folder.files({}), None) is None:
            raise SourceError(f"no text in the folder {name}: it is empty, or all in it is hidden or binary")
        return folder
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or _is_standard_input(status)):
        raise SourceError(f"{name} is a device or a socket, which has no end: name a file, or pipe it in as -")
    inner, compression = _suffix_chain(name)
    if inner in _ARCHIVES:
        raise SourceError(f"{name} is an archive: unpack it and give the folder")
    if not os.access(name, os.R_OK):
        raise SourceError(f"cannot read {name}: no permission")
    if stat.S_ISREG(status.st_mode) and not _has_no_size(name, status):
        if form is None and not compression and inner not in _FORMAT_OF and _begins_binary(name):
            raise SourceError(
                f"{name} is no text, it has NUL bytes: name another, or give the format text to read it so"
            )
        form = form or _FORMAT_OF.get(inner, "text")
        source = Source(name, form, compression, status.st_size, status.st_mtime_ns)
    else:
        source = Source(name, form or _FORMAT_OF.get(inner, "text"), compression, None)
    return _File(source, os.path.realpath(name))


def _is_standard_input(status: os.stat_result) -> bool:
    """By another name, like /dev/stdin: that may be a terminal."""
    try:
        return os.path.samestat(status, os.fstat(0))
    except OSError:
        return False


def _has_no_size(path: str, status: os.stat_result) -> bool:
    """Files of the kernel, like /proc/cpuinfo, are said to have no bytes: they are read like pipes."""
    if status.st_size:
        return False
    try:
        with open(path, "rb", buffering=0) as file:
            return bool(file.read(1))
    except OSError:
        return False  # the reader will say what is wrong with it


def _refuse_own(folder: str) -> None:
    """What we wrote ourselves has JSON in it, which would be read as text without a word."""
    for names, what, use in (
        (("dataset_metadata.json",), "a dataset", "train on it as data"),
        (("metrics.jsonl", "settings.yaml"), "a run", "let ramlet generate write with it"),
    ):
        if all(os.path.exists(os.path.join(folder, name)) for name in names):
            raise SourceError(f"{folder} is {what}, not text: {use}, or name the text it was made from")


def _begins_binary(path: str) -> bool:
    """NUL bytes near the beginning, but not UTF-16 or UTF-32 by their mark: those the reader names."""
    try:
        with open(path, "rb", buffering=0) as file:
            begin = file.read(1024)
    except OSError:
        return False  # the reader will say what is wrong with it
    return b"\0" in begin and not begin.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))


def _walk_all(plan: list[_File | _Folder | _Glob], skipped: dict[str, int]) -> Iterator[Source]:
    if len(plan) == 1:
        yield from plan[0].files(skipped)
        return
    # A file is left to the first input that names it. Which one that is can be told from the inputs
    # alone, so that no list of files seen has to be kept.
    first: dict[str, int] = {}
    wide: list[_Folder | _Glob] = []
    for order, each in enumerate(plan):
        if isinstance(each, _File):
            first.setdefault(each.real, order)
    for order, each in enumerate(plan):
        folder = real_folder = ""
        for source in each.files(skipped):
            if isinstance(each, _File):
                real = each.real
            else:
                here, name = os.path.split(source.path)
                if here != folder:
                    folder, real_folder = here, os.path.realpath(here)
                real = os.path.join(real_folder, name)
            covered = source.size is not None and any(other.covers(real) for other in wide)
            if covered or first.get(real, order) < order:
                skipped["repeated"] = skipped.get("repeated", 0) + 1
            else:
                yield source
        if not isinstance(each, _File):
            wide.append(each)


class _File:
    def __init__(self, source: Source, real: str) -> None:
        self.source = source
        self.real = real

    def files(self, skipped: dict[str, int]) -> Iterator[Source]:
        yield self.source


class _Without:
    """Paths that are not looked at. Asked for every name, so the name decides before the path is resolved."""

    def __init__(self, paths: Collection[str]) -> None:
        self.paths = frozenset(paths)
        self.names = frozenset(map(os.path.basename, paths))

    def has(self, folder: str, name: str) -> bool:
        return name in self.names and os.path.realpath(os.path.join(folder, name)) in self.paths


_NOTHING = _Without(())


class _Folder:
    def __init__(self, name: str, form: str | None, without: _Without = _NOTHING) -> None:
        self.name = name
        self.form = form
        self.without = without
        self.inside = os.path.realpath(name).rstrip("/") + "/"

    def files(self, skipped: dict[str, int]) -> Iterator[Source]:
        return self._walk(self.name.rstrip("/") + "/", skipped)

    def _walk(self, top: str, skipped: dict[str, int]) -> Iterator[Source]:
        # A list of the folders above, and no recursion: they may be nested deeper than Python calls functions.
        above = [(top, iter(_listing(top)))]
        while above:
            folder, names = above[-1]
            name = next(names, None)
            if name is None:
                above.pop()
            elif self.without.has(folder, name.rstrip("/")) or is_temporary(name.rstrip("/")):
                continue  # what is temporary is there for as long as a command writes, and no part of the input
            elif name.startswith("."):
                skipped["hidden"] = skipped.get("hidden", 0) + 1
            elif not name.endswith("/"):
                if source := _take(folder + name, name, self.form, skipped):
                    yield source
            elif not name.endswith("//"):
                above.append((folder + name, iter(_listing(folder + name))))

    def covers(self, real: str) -> bool:
        """Whether this folder hands out the file at this real path."""
        if not real.startswith(self.inside):
            return False
        parts = real[len(self.inside) :].split("/")
        return not any(part.startswith(".") for part in parts) and _is_text(real, *_suffix_chain(parts[-1]), self.form)


_WILD = re.compile(r"[*?[]")


class _Glob:
    """A walk from the last folder that the pattern names outright, keeping what the pattern matches.

    One expression decides for a path below that folder. Folders that cannot lead to a match are left
    out by their own part of the pattern, up to the first `**`; from there on all are looked into.
    """

    def __init__(self, name: str, form: str | None, without: _Without = _NOTHING) -> None:
        self.form = form
        self.without = without
        parts = name.split("/")
        literal = next(at for at, part in enumerate(parts) if _WILD.search(part))
        self.base = "/".join(parts[:literal]) + "/" if literal else ""
        self.inside = os.path.realpath(self.base or ".").rstrip("/") + "/"
        parts = [part for part in parts[literal:] if part]
        deep = "**" in parts
        self.known = [re.compile(_part(part)) for part in parts[: parts.index("**") if deep else None]]
        # Below a folder that the pattern matches all files are meant, unless `**` reaches them anyway.
        tail = "" if deep else "(?:/(?!\\.)[^/]+)*"
        steps = ["(?:(?!\\.)[^/]+/)*" if part == "**" else _part(part) + "/" for part in parts[:-1]]
        last = "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+" if parts[-1] == "**" else _part(parts[-1])
        self.path = re.compile("".join(steps) + last + tail)
        # Written out, the suffix is meant: what has it is text, whatever the suffix says.
        suffix = re.search(r"\.\w+$", parts[-1])
        self.suffix = suffix[0] if suffix else None

    def files(self, skipped: dict[str, int]) -> Iterator[Source]:
        if not self.base or os.path.isdir(self.base):
            yield from self._walk(skipped)

    def _walk(self, skipped: dict[str, int]) -> Iterator[Source]:
        above = [("", iter(_listing(self.base or ".")))]
        while above:
            below, names = above[-1]
            listed = next(names, None)
            if listed is None:
                above.pop()
                continue
            name = listed.rstrip("/")
            path = below + name
            if self.without.has(self.base + below, name):
                continue
            depth = len(above) - 1
            if depth < len(self.known):
                if not self.known[depth].fullmatch(name):
                    continue
                enter = listed != name
            else:
                # A linked folder may lead back up: it is entered only where the pattern asks for it.
                enter = listed == name + "/" and not name.startswith(".")
            if enter:
                above.append((path + "/", iter(_listing(self.base + path + "/"))))
            elif listed == name and self.path.fullmatch(path):
                source = _take(self.base + path, name, self.form, skipped, self._means(path))
                if source:
                    yield source

    def _means(self, path: str) -> bool:
        return self.suffix is not None and path.endswith(self.suffix)

    def covers(self, real: str) -> bool:
        """Whether this glob hands out the file at this real path."""
        if not real.startswith(self.inside):
            return False
        path = real[len(self.inside) :]
        return self.path.fullmatch(path) is not None and (
            self._means(path) or _is_text(real, *_suffix_chain(os.path.basename(path)), self.form)
        )


def _part(pattern: str) -> str:
    """One part of a glob, between slashes, as a regular expression; a wildcard matches no leading dot."""
    pieces = ["(?!\\.)"] if _WILD.match(pattern) else []
    for wild, negated, members, other in re.findall(r"(\*+|\?)|\[(!?)(\]?[^]]+)\]|(.)", pattern, re.DOTALL):
        if wild:
            pieces.append("[^/]" if wild == "?" else "[^/]*")
        elif members:
            escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
            pieces.append(f"[{'^/' if negated else ''}{escaped}]")
        else:
            pieces.append(re.escape(other))
    return "".join(pieces)


def _listing(folder: str) -> list[str]:
    """The names in a folder, sorted; a folder's ends in a slash, that of a link to a folder in two.

    Names alone, for a folder may hold a million: the entries that scandir gives, kept, take over twice as much.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name + _slashes(entry) for entry in entries]
    except OSError as error:
        raise SourceError(f"cannot read the folder {folder}: {error.strerror}") from None
    names.sort()
    return names


def _slashes(entry: os.DirEntry[str]) -> str:
    try:
        return "" if not entry.is_dir() else "//" if entry.is_symlink() else "/"
    except OSError:
        return ""  # a link that leads to itself: it is passed over like one that leads nowhere


def _take(path: str, name: str, form: str | None, skipped: dict[str, int], meant: bool = False) -> Source | None:
    """The file as a source, or None and the reason counted."""
    inner, compression = _suffix_chain(name)
    try:
        status = os.stat(path)
    except OSError as error:
        if not os.path.islink(path):
            raise SourceError(f"cannot read {path}: {error.strerror}") from None
        reason = "special"
    else:
        if not stat.S_ISREG(status.st_mode):
            reason = "special"
        elif not meant and not _is_text(path, inner, compression, form):
            reason = "binary"
        else:
            form = form or _FORMAT_OF.get(inner, "text")
            return Source(path, form, compression, status.st_size, status.st_mtime_ns)
    skipped[reason] = skipped.get(reason, 0) + 1
    return None


def _is_text(path: str, inner: str, compression: str, form: str | None) -> bool:
    if inner in _BINARY:
        return False
    if inner in _TEXT or inner in _FORMAT_OF or compression or form == "parquet":
        return True
    try:
        # Not open(), which costs more; a pipe must not make us wait for its writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return b"\0" not in os.read(file, 1024)
        finally:
            os.close(file)
    except OSError:
        return True  # the reader will say what is wrong with it


def _suffix_chain(name: str) -> tuple[str, str]:
    """`a.jsonl.gz` -> (`.jsonl`, `gz`)."""
    stem, suffix = os.path.splitext(name)
    compression = _COMPRESSION_OF.get(suffix.lower(), "")
    if compression:
        suffix = os.path.splitext(stem)[1]
    return suffix.lower(), compression


def check_path(name: str | os.PathLike[str]) -> None:
    """Refuses what no system takes for a path."""
    if "\0" in os.fsdecode(os.fspath(name)):
        raise SettingsError(f"{os.fspath(name)!r} is no path: it has a NUL in it")


def nearest_path(name: str, *, folder_wanted: bool = False) -> str:
    """`; did you mean X?`, when something near is there: two names are not near because both are `.txt`."""
    folder, last = os.path.split(name.rstrip("/"))
    while folder and not os.path.isdir(folder):
        folder, last = os.path.split(folder)
    try:
        # Of those with one stem the same suffix counts, which comes last.
        there = sorted(os.listdir(folder or "."), key=lambda each: _suffix_chain(each)[0] == _suffix_chain(last)[0])
    except OSError:
        there = []
    if folder_wanted:
        there = [each for each in there if os.path.isdir(os.path.join(folder, each))]
    # What is there by this very name is a link that leads nowhere.
    by_stem = {_stem(each): each for each in there if each != last or os.path.exists(os.path.join(folder, each))}
    near = nearest(_stem(last), by_stem)
    return f"; did you mean {os.path.join(folder, by_stem[near])}?" if near else ""


def _stem(name: str) -> str:
    """`a.jsonl.gz` -> `a`."""
    stem, suffix = os.path.splitext(name)
    return os.path.splitext(stem)[0] if suffix.lower() in _COMPRESSION_OF else stem
