"""Text from a model: against itself without a cache, against transformers, and every way a prompt can be wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from oracles_generation import slow_continuation
from oracles_model import GROUPED, SHAPES, SMALL, UNTIED, byte_tokenizer, model_of, some_ids
from ramlet.engines import continuing
from ramlet.engines.torch.cache import KVCache
from ramlet.engines.torch.continuing import Continuation
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import save_model
from ramlet.engines.torch.sampling import Chooser
from ramlet.errors import BudgetError, ModelError, SettingsError
from ramlet.generation import Sampler, SampleSettings, generate, stream
from ramlet.generation.prompt import prompt_ids
from ramlet.generation.text import TextPieces
from ramlet.generation.writer import Writing, known_ids
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

torch.set_num_threads(1)
BYTES = replace(GROUPED, vocab_size=257)
END = 256


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_model(model_of(BYTES), folder, tokenizer_file=byte_tokenizer(folder), end_id=END)
    return folder


@pytest.fixture(scope="module")
def tokenizer(run: Path) -> Tokenizer:
    return Tokenizer.load(run)


def written(model: GPT, prompt: list[int], settings: SampleSettings, **options: Any) -> list[list[int]]:
    """The ids of every sample."""
    samples: list[list[int]] = [[] for _ in range(settings.num_samples)]
    for tokens in Continuation(model, prompt, settings, **options):
        for sample, token in enumerate(tokens):
            if token is not None:
                samples[sample].append(token)
    return samples


class TestAgainstTheSlowWay:
    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 0.0},
            {"temperature": 1.0},
            {"temperature": 0.6, "top_k": 5},
            {"temperature": 1.3, "top_p": 0.7},
            {"temperature": 0.9, "top_k": 40, "top_p": 0.5},
            {"temperature": 0.0, "repetition_penalty": 1.5},
            {"temperature": 0.8, "repetition_penalty": 1.3, "top_p": 0.9},
            {"temperature": 1e-12},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_same_ids(self, shape: Shape, options: dict[str, float]) -> None:
        model = model_of(shape)
        settings = SampleSettings(max_tokens=20, seed=11, num_samples=3, **options)  # type: ignore[arg-type]
        prompt = some_ids(shape, 9).tolist()
        slow = [slow_continuation(model, prompt, settings, sample) for sample in range(3)]
        assert written(model, prompt, settings) == slow

    @pytest.mark.parametrize("piece", [1, 2, 5, 7, 256])
    def test_the_prompt_in_pieces(self, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(continuing, "READING_PIECE", piece)
        settings = SampleSettings(max_tokens=12, seed=5, num_samples=2)
        prompt = some_ids(GROUPED, 17).tolist()
        model = model_of(GROUPED)
        slow = [slow_continuation(model, prompt, settings, sample) for sample in range(2)]
        assert written(model, prompt, settings) == slow

    @pytest.mark.parametrize("length", [1, 30, 47, 48])
    @pytest.mark.parametrize("piece", [4, 256])
    def test_longer_than_the_context(self, length: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last half is read again, and writing goes on."""
        monkeypatch.setattr(continuing, "READING_PIECE", piece)
        settings = SampleSettings(max_tokens=130, temperature=1.0, seed=5, num_samples=2)
        prompt = some_ids(SMALL, length).tolist()
        model = model_of(SMALL)
        texts = written(model, prompt, settings)
        assert texts == [slow_continuation(model, prompt, settings, sample) for sample in range(2)]
        assert [len(text) for text in texts] == [130, 130]

    @pytest.mark.parametrize("context", [1, 2, 3])
    def test_hardly_any_context(self, context: int) -> None:
        shape = replace(SMALL, context=context)
        settings = SampleSettings(max_tokens=10, seed=1)
        model = model_of(shape)
        assert written(model, [7], settings) == [slow_continuation(model, [7], settings)]

    def test_it_ends_where_the_model_says(self) -> None:
        model = model_of(SMALL)
        settings = SampleSettings(max_tokens=40, temperature=1.0, seed=3, num_samples=4)
        prompt = some_ids(SMALL, 5).tolist()
        ends = set(range(0, 131, 12))
        slow = [slow_continuation(model, prompt, settings, sample, ends) for sample in range(4)]
        assert written(model, prompt, settings, end_ids=ends) == slow
        assert len({len(ids) for ids in slow}) > 1


