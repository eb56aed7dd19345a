"""Shapes and the shape of a given size: within 3%, dimensions that divide, and the keys that other tools use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramlet.errors import SettingsError
from ramlet.model import sizing
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for

TARGETS = (
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    124_000_000,
    350_000_000,
    1_000_000_000,
    7_000_000_000,
)


def check(shape: Shape, parameters: int) -> None:
    """What every shape that is found must be."""
    assert abs(shape.parameters / parameters - 1) <= 0.03
    assert shape.feed_forward % 16 == 0
    assert shape.head_width * shape.heads == shape.width
    assert shape.head_width % 2 == 0
    assert shape.heads % shape.kv_heads == 0
    assert shape.width <= shape.feed_forward <= 5 * shape.width


@pytest.mark.parametrize("vocab_size", [65, 257, 4096, 8192, 32_000, 50_257, 128_256])
@pytest.mark.parametrize("parameters", TARGETS)
def test_within_three_percent(parameters: int, vocab_size: int) -> None:
    # Below, the embedding alone goes in steps of more than 6%.
    if parameters > 34 * vocab_size:
        shape = shape_for(parameters, vocab_size=vocab_size, context=256)
        check(shape, parameters)
        if parameters > 300 * vocab_size:
            assert shape.width % 16 == 0
            assert shape.head_width in (16, 32, 64, 128)


@settings(max_examples=100)
@given(
    parameters=st.integers(2_000, 2_000_000_000),
    vocab_size=st.integers(2, 60_000),
    tied=st.booleans(),
    kv_groups=st.sampled_from([1, 1, 2, 4]),
)
def test_any_size_or_the_next_that_can_be_had(parameters: int, vocab_size: int, tied: bool, kv_groups: int) -> None:
    given_too = {"vocab_size": vocab_size, "context": 128, "tied": tied, "kv_groups": kv_groups}
    try:
        shape = shape_for(parameters, **given_too)  # type: ignore[arg-type]
    except SettingsError as told:
        assert parameters < 600 * max(vocab_size, 64) * (1 if tied else 2)
        least = int(str(told).partition("params=")[2].partition(" or more")[0])
        assert least > parameters
        parameters, shape = least, shape_for(least, **given_too)  # type: ignore[arg-type]
    check(shape, parameters)
    assert shape.heads == kv_groups * shape.kv_heads
    assert (shape.vocab_size, shape.context, shape.tied) == (vocab_size, 128, tied)


@pytest.mark.parametrize(("parameters", "kv_groups"), [(980_000, 8), (9_800_000, 16), (10**6, 32), (87 * 10**6, 64)])
def test_a_size_that_its_groups_rule_out(parameters: int, kv_groups: int) -> None:
    """The vocabulary is not the reason, and the size that is named can be had."""
    given_too = {"vocab_size": 3959, "context": 128, "kv_groups": kv_groups}
    with pytest.raises(SettingsError, match=f"too few for {kv_groups} query heads .* or a smaller kv_groups") as told:
        shape_for(parameters, **given_too)
    least = int(str(told.value).partition("params=")[2].partition(" or more")[0])
    check(shape_for(least, **given_too), least)
    with pytest.raises(SettingsError, match="too few for a vocabulary of 3,959"):
        shape_for(20_000, **given_too)


def test_usual_sizes_have_usual_proportions() -> None:
    for parameters, width, layers in ((124_000_000, (576, 896), (8, 20)), (1_500_000_000, (1536, 2560), (16, 40))):
        shape = shape_for(parameters, vocab_size=50_257, context=1024)
        assert width[0] <= shape.width <= width[1]
        assert layers[0] <= shape.layers <= layers[1]
        assert shape.width % 64 == 0
        assert 2 <= shape.feed_forward / shape.width <= 3.5


@pytest.mark.parametrize("parameters", [350_000_000, 1_300_000_000, 7_000_000_000])
def test_wide_models_have_multiples_of_128(parameters: int) -> None:
    """Products of other sizes waste a part of their tiles, and only these widths have heads of 128."""
    shape = shape_for(parameters, vocab_size=50_257, context=1024)
    assert shape.width % 128 == shape.feed_forward % 128 == 0
    assert shape.head_width == 128


def test_a_given_depth_is_kept() -> None:
    for layers in (2, 5, 12):
        shape = shape_for(10_000_000, vocab_size=8192, context=256, layers=layers)
        assert shape.layers == layers
        check(shape, 10_000_000)


def test_too_small_for_the_vocabulary() -> None:
    with pytest.raises(SettingsError, match=r"500,000 parameters are too few for a vocabulary of 50,257: give"):
        shape_for(500_000, vocab_size=50_257, context=256)


def test_small_vocabularies_and_large_models_take_no_time() -> None:
    """The search once went on to widths whose embedding alone would be as large, for minutes."""
    tried = []
    original = sizing._Search._at_width

    def count(search: sizing._Search, width: int, parameters: int) -> Iterator[Shape]:
        tried.append(width)
        return original(search, width, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing._Search, "_at_width", count)
        check(shape_for(10**9, vocab_size=2, context=256), 10**9)
    assert max(tried) < 10_000


class TestShape:
    def test_what_follows(self) -> None:
        shape = Shape(vocab_size=8192, context=256, layers=6, width=256, heads=4, feed_forward=704)
        matrices = 6 * (4 * 256 * 256 + 3 * 256 * 704)
        assert shape.parameters == 8192 * 256 + matrices + 13 * 256
        assert (shape.kv_heads, shape.head_width, shape.qkv_width) == (4, 64, 768)
        assert shape.step_flops(10) == 6 * 10 * (matrices + 8192 * 256 + 6 * 256 * 256)
        assert Shape(100, 10, 1, 96, 3).feed_forward == 256
        assert Shape(65, 10, 1, 32, 1).padded_vocab == 128
        assert Shape(64, 10, 1, 32, 1).padded_vocab == 64

    def test_the_docstring_counts_right(self) -> None:
        shape = Shape(vocab_size=8192, context=256, layers=6, width=256, heads=4, feed_forward=704)
        import ramlet.model.shape

        assert f"{shape.parameters:,}" in (ramlet.model.shape.__doc__ or "")

    @pytest.mark.parametrize(
        "config",
        [
            {"vocab_size": 99, "context": 64, "layers": 2, "width": 32, "heads": 4, "feed_forward": 64},
            {"vocab_size": 99, "block_size": 64, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_inner": 64},
            {
                "vocab_size": 99, "max_position_embeddings": 64, "num_hidden_layers": 2, "hidden_size": 32,
                "num_attention_heads": 4, "intermediate_size": 64, "num_key_value_heads": None, "rope_theta": 10000,
            },
            {"vocab_size": 99, "seq_len": 64, "n_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.1},
        ],
        ids=["ours", "nanogpt", "transformers", "papers"],
    )  # fmt: skip
    def test_configs_of_many_tools(self, config: dict[str, object]) -> None:
        shape = Shape.from_config(config)
        assert shape == Shape(99, 64, 2, 32, 4, feed_forward=64)
        assert Shape.from_config(config, vocab_size=7, context=None) == Shape(7, 64, 2, 32, 4, feed_forward=64)
        assert Shape.from_config(shape.to_dict()) == shape

    @pytest.mark.parametrize(
        ("config", "how"),
        [
            ({}, "has no vocab_size, context, layers, width, heads"),
            ({"n_layer": "two"}, "layers: 'two', which should be a int"),
            ({"n_layer": True}, "layers: True, which should be a int"),
            ({"tie_word_embeddings": 1}, "tied: 1, which should be a bool"),
            ({"n_head": 5}, "cannot be divided into 5 heads"),
            ({"n_head": 32}, "cannot be divided into 32 heads of an even width"),
            ({"n_kv_heads": 3}, "4 heads cannot share 3"),
            ({"n_layer": 0}, "layers must be at least 1, not 0"),
        ],
    )
    def test_refused(self, config: dict[str, object], how: str) -> None:
        whole = {"vocab_size": 99, "block_size": 64, "n_layer": 2, "n_embd": 32, "n_head": 4}
        with pytest.raises(SettingsError, match=how):
            Shape.from_config({**whole, **config} if config else {})
