"""The settings of `prepare`, each checked once.

    settings = PrepareSettings(tokenizer="gpt2", dedup="line", val_fraction=0.01)
    settings.cleaning()      the settings of the cleaner
    settings.parts()         bytes that differ whenever the result may differ

Everything that determines the result is here, and nothing else: no memory, no threads, no output folder. The options of
the command, the keys of a config file and the tables in the docs are generated from these declarations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.inputs.settings import READING, ReadSettings
from ramlet.settings.declared import setting
from ramlet.settings.kinds import Choice, Count, Number, Place, Places, Size, Switch, Text, share

CLEANING, FILTERS, DUPLICATES, EVALUATION, OUTPUT = "Cleaning", "Filters", "Duplicates", "Decontamination", "Output"
"""Groups of settings, in the help and in the docs."""

DOCUMENT_BYTES = 1 << 20
WHOLE_FILE_BYTES = 1 << 16
"""For a text file that is one document: nothing in it marks where a text ends, and shorter parts shuffle better."""

LEAST_DOCUMENT_BYTES = 16
LARGEST_DOCUMENT_BYTES = 1 << 28
"""A document is in memory as a whole, several times: a larger one would take the whole budget."""

NO_END_TOKEN = "none"
OUTPUT_FORMATS = ("shards", "npy")


def for_cleaner(*args: Any, **more: Any) -> Any:
    """A setting that the cleaner in Rust gets (`Settings` in rust/clean/rules.rs), under the same name."""
    plain = setting(*args, **more)
    return field(default=plain.default, metadata={**plain.metadata, "cleaner": True})


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(ReadSettings):
    """Everything that determines the content of a dataset."""

    tokenizer: str = setting(
        "gpt2",
        Text(what="gpt2, byte, char, a file, a folder or a name on the hub", metavar="TOKENIZER"),
        "gpt2, byte, char (learned from the input), a tokenizer file or folder, or a Hugging Face name.",
        called=("tokenizer", "tokenization"),
        short="T",
        panel=OUTPUT,
    )
    end_token: str | None = setting(
        None,
        Text(what="a token of the tokenizer, or none"),
        "EOS token to append to every document, or none.",
        panel=OUTPUT,
        shown="the tokenizer's own",
    )
    unknown: str = setting(
        "error",
        Choice(("error", "unk")),
        "A character that the vocabulary lacks is an error, or becomes the unk token.",
        panel=OUTPUT,
    )

    normalize: bool = for_cleaner(
        True,
        Switch(),
        "Normalize line ends and Unicode (NFC), remove control characters, trailing spaces and extra blank lines.",
        panel=CLEANING,
    )
    collapse_blanks: bool = for_cleaner(
        False,
        Switch(),
        "When normalizing, also replace runs of spaces and tabs inside a line by one space.",
        panel=CLEANING,
    )

    filter: bool = for_cleaner(
        True,
        Switch(),
        "Apply the filters below; if off, only {min_tokens} and {max_tokens} apply, and empty documents are dropped.",
        panel=FILTERS,
    )
    min_chars: int = for_cleaner(1, Count(least=0), "Drop documents with fewer characters.", panel=FILTERS)
    max_chars: int = for_cleaner(0, Count(least=0), "Drop documents with more characters; 0 disables.", panel=FILTERS)
    max_symbols: float = for_cleaner(
        0.6,
        share(),
        "Drop documents with a larger fraction of symbols: not letters, marks, numbers or white space.",
        panel=FILTERS,
    )
    max_repeated: float = for_cleaner(
        0.5, share(), "Drop documents with a larger fraction of their text in repeated lines.", panel=FILTERS
    )
    max_invalid: float = for_cleaner(
        0.02, share(), "Drop documents with a larger fraction of undecodable characters (U+FFFD).", panel=FILTERS
    )
    min_line_chars: int = for_cleaner(
        0, Count(least=0), "Drop lines with fewer characters; blank lines stay.", panel=FILTERS
    )
    max_line_chars: int = for_cleaner(
        100_000, Count(least=0), "Drop lines with more characters; 0 disables.", panel=FILTERS
    )
    max_line_symbols: float = for_cleaner(1.0, share(), "Drop lines with a larger fraction of symbols.", panel=FILTERS)

    dedup: str = setting(
        "doc",
        Choice(("doc", "line", "none")),
        "Drop repeated documents (doc) or repeated lines (line), keeping the first of each; none keeps all.",
        stands_for={"no_dedup": "none"},
        panel=DUPLICATES,
    )
    near: float | None = setting(
        None,
        Number(above=0, most=1),
        "Also drop near-duplicates: documents with at least this Jaccard similarity to one that is kept; 0.8 is usual.",
        panel=DUPLICATES,
        shown="off",
        later=True,
    )
    dedup_cache: str | None = setting(
        None,
        Place(what="a folder", metavar="DIR"),
        "Folder of hashes of kept documents; later runs with the same folder drop duplicates of these too.",
        panel=DUPLICATES,
    )

    exclude: tuple[str, ...] = setting(
        (),
        Places(what="files, folders, or datasets of ramlet", metavar="SOURCE"),
        "Drop documents that share a passage with this evaluation set (text or a dataset); may be given several times.",
        panel=EVALUATION,
        later=True,
    )
    exclude_ngram: int = setting(
        13,
        Count(least=2, most=256),
        "Words in a row that count as a shared passage; in Chinese, Japanese or Thai, characters.",
        panel=EVALUATION,
        later=True,
    )
    exclude_field: str | None = setting(
        None,
        Text(what="the name of a field", metavar="NAME"),
        "The same as {text_field}, for {exclude}.",
        panel=EVALUATION,
        shown="{text_field}",
        later=True,
    )

    document_bytes: int | None = setting(
        None,
        Size(least=LEAST_DOCUMENT_BYTES, most=LARGEST_DOCUMENT_BYTES),
        "Split documents that are longer than this.",
        panel=READING,
        shown="1MiB; 64KiB for text files that are one document",
    )
    min_tokens: int = setting(1, Count(least=0), "Drop documents with fewer tokens.", panel=FILTERS)
    max_tokens: int | None = setting(None, Count(), "Split or drop documents with more tokens.", panel=FILTERS)
    long_documents: str = setting(
        "split", Choice(("split", "drop")), "What to do with documents over {max_tokens}.", panel=FILTERS
    )

    val_fraction: float = setting(
        0.1, share(below_one=True), "Fraction of documents for validation, chosen by their hash.", panel=OUTPUT
    )
    tokens_per_shard: int = setting(
        10_000_000, Count(), "Maximum tokens in a shard, which holds whole documents.", panel=OUTPUT
    )
    pack: int | None = setting(
        None, Count(least=2, metavar="LENGTH"), "Pack documents into sequences of this many tokens.", panel=OUTPUT
    )
    output_format: str = setting(
        "shards",
        Choice(OUTPUT_FORMATS),
        "A folder of shards, or all ids in one .npy file, without a validation split.",
        called=("output_format", "format"),
        panel=OUTPUT,
    )
    allow_empty: bool = setting(
        False,
        Switch(),
        "Write the dataset even if no document is left, instead of an error.",
        panel=OUTPUT,
        decides=False,  # only whether there is a result, not its content
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_empty_range("min_chars", "max_chars")
        self._refuse_empty_range("min_line_chars", "max_line_chars")
        self._refuse_empty_range("min_tokens", "max_tokens")
        if self.collapse_blanks and not self.normalize:
            raise SettingsError(f"{option('collapse_blanks')} needs {option('normalize')}, which is off: change one")
        if self.pack is not None and self.pack > self.tokens_per_shard:
            raise SettingsError(
                f"{option('tokens_per_shard')} is {self.tokens_per_shard:,}, "
                f"less than one sequence of {option('pack')}, {self.pack:,}: give at least that many"
            )
        if self.near is not None and self.output_format == "npy":
            raise SettingsError(
                f"{option('near')} compares documents, and an npy file has no documents: "
                f"write shards, or remove {option('near')}"
            )

    def _refuse_empty_range(self, least: str, most: str) -> None:
        low, high = getattr(self, least), getattr(self, most)
        if high and low > high:
            raise SettingsError(
                f"{option(least)} is {low:,}, more than {option(most)}, {high:,}: nothing passes both, change one"
            )

    @property
    def end_token_wanted(self) -> bool:
        """Whether documents end with a token."""
        return self.end_token != NO_END_TOKEN

    @property
    def largest_document(self) -> int:
        """Bytes above which a document is split."""
        return self.document_bytes or DOCUMENT_BYTES

    @property
    def largest_whole_file(self) -> int:
        """The same for text files that are one document."""
        return self.document_bytes or WHOLE_FILE_BYTES

    @property
    def cache_folder(self) -> str | None:
        """The folder of the dedup cache, if there is dedup."""
        return None if self.dedup == "none" and self.near is None else self.dedup_cache

    def cleaning(self) -> dict[str, Any]:
        """For the native core, which has its own spelling of `normalize`."""
        names = {each.name: each.name for each in fields(self) if "cleaner" in each.metadata}
        return {key: getattr(self, name) for name, key in (names | {"normalize": "normalise"}).items()}

    def cleaning_parts(self) -> bytes:
        """What determines how a text is cleaned: hashes of cleaned texts are comparable only if this is the same."""
        return b"ramlet cleaning 1\0" + self._parts(self.cleaning())

    def parts(self) -> bytes:
        """For the signature of a result: the bytes differ whenever these settings may change the result.

        The caller adds three things that are only named here: the content of the tokenizer (its fingerprint), of the
        dedup cache and of the evaluation set. The paths of the last two do not matter, so they can be moved.
        """
        values = self.decisive() | {"dedup_cache": self.cache_folder is not None}
        if self.exclude:
            values["exclude"] = True
        return b"ramlet prepare 1\0" + self._parts(values)

    def _parts(self, values: dict[str, Any]) -> bytes:
        return json.dumps(self.known_by(values), sort_keys=True).encode()
