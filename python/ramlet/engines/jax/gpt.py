"""The model: token ids -> hidden states -> logits, and the gradients of a micro-batch.

    net = Net(shape, placement, compute="bf16", chunk=512)
    loss, grads = net.learn(params, grads, batch, scale)        # adds to the gradients; within a jitted function
    logits = net.logits(params, ids)

Everything here is pure: the weights are a tree (weights.py), and `GPT` is a model with weights, for evaluation and
generation. Layers run under `lax.scan`, forward and backward, so a program has one layer, however deep the model is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ramlet.engines import SHARED, Sampling, training_names
from ramlet.engines.choices import EVAL_CHUNK
from ramlet.engines.jax import layers, loss
from ramlet.engines.jax.layers import Context, Drops, Kept, Rotary
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.weights import DTYPES, LAYERS, Tree, stacks
from ramlet.engines.native.rotary import rotary_tables
from ramlet.model.shape import Shape
from ramlet.runtime.settled import settled_memory

if TYPE_CHECKING:
    from ramlet.engines.jax.continuing import Continuation

DROPOUT_KEYS = "dropout_keys"
"""Next to the arrays of a batch."""
LENGTHS = 4
"""Lengths of evaluated sequences, each half of the one before: shorter sequences are filled up. Each is a program."""
MOST_PROGRAMS = 8
"""Compiled passes that a model keeps: evaluation has one for each length, a sample two or three."""


@dataclass(frozen=True)
class Net:
    """All that decides what is computed, but the weights."""

    shape: Shape
    placement: Placement
    compute: str = "fp32"
    """Precision of matrix products."""
    chunk: int = EVAL_CHUNK
    """Tokens whose logits exist at once on one device."""
    recompute: bool = False
    dropout: float = 0.0

    @property
    def dtype(self) -> Any:
        return DTYPES[self.compute]

    @property
    def precision(self) -> Any:
        """Within it fp32 products are exact also on devices that multiply fewer bits by default."""
        return jax.default_matmul_precision("highest" if self.compute == "fp32" else "default")

    def tables(self, length: int) -> Rotary:
        """Of the positions below `length`, to be passed to the functions."""
        return Rotary(*rotary_tables(self.shape, length))

    def context(self, batch: Mapping[str, Any], tables: Rotary) -> Context:
        tokens = batch["input_ids"].shape[1]
        positions, documents = batch.get("position_ids"), batch.get("document_ids")
        rotary = Rotary(*(table[:tokens] if positions is None else table[positions] for table in tables))
        mask = None if documents is None else document_mask(documents)
        drops = Drops(batch[DROPOUT_KEYS], self.dropout) if self.dropout else None
        return Context(self.shape, self.placement, rotary, mask, drops, self._flash and mask is None)

    @property
    def _flash(self) -> bool:
        """cuDNN's attention takes 16-bit heads up to 128 wide, in multiples of 8."""
        device = self.placement.mesh.devices.flat[0]
        width = self.shape.head_width
        return bool(device.platform == "gpu" and self.compute != "fp32" and width % 8 == 0 and width <= 128)

    def embedded(self, params: Tree, ids: Any, drops: Drops | None = None) -> Any:
        found = self.placement.gathered(params["embedding"])[ids].astype(self.dtype)
        return self.placement.by_sequence(layers.dropped(found, drops, 0))

    def head(self, params: Tree) -> Any:
        return params["embedding" if self.shape.tied else "head"]

    def hidden(self, params: Tree, batch: Mapping[str, Any], tables: Rotary) -> Any:
        """The last hidden states, (sequences, tokens, width), without gradients."""
        context = self.context(batch, tables)._replace(drops=None)

        def layer(x: Any, given: Any) -> Any:
            number, weights = given
            return layers.forward(x, weights, context, number)[0], None

        x, _ = lax.scan(layer, self.embedded(params, batch["input_ids"]), self._numbered(params))
        return layers.norm(x, params["norm"], self.shape.norm_eps)

    def _numbered(self, params: Tree) -> tuple[Any, Tree]:
        return jnp.arange(self.shape.layers, dtype=jnp.uint32), stacks(params)

    def logits(self, params: Tree, batch: Mapping[str, Any], tables: Rotary) -> Any:
        """(sequences, tokens, vocabulary), all at once."""
        hidden = self.hidden(params, batch, tables)
        return layers.product(hidden, self.head(params))[..., : self.shape.vocab_size]

    def losses(self, params: Tree, batch: Mapping[str, Any], tables: Rotary) -> Any:
        """The loss of each token, fp32 (sequences, tokens)."""
        hidden = self.hidden(params, batch, tables)
        return loss.losses_of(hidden, batch["targets"], self.head(params), **self._head_settings)

    @property
    def _head_settings(self) -> dict[str, Any]:
        chunk = self.chunk * self.placement.mesh.devices.size
        return {"chunk": chunk, "vocab": self.shape.vocab_size, "placement": self.placement}

    def learn(
        self, params: Tree, grads: Tree, batch: Mapping[str, Any], tables: Rotary, scale: Any
    ) -> tuple[Any, Tree]:
        """The summed loss of a micro-batch, and the gradients with `scale` times its own added."""
        context = self.context(batch, tables)
        ids, targets = batch["input_ids"], batch["targets"]

        def layer(x: Any, given: Any) -> Any:
            number, weights = given
            result, kept = layers.forward(x, weights, context, number)
            return result, Kept(x) if self.recompute else kept

        x, kept = lax.scan(layer, self.embedded(params, ids, context.drops), self._numbered(params))
        name = "embedding" if self.shape.tied else "head"
        normed, pull = jax.vjp(partial(layers.norm, eps=self.shape.norm_eps), x, params["norm"])
        total, d_normed, head_grad = loss.learn_head(
            normed, targets, params[name], grads[name], scale, **self._head_settings
        )
        d_x, d_norm = pull(d_normed)
        grads = {**grads, name: head_grad, "norm": grads["norm"] + d_norm}

        def layer_back(carry: Any, given: Any) -> Any:
            d_x, sums = carry
            (number, weights), kept = given
            d_x, found = layers.backward(d_x, kept, weights, context, number)
            return (d_x, {name: self._added(name, sums[name], found[name], number) for name in sums}), None

        (d_x, sums), _ = lax.scan(layer_back, (d_x, stacks(grads)), (self._numbered(params), kept), reverse=True)
        grads |= {LAYERS + name: grad for name, grad in sums.items()}
        d_x = layers.dropped(d_x, context.drops, 0)
        embedding = grads["embedding"].at[ids].add(d_x.astype(grads["embedding"].dtype))
        return total, {**grads, "embedding": self.placement.hold("embedding", embedding)}

    def _added(self, name: str, sums: Any, found: Any, number: Any) -> Any:
        """The gradients of all layers, with those of one added in place."""
        found = self.placement.hold(name, found.astype(sums.dtype))
        before = lax.dynamic_index_in_dim(sums, number, keepdims=False)
        return self.placement.hold(LAYERS + name, lax.dynamic_update_index_in_dim(sums, before + found, number, 0))


