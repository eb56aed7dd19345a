"""`ramlet.Loader`: shuffled, resumable batches from ids on disk.

    with ramlet.Loader("my-dataset", seq_len=1024, batch_size=32, as_torch=True) as loader:
        for batch in loader:
            loss = model(**batch).loss
            ...
            checkpoint["data"] = loader.state()

**Examples.** A split is one stream of ids across its shards. Example k starts at id k * stride: seq_len ids as inputs,
and the same shifted by one as targets. In a packed dataset an example is a sequence.

**Order.** An epoch goes through all examples in an order computed from (seed, epoch): a shuffle over all of the data,
without a list of it in memory. Samples are numbered through all epochs; a global batch is the next `batch_size` of
them, whatever the number of ranks and the size of a micro-batch.

**Shift.** With `shift`, the examples of each epoch after the first start some ids later, by an offset computed from
(seed, epoch), so that the text is cut at other places. The last example stays where it is: nothing else is read, and
every epoch has the same number. The sequences of a packed dataset stay as they are.

**Mixing.** `[("web", 0.7), ("code", 0.3)]` draws sequences by weight. The shares hold in every 256 samples, rounded so
that no dataset is ever off its share by more than a few sequences. Each dataset has its own epochs; an epoch of the mix
has as many samples as there are examples in total.

**Memory.** `read_ahead` micro-batches, two more in use by the caller, 64 bytes per shard: see `memory`. Ids are read,
not memory-mapped, at 50 million tokens per second and more on one thread if files are in the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

from ramlet import _native
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.loading.batch import Batch, Kind, batches_memory, make_batch
from ramlet.loading.division import Division, Piece, check_counts, checked_seed
from ramlet.loading.resumable import Read, ResumableLoader, natural
from ramlet.loading.tokens import Tokens, open_tokens
from ramlet.runtime.digest import digest
from ramlet.runtime.plurals import plural

Data = str | os.PathLike[str] | Sequence[tuple[str | os.PathLike[str], float]]

SEQ_LEN = 1024
SHARD_BYTES = 64
"""Per shard, its name, its position and its first id are kept."""
OWN_BYTES = 1 << 20
"""The thread, and one example that is being read."""
WEIGHT_SUM = 10**9


class Loader(ResumableLoader):
    """Shuffled batches from ids on disk, with exact resuming.

    with ramlet.Loader("my-dataset", seq_len=1024, batch_size=32, as_torch=True) as loader:
        for batch in loader:
            loss = model(**batch).loss
    """

    def __init__(
        self,
        data: Data,
        *,
        split: str = "train",
        seq_len: int | None = None,
        batch_size: int = 8,
        seed: int = 1,
        shuffle: bool = True,
        shift: bool = False,
        stride: int | None = None,
        max_examples: int | None = None,
        epochs: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        micro_batch: int | None = None,
        as_torch: bool = False,
        as_jax: Any = False,
        as_rows: bool = False,
        document_mask: bool = False,
        val_fraction: float = 0.1,
        read_ahead: int = 2,
        eval_only: bool = False,
    ) -> None:
        """Opens the data; nothing is read, and no thread started, before the first batch.

        `data` is the folder of a dataset, an array (FILE.npy, or FILE.txt with FILE.npy next to it), or a list of these
        with weights. The last `val_fraction` of an array is the split `val`. `seq_len` defaults to 1024, or to that of
        a packed dataset. Without `epochs` the loop is endless. `rank` and `world` are those of torch.distributed, if
        they are not given. `as_rows` yields single sequences, for a DataLoader that makes batches itself.
        `as_torch` yields tensors; `as_jax`, which is True, a mesh or a sharding, yields arrays of JAX on its devices.
        `document_mask` adds position_ids and document_ids, and ignores the loss of targets in the next document.
        `eval_only` is the same as `split="val"`.
        """
        check_counts(seq_len=seq_len, stride=stride, max_examples=max_examples, epochs=epochs)
        split = "val" if eval_only else split
        super().__init__(
            0,
            batch_size=batch_size,
            rank=rank,
            world=world,
            micro_batch=micro_batch,
            as_rows=as_rows,
            read_ahead=read_ahead,
        )
        self._opened = (data, split, val_fraction)
        self.datasets, weights = _open(*self._opened)
        self.seq_len = _sequence_length(self.datasets, seq_len)
        self.stride = self.seq_len if stride is None else stride
        if stride is not None and any(tokens.packed_length for tokens in self.datasets):
            raise SettingsError("a packed dataset has fixed sequences: do not give a stride")
        _check_one_tokenizer(self.datasets)
        if document_mask:
            _check_end_ids(self.datasets)
        self.seed = checked_seed(seed)
        if not isinstance(shuffle, bool) or not isinstance(shift, bool):
            raise SettingsError(f"shuffle and shift must be True or False, not {shuffle!r} and {shift!r}")
        self.shuffle = shuffle
        self.shift = shift
        self.epochs = epochs
        self.as_torch = as_torch
        self._kind = Kind(as_torch, as_jax)
        self._kind.check()
        self.document_mask = document_mask
        self._counts = _example_counts(self.datasets, weights, self.seq_len, self.stride, max_examples)
        self._weights = weights
        self._pass_ended = False
        """Whether a loop has ended at the position, or it could still have to: both are the same sample."""
        self._windows = self._open_windows(self.datasets)
        self.datasets = [replace(tokens, shards=()) for tokens in self.datasets]  # the native core has the list

    def _open_windows(self, datasets: list[Tokens]) -> _native.Windows:
        return _native.Windows(
            [
                tokens.spec(stride=self.stride, examples=examples, weight=weight, shifted=self.shift)
                for tokens, examples, weight in zip(datasets, self._counts, self._weights)
            ],
            seq_len=self.seq_len,
            shuffle=self.shuffle,
        )

    def _separate(self) -> None:
        self._windows = self._open_windows(_open(*self._opened)[0])

    @property
    def examples(self) -> Examples:
        """All examples, not shuffled, to count them or to access one."""
        return Examples(self)

    @property
    def tokens(self) -> int:
        """Ids in the part of the data that is used."""
        return sum(tokens.count for tokens in self.datasets)

    @cached_property
    def vocab_size(self) -> int:
        """Every id is below it. An array without a tokenizer has to be read completely for this."""
        return max(tokens.vocab_size() for tokens in self.datasets)

    @property
    def end_id(self) -> int | None:
        """The id after every document; None if there is none, or it is unknown."""
        return self.datasets[0].end_id

    @property
    def tokenizer_fingerprint(self) -> str | None:
        """Of the tokenizer that made the ids; None if it is unknown."""
        return self.datasets[0].tokenizer_fingerprint

    @property
    def tokenizer_file(self) -> str | None:
        """The tokenizer that made the ids, if it exists."""
        file = self.datasets[0].tokenizer_file
        return os.fspath(file) if file is not None and file.is_file() else None

    def describe(self) -> str:
        """A few lines of text for people."""
        lines = []
        for tokens, examples, weight in zip(self.datasets, self._counts, self._weights):
            lines.append(f"tokens in {tokens.name}: {tokens.total:,}")
            lines.append(f"{tokens.split} portion: {tokens.count:,} tokens ({tokens.count / tokens.total:.1%})")
            lines.append(f"sequences: {examples:,} of {self.seq_len:,} tokens")
            if len(self.datasets) > 1:
                lines.append(f"share of the mix: {weight / sum(self._weights):.1%}")
        return "\n".join(lines)

    def memory(self, *, micro_batch: int | None = None) -> int:
        """The most bytes that it keeps in memory, including the batch in use; for another `micro_batch` if given."""
        rows = micro_batch or self.division.rows
        shards = sum(tokens.shard_count for tokens in self.datasets)
        batches = batches_memory(rows, self.seq_len, self.read_ahead, self.document_mask)
        return batches + shards * SHARD_BYTES + OWN_BYTES

    @property
    def samples(self) -> int:
        """Sequences yielded so far, in complete global batches and over all ranks."""
        return int(self._position)

    def __len__(self) -> int:
        """Batches of this rank in a loop, or sequences with `as_rows`; a TypeError without `epochs`."""
        if self.epochs is None:
            raise TypeError("a loader without epochs is endless and has no length: create it with epochs=1")
        count = self.division.count_rows if self.as_rows else self.division.count_pieces
        return count(self._samples_in_pass)

    @property
    def _samples_in_pass(self) -> int:
        return (self.epochs or 0) * len(self.examples)

    def _batches(self, first: int, every: int) -> Iterator[Read]:
        windows, division, seed = self._windows, self.division, self.seed
        mask, kind, world = self.document_mask, self._kind, division.world
        end = None if self.epochs is None else (self._pass() + 1) * self._samples_in_pass

        def read(piece: Piece) -> Read:
            arrays = windows.read(piece.first, world, piece.count, seed=seed, documents=mask)
            return Read(make_batch(arrays, piece, kind, piece.samples_done), piece.samples_before, piece.number)

        return map(read, islice(division.pieces(self._position, end), first, None, every))

    def _pass(self) -> int:
        if self.epochs is None:
            return 0
        number, done = divmod(int(self._position), self._samples_in_pass)
        return number if done or self._pass_ended or not number else number - 1

    def _begin_pass(self, number: int) -> None:
        if self.epochs is not None:
            self._position, self._pass_ended = number * self._samples_in_pass, True

    def _end_pass(self) -> None:
        self._begin_pass(self._pass() + 1)

    def _yielded(self, batch: Batch) -> None:
        super()._yielded(batch)
        self._pass_ended = self._pass_ended and batch.position_after is None

    _later: ClassVar = {"shift": False}

    def _position_state(self) -> dict[str, Any]:
        epoch, position = divmod(self._position, len(self.examples))
        if self.epochs is not None and not position and self._pass() * self.epochs < epoch - self.epochs + 1:
            epoch, position = epoch - 1, len(self.examples)  # the end of this loop, not the beginning of the next
        return {"epoch": epoch, "position": position}

    def _position_from(self, state: Mapping[str, Any]) -> int:
        epoch, position = natural(state["epoch"]), natural(state["position"])
        if position > len(self.examples):
            raise ValueError("beyond the end of an epoch")
        self._pass_ended = not position
        return epoch * len(self.examples) + position

    def _changed_data(self) -> DatasetError:
        return DatasetError("the data has changed since the state was saved: use the same data, or start over")

    def _identity(self) -> dict[str, Any]:
        parts = [
            f"{tokens.fingerprint} {tokens.start} {tokens.count} {weight}".encode()
            for tokens, weight in zip(self.datasets, self._weights)
        ]
        return {
            "seq_len": self.seq_len,
            "stride": self.stride,
            "shuffle": self.shuffle,
            "shift": self.shift,
            "data": digest(iter([b"ramlet loader 1", *parts])),
            "examples": len(self.examples),
        }

    def __repr__(self) -> str:
        names = " + ".join(tokens.name for tokens in self.datasets)
        return f"<ramlet.Loader {names}: {plural(len(self.examples), 'sequence')} of {self.seq_len:,}>"


class Examples:
    """The examples of a loader in the order of the data; in a mix, one dataset after the other."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return sum(self._loader._counts)

    def __getitem__(self, number: int) -> Batch:
        """A batch of one row."""
        place = range(len(self))[number]
        dataset = 0
        while place >= self._loader._counts[dataset]:
            place -= self._loader._counts[dataset]
            dataset += 1
        arrays = self._loader._windows.example(dataset, place, documents=self._loader.document_mask)
        return make_batch(arrays, next(Division(batch_size=1).step(number, 1)), self._loader._kind)


