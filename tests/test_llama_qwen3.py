"""Llama and Qwen3 folders as they are published: for `config`, for `init_from`, and what is exported from them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

from conftest import AMPLE
from oracles_model import GROUPED, GROUPED_QK_NORM, QK_NORM, SCALED, SMALL, byte_tokenizer, model_of, some_ids
from oracles_training import apart, assert_same_run, make_data, run
from ramlet.engines.torch.forward_memory import generation_parts
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import load_model, save_model
from ramlet.engines.torch.rotary import RotaryTables
from ramlet.engines.torch.sizes import recomputes_qk_norm, rotary_bytes
from ramlet.errors import ModelError, SettingsError
from ramlet.generation.settings import SampleSettings
from ramlet.model import shape as shapes
from ramlet.model.export import export_model
from ramlet.model.folder import find_model
from ramlet.model.hf_config import hf_config, shape_from_hf
from ramlet.model.rope import RopeScaling
from ramlet.model.shape import LONGEST_USUAL, Shape
from ramlet.training.listener import Listener
from ramlet.training.model_config import read_model_config, shape_from_file
from ramlet.training.propose import plan
from ramlet.training.run_folder import RunFolder
from ramlet.training.settings import RunSettings

LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {**LLAMA3, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
    },
}  # fmt: skip
PARAMETERS = {"Qwen3-0.6B": 596_049_920, "Llama-3.2-1B": 1_235_814_400}
SCALING = RopeScaling(32.0, 1.0, 4.0, 8192)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("texts"))


def folder_of(config: dict[str, Any], path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def small(name: str, **changes: Any) -> dict[str, Any]:
    """A published config with another width and depth."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**PUBLISHED[name], **sizes, "num_key_value_heads": 2, "head_dim": 16, **changes}


def theirs_of(config: dict[str, Any]) -> Any:
    """transformers' model of a config, its weights large enough for every part to matter."""
    made = transformers.AutoConfig.for_model(**{**config, "initializer_range": 0.1, "torch_dtype": "float32"})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


class TestPublished:
    @pytest.mark.parametrize("name", PUBLISHED)
    def test_the_shape(self, name: str) -> None:
        config = PUBLISHED[name]
        shape = shape_from_hf(config, "config.json")
        assert shape.parameters == PARAMETERS[name]
        assert (shape.head_width, shape.context) == (config["head_dim"], config["max_position_embeddings"])
        assert (shape.rope_base, shape.norm_eps) == (config["rope_theta"], config["rms_norm_eps"])
        assert shape.rope_scaling == (SCALING if name.startswith("Llama") else None)

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_what_we_write_is_the_same_for_transformers_and_for_us(self, name: str) -> None:
        shape = shape_from_hf(PUBLISHED[name], "config.json")
        written = hf_config(shape, dtype="float32", end_id=None)
        assert shape_from_hf(written, "config.json") == shape
        before, after = (transformers.AutoConfig.for_model(**given) for given in (PUBLISHED[name], written))
        assert before.rope_parameters == after.rope_parameters
        for key in ("hidden_size", "head_dim", "intermediate_size", "rms_norm_eps", "tie_word_embeddings"):
            assert getattr(before, key) == getattr(after, key)

    @pytest.mark.parametrize("name", PUBLISHED)
    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("sharded", [True, False])
    def test_a_smaller_one_saved_by_transformers(self, name: str, tied: bool, sharded: bool, tmp_path: Path) -> None:
        """With the keys that this version of transformers writes."""
        theirs = theirs_of(small(name, vocab_size=200, tie_word_embeddings=tied, max_position_embeddings=20_000))
        theirs.save_pretrained(tmp_path, max_shard_size="30KB" if sharded else "1GB")
        ours = load_model(tmp_path)
        ids = some_ids(ours.shape, 2, 48)
        with torch.no_grad():
            assert (ours.logits(ids) - theirs(ids).logits).abs().max() <= 1e-5

    def test_positions_far_apart(self) -> None:
        """The slow frequencies, which scaling changes, matter only there."""
        shape = replace(SCALED, context=4096, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 256))
        model, plain = model_of(shape), model_of(replace(shape, rope_scaling=None))
        config = transformers.AutoConfig.for_model(**hf_config(shape, dtype="float32", end_id=None))
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1), torch.arange(4096)[None])
        half = shape.head_width // 2
        for ours, theirs in zip(model._rotary.of(4096), (cos, sin)):
            assert (ours - theirs[0, :, :half]).abs().max() <= 1e-3  # their angles are fp32
        assert (model._rotary.of(4096)[0] - plain._rotary.of(4096)[0]).abs().max() > 0.1

    def test_keys_of_both_generations_that_disagree(self) -> None:
        """The group counts, as in transformers."""
        config = small("Qwen3-0.6B", rope_parameters={"rope_type": "default", "rope_theta": 777.0})
        theirs = transformers.AutoConfig.for_model(**config)
        assert shape_from_hf(config, "config.json").rope_base == theirs.rope_parameters["rope_theta"] == 777.0

    def test_a_missing_width_of_heads(self) -> None:
        config = small("Qwen3-0.6B")
        del config["head_dim"]
        theirs = transformers.AutoConfig.for_model(**config)
        assert shape_from_hf(config, "config.json").head_width == theirs.head_dim == 128
        config = small("Llama-3.2-1B")
        del config["head_dim"]
        theirs = transformers.AutoConfig.for_model(**config)
        assert shape_from_hf(config, "config.json").head_width == theirs.head_dim == 8

    @pytest.mark.parametrize(
        ("changes", "how"),
        [
            ({"factor": 0}, "factor: 0, which should be a number above 0"),
            ({"factor": "eight"}, "factor: 'eight', which should be"),
            ({"high_freq_factor": 1.0}, "high_freq_factor 1.0, which must be above low_freq_factor, 1.0"),
            ({"rope_type": "yarn"}, "rope_scaling yarn is not supported, only llama3"),
        ],
    )
    def test_scaling_that_is_none(self, changes: dict[str, Any], how: str) -> None:
        config = small("Llama-3.2-1B", rope_scaling={**LLAMA3, "rope_type": "llama3", **changes})
        with pytest.raises(ModelError, match=how):
            shape_from_hf(config, "config.json")


