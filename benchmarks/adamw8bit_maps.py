"""How 8-bit states change AdamW's updates, by quantization map and stored moment: the data behind our 8-bit AdamW.

    python benchmarks/adamw8bit_maps.py

Gradients are noise with a drift, and their magnitudes differ within a block: `spread` is the standard deviation of
their logarithm. In `sparse` rows nine of ten gradients are 0. The last 200 of 300 steps count. Each cell shows the
relative error of the updates (as root mean squares), and the largest update in units of the learning rate.

Columns: `b8` is the map through the powers of eight, and so on; `10, midpoints` is the map of Dettmers et al. 2022, as
published. With `root`, the square root of the second moment is stored instead of the moment. Only `10, midpoints` may
round nonzero values down to 0, as the published method does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from measure import markdown_table

Array = npt.NDArray[np.float64]


def powers_of(base: int, bits: int) -> Array:
    """0, and the linear interpolation between the points (2^j, base^(j - bits)), evaluated at 2 .. 2^bits."""
    powers = np.arange(bits + 1)
    return np.concatenate([[0.0], np.interp(np.arange(2, 2**bits + 1), 2.0**powers, float(base) ** (powers - bits))])


def published(bits: int) -> Array:
    """0, 1, and the midpoints of equal parts of each power of ten."""
    middles = []
    for power in range(7):
        edges = np.linspace(0.1, 1, 2 ** (power + bits - 7) + 1)
        middles.append(10.0 ** (power - 6) * (edges[1:] + edges[:-1]) / 2)
    return np.concatenate([[0.0], *middles, [1.0]])


MAPS = {f"b{base}": (powers_of(base, 7), powers_of(base, 8)) for base in (4, 8, 10, 16)}
MAPS["10, midpoints"] = (published(7), published(8))


def through_8_bits(moments: Array, values: Array, above_zero: bool) -> Array:
    most = np.abs(moments).max(axis=1, keepdims=True)
    shares = np.abs(moments) / np.where(most == 0, 1, most)
    codes = np.searchsorted((values[1:] + values[:-1]) / 2, shares)
    if above_zero:
        codes = np.where((shares > 0) & (codes == 0), 1, codes)
    return np.asarray(np.sign(moments) * values[codes] * most)


def simulate(spread: float, sparse: bool, beta2: float) -> list[str]:
    draw = np.random.default_rng(0)
    shape = (64, 256)
    sizes = np.exp(spread * draw.standard_normal(shape)) * 1e-4
    drift = sizes * draw.standard_normal(shape) * 0.3
    contenders = [(name, root) for name in MAPS for root in (False, True)]
    states = {one: (np.zeros(shape), np.zeros(shape)) for one in contenders}
    exact = (np.zeros(shape), np.zeros(shape))
    errors, largest, size = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0.0), 0.0
    for step in range(1, 301):
        gradient = drift + sizes * draw.standard_normal(shape)
        if sparse:
            gradient *= draw.random(shape) < 0.1
        unbias = np.sqrt(1 - beta2**step) / (1 - 0.9**step)

        def updated(state: tuple[Array, Array], gradient: Array = gradient) -> tuple[Array, Array]:
            return 0.9 * state[0] + 0.1 * gradient, beta2 * state[1] + (1 - beta2) * gradient**2

        exact = updated(exact)
        wanted = unbias * exact[0] / (np.sqrt(exact[1]) + 1e-8)
        size += float((wanted**2).mean()) * (step > 100)
        for name, root in contenders:
            first, second = updated(states[name, root])
            update = unbias * first / (np.sqrt(second) + 1e-8)
            if step > 100:
                errors[name, root] += float(((update - wanted) ** 2).mean())
                largest[name, root] = max(largest[name, root], float(np.abs(update).max()))
            signed, unsigned = MAPS[name]
            up = name != "10, midpoints"
            kept = through_8_bits(np.sqrt(second), unsigned, up) ** 2 if root else through_8_bits(second, unsigned, up)
            states[name, root] = through_8_bits(first, signed, False), kept
    return [f"{np.sqrt(errors[one] / size):.3f}, {largest[one]:,.0f}" for one in contenders]


def main() -> None:
    rows = [
        [f"{beta2}, {spread}, {'sparse' if sparse else 'dense'}", *simulate(spread, sparse, beta2)]
        for beta2 in (0.95, 0.999)
        for spread in (0.5, 1, 2, 3)
        for sparse in (False, True)
    ]
    header = [name + ", root" * root for name in MAPS for root in (False, True)]
    print(markdown_table(["beta2, spread", *header], rows))


if __name__ == "__main__":
    main()
