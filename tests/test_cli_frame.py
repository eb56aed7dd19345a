"""The frame around the commands: errors in one place, option names, help, and the line of progress."""

from __future__ import annotations

import doctest
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ramlet as package
from conftest import RunRamlet
from ramlet import cli
from ramlet.cli import progress as progress_module
from ramlet.cli.progress import Progress
from ramlet.runtime import progress as stage_module
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter

TOY = r'''
"""A command that does what it is told, to try the frame with."""
from __future__ import annotations
import sys, time
from typing import Annotated
from ramlet.cli.parameters import Option
from ramlet import errors
from ramlet.cli.options import Inputs, Json, Memory, Quiet, new_app

app = new_app("Tries the frame.")

@app.add
def run(
    inputs: Inputs,
    tokens_per_shard: Annotated[int, Option(help="How many.")] = 7,
    separator: Annotated[str, Option()] = "",
    memory: Memory = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Does it.

    As it is told to.

      ramlet toy run corpus/ --tokens-per-shard 3
    """
    what = inputs[0]
    if what == "ramlet-error":
        raise errors.SourceError("no such file or folder: x; did you mean y?")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "interrupted":
        raise errors.Interrupted
    if what == "saved":
        raise errors.Interrupted("interrupted at step 5, and saved")
    if what == "sleep":
        print("asleep", flush=True)
        time.sleep(60)
    if what == "bug":
        raise ZeroDivisionError("what a\nday")
    if what == "panic":
        raise type("PanicException", (BaseException,), {})("index out of bounds")
    if what == "disk":
        open("/nowhere/at/all", "w")
    if what == "full":
        raise OSError(28, "No space left on device", "x.bin")
    if what == "memory":
        raise MemoryError
    if what == "flood":
        for number in range(10**6):
            print(number)
    print(inputs, tokens_per_shard, repr(separator), memory, json, quiet)

@app.add
def other() -> None:
    """Does nothing."""
'''


