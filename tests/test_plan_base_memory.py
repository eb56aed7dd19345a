"""What torch costs before anything is trained, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is given back")
MB = 1_000_000


def run(program: str, **environment: str) -> dict:
    """Runs a program that ends with a dictionary in `told`."""
    folder = Path(__file__).parent.parent / "python"
    start = "import json, sys\n"
    end = "\nstatus = open('/proc/self/status').read() if sys.platform == 'linux' else ''\n"
    end += "told['peak'] = int(status.split('VmHWM:')[1].split()[0]) * 1024 if status else 0\nprint(json.dumps(told))"
    done = subprocess.run(
        [sys.executable, "-c", start + program + end],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOADED = (
    "import os\n"
    "from ramlet.engines.torch.base_memory import keep_large_blocks, load_torch, release_library_pages\n"
    "from ramlet.runtime.memory import resident_memory\n"
    "from ramlet.runtime.settled import settled_memory\n"
    "torch = load_torch(1)\n"
    "assert torch.get_num_threads() == 1 and not torch.cuda.is_initialized()\n"
    "resident = settled_memory()\n"
    "def forked(program):\n"
    "    reading, writing = os.pipe()\n"
    "    if child := os.fork():\n"
    "        os.close(writing)\n"
    "        with open(reading) as answer:\n"
    "            said = answer.read()\n"
    "        assert os.waitpid(child, 0)[1] == 0, program\n"
    "        return json.loads(said)\n"
    "    code = 1\n"
    "    try:\n"
    "        names = dict(globals())\n"
    "        exec(program, names)\n"
    "        os.write(writing, json.dumps(names['told']).encode())\n"
    "        code = 0\n"
    "    finally:\n"
    "        os._exit(code)\n"
)
"""Loads torch once; `forked(program)` is what a program tells in a process that has loaded it, and no more."""

PAGES = (
    "x = torch.arange(10_000.0).reshape(100, 100)\n"
    "before = (x @ x).sum().item()\n"
    "released = [release_library_pages() for _ in range(3)]\n"
    "told = {'same': (x @ x).sum().item() == before, 'released': released}\n"
)

STEP = (
    "from ramlet.training.settings import RunSettings\n"
    "from ramlet.engines.torch.step import Trainee\n"
    "from ramlet.engines.plan import Choice\n"
    "from ramlet.model.shape import Shape\n"
    "for optimizer in ('adamw', 'adamw8bit'):\n"
    "    choice = Choice(2, 16, True, optimizer, 'fp32', 'bf16')\n"
    "    trainee = Trainee(Shape(64, 32, 2, 32, 2), choice, RunSettings(), device='cpu')\n"
    "    trainee.reset(1)\n"
    "    ids = torch.zeros(2, 32, dtype=torch.int64)\n"
    "    trainee.learn({'input_ids': ids, 'targets': ids}, 1.0)\n"
    "    trainee.update(1e-3, 1.0)\n"
    "    trainee.optimizer.state_dict()\n"
    "told = {'loaded': [name for name in ('torch._dynamo', 'sympy', 'torch._inductor') if name in sys.modules]}\n"
)

BLOCKS = (
    "keep_large_blocks({keep})\n"
    "before = resident_memory()\n"
    "block = torch.ones(10_000_000)\n"
    "held = resident_memory()\n"
    "del block\n"
    "told = {{'taken': held - before, 'left': resident_memory() - before}}\n"
)


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """What is resident once torch is loaded, and what the programs tell."""
    programs = {
        "pages": PAGES,
        "step": STEP,
        "kept": BLOCKS.format(keep=True),
        "given back": BLOCKS.format(keep=False),
    }
    told = "told = {'resident': resident, **{name: forked(program) for name, program in programs.items()}}\n"
    return run(f"{LOADED}programs = {programs!r}\n{told}")


@LINUX
def test_torch_is_loaded_with_less_than_by_importing_it(loaded: dict[str, Any]) -> None:
    plain = run("import torch, ramlet.runtime.memory\ntold = {'resident': ramlet.runtime.memory.resident_memory()}")
    saved = plain["peak"] - loaded["peak"], plain["resident"] - loaded["resident"]
    # A build without CUDA has less to give back than one with it; none of them has nothing.
    assert saved[0] > 20 * MB
    assert saved[1] > 20 * MB


@LINUX
def test_nothing_is_lost_when_pages_are_given_back(loaded: dict[str, Any]) -> None:
    assert loaded["pages"]["same"]
    assert loaded["pages"]["released"][0] > 0


def test_neither_an_optimizer_nor_a_step_loads_the_compiler(loaded: dict[str, Any]) -> None:
    assert loaded["step"]["loaded"] == []


def test_our_adamw_is_torchs_to_the_bit() -> None:
    import torch

    from ramlet.engines.torch.optim.adamw import AdamW

    torch.manual_seed(0)
    start, steps = torch.randn(1000), [torch.randn(1000) for _ in range(5)]
    results = []
    for kind in (AdamW, torch.optim.AdamW):
        weight = start.clone()
        optimizer = kind([weight], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        for gradient in steps:
            weight.grad = gradient.clone()
            optimizer.step()
        results.append(weight)
    assert torch.equal(*results)
    assert not torch.equal(results[0], start)


def test_a_missing_torch_is_said_with_the_way_out(tmp_path: Path) -> None:
    told = run(
        "from ramlet.engines import opening\n"
        "from ramlet.engines.torch import base_memory\n"
        "opening.has_torch = lambda: False\n"
        "try:\n"
        "    base_memory.load_torch()\n"
        "except Exception as error:\n"
        "    told = {'kind': type(error).__name__, 'said': str(error)}\n"
    )
    assert told["kind"] == "SettingsError"
    assert told["said"] == "this engine needs PyTorch: pip install 'ramlet[torch]'"


@LINUX
@pytest.mark.parametrize("keep", [True, False])
def test_large_blocks_are_kept_or_given_back(loaded: dict[str, Any], keep: bool) -> None:
    told = loaded["kept" if keep else "given back"]
    assert told["taken"] >= 39 * MB
    assert (told["left"] >= 39 * MB) is keep


def test_torch_takes_no_more_threads_than_a_container_grants() -> None:
    told = run(
        "from ramlet.engines.torch import base_memory\n"
        "base_memory.available_threads = lambda: 1\n"
        "granted = base_memory.load_torch().get_num_threads()\n"
        "told = {'granted': granted, 'asked': base_memory.load_torch(2).get_num_threads()}"
    )
    assert (told["granted"], told["asked"]) == (1, 2)