def _open(data: Data, split: str, val_fraction: float) -> tuple[list[Tokens], list[int]]:
    """The datasets, and their weights as whole numbers."""
    if isinstance(data, (str, os.PathLike)):
        return [open_tokens(data, split, val_fraction)], [1]
    pairs = mix_of(data)
    total = sum(weight for _, weight in pairs)
    weights = [max(1, round(weight / total * WEIGHT_SUM)) for _, weight in pairs]
    return [open_tokens(name, split, val_fraction) for name, _ in pairs], weights


def mix_of(data: Any) -> list[tuple[str | os.PathLike[str], float]]:
    """Checked pairs of a dataset and its weight; a dataset alone is all of the mix."""
    if isinstance(data, (str, os.PathLike)):
        return [(data, 1.0)]
    if not isinstance(data, Iterable):
        raise SettingsError(f"{option('data')} must be a path or a list of (data, weight) pairs, not {data!r}")
    pairs = list(data)
    if not pairs:
        raise SettingsError("a mix needs at least one dataset: give (data, weight) pairs")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], (str, os.PathLike)):
            raise SettingsError(f"a mix is a list of (data, weight) pairs, but {pair!r} is not a pair")
        if not isinstance(pair[1], (int, float)) or not 0 < pair[1] < float("inf"):
            raise SettingsError(f"the weight of {pair[0]} must be a number above 0, not {pair[1]!r}")
    return pairs