class TestSamples:
    def test_a_sample_does_not_depend_on_the_others(self, run: Path) -> None:
        several = generate(run, "Hello", max_tokens=60, seed=20, num_samples=4, precision="fp32")
        alone = [generate(run, "Hello", max_tokens=60, seed=20 + number, precision="fp32")[0] for number in range(4)]
        assert several == alone
        assert len(set(several)) == 4

    def test_without_a_seed_they_differ(self, run: Path) -> None:
        assert generate(run, "Hello", max_tokens=60)[0] != generate(run, "Hello", max_tokens=60)[0]

    def test_the_stream_is_the_text(self, run: Path) -> None:
        pieces = list(stream(run, "Hello", max_tokens=90, seed=3, precision="fp32"))
        assert "".join(pieces) == generate(run, "Hello", max_tokens=90, seed=3, precision="fp32")[0]
        assert len(pieces) > 20

    def test_ids_without_a_token_are_never_chosen(self, tokenizer: Tokenizer) -> None:
        """A model with more rows than the tokenizer has tokens, all of them likelier than any token."""
        shape = replace(UNTIED, vocab_size=300)
        model = model_of(shape)
        model.weights["head"].master[:257] *= 1e-3
        prompt = [int(number) for number in b"Hello"]
        hot = SampleSettings(max_tokens=200, temperature=5.0, seed=1)
        assert max(written(model, prompt, hot)[0]) >= 257
        for settings in (hot, replace(hot, temperature=0.0), replace(hot, top_k=3), replace(hot, top_p=0.5)):
            assert max(written(model, prompt, settings, known=known_ids(tokenizer, 300))[0]) < 257

    def test_a_gap_among_the_tokens(self) -> None:
        gappy = Tokenizer.from_merges({byte: bytes([byte]) for byte in range(256) if byte != 65}, [])
        known = known_ids(gappy, 300)
        assert [number for number in range(300) if not known[number]] == [65, *range(256, 300)]

    def test_broken_weights(self, run: Path, tmp_path: Path) -> None:
        model = model_of(BYTES)
        model.weights["norm"].master[3] = torch.nan
        save_model(model, tmp_path, tokenizer_file=run / "tokenizer.json")
        with pytest.raises(ModelError, match="logits are NaN: its weights are damaged"):
            generate(tmp_path, "Hello")

    def test_bits_make_little_difference(self, run: Path) -> None:
        exact, rough = (
            generate(run, "Hello", max_tokens=5, temperature=0, precision=each) for each in ("fp32", "bf16")
        )
        assert exact[0][:1] == rough[0][:1]


class TestAgainstTransformers:
    def test_greedy(self, run: Path) -> None:
        llama = transformers.AutoModelForCausalLM.from_pretrained(run)
        theirs = transformers.AutoTokenizer.from_pretrained(run)
        for prompt in ("Hello", "a", " fünf", "x" * 20):
            inputs = theirs(prompt, return_tensors="pt")
            out = llama.generate(**inputs, do_sample=False, max_new_tokens=20)
            text = theirs.decode(out[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            assert generate(run, prompt, temperature=0, max_tokens=20, precision="fp32") == [text]

    @given(
        seed=st.integers(0, 1000),
        temperature=st.sampled_from([0.3, 1.0, 2.0]),
        top_k=st.sampled_from([None, 1, 3, 20, 100]),
        top_p=st.sampled_from([None, 0.01, 0.5, 0.95, 1.0]),
        penalty=st.sampled_from([1.0, 1.2, 0.7]),
    )
    def test_probabilities(
        self, seed: int, temperature: float, top_k: int | None, top_p: float | None, penalty: float
    ) -> None:
        """The same filters in the same order."""
        logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed)) * 3
        prompt = [1, 4, 4, 30]
        settings = SampleSettings(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty, num_samples=2
        )
        caught = []
        chooser = Chooser(settings, 50, prompt)
        chooser._sample = lambda probabilities: caught.append(probabilities) or probabilities.argmax(-1)  # type: ignore[method-assign,func-returns-value]
        chooser(logits.clone())
        processors: list[Any] = []
        if penalty != 1:
            processors.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
        processors.append(transformers.TemperatureLogitsWarper(temperature))
        if top_k:
            processors.append(transformers.TopKLogitsWarper(top_k))
        if top_p:
            processors.append(transformers.TopPLogitsWarper(top_p))
        scores = transformers.LogitsProcessorList(processors)(torch.tensor([prompt, prompt]), logits.clone())
        theirs = torch.softmax(scores, -1)
        ours = caught[0] / caught[0].sum(-1, keepdim=True)
        assert torch.allclose(ours.float(), theirs, atol=1e-5)
        assert ((ours > 0) <= (theirs > 1e-30)).all()


