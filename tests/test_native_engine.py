"""The native engine around its core: files, states, plans, dropout keys, rotary tables, and runs from begin to end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ramlet
from conftest import AMPLE
from oracles_model import SHAPES
from oracles_native import CONTINUING, Decoder, NativeGPT
from oracles_training import assert_same_run, losses, make_data, metrics, run
from ramlet.engines import Engine, Model, Trainee
from ramlet.engines.native import engine as native_engine
from ramlet.engines.native import gpt
from ramlet.engines.native.engine import NativeEngine
from ramlet.engines.native.gpt import GPT, ORDER, Layout
from ramlet.engines.native.plan import EVALUATION, LATER, NOT_REHEARSED, make_plan
from ramlet.engines.native.rotary import rotary_tables
from ramlet.engines.native.tensors import StoredMemory
from ramlet.engines.native.trainee import NativeTrainee
from ramlet.engines.opening import open_engine
from ramlet.engines.order import group_rows
from ramlet.engines.plan import Choice, Plan, Task
from ramlet.engines.torch.model_files import load_model, save_model
from ramlet.engines.torch.rotary import RotaryTables
from ramlet.engines.torch.step import Trainee as TorchTrainee
from ramlet.errors import BudgetError, Interrupted, SettingsError
from ramlet.model.dtypes import DTYPES
from ramlet.model.folder import find_model
from ramlet.model.names import named_tensors
from ramlet.model.rope import RopeScaling
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import read_tensors_into, write_tensors
from ramlet.runtime import processor
from ramlet.runtime.budget import DRIFT, Budget
from ramlet.training.listener import Listener
from ramlet.training.settings import RunSettings

SHAPE = Shape(300, 64, 2, 32, 4, kv_heads=2, feed_forward=80, qk_norm=True)
NATIVE = {"engine": "native", "optimizer": "adamw", "precision": "fp32"}


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the native core's model and decoder."""
    monkeypatch.setattr(gpt, "NativeGPT", NativeGPT)
    monkeypatch.setattr(gpt, "NativeDecoder", Decoder)
    monkeypatch.setattr(gpt, "_continuing", lambda: CONTINUING)
    monkeypatch.setattr(NativeGPT, "learned", [])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("native"))


def trainee(shape: Shape = SHAPE, seed: int = 1, **chosen: Any) -> NativeTrainee:
    layout = Layout.of(Choice(**{"micro_batch": 4, "chunk": 8, **chosen}), seq_len=16, document_mask=False, threads=1)
    return NativeTrainee(shape, layout, RunSettings(seed=seed))


def arrays(tensors: Any) -> dict[str, Any]:
    """What a file would have."""
    return {
        name: np.frombuffer(b"".join(map(bytes, each.pieces("F32", 100))), np.float32).reshape(each.shape)
        for name, each in tensors.items()
    }


@pytest.mark.parametrize(
    ("contract", "made"),
    [(Engine, NativeEngine), (Trainee, NativeTrainee), (Model, GPT)],
    ids=lambda each: each.__name__,
)
def test_it_has_what_the_contract_asks_for(contract: type, made: type) -> None:
    asked = {name for name in vars(contract) if not name.startswith("_")}
    assert asked - set(dir(made)) - {"shape", "model", *getattr(made, "__dataclass_fields__", ())} == set()


