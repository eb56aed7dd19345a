"""The model: token ids -> hidden states -> logits, and a loss that never has all logits in memory.

    model = GPT(shape, device="cpu", compute=torch.bfloat16)
    model.weights.initialize(seed=1)
    model.weights.make_gradients()
    loss = model.learn(input_ids, labels, scale=1 / labels.numel())    # accumulates into the gradients
    logits = model.logits(input_ids)

`learn` computes the logits of `chunk` tokens at a time and turns them into their gradient in place: with a vocabulary
of 50,000, three full logit tensors would be more than half of a step's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ramlet.engines import SHARED, Sampling, training_names
from ramlet.engines.choices import EVAL_CHUNK
from ramlet.engines.order import even_parts, unit_rows
from ramlet.engines.torch import fp8
from ramlet.engines.torch.attention import FlashAttention, QKNorm
from ramlet.engines.torch.captured import CapturedForward, Pool
from ramlet.engines.torch.exchange import EMBEDDING, Sharding
from ramlet.engines.torch.kernels import kernels_for
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.engines.torch.layers import (
    LAYER_WEIGHTS,
    QK_NORMS,
    QKV,
    AttentionOut,
    BackwardFrom,
    Drop,
    Embed,
    Entering,
    FeedForward,
    HeldGrads,
    Layer,
    Normed,
    Project,
    Rotary,
)
from ramlet.engines.torch.rotary import RotaryTables
from ramlet.engines.torch.sizes import recomputes_qk_norm, repeats_keys
from ramlet.engines.torch.weights import Weights
from ramlet.model.shape import Shape

if TYPE_CHECKING:
    from ramlet.engines.torch.cache import KVCache, OneToken
    from ramlet.engines.torch.continuing import Continuation


class GPT:
    """A Llama-shaped model over `Weights`."""

    def __init__(
        self,
        shape: Shape,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute: torch.dtype | None = None,
        chunk: int = 1024,
        recompute: bool = False,
        held: int = 0,
        use_fp8: bool = False,
        keeps_qk: bool = False,
        sharding: Sharding | None = None,
    ) -> None:
        """`dtype` is that of the stored weights, `compute` that of matrix products; `chunk` is the number of tokens
        whose logits exist at once; `recompute` is activation checkpointing; `held` is the number of tokens whose
        embedding gradients are summed together (order.py); `use_fp8` (fp8.py) and `keeps_qk` (attention.py) are for
        training; `sharding` if several ranks divide the model: then all of them make the same calls."""
        self.shape = shape
        self.device = torch.device(device)
        self.compute = compute or dtype
        self.chunk = chunk
        self.recompute = recompute
        self.weights = Weights(
            shape, device=device, dtype=dtype, compute=self.compute, use_fp8=use_fp8, sharding=sharding
        )
        self.kernels = kernels_for(self.device)
        self._held = HeldGrads(held, shape.width, self.compute) if held else None
        self._anchor = torch.zeros(1, device=device, requires_grad=True)
        self._layers = [self._layer(number) for number in range(shape.layers)]
        self._learning = [layer._replace(use_fp8=use_fp8, keeps_qk=keeps_qk) for layer in self._layers]
        """In a pass with gradients."""
        self._rotary = RotaryTables(shape, self.device)
        self._captured: CapturedForward | None = None

    def _layer(self, number: int) -> Layer:
        names = LAYER_WEIGHTS + (QK_NORMS if self.shape.qk_norm else ())
        own: dict[str, Any] = {name: self.weights[f"layers.{number}.{name}"] for name in names}
        return Layer(
            **own, heads=self.shape.heads, kv_heads=self.shape.kv_heads, eps=self.shape.norm_eps, kernels=self.kernels
        )

    @property
    def head(self) -> Tensor:
        """(padded vocabulary, width), in the dtype of matrix products."""
        if self.weights.exchange is not None:
            self.weights.exchange.ready_head()
        return self.weights["embedding" if self.shape.tied else "head"].compute

    def hidden(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | OneToken | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """The last hidden states, (batch x tokens, width).

        `positions` (batch, tokens), below the number of tokens or the cache's capacity, default to 0, 1, 2, ...;
        `mask` (batch, 1, tokens, tokens) is True where a token may attend, and replaces the causal mask. With a
        `cache` the ids are the newest tokens.
        """
        batch, tokens = ids.shape
        unit = self._unit(tokens)
        if positions is None:
            positions = torch.arange(tokens, device=ids.device).expand(batch, tokens)
        tables = self._rotary.of(tokens if cache is None else cache.capacity)
        # Kernels read them one after the other, but of rows that `expand` made, `reshape` may be a view of one number.
        rotary = Rotary(*tables, positions.reshape(-1).contiguous())
        exchange = self.weights.exchange
        if exchange is not None:
            exchange.ready(EMBEDDING)
        x = Embed.apply(self._anchor, ids.reshape(-1), self.weights["embedding"], unit, self._held)  # type: ignore[no-untyped-call]
        if dropout is not None:
            x = Drop.apply(x, dropout, self.kernels)  # type: ignore[no-untyped-call]
        for number, layer in enumerate(self._learning if torch.is_grad_enabled() else self._layers):
            if exchange is not None:
                exchange.enter(number)
                x = Entering.apply(x, exchange, number)  # type: ignore[no-untyped-call]
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(
                    *(self._through, x, number, layer, rotary, batch, unit, mask, dropout),
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                x = self._through(x, number, layer, rotary, batch, unit, mask, dropout, cache)
        return Normed.apply(x, self.weights["norm"], self.shape.norm_eps, self.kernels, unit)  # type: ignore[no-any-return, no-untyped-call]

    def _unit(self, seq_len: int) -> int:
        """Tokens whose gradients are summed at once; 0 means all of the micro-batch."""
        return unit_rows(seq_len) * seq_len if self.device.type == "cpu" else 0

    def _through(
        self,
        x: Tensor,
        number: int,
        layer: Layer,
        rotary: Rotary,
        batch: int,
        unit: int,
        mask: Tensor | None,
        dropout: Dropout | None,
        cache: KVCache | OneToken | None = None,
    ) -> Tensor:
        # The first place is the embedding; each layer has two.
        drops = [None if dropout is None else dropout._replace(place=2 * number + place) for place in (1, 2)]
        if self.shape.qk_norm:
            qkv, x = QKV.apply(x, layer, unit)  # type: ignore[no-untyped-call]
            if torch.is_grad_enabled() and recomputes_qk_norm(
                self.shape, self.device.type, mask is not None, fp32=self.compute == torch.float32
            ):
                attended = FlashAttention.apply(qkv, layer, rotary, unit, batch)  # type: ignore[no-untyped-call]
            else:
                parts = QKNorm.apply(qkv, layer, rotary, unit)  # type: ignore[no-untyped-call]
                attended = self._attention(number, layer, parts, batch, mask, cache)
        else:
            *parts, x = Project.apply(x, layer, rotary, unit)  # type: ignore[no-untyped-call]
            attended = self._attention(number, layer, parts, batch, mask, cache)
        x = AttentionOut.apply(x, attended, layer, unit, drops[0])  # type: ignore[no-untyped-call]
        return FeedForward.apply(x, layer, unit, drops[1])  # type: ignore[no-any-return, no-untyped-call]

    def _attention(
        self,
        number: int,
        layer: Layer,
        parts: Iterable[Tensor],
        batch: int,
        mask: Tensor | None,
        cache: KVCache | OneToken | None,
    ) -> Tensor:
        """(tokens, heads x head width) of queries, keys and values."""
        q, k, v = (self._heads(part, batch) for part in parts)
        if cache is not None:
            k, v = cache.extend(number, k, v)
        causal = mask is None and q.shape[2] > 1
        fp32 = self.compute == torch.float32
        if q.shape[2] > 1 and repeats_keys(self.shape, self.device.type, mask is not None, fp32=fp32):
            k, v = (part.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for part in (k, v))
        groups = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}
        with nullcontext() if cache is None else _without_cudnn():
            attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, **groups)
        return attended.transpose(1, 2).reshape(batch * q.shape[2], -1)

    def _heads(self, part: Tensor, batch: int) -> Tensor:
        """(batch x tokens, heads x head width) -> (batch, heads, tokens, head width)."""
        return part.view(batch, -1, part.shape[1] // self.shape.head_width, self.shape.head_width).transpose(1, 2)

    def logits(
        self, ids: Tensor, *, positions: Tensor | None = None, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """(batch, tokens, vocabulary), all at once, without gradients."""
        with torch.no_grad():
            hidden = self.hidden(ids, positions=positions, mask=mask, cache=cache)
            return torch.mm(hidden, self.head.t())[:, : self.shape.vocab_size].view(*ids.shape, -1)

    def learn(
        self,
        ids: Tensor,
        labels: Tensor,
        scale: float,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """The summed loss of a batch, fp64; adds `scale` times its gradient to the weights' gradients."""
        hidden = self.hidden(ids, positions=positions, mask=mask, dropout=dropout)
        unit = self._unit(ids.shape[1])
        exchange = self.weights.exchange
        if exchange is not None:
            exchange.begin_head()
        grad, total = self._head_backward(hidden.detach(), labels.reshape(-1), scale, unit)
        if exchange is not None:
            exchange.end_head()
        root = BackwardFrom.apply(hidden, grad)  # type: ignore[no-untyped-call]
        del hidden, grad  # each as large as the residual stream, and not needed in the backward pass
        root.backward()
        if exchange is not None:
            exchange.end_backward()
        return total

    def flush_gradients(self) -> None:
        """After the last micro-batch of a step: adds the gradients that were held back, or are on their way."""
        if self._held is not None:
            weight = self.weights["embedding"]
            assert weight.grad is not None
            self._held.flush(weight.grad)
        if self.weights.exchange is not None:
            self.weights.exchange.settle()

    def _head_backward(self, hidden: Tensor, labels: Tensor, scale: float, unit: int) -> tuple[Tensor, Tensor]:
        weight = self.weights["embedding" if self.shape.tied else "head"]
        assert weight.grad is not None
        grad = torch.empty_like(hidden)
        # fp64 sums of a few thousand losses are exact, so their order does not matter.
        total = torch.zeros((), device=hidden.device, dtype=torch.float64)
        logits = hidden.new_empty((min(self.chunk, len(hidden)), self.shape.padded_vocab))
        for some in even_parts(len(hidden), unit, self.chunk):
            part = hidden[some]
            chunk = logits[: len(part)]
            if weight.fp8 is None:
                torch.mm(part, weight.compute.t(), out=chunk)
            else:
                fp8.product(self.kernels.to_fp8(part, fp8.INPUT_SCALE), weight.fp8, out=chunk)
            total += self.kernels.cross_entropy_(chunk, labels[some], self.shape.vocab_size, scale).sum()
            torch.mm(chunk, weight.compute, out=grad[some])
            self.kernels.accumulate_(weight.grad, chunk, part)
        return grad, total

    def losses(
        self, ids: Tensor, labels: Tensor, *, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of each token, fp32 (batch x tokens,), without gradients."""
        with torch.no_grad():
            hidden = self.hidden(ids, positions=positions, mask=mask)
            labels = labels.reshape(-1)
            parts = []
            chunk = min(self.chunk, EVAL_CHUNK)
            # One place for all: glibc puts few aligned tensors where one of the same size was freed.
            logits = hidden.new_empty((min(chunk, len(hidden)), self.shape.padded_vocab))
            for some in even_parts(len(hidden), self._unit(ids.shape[1]), chunk):
                part = torch.mm(hidden[some], self.head.t(), out=logits[: some.stop - some.start])
                parts.append(self.kernels.cross_entropy_(part, labels[some], self.shape.vocab_size, 0.0))
            return torch.cat(parts)

    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        placed = {
            name: torch.as_tensor(batch[name]).to(self.device) for name in training_names("document_ids" in batch)
        }
        losses = self.captured().losses(placed) if self.can_capture else self.batch_losses(placed)
        rows: list[list[float]] = losses.view(placed["targets"].shape).tolist()
        return rows

    def batch_losses(self, placed: Mapping[str, Tensor]) -> Tensor:
        return self.losses(
            placed["input_ids"],
            placed["targets"],
            positions=placed.get("position_ids"),
            mask=document_mask(placed.get("document_ids")),
        )

    @property
    def can_capture(self) -> bool:
        """Not if ranks exchange weights in a forward pass."""
        return self.device.type == "cuda" and self.weights.exchange is None

    def captured(self, pool: Pool | None = None) -> CapturedForward:
        """On a GPU; the first call decides the pool."""
        if self._captured is None:
            self._captured = CapturedForward(self, pool)
        return self._captured

    def continuation(
        self, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int], known: bytearray | None = None
    ) -> Continuation:
        from ramlet.engines.torch.continuing import Continuation

        return Continuation(self, prompt, settings, end_ids=end_ids, known=known)


def document_mask(document_ids: Tensor | None) -> Tensor | None:
    """(batch, 1, tokens, tokens), True where a token may attend: earlier tokens of the same document, and `SHARED`."""
    if document_ids is None:
        return None
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    shared = (document_ids == SHARED).cummin(1).values
    return same.logical_or_(shared[:, None, None, :]).tril_()


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """cuDNN's attention prepares itself anew for every length, and with a cache each token has another."""
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)
