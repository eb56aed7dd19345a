"""Creates the corpora for the benchmarks from Debian packages.

    python benchmarks/corpora.py code nat                    # 618 MB of C, 123 MB of prose in forty languages
    python benchmarks/corpora.py prose docs python           # English prose, documentation, Python
    python benchmarks/corpora.py manuals                     # help in 25 more languages, references of libraries
    python benchmarks/corpora.py synthetic --size 12GB       # an unlimited number of distinct words (Heaps' law)

`code`  every .c file of the newest linux-source-6.* package, sorted by path. No root needed: packages are
        downloaded and unpacked here, not installed. Without apt: the .py files of this interpreter's
        library and site-packages, and `corpora.json` says so.
`nat`   LibreOffice's help in nine languages, GNOME's help in forty, and three dictionaries (Arabic, Hindi, English):
        Latin, Greek, Cyrillic, Arabic, Hebrew, Indic, Han, kana and Hangul. Markup is stripped. 836 k distinct
        GPT-2 pieces. No plain word lists: a list with each word once is not running text.
`prose`  English prose: the Anarchist FAQ and the Debian Administrator's Handbook, pages in the order of their SHA-256,
        so that every part of it is of the same kind. Markup is stripped.
`docs`  documentation: of Python, Django, PostgreSQL and Linux. Markup is stripped.
`manuals`  LibreOffice's help in the 25 languages that `nat` lacks, the references of Java, Qt, Boost, pandas, SciPy and
        Erlang: many pages differ in a few words, or are the same in several languages. Markup is stripped.
`python`  Python: the standard library with its tests, numpy, sympy, Django.
`synthetic`  words drawn from a Zipf-Mandelbrot law of exponent 1.25 over infinitely many ranks, so that n words
        contain about n**0.8 distinct ones. See synthetic.py.

Everything is cached in benchmarks/data; the same packages give the same bytes. Package versions, size and SHA-256 of
each corpus are printed and saved in benchmarks/data/corpora.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"

# "a|b" is the first one that apt knows: names with versions differ between Debian's releases.
CODE_PACKAGES = ["linux-source-6.1|linux-source-6.12"]
NAT_PACKAGES = [
    *(f"libreoffice-help-{language}" for language in ("de", "el", "en-us", "es", "fr", "ja", "ko", "ru", "zh-cn")),
    "gnome-user-docs",
    "dict-freedict-ara-eng",
    "dict-freedict-eng-hin",
    "dict-gcide",
]

PROSE_PACKAGES = ["anarchism", "debian-handbook"]
DOCS_PACKAGES = [
    *("python3.11-doc|python3.13-doc", "python-django-doc", "postgresql-doc-15|postgresql-doc-17"),
    "linux-doc-6.1|linux-doc-6.12",
]
MANUALS_LANGUAGES = [
    *("ca", "cs", "da", "dz", "en-gb", "et", "eu", "fi", "gl", "hi", "hu", "id", "it", "km", "nl", "om", "pl"),
    *("pt", "pt-br", "sk", "sl", "sv", "tr", "vi", "zh-tw"),
]
MANUALS_PACKAGES = [
    *(f"libreoffice-help-{language}" for language in MANUALS_LANGUAGES),
    *("openjdk-17-doc|openjdk-21-doc", "qtbase5-doc-html", "libboost1.81-doc|libboost1.83-doc"),
    *("python-pandas-doc", "python-scipy-doc", "erlang-doc"),
]
PYTHON_PACKAGES = [
    *(f"libpython3.11-{part}|libpython3.13-{part}" for part in ("minimal", "stdlib", "testsuite")),
    *("python3-numpy", "python3-sympy", "python3-django"),
]
PACKAGES = {
    "code": CODE_PACKAGES,
    "nat": NAT_PACKAGES,
    "prose": PROSE_PACKAGES,
    "docs": DOCS_PACKAGES,
    "manuals": MANUALS_PACKAGES,
    "python": PYTHON_PACKAGES,
}
CORPORA = (*PACKAGES, "synthetic")

SCRIPTS = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->")
INLINE_TAG = re.compile(
    r"(?i)</?(?:a|abbr|app|b|cmd|code|em|file|gui|guiseq|i|key|kbd|link|span|strong|sub|sup|tt|u)\b[^>]*>"
)
OTHER_TAG = re.compile(r"<[^>]*>")
BLANKS = re.compile(r"[ \t\r\f\v]+")
BLANK_LINES = re.compile(r" ?\n[ \n]*")


class MissingPackage(Exception):
    """apt is missing, or cannot find or download the package."""


def download(package: str, folder: Path) -> Path:
    """The .deb of `package`, from `folder` or from the mirror."""
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise MissingPackage("apt-get and dpkg-deb are needed")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "download", "-qq", package]
        got = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if got.returncode and os.geteuid() == 0:  # a fresh image has no package lists; updating them requires root
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
            got = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        found = sorted(folder.glob(f"{package}_*.deb"))
        if not found:
            raise MissingPackage(f"{package}: {got.stderr.strip()} (as root, try apt-get update)")
    return found[-1]


def first_known(packages: str, folder: Path) -> Path:
    """The .deb of the first of the packages, which are separated by |."""
    for package in packages.split("|"):
        try:
            return download(package, folder)
        except MissingPackage as error:
            missing = error
    raise missing


def package_version(deb: Path) -> str:
    shown = subprocess.run(["dpkg-deb", "-W", deb], capture_output=True, text=True, check=True)
    return shown.stdout.strip().replace("\t", "=")


def clean(raw: bytes) -> bytes:
    """Valid UTF-8 that ends in a newline, so that every tool reads exactly the same text."""
    text = raw.decode("utf-8", errors="replace")
    return (text if text.endswith("\n") else text + "\n").encode()


def strip_markup(raw: bytes) -> bytes:
    text = SCRIPTS.sub(" ", raw.decode("utf-8", errors="replace"))
    text = html.unescape(OTHER_TAG.sub("\n", INLINE_TAG.sub("", text)))
    return BLANK_LINES.sub("\n", BLANKS.sub(" ", text)).strip().encode() + b"\n"


def code_documents(deb: Path) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory(dir=DATA) as scratch:
        subprocess.run(["dpkg-deb", "-x", deb, scratch], check=True)
        (archive,) = Path(scratch).glob("usr/src/linux-source-*.tar.xz")
        sources = Path(scratch, "c")
        sources.mkdir()
        # The archive may not be sorted, so the files go to disk first.
        with lzma.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".c"):
                    member.name = member.name.replace("/", "\x01")  # flat: one folder, sorted as the paths are
                    tar.extract(member, sources, filter="data")
        for path in sorted(sources.iterdir()):
            yield clean(path.read_bytes())


def package_documents(deb: Path, name: str) -> Iterator[bytes]:
    """The documents of a package for this corpus, in the order of their paths."""
    if name == "code":
        yield from code_documents(deb)
        return
    with tempfile.TemporaryDirectory(dir=DATA) as scratch:
        subprocess.run(["dpkg-deb", "-x", deb, scratch], check=True)
        for path in sorted(Path(scratch).rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            if name == "python":
                if path.suffix == ".py":
                    yield clean(path.read_bytes())
            elif name == "prose" and "debian-handbook" in path.parts and "en-US" not in path.parts:
                continue
            elif path.suffix in {".html", ".page"}:
                yield strip_markup(path.read_bytes())
            elif path.name.endswith(".dict.dz"):
                yield clean(gzip.decompress(path.read_bytes()))


def python_documents() -> Iterator[bytes]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    for path in sorted({path for folder in folders for path in Path(folder).rglob("*.py")}):
        yield clean(path.read_bytes())


def documentation_documents() -> Iterator[bytes]:
    for path in sorted(Path("/usr/share/doc").rglob("*")):
        if path.is_file() and path.suffix in {".html", ".htm"}:
            yield strip_markup(path.read_bytes())
        elif path.is_file() and path.suffix in {"", ".txt", ".md"}:
            yield clean(path.read_bytes())


def documents_of(name: str) -> tuple[list[str], Iterator[bytes]]:
    """The origin of the corpus (package versions) and its documents, or those of the fallback."""
    try:
        packages = [first_known(each, DATA / "debs") for each in PACKAGES[name]]
        documents = (text for deb in packages for text in package_documents(deb, name))
        if name == "prose":
            documents = iter(sorted(documents, key=lambda text: hashlib.sha256(text).digest()))
        return [package_version(deb) for deb in packages], documents
    except MissingPackage as error:
        print(f"{name}: using local files instead: {error}", file=sys.stderr)
        if name in ("code", "python"):
            return ["fallback: .py files of this interpreter"], python_documents()
        return ["fallback: /usr/share/doc"], documentation_documents()


def write_atomically(target: Path, blocks: Iterator[bytes]) -> tuple[int, str]:
    """Writes the blocks to `target`; returns its size and SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    digest, size = hashlib.sha256(), 0
    with partial.open("wb") as out:
        for block in blocks:
            out.write(block)
            digest.update(block)
            size += len(block)
    partial.replace(target)
    return size, digest.hexdigest()