class TestRuns:
    def test_a_run_learns_is_evaluated_and_writes(self, data: Path, tmp_path: Path) -> None:
        done = run(data, tmp_path / "run", **NATIVE, sample_every=6, max_steps=24, lr=0.01)
        found = losses(tmp_path / "run")
        assert found[-1] < found[0] - 1
        assert [line["step"] for line in metrics(tmp_path / "run") if "sample" in line][:2] == [0, 6]
        again = ramlet.evaluate(tmp_path / "run", data, tokens=640, engine="native", memory=AMPLE)
        assert round(again["data"].loss, 6) == done.scores["val"]["loss"]
        texts = [
            ramlet.generate(
                tmp_path / "run", "the", max_tokens=9, seed=1, engine="native", precision="fp32", memory=AMPLE
            )
            for _ in range(2)
        ]
        assert texts[0] == texts[1] != [""]
        assert "native: " in (tmp_path / "run" / "settings.yaml").read_text()

    def test_an_interrupted_run_goes_on(self, data: Path, tmp_path: Path) -> None:
        class Stop(Listener):
            def stepped(self, step: int, *_: Any) -> None:
                if step == 7:
                    raise KeyboardInterrupt

        run(data, tmp_path / "whole", **NATIVE)
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(data, tmp_path / "cut", **NATIVE, listener=Stop())
        run(data, tmp_path / "cut", **NATIVE)
        assert_same_run(tmp_path / "cut", tmp_path / "whole")

    def test_dropout_keys_are_those_of_the_torch_engine(self, data: Path, tmp_path: Path) -> None:
        run(data, tmp_path / "run", **NATIVE, dropout=0.1, seed=5, max_steps=3)
        _, *learned = [each["keys"] for each in NativeGPT.learned if each["keys"] is not None]  # the plan's own step
        keys = np.concatenate(learned)
        other = TorchTrainee(SHAPE, Choice(2, 8), RunSettings(seed=5), device="cpu")
        assert keys.tolist() == other._dropout_keys(range(len(keys))).tolist()
        assert NativeGPT.learned[-1]["positions"] is NativeGPT.learned[-1]["documents"] is None

    def test_large_sequence_numbers_and_seeds(self) -> None:
        samples = [0, 1, 2**31, 2**32 + 7, 2**45]
        for seed in (0, 2**63 - 1):
            mine = trainee(seed=seed, dropout=0.5)._dropout_keys({"samples": samples})
            other = TorchTrainee(SHAPE, Choice(2, 8), RunSettings(seed=seed), device="cpu")
            assert mine.tolist() == other._dropout_keys(samples).tolist()

    def test_a_document_mask_has_positions_and_documents(self, data: Path, tmp_path: Path) -> None:
        run(data, tmp_path / "run", **NATIVE, document_mask=True, max_steps=2)
        for each in NativeGPT.learned[-2:]:
            assert each["positions"].shape == each["documents"].shape == each["ids"].shape

    def test_a_budget_too_small_is_told_with_the_smallest(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(BudgetError, match=r"needs at least \d+MB: .* for overhead") as refused:
            run(data, tmp_path / "run", **NATIVE, memory="20MB")
        assert refused.value.facts["needed"] > 20_000_000
        assert not (tmp_path / "run" / "settings.yaml").exists()


class TestTensors:
    @pytest.mark.parametrize("name", SHAPES)
    def test_weights_have_the_names_and_shapes_of_a_file(self, name: str) -> None:
        made = trainee(SHAPES[name])
        made.reset(3)
        weights = made.weights()
        assert {key: each.shape for key, each in weights.items()} == {
            each.name: each.shape for each in named_tensors(SHAPES[name])
        }
        by_name = arrays(weights)
        raw = {listed[0]: listed for listed in made.model._native.tensors()}
        whole = made.model._native._tensors["layers.0.qkv"][1]
        queries, keys = SHAPES[name].queries_width, SHAPES[name].keys_width
        assert np.array_equal(by_name["model.layers.0.self_attn.k_proj.weight"], whole[queries : queries + keys])
        assert len(raw) == len({each.fused for each in named_tensors(SHAPES[name])})

    def test_what_is_read_lands_in_the_model(self, tmp_path: Path) -> None:
        one, other = trainee(), trainee()
        one.reset(1)
        other.reset(2)
        write_tensors(tmp_path / "file", one.weights())
        read_tensors_into(tmp_path / "file", other.weights())
        for (_, mine), (_, theirs) in zip(one.model._native._tensors.values(), other.model._native._tensors.values()):
            assert np.array_equal(mine[: SHAPE.vocab_size], theirs[: SHAPE.vocab_size])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_a_folder_of_any_type_is_loaded_as_by_torch(
        self, tmp_path: Path, dtype: torch.dtype, precision: str
    ) -> None:
        made = trainee()
        made.reset(1)
        tensors = {name: torch.from_numpy(each.copy()) for name, each in arrays(made.weights()).items()}
        model = load_from(tensors, tmp_path, dtype)
        found = NativeEngine(1).load(find_model(model), precision)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        expected = load_model(model, dtype=kind)
        for each in named_tensors(SHAPE):
            theirs = expected.weights[each.fused].master[each.start : each.start + each.shape[0]].float().numpy()
            assert np.array_equal(arrays(found.weights())[each.name], theirs), each.name

    def test_pieces_are_small_and_complete(self) -> None:
        numbers = np.arange(1000, dtype=np.float32)
        tensor = StoredMemory(memoryview(numbers.view(np.uint8)), "F32", (1000,))
        for dtype in ("F32", "BF16", "F64"):
            pieces = [bytes(piece) for piece in tensor.pieces(dtype, 96)]
            assert max(map(len, pieces)) <= 96
            assert sum(map(len, pieces)) == 1000 * DTYPES[dtype].itemsize
        copy = tensor.copied()
        numbers += 1
        assert np.array_equal(arrays({"x": copy})["x"], numbers - 1)

    def test_reset_clears_the_states(self) -> None:
        made = trainee()
        made.reset(1)
        ids = np.ones((2, 16), np.int64)
        made.learn({"input_ids": ids, "targets": ids}, 1.0)
        made.update(1e-3, 1.0)
        assert float(arrays(made.states())["matrices.step"]) == 1
        made.reset(1)
        assert not any(each.any() for each in arrays(made.states()).values())

    def test_states_are_those_of_torch(self) -> None:
        """Of the embedding, which is all that the stand-in trains."""
        other = TorchTrainee(SHAPE, Choice(2, 8), RunSettings(), device="cpu")
        other.reset(1)
        theirs = {name: (each.dtype, len(each.shape)) for name, each in other.states().items()}
        mine = {name: (each.dtype, len(each.shape)) for name, each in trainee().states().items()}
        assert mine.items() <= theirs.items()


def load_from(tensors: dict[str, torch.Tensor], folder: Path, dtype: torch.dtype) -> Path:
    """A model's folder with these tensors."""
    from ramlet.engines.torch.gpt import GPT as TorchGPT  # noqa: N811

    save_model(TorchGPT(SHAPE), folder, dtype=dtype)
    save_file({name: each.to(dtype) for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


class TestPlans:
    @staticmethod
    def task(budget: int | str, **changes: Any) -> Task:
        given = {"seq_len": 64, "batch_size": 64, "precision": "fp32", "resident": 40_000_000, **changes}
        return Task(replace(SHAPE, layers=8, width=128, heads=4, vocab_size=5000), budget=Budget.parse(budget), **given)

    def plan(self, budget: int | str, **changes: Any) -> Plan:
        return make_plan(self.task(budget, **changes), threads=2)

    def test_memory_decides_how_a_step_is_divided(self) -> None:
        ample = self.plan("1GB")
        assert ample.choice == Choice(group_rows(64, ORDER), 128, held=0)
        assert ample.notes == ()
        seen = [ample]
        total = ample.peak
        while True:
            try:
                plan = self.plan(total)
            except BudgetError:
                break
            assert plan.peak <= plan.budget
            seen.append(plan)
            total -= 500_000
        found = [plan.choice for plan in seen]
        assert {each.micro_batch for each in found} >= {8, 4, 2, 1}
        assert {each.recompute for each in found} == {False, True}
        assert {each.optimizer for each in found} == {"adamw", "adamw8bit"}
        assert min(each.chunk for each in found) == 16
        assert all(each.held == (0 if each.micro_batch == 8 else 8 * 64) for each in found)
        assert "8-bit" in seen[-1].notes[0]

    def test_bf16_weights_come_last(self) -> None:
        with pytest.raises(BudgetError) as refused:
            self.plan("42MB", precision="bf16")
        assert "bf16 weights" in str(refused.value)
        smallest = self.plan(refused.value.facts["needed"] - DRIFT, precision="bf16")
        assert (smallest.choice.weights, smallest.choice.optimizer) == ("bf16", "adamw8bit")
        assert len(smallest.notes) == 3

    @pytest.mark.parametrize("forced", [{}, {"optimizer": "muon"}, {"micro_batch": 4, "recompute": False}])
    def test_the_smallest_budget_is_named_exactly(self, forced: dict[str, Any]) -> None:
        with pytest.raises(BudgetError) as refused:
            self.plan("45MB", forced=forced)
        needed = refused.value.facts["needed"]
        assert self.plan(needed, forced=forced).budget == needed
        assert sum(refused.value.facts["parts"].values()) <= needed
        with pytest.raises(BudgetError):
            self.plan(needed - 2 * DRIFT, forced=forced)  # less than what is resident may vary by

    def test_the_peak_is_the_sum_of_what_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = self.task("1GB", loader_bytes=lambda rows: rows * 1000, sampled=0)
        plan = make_plan(task, threads=2)
        layout = Layout.of(plan.choice, seq_len=64, document_mask=False, threads=2)
        arena = gpt.arena_parts(task.shape, layout)
        tokens = plan.choice.micro_batch * 64
        data, later = plan.choice.micro_batch * 1000 + tokens * 64, NOT_REHEARSED + EVALUATION
        assert plan.peak == sum(arena.values()) + 40_000_000 + data + later
        # What a rehearsal has made resident is not counted again.
        rehearsed = make_plan(replace(task, rehearsal=SimpleNamespace(loader_bytes=700)), threads=2)  # type: ignore[arg-type]
        assert plan.peak - rehearsed.peak == NOT_REHEARSED - LATER + 700
        # A sample, if it is more than an evaluation.
        monkeypatch.setattr("ramlet.engines.native.plan.EVALUATION", 0)
        assert self.plan("1GB", sampled=100).peak > self.plan("1GB", sampled=0).peak

    def test_a_micro_batch_that_does_not_divide_a_group_is_noted(self) -> None:
        assert "different order" in self.plan("1GB", forced={"micro_batch": 5}).notes[0]
        assert self.plan("1GB", forced={"micro_batch": 5}).choice.held == 0

    def test_what_cannot_be_planned(self) -> None:
        with pytest.raises(SettingsError, match="adamw cannot update bf16 weights"):
            self.plan("1GB", forced={"optimizer": "adamw", "weights": "bf16"})
        with pytest.raises(SettingsError, match="fp16 needs a GPU"):
            self.plan("1GB", forced={"compute": "fp16"})
        with pytest.raises(SettingsError, match="seq_len"):
            self.plan("1GB", seq_len=65)


class TestEngine:
    def test_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native_engine, "available_threads", lambda: 3)
        engine = open_engine("cpu", 3, name="native")
        assert (engine.kind, engine.threads, engine.baseline) == ("cpu", 3, "Python")
        assert engine.resident(stepping=True) > 10_000_000
        assert engine.flops("fp32", 0.0) > 0
        with engine.joined() as joined:
            assert joined is engine

    def test_more_threads_than_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native_engine, "available_threads", lambda: 2)
        few, many = (open_engine("cpu", threads, name="native") for threads in (2, 64))
        assert (few.threads, many.threads) == (2, 2)
        task = Task(SHAPE, 64, 8, Budget.parse("1GB"))
        assert many.sketch(task).peak == few.sketch(task).peak
        assert few.sketch(task).notes == ()
        assert many.sketch(task).notes == ("64 threads are more than there are cores: using 2",)

    @pytest.mark.parametrize(
        ("flags", "chosen"),
        [({"avx512_bf16"}, "bf16"), ({"avx512f"}, "fp32"), ({"avx512_bf16", "amx_bf16"}, "fp32")],
    )
    def test_precision(self, flags: set[str], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAMLET_VECTORS")
        for module in (native_engine, processor):
            monkeypatch.setattr(module, "flags", lambda: flags)
        engine = NativeEngine(1)
        assert [engine.precision(each) for each in ("auto", "bf16", "fp32")] == [chosen, "bf16", "fp32"]
        with pytest.raises(SettingsError, match="fp16 needs a GPU"):
            engine.precision("fp16")

    def test_several_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(SettingsError, match="one process"), NativeEngine(1).joined():
            pass

    def test_an_evaluation_is_divided_to_fit(self) -> None:
        engine = NativeEngine(1)
        ask = {"seq_len": 64, "precision": "fp32", "document_mask": False}
        shape = replace(SHAPE, vocab_size=50_000)
        ample = engine.division(shape, budget=Budget.parse(AMPLE), **ask)  # type: ignore[arg-type]
        assert ample.micro_batch * 64 == 2048
        with pytest.raises(BudgetError, match="for logits") as refused:
            engine.division(shape, budget=Budget.parse("1MB"), **ask)  # type: ignore[arg-type]
        least = engine.division(shape, budget=Budget(refused.value.facts["needed"]), **ask)  # type: ignore[arg-type]
        assert least.chunk < ample.chunk


class TestRotary:
    @pytest.mark.parametrize("length", [1, 7, 256, 257, 1000])
    @pytest.mark.parametrize("scaled", [False, True])
    def test_as_in_torch(self, length: int, scaled: bool) -> None:
        scaling = RopeScaling(8.0, 1.0, 4.0, 128) if scaled else None
        shape = replace(SHAPE, context=1000, head_width=16, rope_scaling=scaling)
        made, expected = rotary_tables(shape, length), RotaryTables(shape, torch.device("cpu")).of(length)
        for mine, theirs in zip(made, expected):
            assert mine.shape == (length, 8)
            assert mine.dtype == np.float32
            assert mine.flags["C_CONTIGUOUS"]
            assert np.allclose(mine, theirs.numpy(), rtol=0, atol=1e-7)

    def test_exact_to_the_last_bit(self) -> None:
        """Python's own functions differ by less than fp64 can say; fp32 has none of it."""
        cos, sin = rotary_tables(replace(SHAPE, context=700, head_width=64), 700)
        for position in (0, 1, 255, 256, 511, 699):
            for number in range(32):
                angle = position * 10_000.0 ** (-number / 32)
                assert abs(float(cos[position, number]) - math.cos(angle)) < 6e-8
                assert abs(float(sin[position, number]) - math.sin(angle)) < 6e-8
