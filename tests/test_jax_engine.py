"""The JAX engine: torch's logits, gradients and steps, files across engines, plans, and runs from begin to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ramlet
from conftest import AMPLE
from oracles_model import SHAPES, model_of
from oracles_training import assert_same_run, losses, make_data, metrics, run
from ramlet.engines import Engine, Model, Trainee
from ramlet.engines.plan import Choice, Plan, Task
from ramlet.engines.torch.gpt import document_mask
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.errors import BudgetError, Interrupted, SettingsError
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training.listener import Listener
from ramlet.training.settings import RunSettings
from test_engines_together import described

jax = pytest.importorskip("jax")

STEADY = {"precision": "fp32", "schedule": "constant", "warmup": 0, "eval_every": 100, "checkpoint_every": 2}
BEGUN = {"engine": "jax", "max_steps": 12, "micro_batch": 4, "sample_every": 6, "lr": 1e-2}
TOKENS = 24


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX for a CPU, with a cache of its own for what it compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        from ramlet.engines.jax.loading import load_jax

        load_jax("cpu", 1)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("jax"))


@pytest.fixture(scope="module")
def begun(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with evaluations and samples, in micro-batches of 4 and 2."""
    out = tmp_path_factory.mktemp("begun") / "run"
    run(data, out, **BEGUN)
    return out


def tree_of(weights: Any, shape: Shape, kind: str) -> dict[str, Any]:
    """The weights or gradients of a torch model, as the tree of this engine."""
    from ramlet.engines.jax.weights import layout

    def one(name: str) -> Any:
        return getattr(weights[name], kind).numpy()

    return {
        name: np.stack([one(name.replace("layers.", f"layers.{number}.")) for number in range(shape.layers)])
        if name.startswith("layers.")
        else one(name)
        for name in layout(shape)
    }


def masked_batch(shape: Shape) -> dict[str, Any]:
    """Three sequences of up to three documents, with ignored targets."""
    chance = np.random.default_rng(0)
    ids, targets = chance.integers(0, shape.vocab_size, (2, 3, TOKENS))
    targets[0, :4] = -100
    documents = np.sort(chance.integers(0, 3, (3, TOKENS)), 1)
    begins = np.array([[np.argmax(row == each) for each in row] for row in documents])
    return {
        "input_ids": ids,
        "targets": targets,
        "position_ids": np.arange(TOKENS) - begins,
        "document_ids": documents,
        "dropout_keys": np.array([5, 77, 2**32 - 5]),
    }


@pytest.mark.parametrize(
    ("name", "masked", "dropout", "recompute"),
    [("grouped_qk_norm", True, 0.3, False), ("untied", False, 0.0, True), ("scaled", False, 0.0, False)],
)
def test_logits_and_gradients_are_those_of_torch(name: str, masked: bool, dropout: float, recompute: bool) -> None:
    from ramlet.engines.jax.gpt import Net
    from ramlet.engines.jax.mesh import Placement

    shape = SHAPES[name]
    batch = masked_batch(shape)
    model = model_of(shape, chunk=16)
    model.weights.make_gradients()
    ids, targets, positions, documents, keys = (torch.tensor(each) for each in batch.values())
    place = {"positions": positions if masked else None, "mask": document_mask(documents if masked else None)}
    expected = model.logits(ids, **place).numpy()
    drops = Dropout(keys, dropout) if dropout else None
    total = model.learn(ids, targets, 0.01, **place, dropout=drops)

    net = Net(shape, Placement.over(jax.devices()), chunk=16, recompute=recompute, dropout=dropout)
    kinds = {"dropout_keys": np.uint32}
    given = {name: each.astype(kinds.get(name, np.int32)) for name, each in batch.items()}
    if not masked:
        given = {name: given[name] for name in ("input_ids", "targets")}
    params, tables = tree_of(model.weights, shape, "master"), net.tables(TOKENS)
    assert np.abs(jax.jit(net.logits)(params, given, tables) - expected).max() < 1e-5
    blank = {key: np.zeros_like(each) for key, each in params.items()}
    loss, grads = jax.jit(net.learn)(params, blank, given, tables, 0.01)
    assert float(loss) == pytest.approx(float(total), rel=1e-5)
    for key, grad in tree_of(model.weights, shape, "grad").items():
        assert np.abs(np.asarray(grads[key]) - grad).max() < 1e-4 * max(1.0, np.abs(grad).max()), key


