"""`ramlet generate` and `ramlet export` as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from conftest import RunRamlet
from oracles_model import GROUPED, byte_tokenizer, model_of
from ramlet.engines.torch.model_files import save_model, tensors_by_name
from ramlet.errors import ModelError, SettingsError
from ramlet.generation import generate
from ramlet.model.export import export_model
from ramlet.tokenizer.tokenizer import Tokenizer

torch.set_num_threads(1)
SHAPE = replace(GROUPED, vocab_size=300)
PLAIN = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a trained tokenizer of 300 tokens."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    text = "the cat sat on the mat and the dog sat on the log while it rained and then the sun came out again, " * 20
    text += " ".join(f"{left}{right}" for left in "abcdefghij" for right in ("ing", "ed", "er", "est", "ly"))
    tokenizer = Tokenizer.train(texts=[text], vocab_size=300, special_tokens=["<|endoftext|>"])
    assert tokenizer.vocab_size == 300
    tokenizer.save(folder.parent / "tokenizer.json")
    save_model(model_of(SHAPE), folder, tokenizer_file=folder.parent / "tokenizer.json", end_id=tokenizer.end_of_text)
    return folder


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return generate(run, "the cat", max_tokens=20, seed=4, precision="fp32")[0]


class TestGenerate:
    def test_the_prompt_and_what_comes_after(self, ramlet: RunRamlet, run: Path, text: str) -> None:
        done = ramlet("generate", str(run), "--prompt", "the cat", "--max-tokens", "20", "--seed", "4", *PLAIN)
        assert done.stdout.rstrip("\n") == ("the cat" + text).rstrip("\n")
        assert re.search(r"20 tokens, .* per second, seed 4\npeak [\d.]+ MB of ", done.stderr)

    def test_a_space_behind_the_prompt_is_advised_against(self, ramlet: RunRamlet, run: Path) -> None:
        done = ramlet("generate", str(run), "--prompt", "the cat ", "--max-tokens", "1", *PLAIN)
        assert done.stderr.startswith("note: the prompt ends with a space, but tokens begin with their own")
        assert done.stdout.startswith("the cat ")

    def test_from_standard_input(self, ramlet: RunRamlet, run: Path, text: str) -> None:
        arguments = ["--max_new_tokens", "20", "--seed=4", "--no-echo", "-q", *PLAIN]
        done = ramlet("generate", "--model_name", str(run), *arguments, input="the cat\n")
        assert done.stdout.rstrip("\n") == text.rstrip("\n")
        assert done.stderr == ""

    def test_json(self, ramlet: RunRamlet, run: Path, text: str) -> None:
        options = ["-n", "20", "--seed", "3", "--num-samples", "2", "--json", *PLAIN]
        told = json.loads(ramlet("generate", str(run), "-p", "the cat", *options).stdout)
        assert told["prompt"] == "the cat"
        assert told["samples"][1] == {"text": text, "tokens": 20, "seed": 4}
        assert (told["device"], told["precision"]) == ("cpu", "fp32")
        assert told["memory"]["peak"] > 0

    def test_several_samples(self, ramlet: RunRamlet, run: Path, text: str) -> None:
        options = ["-n", "20", "--seed", "3", "--num-samples", "2", *PLAIN]
        printed = ramlet("generate", str(run), "-p", "the cat", *options).stdout
        assert printed.startswith("--- 1 of 2, seed 3 ---\nthe cat")
        assert f"--- 2 of 2, seed 4 ---\nthe cat{text}\n" in printed

    @pytest.mark.parametrize(
        ("arguments", "how"),
        [
            (["nowhere", "-p", "x"], "there is no folder nowhere: give a run"),
            (["-p", "x"], "give one model"),
            (["RUN", "-p", "the " * 100], "tokens, more than the model's context of 48: shorten it"),
            (["RUN", "-p", "x", "--temperature", "-1"], "--temperature must be at least 0, not -1"),
            (["RUN", "-p", "x", "--memory", "20MB"], "needs at least "),
            (["RUN", "-p", "x", "--precision", "fp16"], "fp16 needs a GPU"),
        ],
    )
    def test_one_sentence(self, ramlet: RunRamlet, run: Path, arguments: list[str], how: str) -> None:
        done = ramlet("generate", *[str(run) if word == "RUN" else word for word in arguments], "--device", "cpu")
        assert (done.returncode, done.stdout) == (1, "")
        assert how in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1

    def test_the_least_memory_is_enough(self, ramlet: RunRamlet, run: Path) -> None:
        options = [
            "-p",
            "the cat",
            "-n",
            "100",
            "--num-samples",
            "4",
            "--top-p",
            "0.9",
            "--seed",
            "1",
            "--device",
            "cpu",
        ]
        refused = ramlet("generate", str(run), *options, "--memory", "20MB").stderr
        least = re.search(r"needs at least (\d+MB)", refused)
        assert least is not None
        done = ramlet("generate", str(run), *options, "--json", "--memory", least[1])
        told = json.loads(done.stdout)["memory"]
        assert 0 < told["peak"] <= told["budget"] == int(least[1].removesuffix("MB")) * 10**6

    def test_a_long_text_on_standard_input(self, ramlet: RunRamlet, run: Path, text: str) -> None:
        options = ["-n", "20", "--seed", "4", "--no-echo", "-q", *PLAIN]
        done = ramlet("generate", str(run), *options, input="so " * 100_000)
        assert "more than the model's context of 48" in done.stderr
        done = ramlet("generate", str(run), *options, "--truncate", input="so " * 100_000)
        assert done.returncode == 0
        done = ramlet("generate", str(run), *options, input="so " * 6_000_000)
        assert "standard input has more than 16.8 MB" in done.stderr


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._screen, inner = pty.openpty()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "ramlet", *arguments],
            stdin=inner, stdout=inner, stderr=inner, cwd=folder, start_new_session=True,
            preexec_fn=_own_terminal, env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
        os.close(inner)
        self.seen = ""

    def until(self, wanted: str) -> str:
        """What came up to this text."""
        while wanted not in self.seen:
            self.seen += os.read(self._screen, 4096).decode("latin-1").replace("\r", "")
        before, _, self.seen = self.seen.partition(wanted)
        return before

    def wait_for_more(self, count: int) -> None:
        """Until so many characters have come."""
        while len(self.seen) < count:
            self.seen += os.read(self._screen, 4096).decode("latin-1").replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def close(self) -> int:
        try:
            while os.read(self._screen, 4096):
                pass
        except OSError:
            pass
        os.close(self._screen)
        return self.child.wait(timeout=120)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background has it ignored


class TestDialogue:
    def test_a_prompt_a_line(self, run: Path, tmp_path: Path) -> None:
        text = generate(run, "the cat", max_tokens=20, seed=14, precision="fp32")[0]
        screen = Terminal(tmp_path, "generate", str(run), "-n", "20", "--seed", "14", *PLAIN)
        greeting = screen.until("> ")
        assert "continues what you type" in greeting
        assert "not trained to answer" in greeting
        screen.type("the cat\n")
        first = screen.until("\n> ").encode("latin-1").decode()
        # Control characters are shown and not obeyed.
        pictures = {code: 0x2400 + code for code in range(32)}
        assert text != text.translate(pictures)
        assert first.endswith("the cat" + text.translate(pictures))
        screen.type(":set temprature 1\n")
        assert "unknown setting 'temprature'" in screen.until("> ")
        screen.type(":set max_tokens=3\n")
        screen.until("> ")
        screen.type(":settings\n")
        assert "max_tokens 3\ntemperature 0.8\ntop_k none" in screen.until("> ")
        screen.type("the " * 60 + "\n")
        assert "error: the prompt has" in screen.until("> ")
        screen.type(":what\n")
        assert "unknown command :what" in screen.until("> ")
        screen.type(":quit\n")
        assert screen.close() == 0

    def test_ctrl_c_stops_a_text_and_ctrl_d_leaves(self, run: Path, tmp_path: Path) -> None:
        endless = tmp_path / "endless"
        shutil.copytree(run, endless)
        for name in ("config.json", "generation_config.json"):
            (endless / name).write_text((endless / name).read_text().replace("_token_id", "_token_unknown"))
        screen = Terminal(tmp_path, "generate", str(endless), "-n", "10000000", "--seed", "4", *PLAIN)
        screen.until("> ")
        screen.type("the cat\n")
        screen.wait_for_more(300)
        screen.type("\x03")
        screen.until("^C")  # which may stand before the last piece of the text
        screen.until("\n> ")
        screen.type(":set max_tokens 2\n")
        screen.until("\n> ")
        screen.type("\x04")
        assert screen.close() == 0


class TestExport:
    @pytest.mark.parametrize(("dtype", "kept"), [(None, torch.float32), ("bf16", torch.bfloat16)])
    def test_for_transformers(self, run: Path, tmp_path: Path, dtype: str | None, kept: torch.dtype) -> None:
        done = export_model(run, tmp_path / "out", dtype=dtype)
        assert done.files == [
            "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        ]  # fmt: skip
        llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        for name, tensor in tensors_by_name(model_of(SHAPE).weights).items():
            assert torch.equal(llama.get_parameter(name), tensor.to(kept)), name
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        assert theirs("the cat")["input_ids"] == Tokenizer.load(run).encode("the cat")

    @pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "generation_config.json"])
    def test_a_file_of_a_terabyte_beside_the_weights(self, run: Path, tmp_path: Path, name: str) -> None:
        shutil.copytree(run, tmp_path / "run")
        with open(tmp_path / "run" / name, "r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(ModelError, match=f"{name} is larger than"):
            export_model(tmp_path / "run", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_checkpoint_and_a_model_in_several_files(self, run: Path, tmp_path: Path) -> None:
        llama = transformers.AutoModelForCausalLM.from_pretrained(run)
        llama.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
        done = export_model(tmp_path / "shards", tmp_path / "one")
        assert done.notes == ["the model has no tokenizer.json: copy it into the folder"]
        whole = safetensors.torch.load_file(tmp_path / "one" / "model.safetensors")
        assert all(torch.equal(whole[name], llama.get_parameter(name)) for name in whole)

    def test_for_llama_cpp(self, run: Path, tmp_path: Path) -> None:
        """Its converter, as far as the script touches it, is stood in for."""
        done = export_model(run, tmp_path / "out", to="gguf-ready")
        script = tmp_path / "out" / "to_gguf.py"
        assert done.notes == [f"next: python {script} path/to/llama.cpp --outfile model.gguf"]
        weights = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
        for owner in ("converter", "package"):
            checkout = tmp_path / owner
            checkout.mkdir()
            base = "class TextModel:\n    def get_vocab_base_pre(self, tokenizer):\n        raise NotImplementedError\n"
            if owner == "package":
                (checkout / "conversion").mkdir()
                (checkout / "conversion" / "__init__.py").write_text("from .base import TextModel as _TextModel\n")
                (checkout / "conversion" / "base.py").write_text(base)
                base = "from conversion import _TextModel as Hidden\n"
            main = """
                def main():
                    import sys
                    print(sys.argv[1:], (globals().get("TextModel") or Hidden)().get_vocab_base_pre(None))
            """
            (checkout / "convert_hf_to_gguf.py").write_text(base + textwrap.dedent(main))
            told = subprocess.run(
                [sys.executable, script, checkout, "--outfile", "x.gguf"], capture_output=True, text=True, check=True
            )
            assert told.stdout == f"{[str(tmp_path / 'out'), '--outfile', 'x.gguf']} gpt-2\n"
        assert "usage: " in subprocess.run([sys.executable, script], capture_output=True, text=True).stderr

    def test_what_llama_cpp_cannot_read(self, tmp_path: Path) -> None:
        tokenizer_file = byte_tokenizer(tmp_path)
        Tokenizer.load("byte").save(tokenizer_file)
        save_model(model_of(SHAPE), tmp_path / "run", tokenizer_file=tokenizer_file)
        with pytest.raises(
            ModelError, match=r'llama.cpp does not support a byte tokenizer: .*; to="hf" has no such limit'
        ):
            export_model(tmp_path / "run", tmp_path / "out", to="gguf-ready")
        assert not (tmp_path / "out").exists()

    def test_nothing_is_overwritten_and_nothing_half_written(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        with pytest.raises(SettingsError, match="there already exists"):
            export_model(run, tmp_path / "there")
        with pytest.raises(SettingsError, match="unknown export format 'onnx': choose from hf, gguf, gguf-ready"):
            export_model(run, tmp_path / "out", to="onnx")
        with pytest.raises(SettingsError, match="unknown dtype 'int8': choose from fp32"):
            export_model(run, tmp_path / "out", dtype="int8")
        assert os.listdir(tmp_path) == ["there"]

    def test_the_command(self, ramlet: RunRamlet, run: Path, tmp_path: Path) -> None:
        done = ramlet("export", str(run), "--to", "hf", "model", "--dtype", "bf16")
        assert "in model, for hf: config.json, " in done.stdout
        assert re.search(r"^peak [\d.]+ MB of ", done.stdout, re.MULTILINE)
        told = json.loads(ramlet("export", str(run), "--to", "gguf-ready", "--out", "other", "--json").stdout)
        assert told["notes"] == ["next: python other/to_gguf.py path/to/llama.cpp --outfile model.gguf"]
        refused = ramlet("export", str(run), "third", "--memory", "30MB")
        assert "needs at least" in refused.stderr
        assert not (tmp_path / "third").exists()
        assert "give one new folder" in ramlet("export", str(run), "third", "--out", "fourth").stderr
