"""Generation of the native engine against the torch engine's, with the same weights."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles_model import GROUPED, GROUPED_QK_NORM, ODD_HEADS, SHAPES, SMALL, UNTIED, model_of, some_ids
from ramlet._native import NativeChooser, NativeDecoder
from ramlet.engines import continuing
from ramlet.engines.native.continuing import Continuation, continuing_parts, most_fed
from ramlet.engines.native.sampling import Chooser, sampling_bytes
from ramlet.engines.torch.continuing import Continuation as TorchContinuation
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.rotary import RotaryTables
from ramlet.engines.torch.sampling import Chooser as TorchChooser
from ramlet.errors import ModelError
from ramlet.generation import SampleSettings
from ramlet.model.shape import Shape

torch.set_num_threads(1)
LONG = replace(GROUPED_QK_NORM, context=400, heads=4, kv_heads=2, head_width=40)
GREEDY = SampleSettings(temperature=0.0, max_tokens=20, seed=0)


def tensors_of(model: GPT) -> list[Any]:
    """As the native model's `tensors()`, of what torch computes with."""
    types = {torch.float32: "F32", torch.bfloat16: "BF16"}
    found = [(weight.name, weight.compute) for weight in model.weights]
    return [(name, types[each.dtype], tuple(each.shape), (each.data_ptr(), each.nbytes)) for name, each in found]


def shape_of(shape: Shape, length: int) -> dict[str, Any]:
    cos, sin = RotaryTables(shape, torch.device("cpu")).of(length)
    return {**shape.to_dict(), "cos": cos.numpy(), "sin": sin.numpy().tobytes()}


class Native:
    """The weights of a torch model for the native engine."""

    def __init__(self, model: GPT, threads: int = 1) -> None:
        self.model, self.shape, self.threads = model, model.shape, threads

    def decoder(self, *, rows: int, capacity: int, tokens: int) -> NativeDecoder:
        shape = shape_of(self.shape, capacity)
        limits = {"rows": rows, "capacity": capacity, "tokens": tokens, "threads": self.threads}
        return NativeDecoder(shape, self.model, tensors_of(self.model), **limits)


def written(continuation: Any) -> list[list[int | None]]:
    return list(continuation)