class TestConfig:
    @pytest.mark.parametrize("name", PUBLISHED)
    @pytest.mark.parametrize("form", ["folder", "file"])
    def test_all_of_the_model_but_its_vocabulary(self, name: str, form: str, tmp_path: Path) -> None:
        folder = folder_of(PUBLISHED[name], tmp_path / name)
        path = str(folder if form == "folder" else folder / "config.json")
        known = shape_from_hf(PUBLISHED[name], "config.json")
        shape = shape_from_file(path, RunSettings(config=path), vocab_size=5000)
        assert shape == replace(known, vocab_size=5000, context=LONGEST_USUAL)
        shape = shape_from_file(path, RunSettings(config=path, seq_len=512), vocab_size=5000)
        assert shape == replace(known, vocab_size=5000, context=512)
        assert shape_from_file(path, RunSettings(config=path), vocab_size=None).vocab_size == known.vocab_size

    def test_a_file_of_ours_is_as_before(self, tmp_path: Path) -> None:
        path = tmp_path / "shape.yaml"
        path.write_text("layers: 2\nwidth: 64\nheads: 2\ncontext: 9000\nhead_width: 64\nrope_theta: 500\n")
        shape = shape_from_file(str(path), RunSettings(config=str(path)), vocab_size=99)
        assert shape == Shape(99, 9000, 2, 64, 2, rope_base=500.0, head_width=64)
        path.write_text("layers: 2\nwidth: 64\nheads: 2\ncontext: 64\nvocab_size: 7\n")
        with pytest.raises(SettingsError, match="has a vocabulary of 7, the data one of 99: remove vocab_size from it"):
            shape_from_file(str(path), RunSettings(config=str(path)), vocab_size=99)

    def test_qk_norm(self, tmp_path: Path) -> None:
        path = tmp_path / "shape.yaml"
        path.write_text("layers: 2\nwidth: 64\nheads: 2\ncontext: 64\n")
        settings = RunSettings(config=str(path), qk_norm=True)
        assert shape_from_file(str(path), settings, vocab_size=99).qk_norm
        folder = str(folder_of(PUBLISHED["Llama-3.2-1B"], tmp_path / "llama"))
        with pytest.raises(SettingsError, match="has no QK-norm, like a Llama: do not give"):
            shape_from_file(folder, replace(settings, config=folder), vocab_size=99)
        folder = str(folder_of({**PUBLISHED["Llama-3.2-1B"], "qk_norm": True}, tmp_path / "both"))
        with pytest.raises(ModelError, match="QK-norm and model_type llama, which has none: write model_type qwen3"):
            shape_from_file(folder, replace(settings, config=folder), vocab_size=99)

    def test_heads_and_embeddings(self, tmp_path: Path) -> None:
        """Settings fill in what the file does not say, and must not contradict what it says."""
        path = tmp_path / "shape.yaml"
        path.write_text("layers: 2\nwidth: 64\nheads: 4\ncontext: 64\n")
        settings = RunSettings(config=str(path), tied=False, kv_groups=2)
        shape = shape_from_file(str(path), settings, vocab_size=99)
        assert (shape.tied, shape.kv_heads) == (False, 2)
        path.write_text("layers: 2\nwidth: 64\nheads: 4\ncontext: 64\ntied: true\nn_kv_head: 4\n")
        with pytest.raises(SettingsError, match="tied to its embedding: do not give tied=False"):
            shape_from_file(str(path), settings, vocab_size=99)
        with pytest.raises(SettingsError, match="has 4 heads and 4 key/value heads: do not give kv_groups"):
            shape_from_file(str(path), replace(settings, tied=True), vocab_size=99)
        folder = str(folder_of(PUBLISHED["Llama-3.2-1B"], tmp_path / "llama"))
        with pytest.raises(SettingsError, match="has 32 heads and 8 key/value heads: do not give kv_groups"):
            shape_from_file(folder, RunSettings(config=folder, kv_groups=2), vocab_size=99)
        shape_from_file(folder, RunSettings(config=folder, kv_groups=4), vocab_size=99)

    def test_a_folder_without_one(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"there is no config .*config.json: give a JSON or YAML file"):
            read_model_config(str(tmp_path))

    def test_a_plan(self, tmp_path: Path) -> None:
        folder = folder_of(small("Qwen3-0.6B", vocab_size=700), tmp_path / "qwen")
        made = plan(config=folder, memory=AMPLE, device="cpu", batch_size=1, seq_len=64)
        assert made.shape == replace(
            shape_from_hf(json.loads((folder / "config.json").read_text()), ""), context=64, vocab_size=700
        )
        assert plan(config=folder, memory=AMPLE, device="cpu", batch_size=1, vocab_size=300).seq_len == LONGEST_USUAL

    def test_a_run(self, data: Path, tmp_path: Path) -> None:
        folder = folder_of(small("Qwen3-0.6B"), tmp_path / "qwen")
        run(data, tmp_path / "run", params=None, config=str(folder), max_steps=2, eval_every=0)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
        assert type(theirs) is transformers.Qwen3ForCausalLM
        assert (theirs.config.head_dim, theirs.config.vocab_size) == (
            16,
            find_model(tmp_path / "run").shape().vocab_size,
        )


