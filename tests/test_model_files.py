"""Model folders: transformers opens ours with the same logits, we open its, and the rest is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from oracles_model import GROUPED, SHAPES, SMALL, UNTIED, byte_tokenizer, model_of, some_ids
from ramlet.engines.torch.model_files import load_model, save_model, tensors_by_name
from ramlet.errors import ModelError
from ramlet.model.files import save_tokenizer
from ramlet.model.folder import ModelFolder, find_model
from ramlet.model.hf_config import hf_config
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

torch.set_num_threads(1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(model_of(SMALL), tmp_path / "run", end_id=7)
    return tmp_path / "run"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (config | changes).items() if value != "gone"}))


class TestTransformersOpensOurs:
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_same_logits(self, tmp_path: Path, shape: Shape) -> None:
        model = model_of(shape)
        save_model(model, tmp_path)
        llama, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert type(llama) is (transformers.Qwen3ForCausalLM if shape.qk_norm else transformers.LlamaForCausalLM)
        assert not any(told.values()), told
        ids = some_ids(shape, 3, shape.context)
        with torch.no_grad():
            theirs = llama(ids).logits
        assert (model.logits(ids) - theirs).abs().max() <= 1e-5
        assert sum(weight.numel() for weight in llama.parameters()) == shape.parameters

    def test_the_file_has_no_more_than_it_names(self, saved: Path) -> None:
        read = safetensors.torch.load_file(saved / "model.safetensors")
        assert sum(tensor.numel() for tensor in read.values()) == SMALL.parameters
        assert read["model.embed_tokens.weight"].shape == (131, 32)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_the_bits(self, tmp_path: Path, dtype: torch.dtype) -> None:
        model = model_of(GROUPED)
        save_model(model, tmp_path, dtype=dtype)
        llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        assert {weight.dtype for weight in llama.parameters()} == {dtype}
        for name, ours in tensors_by_name(model.weights).items():
            assert torch.equal(llama.get_parameter(name), ours.to(dtype)), name

    def test_the_tokenizer_gives_the_same_ids(self, tmp_path: Path) -> None:
        tokenizer_file = byte_tokenizer(tmp_path)
        folder = tmp_path / "run"
        save_model(model_of(replace(SMALL, vocab_size=257)), folder, tokenizer_file=tokenizer_file, end_id=256)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ours = Tokenizer.load(folder)
        for text in ("Hello,  world!\n\n", " fünf 日本 🙂", "l'été\t1234567", ""):
            assert theirs(text)["input_ids"] == ours.encode(text)
            assert theirs.decode(ours.encode(text)) == text
        assert (theirs.eos_token, theirs.eos_token_id) == ("<|endoftext|>", 256)
        llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert llama.generation_config.eos_token_id == llama.generation_config.bos_token_id == 256

    def test_a_trained_tokenizer_too(self, tmp_path: Path) -> None:
        text = "the cat sat on the mat, and the dog sat on the log; " * 50
        trained = Tokenizer.train(texts=[text], vocab_size=300, special_tokens=["<|endoftext|>"])
        trained.save(tmp_path / "given.json")
        folder = tmp_path / "run"
        save_model(model_of(replace(SMALL, vocab_size=300)), folder, tokenizer_file=tmp_path / "given.json", end_id=276)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert theirs("  the cat's log")["input_ids"] == trained.encode("  the cat's log")
        assert theirs.eos_token_id == trained.end_of_text == 276

    def test_without_an_end(self, tmp_path: Path) -> None:
        tokenizer_file = byte_tokenizer(tmp_path)
        save_model(model_of(replace(SMALL, vocab_size=257)), tmp_path / "run", tokenizer_file=tokenizer_file)
        assert transformers.AutoTokenizer.from_pretrained(tmp_path / "run").eos_token is None
        llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
        assert llama.config.eos_token_id is None
        assert llama.config.bos_token_id is None


class TestWeOpenTheirs:
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    @pytest.mark.parametrize("sharded", [False, True])
    def test_a_model_saved_by_transformers(self, tmp_path: Path, shape: Shape, sharded: bool) -> None:
        kind = "Qwen3" if shape.qk_norm else "Llama"
        theirs = getattr(transformers, f"{kind}ForCausalLM")(
            getattr(transformers, f"{kind}Config")(
                head_dim=shape.head_width,
                vocab_size=shape.vocab_size,
                hidden_size=shape.width,
                intermediate_size=shape.feed_forward,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads,
                max_position_embeddings=shape.context,
                tie_word_embeddings=shape.tied,
                rope_parameters=hf_config(shape, dtype="float32", end_id=None)["rope_parameters"],
                initializer_range=0.1,
            )
        ).eval()
        theirs.save_pretrained(tmp_path, max_shard_size="30KB" if sharded else "1GB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1 if sharded else True
        ours = load_model(tmp_path)
        assert ours.shape == replace(shape, norm_eps=1e-6)
        ids = some_ids(shape, 2, shape.context)
        with torch.no_grad():
            assert (ours.logits(ids) - theirs(ids).logits).abs().max() <= 1e-5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
    def test_any_type_into_any(self, tmp_path: Path, dtype: torch.dtype, kept: torch.dtype) -> None:
        model = model_of(UNTIED)
        save_model(model, tmp_path, dtype=dtype)
        again = load_model(tmp_path, dtype=kept, compute=torch.bfloat16)
        for name, tensor in tensors_by_name(again.weights).items():
            assert torch.equal(tensor, tensors_by_name(model.weights)[name].to(dtype).to(tensor.dtype)), name
        assert again.weights["head"].compute.dtype == torch.bfloat16
        assert torch.equal(again.weights["head"].compute, again.weights["head"].master.bfloat16())

    def test_as_written_by_older_versions(self, saved: Path) -> None:
        """No group for the positions, tables of angles among the weights, the head beside a tied embedding."""
        change_config(saved, rope_parameters="gone", rope_theta=500.0, rope_scaling=None, num_key_value_heads="gone")
        weights = safetensors.torch.load_file(saved / "model.safetensors")
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(weights, saved / "model.safetensors")
        again = load_model(saved)
        assert again.shape == replace(SMALL, rope_base=500.0)
        assert torch.equal(again.weights.matrices, model_of(SMALL).weights.matrices)

    def test_what_is_not_said_is_as_transformers_has_it(self, saved: Path) -> None:
        change_config(saved, tie_word_embeddings="gone", rms_norm_eps="gone", rope_theta="gone", rope_parameters="gone")
        assert find_model(saved).shape() == replace(SMALL, tied=False, norm_eps=1e-6, rope_base=10_000.0)
        theirs = transformers.AutoConfig.from_pretrained(saved)
        assert (theirs.tie_word_embeddings, theirs.rms_norm_eps) == (False, 1e-6)


class TestRoundTrip:
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_every_weight(self, tmp_path: Path, shape: Shape) -> None:
        model = model_of(shape)
        checksum = save_model(model, tmp_path)
        again = load_model(tmp_path)
        assert again.shape == shape
        assert torch.equal(again.weights.matrices, model.weights.matrices)
        for name, tensor in tensors_by_name(again.weights).items():
            assert torch.equal(tensor, tensors_by_name(model.weights)[name]), name
        assert save_model(again, tmp_path / "again") == checksum

    def test_gains_keep_their_bits_beside_short_weights(self, tmp_path: Path) -> None:
        model = model_of(SMALL, dtype=torch.bfloat16)
        save_model(model, tmp_path)
        again = load_model(tmp_path, dtype=torch.bfloat16)
        assert tensors_by_name(again.weights)["model.norm.weight"].dtype == torch.float32
        for name, tensor in tensors_by_name(again.weights).items():
            assert torch.equal(tensor, tensors_by_name(model.weights)[name]), name

    def test_the_tokenizer_may_be_the_one_that_is_there(self, tmp_path: Path) -> None:
        tokenizer_file = byte_tokenizer(tmp_path)
        before = tokenizer_file.read_bytes()
        save_model(model_of(SMALL), tmp_path, tokenizer_file=tokenizer_file, end_id=256)
        assert tokenizer_file.read_bytes() == before

    def test_more_special_tokens_than_the_beginning_holds(self, tmp_path: Path) -> None:
        vocab = {byte: bytes([byte]) for byte in range(256)}
        names = [f"<|{'x' * 100}{number}|>" for number in range(500)] + ["<|endoftext|>"]
        Tokenizer.from_merges(vocab, [], names).save(tmp_path / "tokenizer.json")
        save_tokenizer(tmp_path, tmp_path / "tokenizer.json", end_id=756, context=9)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


class TestFinding:
    def test_a_checkpoint_of_a_run(self, saved: Path) -> None:
        step = saved / "checkpoints" / "step_000500"
        step.mkdir(parents=True)
        shutil.copy(saved / "model.safetensors", step)
        assert find_model(step) == ModelFolder(step, saved)
        assert find_model(saved) == ModelFolder(saved, saved)
        assert find_model(saved / "model.safetensors") == ModelFolder(saved, saved)

    def test_a_run_without_a_final_model(self, saved: Path) -> None:
        for name in ("step_999999", "step_1000000", "step_1000001", "step_later"):
            (saved / "checkpoints" / name).mkdir(parents=True)
            if name != "step_1000001":
                shutil.copy(saved / "model.safetensors", saved / "checkpoints" / name)
        (saved / "model.safetensors").unlink()
        assert find_model(saved) == ModelFolder(saved / "checkpoints" / "step_1000000", saved)

    def test_a_relative_checkpoint(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        step = saved / "checkpoints" / "step_1"
        step.mkdir(parents=True)
        shutil.copy(saved / "model.safetensors", step)
        monkeypatch.chdir(step)
        assert find_model(".").described == saved

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"there is no folder .*nowhere: give a run"):
            find_model(tmp_path / "nowhere")
        with pytest.raises(ModelError, match=r"is not a model: it has no model.safetensors and no checkpoint"):
            find_model(tmp_path)

    @pytest.mark.parametrize("part", [".", "checkpoints/step_000003"])
    def test_the_folder_around_a_run(self, saved: Path, tmp_path: Path, part: str) -> None:
        """As `ramlet run` makes it."""
        run = tmp_path / "my-model" / "run"
        shutil.copytree(saved, run / part)
        with pytest.raises(ModelError, match=rf"my-model is not a model: did you mean {run}\?"):
            find_model(run.parent)

    def test_weights_without_a_config(self, saved: Path) -> None:
        (saved / "config.json").unlink()
        with pytest.raises(ModelError, match=r"has no config.json, which has the model"):
            find_model(saved)

    def test_pickled_weights(self, saved: Path) -> None:
        (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
        with pytest.raises(ModelError, match=r"in pytorch_model.bin, .*: save them as safetensors"):
            find_model(saved)

    def test_no_tokenizer(self, saved: Path) -> None:
        with pytest.raises(ModelError, match=r"has no tokenizer.json: copy"):
            _ = find_model(saved).tokenizer_file


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "how"),
        [
            ({"model_type": "gpt2"}, "model_type gpt2: only llama"),
            ({"model_type": "gone"}, "model_type None"),
            ({"attention_bias": True}, "attention_bias: models with biases are not supported"),
            ({"mlp_bias": True}, "mlp_bias: models with biases"),
            ({"hidden_act": "gelu"}, "hidden_act gelu: only silu"),
            ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling has no low_freq_factor: add it"),
            ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling linear is not supported, only llama3"),
            ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters yarn is not supported"),
            ({"rope_parameters": "yarn"}, "rope_parameters yarn is not supported"),
            ({"rope_parameters": "default"}, "rope_parameters default is not supported"),
            ({"layer_types": 3}, "only full attention is supported"),
            ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters differs between"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
            ({"use_sliding_window": True}, "only full attention is supported"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "only full attention is supported"),
            ({"qk_norm": True}, "QK-norm and model_type llama, which has none: write model_type qwen3, or remove"),
            ({"model_type": "qwen2"}, "model_type qwen2: only llama and qwen3"),
            ({"quantization_config": {"bits": 4}}, "of a quantized model"),
            ({"head_dim": 7}, "head_width must be even, not 7"),
            ({"head_dim": 64}, r"has model.layers.0.self_attn.q_proj.weight as 32 x 32, not 256 x 32"),
            ({"hidden_size": "gone"}, "has no width"),
            ({"hidden_size": "wide"}, "width: 'wide', which should be a int"),
            ({"num_attention_heads": 5}, "cannot be divided into 5 heads"),
            (
                {"num_hidden_layers": 3},
                r"has no model.layers.2.input_layernorm.weight: its weights do not match",
            ),
            ({"num_hidden_layers": 1}, r"has the tensor model.layers.1.* which a Llama with this config does not have"),
            ({"tie_word_embeddings": False}, r"has no lm_head.weight"),
            ({"vocab_size": 132}, r"has model.embed_tokens.weight as 131 x 32, not 132 x 32"),
        ],
    )
    def test_one_sentence(self, saved: Path, changes: dict[str, Any], how: str) -> None:
        change_config(saved, **changes)
        with pytest.raises(ModelError, match=how):
            load_model(saved)

    def test_a_broken_config(self, saved: Path) -> None:
        for text in ("", "[]", "{", "[" * 100_000, "\xff"):
            (saved / "config.json").write_text(text, encoding="latin-1")
            with pytest.raises(ModelError, match=r"config.json is damaged"):
                find_model(saved).shape()

    @pytest.mark.parametrize(
        ("name", "tensor", "how"),
        [
            ("model.layers.0.self_attn.q_proj.bias", torch.ones(32), r"has the tensor .*q_proj.bias, which a Llama"),
            ("model.layers.0.self_attn.q_norm.weight", torch.ones(8), r"has the tensor .*q_norm.weight, which a Llama"),
            ("model.norm.weight", torch.ones(32, dtype=torch.int8), r"has model.norm.weight in a quantized dtype"),
        ],
    )
    def test_weights_of_another_kind(self, saved: Path, name: str, tensor: torch.Tensor, how: str) -> None:
        weights = safetensors.torch.load_file(saved / "model.safetensors")
        safetensors.torch.save_file(weights | {name: tensor}, saved / "model.safetensors")
        with pytest.raises(ModelError, match=how):
            load_model(saved)

    @pytest.mark.parametrize(
        ("index", "how"),
        [
            ({}, "lists no weights"),
            ({"weight_map": []}, "lists no weights"),
            ({"weight_map": {"a": "../other/model.safetensors"}}, "is not a file in its folder"),
            ({"weight_map": {"a": 3}}, "is not a file in its folder"),
            ({"weight_map": {"model.norm.weight": "gone.safetensors"}}, "cannot read .*gone.safetensors"),
            ({"weight_map": {"model.norm.weight": "a.safetensors"}}, r"has no model.embed_tokens.weight"),
            ({"weight_map": {"other": "a.safetensors"}}, r"has the tensor other, which a Llama"),
        ],
    )
    def test_a_broken_index(self, saved: Path, index: dict[str, Any], how: str) -> None:
        (saved / "model.safetensors").rename(saved / "a.safetensors")
        (saved / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelError, match=how):
            load_model(saved)

    def test_no_tokenizer_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"cannot read .*: No such file"):
            save_model(model_of(SMALL), tmp_path / "run", tokenizer_file=tmp_path / "nowhere", end_id=0)
        (tmp_path / "wrong").write_text("{}")
        with pytest.raises(ModelError, match=r"wrong is not a tokenizer.json"):
            save_model(model_of(SMALL), tmp_path / "run", tokenizer_file=tmp_path / "wrong", end_id=0)