class TestLogits:
    @pytest.mark.parametrize("shape", [*SHAPES.values(), LONG], ids=[*SHAPES, "long"])
    def test_as_torch(self, shape: Shape) -> None:
        model = model_of(shape)
        ids = torch.stack([some_ids(shape, 45, seed=seed) for seed in range(3)])
        wanted = model.logits(ids)[:, -1].numpy()
        decoder = Native(model).decoder(rows=3, capacity=48, tokens=200)
        decoder.feed(ids.tolist())
        assert decoder.length == 45
        assert np.abs(decoder.logits() - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())

    def test_a_long_text(self) -> None:
        model = model_of(LONG)
        ids = some_ids(LONG, 400)[None]
        wanted = model.logits(ids)[0].numpy()
        decoder = Native(model).decoder(rows=1, capacity=400, tokens=399)
        decoder.feed(ids[:, :399].tolist())
        assert np.abs(decoder.logits()[0] - wanted[398]).max() < 1e-5 * np.abs(wanted).max()
        decoder.feed(ids[:, 399:].tolist())
        assert np.abs(decoder.logits()[0] - wanted[399]).max() < 1e-5 * np.abs(wanted).max()

    @pytest.mark.parametrize("shape", [SMALL, LONG], ids=["small", "long"])
    def test_bf16_is_near_torch(self, shape: Shape) -> None:
        model = model_of(shape, dtype=torch.bfloat16)
        ids = some_ids(shape, 40)[None]
        wanted = model.logits(ids)[0, -1].float().numpy()
        decoder = Native(model).decoder(rows=1, capacity=48, tokens=40)
        decoder.feed(ids.tolist())
        assert np.abs(decoder.logits()[0] - wanted).max() < 0.05 * np.abs(wanted).max()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("shape", [GROUPED, ODD_HEADS, LONG], ids=["grouped", "odd", "long"])
    def test_the_same_bits_for_any_threads_and_pieces(self, shape: Shape, dtype: torch.dtype) -> None:
        model = model_of(shape, dtype=dtype)
        length = min(shape.context, 300)
        ids = torch.stack([some_ids(shape, length, seed=seed) for seed in range(2)]).tolist()
        found = []
        for threads, piece in [(1, length), (2, length), (3, length), (1, 1), (1, 7), (2, 16), (3, 37)]:
            decoder = Native(model, threads).decoder(rows=2, capacity=length, tokens=2 * piece)
            for start in range(0, length, piece):
                decoder.feed([row[start : start + piece] for row in ids])
            found.append(decoder.logits().tobytes())
        assert len(set(found)) == 1

    def test_one_row_for_all(self) -> None:
        """A prompt that is read once gives every row what it would have read itself."""
        model = model_of(GROUPED)
        prompt, more = some_ids(GROUPED, 21).tolist(), [[5, 6], [7, 8], [9, 1]]
        once, each = (Native(model).decoder(rows=3, capacity=30, tokens=63) for _ in range(2))
        once.feed([prompt])
        first = once.logits()
        once.spread()
        each.feed([prompt] * 3)
        assert (each.logits() == first).all()
        for decoder in (once, each):
            decoder.feed(more)
        assert once.logits().tobytes() == each.logits().tobytes()

    def test_cleared_is_as_new(self) -> None:
        model = model_of(SMALL)
        used, new = (Native(model).decoder(rows=1, capacity=30, tokens=30) for _ in range(2))
        used.feed([some_ids(SMALL, 30).tolist()])
        used.clear()
        for decoder in (used, new):
            decoder.feed([[3, 1, 4]])
        assert used.logits().tobytes() == new.logits().tobytes()

    def test_what_does_not_fit(self) -> None:
        model = model_of(SMALL)
        decoder = Native(model).decoder(rows=2, capacity=10, tokens=12)
        for ids in ([], [[]], [[1], [1, 2]], [[1]] * 3, [[1] * 11], [[1] * 7] * 2):
            with pytest.raises(ValueError, match="more ids"):
                decoder.feed(ids)
        for number in (-1, 131):
            with pytest.raises(IndexError, match="outside the vocabulary of 131"):
                decoder.feed([[number]])
        assert decoder.length == 0
        with pytest.raises(ValueError, match="no room"):
            Native(model).decoder(rows=3, capacity=10, tokens=2)
        with pytest.raises(MemoryError, match="cannot be allocated"):
            Native(model).decoder(rows=1 << 40, capacity=10, tokens=1 << 40)

    def test_weights_elsewhere(self) -> None:
        """Nothing is read from memory that is not the weights'."""
        model = model_of(SMALL)
        limits = {"rows": 1, "capacity": 4, "tokens": 4, "threads": 1}
        tensors = tensors_of(model)
        name, dtype, size, (address, nbytes) = tensors[3]
        wrong = [
            (name, dtype, size, (address + 4, nbytes)),
            (name, dtype, size, (address, nbytes - 4)),
            (name, "BF16", size, (address, nbytes)),
            ("other", dtype, size, (address, nbytes)),
        ]
        for each in wrong:
            with pytest.raises(ValueError, match="weight"):
                NativeDecoder(shape_of(SMALL, 4), model, [*tensors[:3], each, *tensors[4:]], **limits)
        with pytest.raises(ValueError, match='the table "cos" has 48 bytes, not 64'):
            NativeDecoder(shape_of(SMALL, 3), model, tensors, **limits)