class Deadly(Listener):
    def stepped(self, step: int, *_: Any) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_behind(data: Path, out: Path, settings: dict[str, Any]) -> None:
    """A step that has a checkpoint before it."""
    run(data, out, listener=Deadly(), **settings)


class TestInitFrom:
    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            ("Qwen3-0.6B", {"optimizer": "muon"}),
            ("Qwen3-0.6B", {"optimizer": "adamw8bit", "precision": "bf16"}),
            ("Llama-3.2-1B", {"optimizer": "muon", "precision": "bf16"}),
            ("Llama-3.2-1B", {}),
        ],
    )
    def test_trains_resumes_and_opens(self, name: str, changes: dict[str, Any], data: Path, tmp_path: Path) -> None:
        start = tmp_path / "start"
        theirs = theirs_of(small(name, vocab_size=300, eos_token_id=256))
        theirs.save_pretrained(start)
        shutil.copy(data / "tokenizer.json", start)
        given = {"params": None, "init_from": str(start), "max_steps": 4, "eval_every": 0, "lr": 1e-3}
        given |= {"checkpoint_every": 2, **changes}
        run(data, tmp_path / "whole", **given)
        assert apart(killed_behind, data, tmp_path / "parts", given) == -signal.SIGKILL
        run(data, tmp_path / "parts", **given)
        assert_same_run(tmp_path / "parts", tmp_path / "whole")
        shape = find_model(tmp_path / "whole").shape()
        assert shape == find_model(start).shape()
        opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
        assert opened.config.rope_parameters == theirs.config.rope_parameters
        ids = some_ids(shape, 2, 40)
        with torch.no_grad():
            ours, after, before = load_model(tmp_path / "whole").logits(ids), opened(ids).logits, theirs(ids).logits
        assert (ours - after).abs().max() <= 1e-4
        assert (before - after).abs().max() > 1e-3

    def test_a_flag_that_contradicts_it(self, data: Path, tmp_path: Path) -> None:
        save_model(model_of(replace(SMALL, vocab_size=300)), tmp_path / "start")
        with pytest.raises(SettingsError, match="has no QK-norm, like a Llama: do not give"):
            run(data, tmp_path / "run", params=None, init_from=str(tmp_path / "start"), qk_norm=True)

    def test_a_long_context_is_no_long_sequence(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shapes, "LONGEST_USUAL", 40)
        save_model(model_of(replace(SMALL, vocab_size=300, context=20_000)), tmp_path / "start")
        start = {"params": None, "init_from": str(tmp_path / "start"), "batch_size": 1, "max_steps": 1, "eval_every": 0}
        run(data, tmp_path / "run", **{**start, "seq_len": None})
        noted = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["job"]
        assert (noted["seq_len"], noted["shape"]["context"]) == (40, 20_000)