@pytest.fixture
def toy(tmp_path: Path) -> list[str]:
    """The command line of `ramlet` with one more command, `toy`."""
    (tmp_path / "toy_command.py").write_text(TOY)
    start = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from ramlet import cli
        cli.COMMANDS["toy"] = "toy_command:app"
        sys.exit(cli.main())
    """
    (tmp_path / "start.py").write_text(textwrap.dedent(start))
    return [sys.executable, str(tmp_path / "start.py")]


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)


class TestErrors:
    @pytest.mark.parametrize(
        ("what", "code", "sentence"),
        [
            ("ramlet-error", 1, "error: no such file or folder: x; did you mean y?"),
            ("interrupt", 130, "interrupted; run the same command to resume"),
            ("interrupted", 130, "interrupted; run the same command to resume"),
            ("saved", 130, "interrupted at step 5, and saved"),
            ("disk", 1, "error: /nowhere/at/all: No such file or directory"),
            ("full", 1, "error: x.bin: No space left on device; free some space and run the same command again"),
            ("memory", 1, "error: the machine is out of memory: use a smaller --memory, or close other programs"),
            (
                "bug",
                1,
                "error: ZeroDivisionError: what a day; this is a bug in ramlet, "
                "run the same command with --debug to see where",
            ),
            (
                "panic",
                1,
                "error: PanicException: index out of bounds; this is a bug in ramlet, "
                "run the same command with --debug to see where",
            ),
        ],
    )
    def test_one_sentence_and_a_code(self, toy: list[str], what: str, code: int, sentence: str) -> None:
        done = run(toy, "toy", "run", what)
        assert (done.returncode, done.stderr, done.stdout) == (code, sentence + "\n", "")

    @pytest.mark.parametrize(("what", "name"), [("ramlet-error", "SourceError"), ("bug", "ZeroDivisionError")])
    def test_debug_shows_the_traceback(self, toy: list[str], what: str, name: str) -> None:
        done = run(toy, "toy", "run", what, "--debug")
        assert done.returncode == 1
        assert "Traceback (most recent call last)" in done.stderr
        assert "toy_command.py" in done.stderr
        assert name in done.stderr.splitlines()[-1 if what != "bug" else -2]

    def test_ctrl_c(self, toy: list[str]) -> None:
        child = subprocess.Popen(
            [*toy, "toy", "run", "sleep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "asleep\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (130, "interrupted; run the same command to resume\n")

    def test_a_closed_pipe_is_no_error(self, toy: list[str]) -> None:
        child = subprocess.Popen(
            [*toy, "toy", "run", "flood"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "0\n"
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(timeout=120) == 141
        child.stderr.close()


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["toy", "run"], "INPUT... is missing; for example: ramlet toy run corpus/ --tokens-per-shard 3"),
            (
                ["toy", "run", "x", "--tokens-per-shrd=3"],
                "unknown option --tokens-per-shrd: did you mean --tokens-per-shard?",
            ),
            (
                ["toy", "run", "x", "--tokens_per_shrd=3"],
                "unknown option --tokens-per-shrd: did you mean --tokens-per-shard?",
            ),
            (["toy", "run", "x", "--shard", "3"], "unknown option --shard: did you mean --tokens-per-shard?"),
            (["toy", "run", "x", "--zzz"], "unknown option --zzz: see ramlet toy run --help"),
            (["toy", "run", "x", "-z"], "unknown option -z: see ramlet toy run --help"),
            (
                ["toy", "run", "x", "--tokens-per-shard", "many"],
                "--tokens-per-shard: 'many' is not a whole number (see ramlet toy run --help)",
            ),
            (["toy", "run", "x", "--tokens-per-shard"], "--tokens-per-shard needs a value"),
            (["toy", "other", "x"], "unexpected argument x: see ramlet toy other --help"),
            (["toy", "rnu"], "no such command 'rnu': did you mean 'run'?"),
            (["tyo"], "no such command 'tyo': did you mean 'toy'?"),
            (["xyzzy"], "no such command 'xyzzy': see ramlet --help"),
            (["--versoin"], "unknown option --versoin: did you mean --version?"),
        ],
    )
    def test_wrong_usage_is_told_with_the_nearest(self, toy: list[str], arguments: list[str], sentence: str) -> None:
        done = run(toy, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {sentence}\n")

    @pytest.mark.parametrize("option", ["--tokens_per_shard", "--tokens-per-shard", "--tokens_per-shard"])
    def test_underscores_in_option_names_are_hyphens(self, toy: list[str], option: str) -> None:
        assert run(toy, "toy", "run", "x", option, "3").stdout == "['x'] 3 '' auto False False\n"
        assert run(toy, "toy", "run", "x", f"{option}=3").stdout == "['x'] 3 '' auto False False\n"

    def test_values_and_inputs_keep_their_underscores(self, toy: list[str]) -> None:
        done = run(toy, "toy", "run", "a_b", "--separator", "_x_", "--memory=2GB")
        assert done.stdout == "['a_b'] 7 '_x_' 2GB False False\n"

    def test_shared_options(self, toy: list[str]) -> None:
        done = run(toy, "toy", "run", "x", "y", "--json", "--quiet", "--debug")
        assert done.stdout == "['x', 'y'] 7 '' auto True True\n"

    def test_version(self, ramlet: RunRamlet) -> None:
        assert ramlet("--version").stdout == f"ramlet {package.__version__}\n"

    def test_versions_agree(self) -> None:
        root = Path(__file__).parent.parent
        for name in ("pyproject.toml", "Cargo.toml"):
            stated = re.search(r'^version = "(.+)"$', (root / name).read_text(), re.MULTILINE)
            assert stated is not None
            assert stated[1] == package.__version__, name

    def test_help_by_every_name(self, toy: list[str]) -> None:
        text = run(toy, "toy", "--help").stdout
        assert run(toy, "toy", "-h").stdout == run(toy, "toy").stdout == text
        assert run(toy, "toy").returncode == 0
        assert "Usage: ramlet toy [OPTIONS] COMMAND [ARGS]..." in text
        assert re.search(r"^  run +Does it\.$", text, re.MULTILINE)
        assert text.startswith("Tries the frame.\n\nUsage: ")

    def test_help_lists_every_command(self, ramlet: RunRamlet) -> None:
        text = ramlet().stdout
        for name in cli.COMMANDS:
            assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name

    def test_a_command_does_not_load_the_others(self, toy: list[str], tmp_path: Path) -> None:
        (tmp_path / "broken_command.py").write_text("raise SystemExit('loaded')")
        start = tmp_path / "start.py"
        start.write_text(
            start.read_text().replace("sys.exit(", "cli.COMMANDS['broken'] = 'broken_command:app'\nsys.exit(")
        )
        assert run(toy, "toy", "other").returncode == 0
        assert run(toy, "broken").stderr == "loaded\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What is to be seen in the end: each line as it was last drawn."""
        drawn = [line.rpartition("\r")[2] for line in self.getvalue().split("\n")]
        return [re.sub(r"\x1b\[\d*[mK]", "", line) for line in drawn]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    monkeypatch.setattr(stage_module, "time", clock)
    monkeypatch.setenv("COLUMNS", "120")
    return clock