class TestGreedy:
    @pytest.mark.parametrize("samples", [1, 3])
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_as_torch(self, shape: Shape, samples: int) -> None:
        model, settings = model_of(shape), replace(GREEDY, num_samples=samples)
        prompt = some_ids(shape, 9).tolist()
        wanted = written(TorchContinuation(model, prompt, settings))
        assert written(Continuation(Native(model), prompt, settings)) == wanted

    @pytest.mark.parametrize("piece", [1, 5, 256])
    @pytest.mark.parametrize("length", [1, 30, 48])
    def test_longer_than_the_context(self, length: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last half is read again, in pieces like the prompt."""
        monkeypatch.setattr(continuing, "READING_PIECE", piece)
        model, settings = model_of(SMALL), replace(GREEDY, max_tokens=110, num_samples=2)
        prompt = some_ids(SMALL, length).tolist()
        wanted = written(TorchContinuation(model, prompt, settings))
        assert len(wanted) == 110
        assert written(Continuation(Native(model), prompt, settings)) == wanted

    @pytest.mark.parametrize("context", [1, 2, 3])
    def test_hardly_any_context(self, context: int) -> None:
        model = model_of(replace(SMALL, context=context))
        wanted = written(TorchContinuation(model, [7], GREEDY))
        assert written(Continuation(Native(model), [7], GREEDY)) == wanted

    def test_penalty_and_known_ids(self) -> None:
        model = model_of(UNTIED)
        settings = replace(GREEDY, repetition_penalty=1.7, num_samples=2)
        known = bytearray(number % 3 > 0 for number in range(131))
        wanted = written(TorchContinuation(model, [7, 8], settings, known=known))
        assert written(Continuation(Native(model), [7, 8], settings, known=known)) == wanted
        assert all(token is not None and token % 3 for tokens in wanted for token in tokens)

    def test_ends(self) -> None:
        """A text ends where the model says; one that begins with an end has at least one token."""
        model, settings = model_of(UNTIED), replace(GREEDY, max_tokens=40)
        free = [tokens[0] for tokens in written(Continuation(Native(model), [3], settings))]
        end = next(token for token in free[3:] if token not in (3, *free[:3]))
        ends = {end, 10**6}
        found = written(Continuation(Native(model), [3], settings, end_ids=ends))
        assert found == written(TorchContinuation(model, [3], settings, end_ids=ends))
        assert found[-1] == [None]
        begun = written(Continuation(Native(model), [3, end], settings, end_ids=ends))
        assert begun == written(TorchContinuation(model, [3, end], settings, end_ids=ends))
        assert begun[0] != [None]

    def test_a_sample_that_is_stopped(self) -> None:
        continuation = Continuation(Native(model_of(SMALL)), [3], replace(GREEDY, num_samples=2))
        found = []
        for tokens in continuation:
            found.append([token is None for token in tokens])
            continuation.end(len(found) - 1)
        assert found == [[False, False], [True, False]]


class TestSampled:
    def test_by_the_seed_alone(self) -> None:
        """For any threads, with other samples or alone; and the same on every machine, where weights are."""
        model = model_of(GROUPED)
        settings = SampleSettings(max_tokens=60, temperature=1.0, top_k=50, top_p=0.95, seed=20, num_samples=3)
        several = written(Continuation(Native(model), [1, 2], settings))
        assert written(Continuation(Native(model, threads=2), [1, 2], settings)) == several
        texts = list(zip(*several))
        assert len(set(texts)) == 3
        for number, text in enumerate(texts):
            alone = Continuation(Native(model), [1, 2], replace(settings, seed=20 + number, num_samples=1))
            assert [tokens[0] for tokens in alone] == list(text)

    def test_the_ids_of_a_seed(self) -> None:
        """The same on every machine: Python's generator is specified."""
        chooser = Chooser(SampleSettings(temperature=1.0, seed=7), 1000, [0])
        logits = np.array([[(number * number) % 97 / 20 for number in range(1000)]], np.float32)
        sums = list(accumulate(math.exp(logit) for logit in logits[0].tolist()))
        generator = random.Random(7)
        wanted = [bisect_right(sums, generator.random() * sums[-1]) for _ in range(6)]
        assert [chooser(logits)[0] for _ in range(6)] == wanted == [325, 149, 645, 70, 534, 362]

    @given(
        seed=st.integers(0, 1000),
        temperature=st.sampled_from([0.3, 1.0, 2.0, 1e-12]),
        top_k=st.sampled_from([None, 1, 3, 20, 100, 700, 10_000]),
        top_p=st.sampled_from([None, 1e-9, 0.01, 0.5, 0.95, 0.9999, 1.0]),
        penalty=st.sampled_from([1.0, 1.2, 0.7]),
        excluded=st.booleans(),
        ties=st.booleans(),
    )
    def test_probabilities_as_torch(
        self,
        seed: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        penalty: float,
        excluded: bool,
        ties: bool,
    ) -> None:
        count, prompt = 1000, [1, 4, 4, 30]
        logits = torch.randn(2, count, generator=torch.Generator().manual_seed(seed)) * 3
        if ties:
            logits = logits.round()
        settings = SampleSettings(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty, num_samples=2, seed=0
        )
        known = bytearray(number % 5 > 0 for number in range(count)) if excluded else None
        caught = []
        theirs = TorchChooser(settings, count, prompt, known)
        theirs._sample = lambda probabilities: caught.append(probabilities) or probabilities.argmax(-1)  # type: ignore[method-assign,func-returns-value]
        theirs(logits.clone())
        wanted = (caught[0] / caught[0].sum(-1, keepdim=True)).numpy()
        ours = Chooser(settings, count, prompt, known)._native
        for sample in range(2):
            shares = ours.shares(logits.numpy(), sample)
            assert shares is not None
            got = shares.astype(np.float64) / shares.sum(dtype=np.float64)
            # Of equal probabilities at the border of top-p, either may be the last.
            order = np.argsort(-wanted[sample], kind="stable")
            assert np.abs(np.sort(got) - np.sort(wanted[sample])).max() < 1e-6
            if not ties:
                assert np.abs(got - wanted[sample]).max() < 1e-6
                least = wanted[sample][order]
                assert (got > 0).sum() == (least > 1e-37).sum()

    @pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"temperature": 2.5}], ids=str)
    def test_draws_follow_the_probabilities(self, options: dict[str, Any]) -> None:
        settings = SampleSettings(**{"temperature": 1.0, "seed": 1, **options})
        chooser = Chooser(settings, 6, [0])
        logits = np.array([[0.0, 2.0, 1.0, -5.0, 1.5, 0.5]], np.float32)
        counts = Counter(chooser(logits)[0] for _ in range(4000))
        shares = chooser._native.shares(logits, 0)
        assert shares is not None
        for number, share in enumerate(shares / shares.sum()):
            assert abs(counts[number] / 4000 - share) < 0.03
            assert share or not counts[number]

    def test_the_ends_of_a_draw(self) -> None:
        """The least random number gives the first id that is possible, the greatest the last."""
        known = bytes([0, 0, 1, 1, 1, 0])
        options: dict[str, Any] = {"top_k": None, "top_p": None, "repetition_penalty": 1.0, "prompt": [0]}
        chooser = NativeChooser(6, 2, temperature=1.0, known=known, **options)
        logits = np.zeros((2, 6), np.float32)
        assert chooser.choose(logits, [0.0, 1 - 2**-53]) == [2, 4]

    @pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-45, 1e30])
    def test_extreme_temperatures(self, temperature: float) -> None:
        chooser = Chooser(SampleSettings(temperature=temperature, seed=1), 3, [0])
        chosen = {chooser(np.array([[-1e30, 3e38, 2e38]], np.float32))[0] for _ in range(20)}
        assert chosen <= {1, 2} if temperature > 1 else chosen == {1}

    @pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"top_k": 2}, {"temperature": 0.0}], ids=str)
    def test_infinite_logits(self, options: dict[str, Any]) -> None:
        """Only the infinite ones are possible; where nothing is, something is chosen all the same."""
        chooser = Chooser(SampleSettings(**{"temperature": 0.5, "seed": 1, **options}), 4, [0])
        for _ in range(20):
            assert chooser(np.array([[3.0, np.inf, -np.inf, np.inf]], np.float32))[0] in (1, 3)
            assert 0 <= chooser(np.full((1, 4), -np.inf, np.float32))[0] < 4

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_not_a_number(self, temperature: float) -> None:
        chooser = Chooser(SampleSettings(temperature=temperature, seed=1), 3, [0])
        with pytest.raises(ModelError, match="logits are NaN: its weights are damaged"):
            chooser(np.array([[0.0, np.nan, 1.0]], np.float32))

    def test_broken_weights(self) -> None:
        model = model_of(SMALL)
        model.weights["norm"].master[3] = torch.nan
        with pytest.raises(ModelError, match="logits are NaN"):
            written(Continuation(Native(model), [1], GREEDY))