class TestTables:
    def test_only_as_long_as_needed(self) -> None:
        shape = replace(GROUPED_QK_NORM, context=1 << 30)
        model = GPT(shape)
        model.logits(some_ids(shape, 1, 9))
        assert [len(cos) for cos, _ in model._rotary._made] == [9]
        list(model.continuation([1, 2, 3], SampleSettings(max_tokens=20, seed=1), end_ids=()))
        assert [len(cos) for cos, _ in model._rotary._made] == [9, 23]

    def test_grow_and_stay(self) -> None:
        """A table that a captured graph may read is never freed, and all together are bounded."""
        tables = RotaryTables(replace(SMALL, context=1000), torch.device("cpu"))
        first = tables.of(10)
        rows = [len(tables.of(length)[0]) for length in (5, 11, 12, 30, 999, 2000)]
        assert rows == [10, 20, 20, 40, 999, 1000]
        assert tables._made[0] is first
        for cos, sin in tables._made:
            assert torch.equal(cos, tables.of(1000)[0][: len(cos)])
            assert torch.equal(sin, tables.of(1000)[1][: len(sin)])

    def test_the_prediction(self) -> None:
        shape = shape_from_hf(PUBLISHED["Llama-3.2-1B"], "config.json")
        assert rotary_bytes(shape, 4096) == sum(
            table.nbytes for table in RotaryTables(shape, torch.device("cpu")).of(4096)
        )
        few = generation_parts(shape, precision="bf16", prompt=10, settings=SampleSettings(max_tokens=20), vocabulary=0)
        assert few["weights"] < 2 * PARAMETERS["Llama-3.2-1B"] + 100_000


class TestExport:
    def test_qk_norm_and_scaling_for_llama_cpp(self, tmp_path: Path) -> None:
        """Its Qwen3 ignores the scaling: the text would be almost right."""
        tokenizer = byte_tokenizer(tmp_path)
        for name, shape in {"qwen": GROUPED_QK_NORM, "llama": SCALED}.items():
            save_model(model_of(replace(shape, vocab_size=300)), tmp_path / name, tokenizer_file=tokenizer)
            export_model(tmp_path / name, tmp_path / f"{name}-out", to="gguf-ready")
            assert find_model(tmp_path / f"{name}-out").shape() == replace(shape, vocab_size=300)
        both = replace(QK_NORM, vocab_size=300, rope_scaling=SCALED.rope_scaling)
        save_model(model_of(both), tmp_path / "both", tokenizer_file=tokenizer)
        with pytest.raises(ModelError, match=r"has QK-norm and llama3 RoPE scaling, of which llama.cpp has only one"):
            export_model(tmp_path / "both", tmp_path / "out", to="gguf-ready")
        assert not (tmp_path / "out").exists()
        export_model(tmp_path / "both", tmp_path / "out", to="hf")
        assert find_model(tmp_path / "out").shape() == both


def test_shapes_noted_before_heads_had_a_width(tmp_path: Path) -> None:
    """And before QK-norm: the same model."""
    for shape, gone in ((GROUPED, ("head_width", "rope_scaling", "qk_norm")), (SCALED, ()), (QK_NORM, ("head_width",))):
        noted = {name: value for name, value in shape.to_dict().items() if name not in gone}
        noted = yaml.safe_load(yaml.safe_dump(noted))
        before = {"data": [], "settings": {}, "job": {"shape": noted}}
        now = {"data": [], "settings": {}}
        RunFolder(tmp_path).refuse_others(before, now, shape.to_dict(), resume=False)
        for other in (replace(shape, head_width=4), replace(shape, qk_norm=not shape.qk_norm)):
            with pytest.raises(SettingsError, match="has a model of another shape"):
                RunFolder(tmp_path).refuse_others(before, now, other.to_dict(), resume=False)


def test_a_setting_that_is_missing_in_the_noted_ones(tmp_path: Path) -> None:
    noted = {"data": [], "settings": {}, "job": {"shape": GROUPED.to_dict()}}
    now = {"data": [], "settings": {"seq_len": 64}}
    with pytest.raises(SettingsError, match=r"settings\.yaml is damaged \(settings\.seq_len is missing\): restore it"):
        RunFolder(tmp_path).refuse_others(noted, now, GROUPED.to_dict(), resume=False)


def test_heads_that_flash_attention_does_not_take() -> None:
    """On CUDA it is called directly, without torch's padding."""
    for head, taken in ((64, True), (128, True), (20, False), (512, False)):
        shape = Shape(100, 64, 1, 64, 1, qk_norm=True, head_width=head)
        assert recomputes_qk_norm(shape, "cuda", False, fp32=False) is taken
        assert recomputes_qk_norm(shape, "cpu", False, fp32=True)
    assert not recomputes_qk_norm(SMALL, "cpu", False, fp32=True)