class TestRuns:
    def test_a_run_learns_is_evaluated_and_writes(self, data: Path, begun: Path) -> None:
        found = losses(begun)
        assert found[-1] < found[0] - 1
        assert [line["step"] for line in metrics(begun) if "sample" in line] == [0, 6, 12]
        kept = ramlet.evaluate(begun, data, tokens=640, engine="native", memory=AMPLE, precision="fp32")
        own = ramlet.evaluate(begun, data, tokens=640, engine="jax", memory=AMPLE)
        assert own["data"].loss == pytest.approx(kept["data"].loss, abs=1e-5)
        assert "jax: " in (begun / "settings.yaml").read_text()

    def test_generated_text_is_that_of_the_native_engine(self, begun: Path) -> None:
        """Greedily, with a prompt, several samples, and a text longer than the context."""
        given = {"max_tokens": 40, "temperature": 0, "num_samples": 2, "precision": "fp32", "memory": AMPLE}
        assert ramlet.generate(begun, "the old", engine="jax", **given) == ramlet.generate(
            begun, "the old", engine="native", **given
        )

    def test_an_interrupted_run_goes_on(self, data: Path, begun: Path, tmp_path: Path) -> None:
        """To the last bit, because the program is the same."""

        class Stop(Listener):
            def stepped(self, step: int, *_: Any) -> None:
                if step == 7:
                    raise KeyboardInterrupt

        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(data, tmp_path / "cut", **BEGUN, listener=Stop())
        run(data, tmp_path / "cut", **BEGUN)
        assert_same_run(tmp_path / "cut", begun)

    def test_a_budget_too_small_is_told_with_the_smallest(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(BudgetError, match=r"needs at least \d+MB: .* for overhead") as refused:
            run(data, tmp_path / "run", engine="jax", memory="60MB")
        assert refused.value.facts["needed"] > 60_000_000
        assert not (tmp_path / "run" / "settings.yaml").exists()


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", "muon8bit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adamw8bit", "muon"))],
)
def test_a_run_goes_from_torch_to_jax_and_back(data: Path, tmp_path: Path, optimizer: str) -> None:
    given = {**STEADY, "optimizer": optimizer}
    run(data, tmp_path / "torch", engine="torch", max_steps=6, **given)
    for steps, engine in ((2, "torch"), (4, "jax"), (6, "torch")):
        run(data, tmp_path / "mixed", engine=engine, max_steps=steps, micro_batch=4, resume=steps > 2 or None, **given)
        assert described(tmp_path / "mixed") == described(tmp_path / "torch")
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "torch"), abs=2e-4)


def test_tensors_of_other_devices_are_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through compiled slices: the way of GPUs and TPUs, here on a CPU."""
    from ramlet.engines.jax import stored
    from ramlet.engines.jax.initial import initialize
    from ramlet.engines.jax.mesh import Placement
    from ramlet.engines.jax.weights import zeros

    shape, placement = SHAPES["grouped_qk_norm"], Placement.over(jax.devices())
    made = []
    for in_ram in (True, False):
        monkeypatch.setattr(stored, "_is_in_ram", lambda _, in_ram=in_ram: in_ram)
        params = zeros(shape, "bf16", placement)
        initialize(shape, params, 3, placement)
        made.append({name: b"".join(each.pieces("F32", 999)) for name, each in stored_of(shape, params).items()})
    assert made[0] == made[1]
    assert any(made[0].values())


def stored_of(shape: Shape, params: Any) -> dict[str, Any]:
    from ramlet.engines.jax import stored
    from ramlet.engines.jax.mesh import Placement

    return stored.weights(shape, params, Placement.over(jax.devices()))


def test_it_has_what_the_contract_asks_for() -> None:
    from ramlet.engines.jax.engine import JaxEngine
    from ramlet.engines.jax.gpt import GPT
    from ramlet.engines.jax.step import Trainee as JaxTrainee

    for contract, made in ((Engine, JaxEngine), (Trainee, JaxTrainee), (Model, GPT)):
        asked = {name for name in vars(contract) if not name.startswith("_")}
        assert asked - set(dir(made)) - {"shape", "model", *getattr(made, "__dataclass_fields__", ())} == set()


class TestPlans:
    @pytest.mark.parametrize("kind", ["cpu", "tpu"])
    def test_less_memory_smaller_steps_of_the_same_size(self, kind: str) -> None:
        from ramlet.engines.jax.plan import Place, make_plan

        def planned(megabytes: int) -> Plan:
            task = Task(Shape(8192, 256, 6, 320, 5), 256, 32, Budget(megabytes * 10**6), resident=90_000_000)
            return make_plan(task, place=Place(kind, shards=1 if kind == "cpu" else 4))

        large, small = planned(2000), planned(480 if kind == "cpu" else 60)
        assert small.choice.micro_batch < large.choice.micro_batch
        assert small.batch_size == large.batch_size == 32
        with pytest.raises(BudgetError) as refused:
            planned(20)
        enough = refused.value.facts["needed"] // 10**6
        assert planned(enough).peak <= enough * 10**6

    def test_the_formulas_are_close_to_what_xla_says(self) -> None:
        from ramlet.engines.jax import plan as plans
        from ramlet.engines.jax.mesh import Placement
        from ramlet.engines.jax.probe import needed
        from ramlet.engines.jax.step import Program

        shape, choice = Shape(2048, 128, 4, 128, 4, qk_norm=True), Choice(8, 512)
        placement = Placement.over(jax.devices())
        said = needed(Program(shape, choice, RunSettings(), placement, 128, False, 2))
        assert said is not None
        place = plans.Place("cpu")
        held = plans.stored_bytes(shape, choice, place)
        assert said.arguments == pytest.approx(held["weights"] + held["optimizer"], rel=0.01)
        assert said.results < 100_000  # everything takes the place of what was given
        work = sum(plans.work_bytes(shape, choice, 128, place).values())
        assert said.temporary == pytest.approx(held["gradients"] + work, rel=0.12)

    def test_on_a_gpu_its_own_memory_counts_and_not_the_hosts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ramlet.engines.jax.device import Device
        from ramlet.engines.jax.engine import JaxEngine

        monkeypatch.setattr(Device, "kind", "cuda")
        monkeypatch.setattr(Device, "peak", lambda *_: 300_000_000)
        shape = Shape(256, 32, 2, 64, 4, kv_heads=2, feed_forward=128, qk_norm=True)
        task = Task(shape, 32, 4, Budget(400_000_000), resident=0)
        with Meter() as meter:
            monkeypatch.setattr(Meter, "peak", 5_000_000_000)  # of the process, while XLA tries kernels
            plan = JaxEngine("cpu", 1).fit(task, RunSettings(), meter)
        assert plan.peak == 300_000_000 == plan.measured


DEVICES = """
import sys, jax, numpy as np
from pathlib import Path
from ramlet.engines.jax.loading import load_jax
load_jax("cpu", 1)
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.ranks import JaxRanks
from ramlet.engines.jax.step import Program, Trainee
from ramlet.engines.plan import Choice
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import read_tensors_into, write_tensors
from ramlet.training.settings import RunSettings