class TestMemory:
    def test_of_the_cache(self) -> None:
        """2 x layers x rows x key/value heads x head width x capacity, if the last two are multiples of 16."""
        shape = Shape(vocab_size=131, context=64, layers=3, width=64, heads=4, kv_heads=2, head_width=16)
        settings = SampleSettings(max_tokens=100, num_samples=5, seed=0)
        for precision, item in (("fp32", 4), ("bf16", 2)):
            parts = continuing_parts(shape, precision=precision, prompt=10, settings=settings, threads=2)
            assert parts["the KV cache"] == 2 * 3 * 5 * 2 * 16 * 64 * item

    @staticmethod
    def forward_pass(*, tokens: int, prompt: int = 10) -> int:
        settings = SampleSettings(max_tokens=tokens, seed=0, top_p=0.9, repetition_penalty=1.1)
        return continuing_parts(SMALL, precision="fp32", prompt=prompt, settings=settings, threads=1)["a forward pass"]

    @pytest.mark.parametrize(
        ("prompt", "tokens", "samples", "most"),
        [(1, 47, 1, 1), (1, 200, 1, 24), (10, 38, 1, 10), (10, 200, 1, 24), (30, 200, 3, 72), (1, 9, 5, 5)],
    )
    def test_the_most_tokens_in_a_forward_pass(self, prompt: int, tokens: int, samples: int, most: int) -> None:
        settings = SampleSettings(max_tokens=tokens, num_samples=samples, seed=0)
        fed: list[int] = []

        class Counted(Continuation):
            def feed(self, ids: Sequence[Sequence[int]]) -> None:
                fed.append(sum(map(len, ids)))
                super().feed(ids)

        for _ in Counted(Native(model_of(SMALL)), [1] * prompt, settings):
            pass
        assert SMALL.context == 48
        assert most_fed(48, prompt, settings) == max(samples, *fed) == most

    def test_bounded_by_the_context(self) -> None:
        few, many = (
            continuing_parts(
                SMALL,
                precision="fp32",
                prompt=10,
                settings=SampleSettings(max_tokens=tokens, seed=0, top_p=0.9, repetition_penalty=1.1),
                threads=1,
            )
            for tokens in (39, 10**6)
        )
        assert few == many
        assert few["a forward pass"] > self.forward_pass(tokens=38), "nothing is read again"
        settings = SampleSettings(seed=0, top_p=0.9, repetition_penalty=1.1, num_samples=3)
        assert sampling_bytes(settings, 131) == 131 * (1 + 3 + 4 + 4 + 4)