class Forward:
    """The compiled passes of a model without gradients, by the sizes of their arguments; those used last are kept."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._compiled: dict[Any, Any] = {}

    def losses(self, *arguments: Any) -> Any:
        return self._run("losses", self.net.losses, arguments)

    def read(self, *arguments: Any) -> Any:
        """For generation; the cache, the second argument, is written in place."""
        from ramlet.engines.jax.continuing import read_tokens

        return self._run("read", partial(read_tokens, self.net), arguments, donated=1)

    def _run(self, name: str, function: Any, arguments: tuple[Any, ...], donated: int | None = None) -> Any:
        """The result, or None if the arguments are descriptions alone: then it is only compiled."""
        leaves = jax.tree.leaves(arguments)
        key = (name, *((each.shape, each.dtype) for each in leaves[len(arguments[0]) :]))
        compiled = self._compiled.pop(key, None)
        if compiled is None:
            if len(self._compiled) == MOST_PROGRAMS:
                del self._compiled[next(iter(self._compiled))]  # used longest ago: the last is added at the end
            made = jax.jit(function) if donated is None else jax.jit(function, donate_argnums=donated)
            with self.net.precision:
                compiled = made.lower(*arguments).compile()
            settled_memory()  # the compiler's pages are not needed any more
        self._compiled[key] = compiled
        if isinstance(leaves[0], jax.ShapeDtypeStruct):
            return None
        return compiled(*arguments)


class GPT:
    """A model with its weights: what evaluation and generation need."""

    def __init__(self, forward: Forward, params: Tree, *, rows: int, seq_len: int) -> None:
        """At most `rows` sequences of `seq_len` tokens are evaluated at once, or as many tokens of shorter ones."""
        self.forward, self.params = forward, params
        self._rows, self._seq_len = eval_rows(rows, forward.net.placement), seq_len
        self._made: Rotary | None = None

    @property
    def net(self) -> Net:
        return self.forward.net

    @property
    def shape(self) -> Shape:
        return self.net.shape

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        sequences, tokens = batch["targets"].shape
        names = training_names("document_ids" in batch)
        rows, length = self._size(tokens)
        found: list[list[float]] = []
        for start in range(0, sequences, rows):
            some = {name: filled(batch[name][start : start + rows], (rows, length), name) for name in names}
            placed = {name: self.net.placement.put(array) for name, array in some.items()}
            losses = np.asarray(self.forward.losses(self.params, placed, self.tables(self._seq_len)))
            found += losses[: sequences - start, :tokens].tolist()
        return found

    def _size(self, tokens: int) -> tuple[int, int]:
        """Sequences and tokens of the program that evaluates sequences of so many tokens: one of few."""
        lengths = (-(-self._seq_len // (1 << halved)) for halved in range(LENGTHS))
        length = min((each for each in lengths if each >= tokens), default=tokens)
        shards = self.net.placement.shards
        # Of each sequence the logits of a token exist at once, so more sequences than a chunk would not fit the plan.
        rows = min(self._rows * self._seq_len // length, max(self._rows, self.net.chunk * shards))
        return max(rows // shards, 1) * shards, length

    def tables(self, length: int) -> Rotary:
        """On the devices: of exactly so many positions, or all of the context."""
        if self._made is None or len(self._made.cos) != min(length, self.shape.context):
            self._made = Rotary(*map(self.net.placement.copied, self.net.tables(length)))
        return self._made

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Continuation:
        from ramlet.engines.jax.continuing import Continuation

        return Continuation(self, prompt, settings, end_ids=end_ids, known=known)


def eval_rows(rows: int, placement: Placement) -> int:
    """Sequences that are evaluated at once: a multiple of the devices."""
    return -(-rows // placement.shards) * placement.shards


def filled(array: Any, size: tuple[int, int], name: str) -> Any:
    """An array of a batch as int32, with sequences added, and tokens at their ends, whose targets are ignored."""
    made = np.full(size, loss.IGNORE if name == "targets" else 0, np.int32)
    made[: array.shape[0], : array.shape[1]] = array
    return made


def document_mask(documents: Any) -> Any:
    """(sequences, 1, tokens, tokens), True where a token may attend: earlier tokens of the same document, and those
    that a sequence begins with and all its documents share."""
    same = documents[:, None, :, None] == documents[:, None, None, :]
    # 0 if all tokens are shared, but then they are one document.
    begins = jnp.argmax(documents != SHARED, axis=1)
    shared = jnp.arange(documents.shape[1]) < begins[:, None]
    return jnp.tril(same | shared[:, None, None, :])
