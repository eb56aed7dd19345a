"""What a loader yields.

    model(**batch)                                  a model of transformers: it shifts `labels` itself
    x, y = batch.input_ids, batch.targets           a loop like nanoGPT's: y is already shifted

`labels` are the input ids, and `targets` the ids that follow them: targets[r, i] comes after input_ids[r, i]. Both are
-100 where the loss is ignored. A model that shifts by itself never sees the target of the last position, so `labels`
have one token less per sequence than `targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ramlet.engines import training_names
from ramlet.engines.opening import require_jax, require_torch
from ramlet.errors import SettingsError
from ramlet.loading.division import Piece

__all__ = ["IGNORED", "Batch", "Kind", "batches_memory", "make_batch", "row_arrays", "training_names"]

IGNORED = -100
"""The label that losses ignore, PyTorch's default."""

_ARRAYS = training_names(document_mask=True)
_LOOKED_UP = (*_ARRAYS, "labels", "samples", "use_cache")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch(Mapping[str, Any]):
    """One micro-batch: sequences of a global batch that one rank processes at once.

        def step(batch: ramlet.Batch) -> None:
            loss = model(**batch.to("cuda")).loss

    As a mapping it has the arguments of a transformers model: input_ids, labels, and with a document mask position_ids
    and use_cache. The other arrays are available by name, `batch["targets"]` or `batch.targets`.
    """

    input_ids: Any
    """A NumPy array, a tensor or an array of JAX; like those below, of shape (sequences, tokens), int64 or, with JAX,
    int32."""

    targets: Any
    """The id that follows each input id."""

    position_ids: Any
    """With a document mask, else None: positions from the start of the document."""

    document_ids: Any
    """With a document mask, else None: 0, 1, 2, ... for the documents of a row."""

    first_of_step: bool
    last_of_step: bool
    """Among the micro-batches of this rank in one global batch."""

    step_sequences: int
    """In the global batch, over all ranks: the divisor for a sum of losses."""

    samples: range
    """The numbers of its sequences among all samples since the beginning: the same for any number of ranks."""

    samples_done: int
    """Samples since the beginning, after this global batch."""

    position_after: Any = field(default=None, repr=False)
    """For the loader: where it continues after this global batch; None if this is not the last of it."""

    _labels: list[Any] = field(default_factory=list, repr=False)
    """Created on first use: code that does not use them does not pay for them."""

    def __new__(cls, *parts: Mapping[str, Any], **fields: Any) -> Any:
        """Of a mapping, a dict: what transformers and accelerate make with `type(batch)({...})`, having taken a batch
        apart, is not a batch of the loader any more."""
        return dict(*parts) if parts else object.__new__(cls)

    @property
    def labels(self) -> Any:
        """The input ids, -100 where the loss is ignored: for models that shift them."""
        if not self._labels:
            ids = self.input_ids
            if hasattr(ids, "at"):  # an array of JAX, which never changes
                labels = ids.at[:, 1:].set(self.targets[:, :-1])
            else:
                labels = ids.clone() if hasattr(ids, "clone") else ids.copy()
                labels[:, 1:] = self.targets[:, :-1]
            self._labels.append(labels)
        return self._labels[0]

    @property
    def trained(self) -> int:
        """Targets that are not ignored."""
        return int((self.targets >= 0).sum())

    @property
    def use_cache(self) -> Any:
        """With a document mask, else None: False, as a NumPy bool or a tensor.

        transformers separates documents by their position_ids, but only without a KV cache, which its models use by
        default.
        """
        if self.position_ids is None:
            return None
        return self.position_ids[:0].any()  # `any` of nothing is False

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name) if name in _LOOKED_UP else None
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from ("input_ids", "labels")
        if self.position_ids is not None:
            yield from ("position_ids", "use_cache")

    def __len__(self) -> int:
        return 2 if self.position_ids is None else 4

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """The same batch on another device or as another dtype, like `Tensor.to`; only for tensors."""
        if not hasattr(self.input_ids, "to"):
            raise SettingsError("a batch of NumPy arrays has no device: create the loader with as_torch=True")
        return self._changed(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies it faster; only for tensors."""
        if not hasattr(self.input_ids, "pin_memory"):
            raise SettingsError("NumPy arrays cannot be pinned: create the loader with as_torch=True")
        return self._changed(lambda tensor: tensor.pin_memory())

    def row(self, number: int) -> dict[str, Any]:
        """One sequence, as what a collator of transformers or torch stacks: arrays of one dimension."""
        names = ("input_ids", "labels", "position_ids")
        return {name: self[name][number] for name in names if name in self}

    def _changed(self, change: Callable[[Any], Any]) -> Batch:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        changed: dict[str, Any] = {name: None if array is None else change(array) for name, array in arrays.items()}
        return replace(self, **changed, _labels=[change(labels) for labels in self._labels])


def batches_memory(rows: int, seq_len: int, read_ahead: int, document_mask: bool) -> int:
    """Bytes of the batches that are read ahead, and of two in use by the caller, which also have labels."""
    array = rows * seq_len * 8
    return (read_ahead + 2) * array * len(training_names(document_mask)) + 2 * array


class Kind(NamedTuple):
    """The arrays of batches: NumPy's, or one of these."""

    as_torch: bool = False
    as_jax: Any = False
    """True, a mesh or a sharding."""

    def check(self) -> None:
        """Refuses what is not installed, and two kinds at once."""
        if self.as_torch and self.as_jax:
            raise SettingsError("a batch has either tensors of PyTorch or arrays of JAX: give as_torch or as_jax")
        if self.as_jax:
            require_jax("as_jax")


def make_batch(arrays: Any, piece: Piece, kind: Kind, position_after: Any = None) -> Batch:
    """From the arrays of the native core: (inputs, targets, (positions, documents) or None)."""
    inputs, targets, documents = arrays
    positions, numbers = documents or (None, None)
    if kind.as_torch:
        require_torch("as_torch=True")
        from ramlet.engines.torch.batches import tensors

        inputs, targets, positions, numbers = tensors(inputs, targets, positions, numbers)
    elif kind.as_jax:
        from ramlet.engines.jax.batches import arrays as on_devices

        inputs, targets, positions, numbers = on_devices(kind.as_jax, inputs, targets, positions, numbers)
    return Batch(
        input_ids=inputs,
        targets=targets,
        position_ids=positions,
        document_ids=numbers,
        first_of_step=piece.first_of_step,
        last_of_step=piece.last_of_step,
        step_sequences=piece.step_sequences,
        samples=piece.samples,
        samples_done=piece.samples_done,
        position_after=position_after if piece.last_of_step else None,
    )


def row_arrays(rows: list[Any], seq_len: int, end_id: int | None) -> Any:
    """Sequences of seq_len + 1 ids -> the arrays for `make_batch`; an end id adds the document mask."""
    import numpy as np

    ids = np.empty((len(rows), seq_len + 1), np.int64)
    for number, row in enumerate(rows):
        ids[number] = row
    inputs, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    if end_id is None:
        return inputs, targets, None
    ends = inputs == end_id
    targets[ends] = IGNORED
    documents = ends.cumsum(axis=1) - ends
    # Each index minus the last one at which a document began.
    indices = np.arange(seq_len)
    begins = np.zeros_like(inputs)
    begins[:, 1:] = np.where(ends[:, :-1], indices[1:], 0)
    positions = indices - np.maximum.accumulate(begins, axis=1)
    return inputs, targets, (positions, documents)