def test_draws_follow_the_probabilities() -> None:
    settings = SampleSettings(temperature=1.0, seed=1, num_samples=1, top_k=4)
    chooser = Chooser(settings, 6, [0])
    logits = torch.tensor([[0.0, 2.0, 1.0, -5.0, 1.5, 0.5]])
    counts = torch.zeros(6)
    for _ in range(4000):
        counts[chooser(logits.clone())[0]] += 1
    wanted = torch.softmax(torch.tensor([-torch.inf, 2.0, 1.0, -torch.inf, 1.5, 0.5]), -1)
    assert (counts / 4000 - wanted).abs().max() < 0.03
    assert counts[0] == counts[3] == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"temperature": 1e-300}, 1), ({"repetition_penalty": 1e-300}, 4), ({"repetition_penalty": 1e300}, 1)],
)
def test_settings_beyond_the_numbers_of_fp32(given: dict[str, float], expected: int) -> None:
    """They become 0 or infinite there, and so did the logits."""
    settings = SampleSettings(**{"temperature": 1e-3, "seed": 1, **given})
    logits = torch.tensor([[0.0, 2.0, 1.0, -5.0, 1.5, 0.5]])
    assert Chooser(settings, 6, [0, 4, 3])(logits) == [expected]


def test_the_cache_never_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = KVCache.__init__

    def note(cache: KVCache, *arguments: Any, **options: Any) -> None:
        original(cache, *arguments, **options)
        made.append(cache)

    monkeypatch.setattr(KVCache, "__init__", note)
    written(model_of(SMALL), [1, 2, 3], SampleSettings(max_tokens=150, num_samples=2, seed=0))
    written(model_of(SMALL), [1, 2, 3], SampleSettings(max_tokens=10, seed=0))
    assert [tuple(cache._held.shape) for cache in made] == [(2, 2, 2, 4, 48, 8), (2, 2, 1, 4, 13, 8)]


def test_gradients_are_as_they_were_between_two_tokens() -> None:
    model = model_of(SMALL)
    for _ in Continuation(model, [1], SampleSettings(max_tokens=3, seed=0)):
        assert torch.is_grad_enabled()