class TestProgress:
    def test_what_how_much_speed_time_left_memory(self, clock: Clock) -> None:
        screen = Terminal()
        meter = Meter(Budget.parse("2GB"))
        meter._current = 812_000_000
        progress = Progress(meter, stream=screen)
        for second in range(4):
            progress.update("counting", second * 400e6, 4e9)
            clock.now += 1
        assert screen.lines() == [
            "counting   1.20 GB of 4.00 GB    30%   400 MB/s   7.0 s left   memory 812 MB of 2.00 GB"
        ]

    def test_a_stage_that_ends_keeps_its_line(self, clock: Clock) -> None:
        screen = Terminal()
        with Progress(stream=screen) as progress:
            progress.update("counting", 0, 4e9)
            clock.now += 20
            progress.update("counting", 4e9, 4e9)
            progress.update("merging", 0, 32_000, "merges")
            clock.now += 4
            progress.update("merging", 32_000, 32_000, "merges")
        assert screen.lines() == [
            "counting   4.00 GB   in 20 s   200 MB/s",
            "merging   32,000 merges   in 4.0 s   8,000 merges/s",
            "",
        ]

    def test_an_error_leaves_the_line_as_it_stood(self, clock: Clock) -> None:
        screen = Terminal()
        with pytest.raises(ZeroDivisionError), Progress(stream=screen) as progress:
            progress.update("merging", 8_000, 32_000, "merges")
            raise ZeroDivisionError
        assert screen.lines() == ["merging   8,000 of 32,000 merges    25%", ""]

    def test_without_a_total(self, clock: Clock) -> None:
        screen = Terminal()
        progress = Progress(stream=screen)
        progress.update("counting", 0)
        clock.now += 2
        progress.update("counting", 10e6)
        assert screen.lines() == ["counting   10.0 MB   5.00 MB/s"]

    def test_speed_is_that_of_the_last_seconds(self, clock: Clock) -> None:
        screen = Terminal()
        progress = Progress(stream=screen)
        done = 0.0
        for second in range(60):
            done += 1e9 if second < 30 else 1e6
            progress.update("counting", done)
            clock.now += 1
        assert screen.lines()[0].endswith("1.00 MB/s")

    def test_ten_draws_a_second_at_most(self, clock: Clock) -> None:
        screen = Terminal()
        progress = Progress(stream=screen)
        for step in range(10_000):
            progress.update("counting", step)
            clock.now += 0.001
        assert 90 <= screen.getvalue().count("\r") <= 101

    def test_never_wider_than_the_terminal(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        screen = Terminal()
        Progress(stream=screen).update("a stage with a very long name", 1, 2)
        assert screen.lines() == ["a stage with a very"]

    @pytest.mark.parametrize("terminal", [True, False])
    def test_quiet_when_asked(self, terminal: bool, clock: Clock) -> None:
        screen = Terminal() if terminal else io.StringIO()
        with Progress(silent=True, stream=screen) as progress:
            for done in range(5):
                progress.update("counting", done, 4)
                clock.now += 100
        assert screen.getvalue() == ""

    def test_a_log_gets_a_line_now_and_then(self, clock: Clock) -> None:
        log = io.StringIO()
        with Progress(stream=log) as progress:
            for second in range(76):
                progress.update("counting", second * 1e6, 150e6)
                clock.now += 1
            for second in range(10):
                progress.update("merging", second, 9, "merges")
                clock.now += 1
        assert log.getvalue().splitlines() == [
            "counting   30.0 MB of 150 MB    20%   1.00 MB/s   2 min 0 s left",
            "counting   60.0 MB of 150 MB    40%   1.00 MB/s   1 min 30 s left",
            "counting   75.0 MB   in 1 min 16 s   987 kB/s",
        ]

    def test_memory_close_to_the_budget_is_in_color(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        meter = Meter(Budget.parse("2GB"))
        for used, color in ((1_800_000_000, False), (1_950_000_000, True)):
            meter._current = used
            screen = Terminal()
            Progress(meter, stream=screen).update("counting", 1e9, 2e9)
            assert ("\x1b[1;33mmemory" in screen.getvalue()) == color
        monkeypatch.setenv("NO_COLOR", "1")
        Progress(meter, stream=(screen := Terminal())).update("counting", 1e9, 2e9)
        assert "\x1b[1" not in screen.getvalue()

    def test_examples_in_the_docstrings(self) -> None:
        results = doctest.testmod(stage_module)
        assert results.attempted > 0
        assert results.failed == 0

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.6, "1 h 0 min")],
    )
    def test_durations(self, seconds: float, text: str) -> None:
        assert stage_module.format_duration(seconds) == text


def test_the_first_example_makes_a_tokenizer_that_ends_documents(ramlet: RunRamlet) -> None:
    for command in (["tokenizer"], ["tokenizer", "train"]):
        line = next(line for line in ramlet(*command, "--help").stdout.splitlines() if "tokenizer train corpus" in line)
        assert '-s "<|endoftext|>"' in line


def test_python_m_ramlet_and_the_script_are_one(ramlet: RunRamlet) -> None:
    script = Path(sys.executable).parent / "ramlet"
    done = subprocess.run(
        [script, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.stdout == ramlet("--help").stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed(tmp_path: Path, closed: str) -> None:
    """As in a daemon; what a command prints never ends up in a file that it has opened."""
    script = f'"$0" -m ramlet tokenizer encode text.txt --tokenizer byte --out ids {closed}'
    (tmp_path / "text.txt").write_text("abc")
    done = subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "bug in ramlet" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "ids").read_bytes() == b"a\0b\0c\0"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_an_error_as_json_on_a_full_disk(tmp_path: Path) -> None:
    script = '"$0" -m ramlet tokenizer show missing.json --json > /dev/full'
    done = subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_very_long_name_in_a_sentence_is_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("one line\n")
    assert cli.main(["prepare", str(tmp_path / "text"), "-T", "byte", "--out", "x" * 100_000]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: xxx")
    assert len(said) < 2000
