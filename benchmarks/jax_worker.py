"""A GPT of the usual kind in plain JAX, trained by the usual loop: the peer of benchmarks/jax_engine.py.

    python benchmarks/jax_worker.py --vocab 8192 --layers 6 --width 320 --heads 5 --feed-forward 896 \
        --seq-len 256 --batch 32 --steps 10 --optimizer adamw

nanoGPT's loop as people write it in JAX: a list of blocks, `jax.value_and_grad` of the mean loss of the whole batch,
`optax.adamw` or `optax.contrib.muon`, all in one jitted and donated step. The model is that of the runs it is compared
with: RMSNorm, rotary positions, SwiGLU, no biases, QK-norm, a tied head. It prints one JSON line: parameters, losses,
tokens per second of the median step without the first two, and how long the first took, which compiles.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def norm(x: Any, gain: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def rotate(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def block(x: Any, own: dict[str, Any], heads: int) -> Any:
    normed = norm(x, own["norm_attention"])
    q, k, v = (part.reshape(*x.shape[:2], heads, -1) for part in jnp.split(normed @ own["qkv"], 3, -1))
    q, k = rotate(norm(q, own["norm_q"])), rotate(norm(k, own["norm_k"]))
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ own["out"]
    gate, up = jnp.split(norm(x, own["norm_feed_forward"]) @ own["gate_up"], 2, -1)
    return x + (jax.nn.silu(gate) * up) @ own["down"]


def loss_of(params: dict[str, Any], ids: Any, targets: Any, heads: int) -> Any:
    x = params["embedding"][ids]
    for own in params["blocks"]:
        x = block(x, own, heads)
    logits = norm(x, params["norm"]) @ params["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def initial(given: argparse.Namespace) -> dict[str, Any]:
    width, wide, head = given.width, given.feed_forward, given.width // given.heads
    sizes = {"qkv": (width, 3 * width), "out": (width, width), "gate_up": (width, 2 * wide), "down": (wide, width)}
    gains = {"norm_attention": width, "norm_q": head, "norm_k": head, "norm_feed_forward": width}
    key = jax.random.key(0)

    def matrix(number: int, size: tuple[int, int]) -> Any:
        return jax.random.normal(jax.random.fold_in(key, number), size) * 0.02

    return {
        "embedding": matrix(0, (given.vocab, width)),
        "norm": jnp.ones(width),
        "blocks": [
            {name: matrix(10 * layer + number, size) for number, (name, size) in enumerate(sizes.items(), 1)}
            | {name: jnp.ones(size) for name, size in gains.items()}
            for layer in range(given.layers)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("vocab", "layers", "width", "heads", "feed-forward", "seq-len", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    given = parser.parse_args()
    params = initial(given)
    make = optax.adamw if given.optimizer == "adamw" else optax.contrib.muon
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), make(1e-3))
    state = optimizer.init(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, ids: Any, targets: Any) -> tuple[Any, Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(params, ids, targets, given.heads)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    chance = np.random.default_rng(0)
    losses, seconds = [], []
    for _ in range(given.steps):
        ids = chance.integers(0, given.vocab, (given.batch, given.seq_len + 1), dtype=np.int32)
        began = time.perf_counter()
        params, state, loss = step(params, state, ids[:, :-1], ids[:, 1:])
        losses.append(float(loss))
        seconds.append(time.perf_counter() - began)
    usual = sorted(seconds[2:] or seconds)[len(seconds[2:] or seconds) // 2]
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    found = {"parameters": count, "losses": losses, "first_seconds": seconds[0]}
    print(json.dumps({**found, "tokens_per_second": given.batch * given.seq_len / usual}))


if __name__ == "__main__":
    main()