class TestText:
    @given(
        st.lists(st.sampled_from([0x61, 0x62, 0x0A, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82, 0xFF]), max_size=30),
        st.lists(st.sampled_from(["ab", "b\n", "aab", "é", "\ufffd", "ba🙂", "aa"]), max_size=3),
    )
    def test_pieces_are_the_text_up_to_a_stop(self, tokens: list[int], stop: list[str]) -> None:
        tokenizer = Tokenizer.load("byte")
        pieces = TextPieces(tokenizer, stop=stop)
        shown = []
        for token in tokens:
            shown.append(pieces.push(token))
            if pieces.stopped:
                break
        shown.append(pieces.finish())
        text = bytes(tokens).decode("utf-8", "replace")
        # The stop that is complete first ends the text; of two that are, the one that begins first.
        ends = [text.find(one) + len(one) for one in stop if one in text]
        if ends:
            text = text[: min(ends)]
            text = text[: min(text.find(one) for one in stop if one in text)]
        assert "".join(shown) == text

    def test_characters_come_whole(self) -> None:
        pieces = TextPieces(Tokenizer.load("byte"))
        assert [pieces.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
        assert [pieces.push(0xF0), pieces.finish()] == ["", "\ufffd"]

    def test_what_may_be_a_stop_is_held_back(self) -> None:
        pieces = TextPieces(Tokenizer.load("byte"), stop=["\n\nUser:"])
        assert "".join(pieces.push(byte) for byte in b"so\n\nUs") == "so"
        assert pieces.push(ord("a")) == "\n\nUsa"
        assert "".join(pieces.push(byte) for byte in b"!\n\nUser: hi") == "!"
        assert pieces.stopped
        assert pieces.finish() == ""

    def test_tokenizers_whose_tokens_hang_together(self, tmp_path: Path) -> None:
        """Where a leading space depends on the token before, as in SentencePiece's vocabularies."""
        from tokenizers import Tokenizer as Theirs
        from tokenizers import decoders, models, pre_tokenizers

        made = Theirs(models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -2.0), ("s", -2.0), ("▁", -3.0)], 0))
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        made.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.kind == "hf"
        tokens = [1, 2, 3, 1, 3, 3, 2] * 5
        pieces = TextPieces(tokenizer, prompt=[1])
        assert "".join(map(pieces.push, tokens)) + pieces.finish() == tokenizer.decode([1, *tokens])[3:]

    def test_generation_ends_at_a_stop(self, run: Path) -> None:
        whole = generate(run, "Hello", max_tokens=80, seed=9, precision="fp32")[0]
        stop = whole[20:23]
        told = generate(run, "Hello", max_tokens=80, seed=9, stop=["never there", stop], precision="fp32")[0]
        assert told == whole[: whole.index(stop)]

    def test_nothing_is_reckoned_behind_a_stop(self, tokenizer: Tokenizer) -> None:
        """Of several samples each ends at its own."""
        settings = SampleSettings(max_tokens=80, seed=9, num_samples=3, stop=tuple("etaoinshrdlu"))
        model = model_of(BYTES)
        ids = list(b"Hello")
        slow = [slow_continuation(model, ids, settings, sample) for sample in range(3)]
        wanted = [next(at for at, token in enumerate(text, 1) if token in set(b"etaoinshrdlu")) for text in slow]
        writing = Writing(model, tokenizer, ids, settings, end_ids=frozenset(), known=None)
        texts = ["", "", ""]
        for sample, piece in writing:
            texts[sample] += piece
        assert writing.tokens == wanted
        assert len(set(wanted)) > 1
        assert texts == [bytes(text[: end - 1]).decode("utf-8", "replace") for text, end in zip(slow, wanted)]