def _sequence_length(datasets: list[Tokens], wanted: int | None) -> int:
    for tokens in datasets:
        length = tokens.packed_length
        if length is not None and wanted not in (None, length):
            raise SettingsError(
                f"{tokens.name} is packed in sequences of {length:,}, not {wanted:,}: "
                f"choose {option('seq_len', length)}, or prepare it with {option('pack', wanted)}"
            )
        wanted = length or wanted
    return wanted or SEQ_LEN


def _example_counts(
    datasets: list[Tokens], weights: list[int], seq_len: int, stride: int, most: int | None
) -> list[int]:
    """Examples of each dataset; its share of `most` if that is given."""
    counts = [tokens.examples(seq_len, stride) for tokens in datasets]
    if most is None:
        return counts
    shares = [max(1, most * weight // sum(weights)) for weight in weights]
    return [min(count, share) for count, share in zip(counts, shares)]


def _check_one_tokenizer(datasets: list[Tokens]) -> None:
    first = datasets[0]
    for other in datasets[1:]:
        if other.tokenizer_fingerprint != first.tokenizer_fingerprint:
            shown = [(tokens.tokenizer_fingerprint or "unknown")[:12] for tokens in (first, other)]
            raise DatasetError(
                f"{first.name} and {other.name} were made with different tokenizers (fingerprints {shown[0]} and "
                f"{shown[1]}): prepare one of them again with the tokenizer of the other"
            )


def _check_end_ids(datasets: list[Tokens]) -> None:
    for tokens in datasets:
        if tokens.end_id is None:
            raise DatasetError(
                f"{tokens.name} has no end id between its documents: "
                f"prepare it with an {option('end_token')}, or train without a document mask"
            )
