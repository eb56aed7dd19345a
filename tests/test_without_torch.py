"""ramlet without PyTorch: everything but GPUs works, and what needs PyTorch says so in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramlet.cli import COMMANDS
from ramlet.engines import opening
from ramlet.engines.opening import choose_engine
from ramlet.errors import SettingsError

HIDE = '''
import sys

class Hiding:
    """A finder that does not find PyTorch, as if it were not installed."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in ("torch", "triton") else self._finder.find_spec(name, *rest)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
'''

STAND_IN = """
from oracles_native import CONTINUING, Decoder, NativeGPT
from ramlet.engines.native import gpt
if gpt.NativeGPT is None:
    gpt.NativeGPT, gpt.NativeDecoder, gpt._continuing = NativeGPT, Decoder, lambda: CONTINUING
"""

TEXT = "".join(f"the old man saw {number} red birds near the sea\n" for number in range(400))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder in whose processes PyTorch is not installed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDE)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def run(home: Path, code: str, *words: str) -> Any:
    """In a fresh process without PyTorch."""
    path = os.pathsep.join([str(home / "site"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=home, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


SEVERAL = """
import json, sys
from ramlet.cli import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    if code:
        sys.exit(f"{words}: {code}")
assert "torch" not in sys.modules
"""


def ran(home: Path, *commands: str, first: str = "") -> str:
    """Runs commands of ramlet, all in one process."""
    done = run(home, first + SEVERAL, json.dumps([words.split() for words in commands]))
    assert (done.returncode, done.stderr) == (0, "")
    output: str = done.stdout
    return output


def test_it_is_hidden(home: Path) -> None:
    done = run(home, "import importlib.util as u; assert u.find_spec('torch') is None; import torch")
    assert "No module named 'torch'" in done.stderr


def test_every_help(home: Path) -> None:
    ran(home, *[f"{name} --help" for name in COMMANDS])


def test_from_text_to_text(home: Path) -> None:
    """All stages, with the settings that choose no engine."""
    small = "--params 30k --seq-len 16 --batch-size 4 --memory 500MB --optimizer adamw"
    output = ran(
        home,
        "tokenizer train text.txt --vocab-size 300 --out tokenizer --quiet",
        "prepare text.txt --docs line --tokenizer tokenizer --val-fraction 0.1 --out data --quiet",
        f"plan --data data {small}",
        f"train --data data --out run {small} --max-steps 3 --sample-every 0 --eval-tokens 64 --quiet",
        "eval run --data data --tokens 64 --memory 500MB --quiet",
        "generate run --prompt the --max-tokens 4 --seed 1 --memory 500MB --quiet",
        first=STAND_IN,
    )
    assert "on cpu" in output
    assert "native: " in (home / "run" / "settings.yaml").read_text()


def test_what_needs_it_says_so(home: Path) -> None:
    program = """
import sys
from ramlet.cli import main
sys.exit(main(sys.argv[1:]))
"""
    ran(home, "prepare text.txt --docs line --tokenizer char --out data --quiet")
    train = ["train", "--data", "data", "--out", "run", "--params", "30k"]
    way_out = "pip install 'ramlet[torch]', or use"
    for words, said in (
        (["--engine", "torch"], f"PyTorch is not installed: {way_out} --engine native"),
        (["--device", "cuda"], f"a GPU needs PyTorch, which is not installed: {way_out} --device cpu"),
    ):
        done = run(home, program, *train, *words)
        assert (done.returncode, done.stderr) == (1, f"error: {said}\n")
    assert not (home / "run").exists()
    loader = "import ramlet; next(iter(ramlet.Loader('data', seq_len=8, batch_size=2, as_torch=True)))"
    assert "as_torch=True needs PyTorch: pip install 'ramlet[torch]'" in run(home, loader).stderr


class TestChoosing:
    @pytest.mark.parametrize(
        ("name", "device", "torch", "gpu", "chosen"),
        [
            ("auto", "cpu", True, False, "native"),
            ("auto", "cpu", True, True, "native"),
            ("auto", "auto", True, False, "native"),
            ("auto", "auto", True, True, "torch"),
            ("auto", "cuda", True, True, "torch"),
            ("auto", "cpu", False, False, "native"),
            ("auto", "auto", False, True, "native"),
            ("torch", "cpu", True, False, "torch"),
            ("native", "cpu", True, False, "native"),
            ("native", "auto", True, True, "native"),
        ],
    )
    def test_by_device_and_what_is_installed(
        self, monkeypatch: pytest.MonkeyPatch, name: str, device: str, torch: bool, gpu: bool, chosen: str
    ) -> None:
        monkeypatch.setattr(opening, "has_torch", lambda: torch)
        monkeypatch.setattr(opening, "has_gpu", lambda: gpu)
        assert choose_engine(name, device).name == chosen

    def test_the_native_engine_has_no_gpu(self) -> None:
        with pytest.raises(SettingsError, match=r"native engine runs on a CPU: use device=.cpu., or engine=.torch."):
            choose_engine("native", "cuda")