shape = Shape(256, 32, 2, 64, 4, kv_heads=2, feed_forward=128, qk_norm=True)
folder = Path(sys.argv[1])

def trainee(count):
    placement = Placement.over(jax.devices()[:count])
    choice = Choice(6, 64, optimizer=sys.argv[2])
    return Trainee(Program(shape, choice, RunSettings(), placement, 32, False, 2), JaxRanks())

def step(one, number):
    ids = np.random.default_rng(number).integers(0, 256, (10, 33))
    for rows in (slice(0, 6), slice(6, 10)):  # the second is smaller
        loss = one.learn({"input_ids": ids[rows, :-1], "targets": ids[rows, 1:]}, 1 / 320)
    norm = one.update(3e-3, 1.0)
    return float(loss) / 320, float(norm)

whole, divided = trainee(1), trainee(8)
for one in (whole, divided):
    one.reset(1)
for number in range(3):
    a, b = step(whole, number), step(divided, number)
    assert np.allclose(a, b, rtol=1e-4), (a, b)
def bytes_of(one):
    shards = [shard for array in jax.tree.leaves((one._params, one._states)) for shard in array.addressable_shards]
    return [sum(shard.data.nbytes for shard in shards if shard.device == device) for device in jax.devices()]

every, alone = bytes_of(divided), bytes_of(whole)[0]
assert max(every) < alone / 5, (every, alone)
# Resumed on another number of devices.
write_tensors(folder / "model", divided.weights())
write_tensors(folder / "states", divided.states())
fewer = trainee(2)
fewer.prepare_states()
read_tensors_into(folder / "model", fewer.weights())
read_tensors_into(folder / "states", fewer.states())
a, b = step(whole, 3), step(fewer, 3)
assert np.allclose(a, b, rtol=1e-4), (a, b)
print("bytes", alone, every)
"""


def launched(program: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_ENABLE_COMPILATION_CACHE": "0", **environment}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("optimizer", ["adamw8bit", pytest.param("muon8bit", marks=pytest.mark.slow)])
def test_eight_devices_train_as_one(tmp_path: Path, optimizer: str) -> None:
    """In a process of its own: a CPU is several devices only if JAX is told before it starts."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    child = launched(DEVICES, tmp_path, optimizer, XLA_FLAGS=flags)
    said, problem = child.communicate(timeout=500)
    assert child.returncode == 0, problem
    assert said.startswith("bytes")


