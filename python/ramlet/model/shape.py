"""The shape of a model: layers, width, heads, and everything that follows from them.

    shape = Shape(vocab_size=8192, context=256, layers=6, width=256, heads=4, feed_forward=704)
    shape.parameters                     # 6,917,376, the embedding counted once
    Shape.from_config({"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024}, vocab_size=50257)

The architecture is Llama: RMSNorm, rotary positions, SwiGLU, no biases, grouped-query attention if there are fewer
key/value heads than heads, and an output head tied to the embedding unless it is untied. With QK-norm it is Qwen3.
All heads together are as wide as the model, unless `head_width` says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ramlet.errors import SettingsError
from ramlet.model.rope import RopeScaling, rope_of
from ramlet.runtime.plurals import plural

VOCABULARY_MULTIPLE = 64
"""The vocabulary is padded to a multiple of this in memory, not in files: other row counts slow matrix products down by
up to a third."""

LONGEST_USUAL = 4096
"""Published models have contexts up to 131,072 tokens, and few texts or machines for them."""

NAMES = {
    "vocab_size": ("vocab_size",),
    "context": (
        "context",
        "max_position_embeddings",
        "block_size",
        "seq_len",
        "sequence_len",
        "context_length",
        "n_ctx",
    ),
    "layers": ("layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "width": ("width", "hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("heads", "num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head"),
    "head_width": ("head_width", "head_dim"),
    "feed_forward": ("feed_forward", "intermediate_size", "ffn_dim", "d_ff", "n_inner"),
    "rope_base": ("rope_base",),
    "norm_eps": ("norm_eps", "rms_norm_eps"),
    "tied": ("tied", "tie_word_embeddings"),
    "qk_norm": ("qk_norm", "use_qk_norm"),
}
"""The names of other tools: transformers, nanoGPT, common papers."""

_MOST = {
    "vocab_size": 1 << 31,
    "context": 1 << 31,
    "layers": 100_000,
    "width": 1 << 24,
    "heads": 1 << 24,
    "kv_heads": 1 << 24,
    "head_width": 1 << 24,
    "feed_forward": 1 << 26,
}
"""Larger numbers are mistakes, and computing with them would take forever."""


@dataclass(frozen=True)
class Shape:
    vocab_size: int
    context: int
    """The longest sequence in tokens."""
    layers: int
    width: int
    heads: int
    kv_heads: int = 0
    """Key/value heads; 0 means as many as heads."""
    feed_forward: int = 0
    """Width of the feed-forward layer; 0 means 8/3 of the width, rounded up to a multiple of 64."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True
    """The embedding is also the output head."""
    qk_norm: bool = False
    """RMSNorm of every query and key head, as in Qwen3."""
    head_width: int = 0
    """0 means width / heads."""
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value, least = getattr(self, name), 0 if name in ("kv_heads", "head_width", "feed_forward") else 1
            if value < least:
                raise SettingsError(f"{name} must be at least {least}, not {value}")
            if value > most:
                raise SettingsError(f"{name} must be at most {most}, not {value}")
        for name in ("rope_base", "norm_eps"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise SettingsError(f"{name} must be a number above 0, not {value}")
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.feed_forward == 0:
            object.__setattr__(self, "feed_forward", -(-self.width * 8 // 3 // 64) * 64)
        derived = self.head_width == 0
        if derived:
            object.__setattr__(self, "head_width", self.width // self.heads)
        elif self.head_width % 2:
            raise SettingsError(f"head_width must be even, not {self.head_width}")
        # transformers opens a Qwen3 with heads of any width, and a Llama only if its heads divide its width.
        if (self.width % self.heads and (derived or not self.qk_norm)) or self.head_width % 2:
            raise SettingsError(
                f"a width of {self.width} cannot be divided into {plural(self.heads, 'head')} of an even width: "
                "choose heads so that width / heads is even"
            )
        if isinstance(self.rope_scaling, Mapping):  # read back from a file
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))
        if self.heads % self.kv_heads:
            raise SettingsError(
                f"{plural(self.heads, 'head')} cannot share {plural(self.kv_heads, 'key/value head')} evenly: "
                "choose a divisor of heads"
            )

    @property
    def usual_length(self) -> int:
        """The sequence length where none is given."""
        return min(self.context, LONGEST_USUAL)

    @property
    def queries_width(self) -> int:
        """Of all query heads, and of the attention's result: that of the model, or not."""
        return self.heads * self.head_width

    @property
    def keys_width(self) -> int:
        """Of all key heads, and of all value heads."""
        return self.kv_heads * self.head_width

    @property
    def qkv_width(self) -> int:
        return self.queries_width + 2 * self.keys_width

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding in memory."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def layer_matrices(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Rows and columns of the matrices of one layer; those that are one in memory are together: queries, keys
        and values; the attention's output; gate and up; down."""
        width, wide, queries, keys = self.width, self.feed_forward, self.queries_width, self.keys_width
        qkv = ((queries, width), (keys, width), (keys, width))
        return qkv, ((width, queries),), ((wide, width), (wide, width)), ((width, wide),)

    @property
    def layer_parameters(self) -> int:
        """In the matrices of one layer."""
        return sum(rows * columns for fused in self.layer_matrices for rows, columns in fused)

    @property
    def parameters(self) -> int:
        """All that are in the file: with the embedding, and the head if it is not tied."""
        embeddings = self.vocab_size * self.width * (1 if self.tied else 2)
        gains = self.width * (2 * self.layers + 1) + (2 * self.head_width * self.layers if self.qk_norm else 0)
        return embeddings + self.layers * self.layer_parameters + gains

    def step_flops(self, tokens: int, context: int | None = None) -> float:
        """Floating-point operations to train on this many tokens: 6 per matrix parameter, plus attention."""
        context = context or self.context
        matrices = self.layers * self.layer_parameters + self.vocab_size * self.width
        attention = self.layers * self.queries_width * context  # causal: half of 2 * context * width, forward
        return 6.0 * tokens * (matrices + attention)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **given: Any) -> Shape:
        """From a dictionary with our names, transformers' or nanoGPT's; `given` takes precedence."""
        values: dict[str, Any] = rope_of(config)
        for name, aliases in NAMES.items():
            found = [config[alias] for alias in aliases if config.get(alias) is not None]
            if name in given and given[name] is not None:
                values[name] = given[name]
            elif found:
                values[name] = found[0]
        scaling = values.pop("rope_scaling", None)
        missing = [name for name in ("vocab_size", "context", "layers", "width", "heads") if name not in values]
        if missing:
            raise SettingsError(f"the model's config has no {', '.join(missing)}: add them")
        for name, value in values.items():
            kind = float if name in ("rope_base", "norm_eps") else bool if name in ("tied", "qk_norm") else int
            whole = kind is not int or (isinstance(value, (int, float)) and value % 1 == 0)
            if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float)) or not whole:
                raise SettingsError(f"the model's config has {name}: {value!r}, which should be a {kind.__name__}")
            values[name] = kind(value)
        return cls(**values, rope_scaling=scaling)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