class TestPrompts:
    def test_special_tokens_in_it_are_text(self, tokenizer: Tokenizer) -> None:
        ids = prompt_ids("<|endoftext|>", tokenizer, BYTES, SampleSettings(), frozenset([END]))
        assert bytes(ids) == b"<|endoftext|>"

    def test_an_empty_one_begins_a_text(self, tokenizer: Tokenizer) -> None:
        assert prompt_ids("", tokenizer, BYTES, SampleSettings(), frozenset([END])) == [END]
        assert prompt_ids("", tokenizer, BYTES, SampleSettings(), frozenset()) == [END]
        assert prompt_ids("", tokenizer, BYTES, SampleSettings(), frozenset([5, 9])) == [5]

    def test_an_empty_one_without_an_end(self) -> None:
        with pytest.raises(SettingsError, match=r"an empty prompt needs an end-of-text token.*: give a prompt"):
            prompt_ids("", Tokenizer.load("byte"), BYTES, SampleSettings(), frozenset())

    def test_longer_than_the_context(self, run: Path, tokenizer: Tokenizer) -> None:
        with pytest.raises(
            SettingsError, match="the prompt has 49 tokens, more than the model's context of 48: shorten it"
        ):
            generate(run, "x" * 49)
        assert len(generate(run, "x" * 48, max_tokens=3, seed=0, precision="fp32")) == 1
        for max_tokens, kept in ((5, 43), (24, 24), (1000, 24)):
            settings = SampleSettings(max_tokens=max_tokens, truncate=True)
            ids = prompt_ids("ab" * 50, tokenizer, BYTES, settings, frozenset())
            assert bytes(ids) == (b"ab" * 50)[-kept:]

    def test_the_tokenizer_of_another_model(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(ModelError, match=r"contains the id 122, but the model has only 100: its tokenizer\.json"):
            prompt_ids("az", tokenizer, replace(BYTES, vocab_size=100), SampleSettings(), frozenset())


class TestModels:
    def test_a_checkpoint_of_a_run(self, run: Path, tmp_path: Path) -> None:
        whole = tmp_path / "run"
        shutil.copytree(run, whole)
        step = whole / "checkpoints" / "step_000010"
        step.mkdir(parents=True)
        save_model(model_of(BYTES, seed=2), tmp_path / "other")
        shutil.copy(tmp_path / "other" / "model.safetensors", step)
        there, final = (generate(path, "Hello", seed=1, max_tokens=20, precision="fp32") for path in (step, whole))
        assert there != final
        (whole / "model.safetensors").unlink()
        assert generate(whole, "Hello", seed=1, max_tokens=20, precision="fp32") == there

    @pytest.mark.parametrize(("engine", "loaded"), [("native", "Python"), ("torch", "Python and PyTorch")])
    def test_a_budget_too_small(self, run: Path, engine: str, loaded: str) -> None:
        with pytest.raises(BudgetError, match=rf"needs at least \d+MB: .* for {loaded}, .* for weights"):
            generate(run, "Hello", memory="10MB", device="cpu", engine=engine)

    @pytest.mark.parametrize(
        ("options", "how"),
        [
            ({"device": "npu"}, "unknown device 'npu': use auto, cpu, cuda or tpu"),
            ({"precision": "int4"}, "unknown precision 'int4': use auto, "),
            ({"precision": "fp8"}, "fp8 is only for training"),
            ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
            ({"num_samples": True}, "num_samples must be a whole number, not True"),
            ({"top_k": 0}, "top_k must be between 1 and 1,000,000,000, not 0"),
            ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0"),
            ({"top_p": 1.5}, "top_p must be above 0 and at most 1, not 1.5"),
            ({"temperature": -1}, "temperature must be at least 0, not -1"),
            ({"temperature": float("nan")}, "temperature must be at least 0, not nan"),
            ({"repetition_penalty": 0}, "repetition_penalty must be above 0, not 0"),
            ({"seed": -1}, "seed must be between 0 and 9,223,372,036,854,775,807, not -1"),
            ({"seed": 1 << 63}, "seed must be between 0 and .*, not 9223372036854775808"),
            ({"stop": ["a", ""]}, "stop must be some text, not ''"),
        ],
    )
    def test_settings_that_make_no_sense(self, run: Path, options: dict[str, Any], how: str) -> None:
        with pytest.raises(SettingsError, match=how):
            generate(run, "Hello", **options)


class TestSettingsAsTyped:
    def test_changed(self) -> None:
        settings = SampleSettings(seed=3)
        assert settings.changed("temperature", "0.5").temperature == 0.5
        assert settings.changed("--top-k", " 5 ").top_k == 5
        assert settings.changed("top_k", "7").changed("top_k", "none").top_k is None
        assert settings.changed("seed", "none").seed is None
        assert settings.changed("stop", "the end").stop == ("the end",)
        assert settings.changed("truncate", "on").truncate is True

    @pytest.mark.parametrize(
        ("name", "text", "how"),
        [
            ("temprature", "1", "unknown setting 'temprature': choose from max_tokens, temperature"),
            ("temperature", "hot", "temperature must be a number like 0.1, not 'hot'"),
            ("max_tokens", "2.5", "max_tokens must be a number like 2048, 32k or 10M, not '2.5'"),
            ("max_tokens", "none", "max_tokens must be a number like 2048, 32k or 10M, not 'none'"),
            ("truncate", "maybe", "truncate must be true or false, not 'maybe'"),
        ],
    )
    def test_refused(self, name: str, text: str, how: str) -> None:
        with pytest.raises(SettingsError, match=how):
            SampleSettings().changed(name, text)


class TestSampler:
    def test_the_same_for_the_same_step(self, tokenizer: Tokenizer) -> None:
        model = model_of(BYTES)
        sampler = Sampler(tokenizer, "Once", 30, 5, END)
        assert sampler(model, 100) == sampler(model, 100) != sampler(model, 200)
        assert sampler(model, 100).startswith("Once")

    def test_a_model_in_training(self, tokenizer: Tokenizer) -> None:
        model = model_of(BYTES, recompute=True)
        model.weights.make_gradients()
        Sampler(tokenizer, "", 60, 5, END)(model, 1)
        assert not model.weights.matrices.grad.any()  # type: ignore[union-attr]

    @pytest.mark.parametrize("prompt", ["", "a prompt that is longer than all that the model sees at once, by far"])
    def test_nothing_stops_a_run(self, prompt: str) -> None:
        text = Sampler(Tokenizer.load("byte"), prompt, 10, 1, None)(model_of(BYTES), 0)
        assert text.startswith(prompt)