def describe(target: Path, size: int, digest: str, made_from: list[str]) -> None:
    ledger = DATA / "corpora.json"
    entries = json.loads(ledger.read_text()) if ledger.exists() else {}
    entries[target.name] = {"bytes": size, "sha256": digest, "made_from": made_from}
    ledger.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")


def known(target: Path) -> dict[str, Any] | None:
    ledger = DATA / "corpora.json"
    entry = json.loads(ledger.read_text()).get(target.name) if ledger.exists() else None
    return entry if entry and target.exists() and target.stat().st_size == entry["bytes"] else None


def corpus(name: str, size: int = 0, seed: int = 0) -> Path:
    """The path of a corpus (one of CORPORA; `synthetic` of `size` bytes); creates it if missing."""
    target = DATA / (f"synthetic-{size}-{seed}.txt" if name == "synthetic" else f"{name}.txt")
    if known(target) is None:
        DATA.mkdir(parents=True, exist_ok=True)
        if name == "synthetic":
            from synthetic import synthetic_blocks

            made_from, blocks = [f"synthetic.py, seed {seed}"], synthetic_blocks(size, seed)
        else:
            made_from, blocks = documents_of(name)
        written, digest = write_atomically(target, blocks)
        describe(target, written, digest, made_from)
    return target


def parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"cannot parse {text!r} as a size: write it like 200MB or 12GB")
    return int(float(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", choices=CORPORA, default=["code", "nat"])
    parser.add_argument("--size", type=parse_size, default=parse_size("200MB"), help="size of synthetic: 200MB, 12GB")
    parser.add_argument("--seed", type=int, default=0, help="seed of synthetic")
    options = parser.parse_args()
    for name in options.corpora:
        path = corpus(name, options.size, options.seed)
        entry = known(path)
        assert entry is not None
        print(f"{path}\n  {entry['bytes']:,} bytes, sha256 {entry['sha256']}\n  {', '.join(entry['made_from'])}")


if __name__ == "__main__":
    main()
