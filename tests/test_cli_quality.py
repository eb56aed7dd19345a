"""What every command owes its user, walked through by code: help, examples, exit codes, completion, colours."""

from __future__ import annotations

import doctest
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramlet import cli
from ramlet.cli import help_page, usage
from ramlet.cli.color import colored
from ramlet.cli.help_page import GENERAL, Command, examples, parts_of
from ramlet.errors import Interrupted, SettingsError

COLUMNS = 80

WITHOUT_JSON = {"ramlet completion": "it prints a script"}
WITHOUT_QUIET = {
    "ramlet completion": "it prints a script",
    "ramlet tokenizer decode": "it prints the text and nothing else",
    "ramlet tokenizer show": "it prints figures and nothing else",
    "ramlet data duplicates": "it prints the pairs and nothing else",
    "ramlet data inspect": "it prints figures and nothing else",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what is typed for it."""
    waiting = [("ramlet", cli._root([]))]
    while waiting:
        path, command = waiting.pop(0)
        for name, below in getattr(command, "commands", {}).items():
            waiting.append((f"{path} {name}", below))
        if not hasattr(command, "commands"):
            yield path, command


COMMANDS = dict(commands())
GROUPS = sorted({path.rpartition(" ")[0] for path in COMMANDS})
every_command = pytest.mark.parametrize("path", COMMANDS)


def words_of(line: str) -> list[str]:
    """What a shell hands to ramlet of an example: behind `ramlet`, up to a pipe."""
    line = line.removesuffix(')"').partition("$(")[2] or line
    before, _, after = line.partition(" | ")
    chosen = before if before.startswith("ramlet") else after
    assert chosen.startswith("ramlet"), f"{line} runs no ramlet"
    return shlex.split(chosen)[1:]


EXAMPLES = [(path, words_of(line)) for path, command in COMMANDS.items() for line in examples(command)]


def help_of(path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert cli.main([*path.split()[1:], "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_the_walk_finds_the_commands() -> None:
    assert {"ramlet train", "ramlet tokenizer train", "ramlet data verify", "ramlet doctor"} <= set(COMMANDS)
    assert {path.split()[1] for path in COMMANDS} == set(cli.COMMANDS)


def test_examples_in_the_docstrings() -> None:
    for module in (help_page, usage):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert results.failed == 0


class TestHelp:
    @pytest.mark.parametrize("path", [*GROUPS, *COMMANDS])
    def test_says_what_it_does_and_shows_an_example(
        self, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = help_of(path, capsys, monkeypatch)
        first, _, rest = text.partition("\n\n")
        assert re.fullmatch(r"[A-Z][^.]*\.", first.replace("\n", " ")), "one sentence that says what it does"
        assert rest.startswith(f"Usage: {path} ")
        assert re.search(rf"^Examples:\n(  .*\n)*  .*{path} ?", text, re.MULTILINE)
        assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
        assert "<str>" not in text, "give the option a metavar that tells what it takes"

    @every_command
    def test_options_are_in_groups_and_explained(
        self, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = [each for each in COMMANDS[path].params if each.param_type_name == "argument"]
        shown = [each for each in COMMANDS[path].params if each.param_type_name == "option" and not each.hidden]
        assert [argument.name for argument in arguments if not argument.how.help] == []
        assert [option.name for option in shown if not option.help] == []
        own = [option for option in shown if option.panel != GENERAL]
        if len(own) > 6:
            assert len({option.panel for option in own}) > 1, "more than six options in one list"
        headings = re.findall(r"^(\w[\w ]*):$", help_of(path, capsys, monkeypatch), re.MULTILINE)
        assert headings[-1] == GENERAL
        assert len(headings) == len(set(headings))

    @every_command
    def test_the_options_that_all_have(self, path: str) -> None:
        names = {name for option in COMMANDS[path].params for name in option.opts}
        assert "--debug" in names
        assert ("--json" in names) == (path not in WITHOUT_JSON)
        assert ("--quiet" in names) == (path not in WITHOUT_QUIET)

    def test_the_parts_of_a_docstring(self) -> None:
        assert parts_of(None) == ("", [], [])
        assert parts_of("Does\n  it.\n\n  ramlet do") == ("Does it.", [], ["ramlet do"])
        text = "Does it.\n\n    One\n    paragraph.\n\n      ramlet a\n      ramlet b\n\n    Another."
        assert parts_of(text) == ("Does it.", ["One paragraph.", "Another."], ["ramlet a", "ramlet b"])


class TestExitCodes:
    """The parser reads every example of every help; what a command then does is put in its place."""

    @pytest.mark.parametrize(
        ("what", "code", "said"),
        [
            (None, 0, ""),
            (SettingsError("no: yes"), 1, "error: no: yes\n"),
            (KeyboardInterrupt(), 130, "interrupted; run the same command to resume\n"),
            (Interrupted("saved"), 130, "saved\n"),
            (BrokenPipeError(), 141, ""),
        ],
    )
    def test_every_example(
        self,
        what: BaseException | None,
        code: int,
        said: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        reached = []

        def instead(self: Command, ctx: Any) -> None:
            reached.append(ctx.command_path)
            if what is not None:
                raise what

        monkeypatch.setattr(Command, "invoke", instead)
        monkeypatch.setattr(cli, "_drop_output", lambda: None)
        for path, words in EXAMPLES:
            assert cli.main(words) == code, words
            assert reached[-1] == path
            told = capsys.readouterr()
            assert told.err == said
            assert bool(told.out) == ("--json" in words and bool(said))

    @every_command
    def test_an_unknown_option(self, path: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([*path.split()[1:], "--debgu"]) == 2
        assert capsys.readouterr() == ("", "error: unknown option --debgu: did you mean --debug?\n")

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["train", "--resume=yes"], "--resume takes no value"),
            (["train", "--no_resume=yes"], "--no-resume takes no value"),
            (["data", "merge", "a", "b", "--link=1"], "--link takes no value"),
            (["--version=2"], "--version takes no value"),
            (["train", "--out"], "--out needs a value"),
        ],
    )
    def test_values_of_switches_and_options(
        self, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(words) == 2
        assert capsys.readouterr() == ("", f"error: {sentence}\n")

    @every_command
    def test_only_what_has_no_default_is_required(self, path: str) -> None:
        declared = inspect.signature(COMMANDS[path].callback).parameters
        for one in COMMANDS[path].params:
            if one.name in declared:  # others are settings, which have defaults
                assert one.required == (declared[one.name].default is inspect.Parameter.empty), one.name

    @every_command
    def test_underscores(self, path: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Every option with a hyphen is found when it is written with underscores."""
        command = COMMANDS[path]
        names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        context = command.make_context(path, [], resilient_parsing=True, token_normalize_func=_hyphens(path))
        parser = command.make_parser(context)
        for name in (name for name in names if "-" in name[2:] and name.startswith("--")):
            written = "--" + name[2:].replace("-", "_")
            parsed = parser.parse_args([written, "1"])[0]
            assert parsed, written

    def test_missing_arguments_show_an_example(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = 0
        for path, command in COMMANDS.items():
            if any(one.required for one in command.params):
                assert cli.main(path.split()[1:]) == 2
                said = capsys.readouterr().err
                assert re.fullmatch(r"error: .* is missing; for example: .*\n", said)
                assert said.partition("for example: ")[2].strip() in examples(command)
                shown += 1
        assert shown > 8


def _hyphens(path: str) -> Any:
    root = cli._root(path.split()[1:])
    return root.context_settings["token_normalize_func"]


class TestColours:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    @pytest.fixture(autouse=True)
    def plain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")

    def test_only_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert colored(self.Terminal())
        assert not colored(io.StringIO())
        monkeypatch.setenv("TERM", "dumb")
        assert not colored(self.Terminal())
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        assert not colored(self.Terminal())

    def test_the_word_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = self.Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        assert cli.main(["--versoin"]) == 2
        assert screen.getvalue() == "\x1b[1;31merror:\x1b[0m unknown option --versoin: did you mean --version?\n"
        screen.truncate(0)
        screen.seek(0)
        monkeypatch.setenv("NO_COLOR", "1")
        assert cli.main(["--versoin"]) == 2
        assert screen.getvalue().startswith("error: ")

    def test_no_command_writes_them_into_a_pipe(self, capsys: pytest.CaptureFixture[str]) -> None:
        for path in COMMANDS:
            cli.main([*path.split()[1:], "--help"])
            cli.main([*path.split()[1:], "--nothing"])
            assert "\x1b" not in "".join(capsys.readouterr()), path


class TestCompletion:
    @pytest.fixture
    def complete(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
        monkeypatch.setenv("_RAMLET_COMPLETE", "1")

        def ask(*words: str) -> list[str]:
            assert cli.main(words) == 0
            return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]

        return ask

    def test_commands(self, complete: Any) -> None:
        assert complete("") == list(cli.COMMANDS)
        assert complete("to") == ["tokenizer"]
        assert complete("tokenizer", "") == ["train", "encode", "decode", "show", "compare"]
        assert complete("data", "me") == ["merge"]
        assert complete("xyzzy", "") == list(cli.COMMANDS)

    def test_options(self, complete: Any) -> None:
        assert complete("train", "--max-st") == ["--max-steps"]
        assert complete("train", "--max_st") == ["--max-steps"]
        assert complete("train", "--out", "run", "--no-re") == ["--no-recompute", "--no-resume"]
        assert complete("generate", "--model-n") == [], "hidden"
        assert complete("--ver") == ["--version"]
        assert "--help" in complete("data", "verify", "-")

    @every_command
    def test_every_option(self, path: str, complete: Any) -> None:
        shown = [option for option in COMMANDS[path].params if option.param_type_name == "option" and not option.hidden]
        long = {name for one in shown for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
        assert set(complete(*path.split()[1:], "--")) == long | {"--help"}

    def test_choices(self, complete: Any) -> None:
        assert complete("tokenizer", "train", "x", "--type", "") == ["bpe", "char", "byte"]
        assert complete("tokenizer", "train", "x", "--type", "b") == ["bpe", "byte"]
        assert complete("train", "--device=c") == ["--device=cpu", "--device=cuda"]
        assert complete("train", "--device", "=", "c") == ["cpu", "cuda"], "as bash cuts it"
        assert complete("train", "--device", "=") == ["auto", "cpu", "cuda", "tpu"]
        assert complete("train", "--json", "--device", "cu") == ["cuda"], "behind a flag"
        assert complete("completion", "") == ["bash", "zsh", "fish"]
        assert complete("data", "export", "d", "--to", "n") == ["nanogpt", "npy"]

    def test_files_are_left_to_the_shell(self, complete: Any) -> None:
        assert complete("train", "--data", "") == []
        assert complete("prepare", "") == []
        assert complete("prepare", "--out", "x", "in") == []

    def test_help_goes_with_it(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("_RAMLET_COMPLETE", "1")
        cli.main(["tr"])
        assert capsys.readouterr().out == "train\tTrain a model within a memory budget.\n"

    def test_an_unknown_shell(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["completion", "tcsh"]) == 1
        assert capsys.readouterr().err == "error: unknown shell 'tcsh': choose from bash, zsh, fish\n"

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_in_the_shell(self, shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The printed script in the real shell, or at least read by it."""
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell} here")
        assert cli.main(["completion", shell]) == 0
        script = tmp_path / "script"
        script.write_text(capsys.readouterr().out)
        (tmp_path / "ramlet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ramlet "$@"\n')
        (tmp_path / "ramlet").chmod(0o755)
        ask = {
            "bash": f"source {script}; COMP_WORDS=(ramlet tokenizer train --ty); COMP_CWORD=3; "
            "_ramlet_completion ramlet --ty train; printf '%s\\n' \"${COMPREPLY[@]}\"",
            "zsh": f"autoload -Uz compinit; compinit -D; source {script}; whence -w _ramlet_completion",
            "fish": f"source {script}; complete -C 'ramlet tokenizer train --ty'",
        }[shell]
        flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        done = subprocess.run(
            [shell, *flags, "-c", ask], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
        )
        told = {"bash": "--type\n", "zsh": "_ramlet_completion: function\n", "fish": "--type\t"}[shell]
        assert done.stdout.startswith(told), done.stderr