PROCESS = """
import sys
from pathlib import Path
from oracles_training import losses, run
run(sys.argv[1], Path(sys.argv[2]), engine="jax", max_steps=4, sample_every=2, batch_size=7, optimizer="muon")
print(losses(Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_two_processes_train_as_one(data: Path, tmp_path: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        launched(PROCESS, data, tmp_path / "two", **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)
    ]
    for child in children:
        _, problem = child.communicate(timeout=500)
        assert child.returncode == 0, problem
    run(data, tmp_path / "one", engine="jax", max_steps=4, sample_every=2, batch_size=7, optimizer="muon")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


class TestBadInput:
    def test_without_jax_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
        from ramlet.engines import opening

        monkeypatch.setattr(opening, "has_jax", lambda: False)
        for name, device in (("jax", "auto"), ("jax", "cuda"), ("auto", "tpu")):
            with pytest.raises(SettingsError, match=r"needs JAX: pip install 'ramlet\[jax\]'"):
                opening.choose_engine(name, device)
        with pytest.raises(SettingsError, match="as_jax needs JAX"):
            ramlet.Loader(data, seq_len=16, as_jax=True)

    def test_auto_is_jax_on_a_tpu_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ramlet.engines import opening

        assert opening.choose_engine("auto", "cpu").name != "jax"
        monkeypatch.setattr(opening, "has_tpu", lambda: True)
        assert str(opening.choose_engine("auto", "auto")) == "jax, which uses the TPU"
        for engine in ("torch", "native"):
            with pytest.raises(SettingsError, match="jax"):
                opening.choose_engine(engine, "tpu")

    def test_a_version_that_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ramlet.engines.jax import loading

        monkeypatch.setattr(loading, "jax_version", lambda: (0, 4, 30))
        with pytest.raises(SettingsError, match=r"JAX 0\.4\.30 is too old, 0\.6 is the oldest"):
            loading.load_jax("cpu")

    def test_a_device_that_jax_does_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ramlet.engines.jax import device

        with pytest.raises(SettingsError, match="JAX finds no tpu here, but cpu"):
            device.local_devices("tpu")

        def missing() -> None:
            raise RuntimeError("Unable to initialize backend 'cuda'\nand more")

        monkeypatch.setattr(device, "jax", SimpleNamespace(local_devices=missing))
        with pytest.raises(SettingsError, match=r"no cuda here \(Unable to initialize backend 'cuda'\)"):
            device.local_devices("cuda")

    @pytest.mark.parametrize("precision", ["fp8", "fp16"])
    def test_settings_that_it_does_not_have(self, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from ramlet.engines.jax.engine import JaxEngine

        with pytest.raises(SettingsError, match="needs a GPU"):
            JaxEngine("cpu").precision(precision)
        monkeypatch.setattr(JaxEngine, "kind", "tpu")
        with pytest.raises(SettingsError, match=f"does not multiply {precision}"):
            JaxEngine("cpu").precision(precision)


class TestLoading:
    def test_batches_are_those_of_numpy_on_devices(self, data: Path) -> None:
        given = {"seq_len": 16, "batch_size": 4, "micro_batch": 3, "document_mask": True, "epochs": 1}
        with ramlet.Loader(data, **given) as plain, ramlet.Loader(data, **given, as_jax=True) as placed:
            for one, other, _ in zip(plain, placed, range(6)):
                assert isinstance(other.input_ids, jax.Array)
                for name in ("input_ids", "targets", "position_ids", "document_ids", "labels"):
                    assert np.array_equal(one[name], other[name]), name

    def test_one_kind_at_a_time_and_a_known_one(self, data: Path) -> None:
        with pytest.raises(SettingsError, match="either"):
            ramlet.Loader(data, seq_len=16, as_jax=True, as_torch=True)
        with ramlet.Loader(data, seq_len=16, as_jax="tpu") as loader, pytest.raises(SettingsError, match="not str"):
            next(iter(loader))

    def test_the_cache_has_a_bound(self, tmp_path: Path) -> None:
        from ramlet.engines.jax.loading import prune

        for number in range(5):
            (tmp_path / str(number)).write_bytes(bytes(100))
            os.utime(tmp_path / str(number), (number, number))
        prune(tmp_path, 250)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]

    def test_the_loop_of_the_page(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = (Path(__file__).parents[1] / "docs/jax.md").read_text()
        program = page.partition("```python\n")[2].partition("```")[0]
        assert len([line for line in program.splitlines() if line.strip()]) <= 40
        monkeypatch.chdir(tmp_path)
        (tmp_path / "my-dataset").symlink_to(data)
        exec(program, {})
        first, *_, last = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
        assert last < first - 1
