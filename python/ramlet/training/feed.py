"""The data of a run: datasets, a mix of them, or a stream of text that is tokenized during training.

feed = DataFeed([("my-dataset", 1.0)], settings)
feed.vocab_size, feed.tokenizer_file, feed.packed_length
with feed.loader(seq_len=256, sequences=32, micro_batch=8, ranks=Ranks()) as loader: ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ramlet.engines import Ranks
from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.named import needs_staging
from ramlet.loading.loader import Loader
from ramlet.loading.tokens import open_tokens
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.eval_sets import validation_sets
from ramlet.training.mix import Mix
from ramlet.training.settings import RunSettings

if TYPE_CHECKING:
    from ramlet.loading.stream_loader import StreamLoader


class Feed(Protocol):
    """What training needs to know about the data."""

    vocab_size: int
    end_id: int | None
    fingerprint: str | None
    """Of the tokenizer."""
    tokenizer_file: Path | None
    packed_length: int | None
    reads_at_once: bool
    """Whether the first batch is there without reading more than that."""

    def tokenizer(self) -> Tokenizer | None:
        """If there is one; loading it needs much memory for a moment."""

    def settle(self) -> None:
        """Writes the files that the run's folder needs; nothing is written before."""

    def loader(self, seq_len: int, sequences: int, micro_batch: int | None, ranks: Ranks) -> Any:
        """This rank's share of global batches of `sequences`, in micro-batches."""

    def examples(self, seq_len: int) -> int | None:
        """The number of sequences; None if unknown before everything has been read."""

    def identity(self) -> list[dict[str, Any]]:
        """What distinguishes this data from other data."""

    def validation(self) -> list[tuple[str, str]]:
        """Names and datasets of the validation splits."""


class DataFeed:
    """Datasets on disk."""

    reads_at_once = True

    def __init__(self, mix: Mix, settings: RunSettings) -> None:
        self.mix = mix
        self._settings = settings
        self._tokens = [open_tokens(name, "train", settings.val_fraction) for name, _ in mix]
        first = self._tokens[0]
        self.vocab_size = max(tokens.vocab_size() for tokens in self._tokens)
        self.end_id = first.end_id
        self.fingerprint = first.tokenizer_fingerprint
        self.tokenizer_file = first.tokenizer_file
        self.packed_length = next((tokens.packed_length for tokens in self._tokens if tokens.packed_length), None)

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.load(self.tokenizer_file) if self.tokenizer_file is not None else None

    def settle(self) -> None:
        pass

    def loader(self, seq_len: int, sequences: int, micro_batch: int | None, ranks: Ranks) -> Loader:
        settings = self._settings
        return Loader(
            self.mix if len(self.mix) > 1 else self.mix[0][0],
            seq_len=seq_len,
            batch_size=sequences,
            seed=settings.seed,
            shift=settings.shift,
            stride=settings.stride,
            max_examples=settings.max_examples,
            rank=ranks.rank,
            world=ranks.world,
            micro_batch=micro_batch,
            document_mask=settings.document_mask,
            val_fraction=settings.val_fraction,
        )

    def examples(self, seq_len: int) -> int:
        with self.loader(seq_len, 1, None, Ranks()) as loader:
            return len(loader.examples)

    def identity(self) -> list[dict[str, Any]]:
        return [
            {"path": str(Path(name).resolve()), "weight": weight, "fingerprint": tokens.fingerprint}
            for (name, weight), tokens in zip(self.mix, self._tokens)
        ]

    def validation(self) -> list[tuple[str, str]]:
        return list(validation_sets([name for name, _ in self.mix], self._settings.val_fraction).items())


class StreamFeed:
    """Any text, tokenized during training; a run on datasets does not load what it needs.

    The tokenizer, and inputs that are not local files, are stored in `work`, inside the run.
    """

    packed_length: int | None = None
    reads_at_once = False

    def __init__(
        self,
        sources: Sequence[str],
        tokenizer: Tokenizer | str,
        settings: RunSettings,
        work: Path,
        reading: Mapping[str, Any],
    ) -> None:
        from ramlet.preparing.settings import PrepareSettings
        from ramlet.preparing.tokenizer import choose

        self._sources, self._settings, self._work, self._reading = list(sources), settings, work, dict(reading)
        # As in `prepare`: the byte tokenizer gets an end of text, and a dataset prepared with it matches the run.
        loaded = tokenizer if isinstance(tokenizer, Tokenizer) else choose(PrepareSettings(tokenizer=tokenizer), None)
        if loaded is None:
            raise SettingsError(
                f"a char tokenizer must read all of the text first: give the text as {option('input')}, "
                f"or the stream another {option('tokenizer')}"
            )
        self._tokenizer = loaded
        self.tokenizer_file: Path | None = work / "tokenizer.json"
        self.vocab_size = loaded.vocab_size
        self.end_id = loaded.end_of_text
        self.fingerprint: str | None = loaded.fingerprint

    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    def settle(self) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        self._tokenizer.save(self._work / "tokenizer.json")

    def loader(self, seq_len: int, sequences: int, micro_batch: int | None, ranks: Ranks) -> StreamLoader:
        return self._loader(seq_len, sequences, micro_batch, ranks, self._work)

    def _loader(
        self, seq_len: int, sequences: int, micro_batch: int | None, ranks: Ranks, work: Path | None
    ) -> StreamLoader:
        from ramlet.loading.stream_loader import StreamLoader

        settings = self._settings
        return StreamLoader(
            self._sources,
            tokenizer=self._tokenizer,
            seq_len=seq_len,
            batch_size=sequences,
            seed=settings.seed,
            shuffle_buffer=settings.shuffle_buffer,
            stride=settings.stride,
            max_examples=settings.max_examples,
            rank=ranks.rank,
            world=ranks.world,
            micro_batch=micro_batch,
            document_mask=settings.document_mask,
            work_dir=work,
            **self._reading,
        )

    def examples(self, seq_len: int) -> int | None:
        """Counted for local files; for other inputs only a given limit is known."""
        if any(needs_staging(source) for source in self._sources):
            return self._settings.max_examples
        with self._loader(seq_len, 1, None, Ranks(), None) as loader:
            count = loader.count_examples()
        if not count:
            raise SourceError(
                f"{', '.join(self._sources)} has less than one sequence of {seq_len:,} tokens: choose a smaller "
                f"{option('seq_len')}, or give more text"
            )
        return count

    def identity(self) -> list[dict[str, Any]]:
        return [{"stream": source, "tokenizer": self.fingerprint} for source in self._sources]

    def validation(self) -> list[tuple[str, str]]:
        return []
