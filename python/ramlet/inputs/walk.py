"""Walks over folders and globs that find the files to read, with memory for the names of the open folders only."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ramlet.errors import SourceError
from ramlet.inputs.formats import FORMAT_OF, decoder_bytes, is_text, split_suffixes
from ramlet.runtime.atomic_files import is_temporary

WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read."""

    path: str
    """As the user gave it; `-` is standard input."""

    format: str
    """`text`, `jsonl` or `parquet`."""

    compression: str
    """`gz`, `zst`, `xz`, `bz2`, or nothing."""

    size: int | None
    """Bytes on disk; None for standard input and pipes."""

    modified: int = 0
    """Modification time, in nanoseconds."""

    def decoding(self, text_field: str) -> int:
        """The least memory that its decoder takes; 0 if it is plain text. Reads the headers of a Parquet file."""
        least = decoder_bytes(self.format, self.compression)
        if self.format != "parquet" or self.compression or self.size is None:
            return least
        from ramlet import _native

        return max(least, _native.parquet_memory(self.path, text_field))

    def spec(self) -> tuple[str, str, str, int, int]:
        """For the native core: (path, format, compression, size or -1, modification time)."""
        return self.path, self.format, self.compression, -1 if self.size is None else self.size, self.modified


_RESULTS = {"a dataset": ("dataset_metadata.json",), "a run": ("metrics.jsonl", "settings.yaml")}
"""Folders of ramlet with JSON in them, which would silently be read as text: the files that each has."""


def result_in(names: Collection[str]) -> str:
    """What kind of result a folder with these names is; "" if it is none."""
    return next((what for what, files in _RESULTS.items() if all(file in names for file in files)), "")


def is_result(folder: str) -> str:
    """The same for a folder on disk."""
    return result_in([name for names in _RESULTS.values() for name in names if os.path.exists(f"{folder}/{name}")])


class Excluded:
    """Paths to skip. Checked for every entry, so the name is compared before the path is resolved."""

    def __init__(self, paths: Collection[str]) -> None:
        self.paths = frozenset(paths)
        self.names = frozenset(map(os.path.basename, paths))

    def has(self, folder: str, name: str) -> bool:
        return name in self.names and os.path.realpath(os.path.join(folder, name)) in self.paths


class Walk:
    """The files below a folder that a glob matches; a folder by itself is the glob `**`.

    One regular expression decides for each path below that folder. Up to the first `**`, folders that do not match
    their part of the glob are skipped; from there on all are walked. `form` is the format of all inputs, if given.
    """

    def __init__(self, base: str, parts: list[str], form: str | None, excluded: Excluded, is_folder: bool) -> None:
        self.base = base
        self.form = form
        self.excluded = excluded
        self.is_folder = is_folder
        """Whether the folder was given as such: then its hidden files are counted as skipped."""
        self.inside = os.path.realpath(self.base or ".").rstrip("/") + "/"
        deep = "**" in parts
        self.known = [re.compile(_part(part)) for part in parts[: parts.index("**") if deep else None]]
        # A folder that matches stands for all files below it, unless `**` reaches them anyway.
        tail = "" if deep else "(?:/(?!\\.)[^/]+)*"
        steps = ["(?:(?!\\.)[^/]+/)*" if part == "**" else _part(part) + "/" for part in parts[:-1]]
        last = "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+" if parts[-1] == "**" else _part(parts[-1])
        self.path = re.compile("".join(steps) + last + tail)
        # A suffix in the glob is meant: files with it are text, whatever it is.
        suffix = re.search(r"\.\w+$", parts[-1])
        self.suffix = suffix[0] if suffix else None

    @classmethod
    def of_folder(cls, name: str, form: str | None, excluded: Excluded) -> Walk:
        return cls(name.rstrip("/") + "/", ["**"], form, excluded, is_folder=True)

    @classmethod
    def of_glob(cls, name: str, form: str | None, excluded: Excluded) -> Walk:
        parts = name.split("/")
        literal = next(at for at, part in enumerate(parts) if WILDCARD.search(part))
        base = "/".join(parts[:literal]) + "/" if literal else ""
        return cls(base, [part for part in parts[literal:] if part], form, excluded, is_folder=False)

    def files(self, skipped: dict[str, int]) -> Iterator[Source]:
        if not self.is_folder and self.base and not os.path.isdir(self.base):
            return
        # A stack instead of recursion: folders may be nested deeper than Python's recursion limit.
        above = [("", iter(_listing(self.base or ".")))]
        while above:
            below, names = above[-1]
            listed = next(names, None)
            if listed is None:
                above.pop()
                continue
            name = listed.rstrip("/")
            path = below + name
            if self.excluded.has(self.base + below, name):
                continue
            depth = len(above) - 1
            if self.is_folder:
                if is_temporary(name):
                    continue  # it exists only while a command writes: not part of the input
                if name.startswith("."):
                    skipped["hidden"] = skipped.get("hidden", 0) + 1
                    continue
                enter = listed == name + "/"
            elif depth < len(self.known):
                if not self.known[depth].fullmatch(name):
                    continue
                enter = listed != name
            else:
                # A linked folder may lead back up: it is entered only if the glob names it.
                enter = listed == name + "/" and not name.startswith(".")
            if enter:
                names_inside = _listing(self.base + path + "/")
                if depth + 1 >= len(self.known) and result_in(names_inside):
                    skipped["result"] = skipped.get("result", 0) + 1
                    continue
                above.append((path + "/", iter(names_inside)))
            elif listed == name and (self.is_folder or self.path.fullmatch(path)):
                source = _take(self.base + path, name, self.form, skipped, self._means(path))
                if source:
                    yield source

    def _means(self, path: str) -> bool:
        return self.suffix is not None and path.endswith(self.suffix)

    def covers(self, real: str) -> bool:
        """Whether this walk includes the file at this real path."""
        if not real.startswith(self.inside):
            return False
        path = real[len(self.inside) :]
        return (
            self.path.fullmatch(path) is not None
            and (self._means(path) or is_text(real, *split_suffixes(os.path.basename(path)), self.form))
            and not self._in_result(path)
        )

    def _in_result(self, path: str) -> bool:
        """Whether the walk does not come to this path, because a folder above it is a result."""
        parts = path.split("/")[:-1]
        above = ("/".join(parts[:depth]) for depth in range(max(1, len(self.known)), len(parts) + 1))
        return any(is_result(self.inside + folder) for folder in above)


def _part(pattern: str) -> str:
    """One part of a glob, between slashes, as a regular expression; a wildcard does not match a leading dot."""
    pieces = ["(?!\\.)"] if WILDCARD.match(pattern) else []
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

    Only names, because a folder may hold a million: the entries of scandir would take more than twice as much.
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
        return ""  # a link to itself: it is skipped like a broken one


def _take(path: str, name: str, form: str | None, skipped: dict[str, int], meant: bool = False) -> Source | None:
    """The file as a source, or None with the reason counted in `skipped`."""
    suffix, compression = split_suffixes(name)
    try:
        status = os.stat(path)
    except OSError as error:
        if not os.path.islink(path):
            raise SourceError(f"cannot read {path}: {error.strerror}") from None
        reason = "special"
    else:
        if not stat.S_ISREG(status.st_mode):
            reason = "special"
        elif not meant and not is_text(path, suffix, compression, form):
            reason = "binary"
        else:
            form = form or FORMAT_OF.get(suffix, "text")
            return Source(path, form, compression, status.st_size, status.st_mtime_ns)
    skipped[reason] = skipped.get(reason, 0) + 1
    return None
