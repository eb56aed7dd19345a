"""Option, key, check, argv and help are derived from one declaration. The settings class here is made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.help_page import Command
from ramlet.cli.wording import as_flag
from ramlet.errors import SettingsError, option
from ramlet.preparing.settings import PrepareSettings
from ramlet.settings.declared import Declared, argv, declared, differing, keys, options, setting
from ramlet.settings.kinds import Choice, Count, Number, Strings, Switch
from ramlet.settings.yaml_nodes import compose
from ramlet.settings.yaml_settings import SettingsReader


@dataclass(frozen=True, kw_only=True)
class Oven(Declared):
    degrees: int = setting(180, Count(most=300), "Heat.", called=("heat", "degrees"), short="d", panel="Heat")
    fan: bool = setting(True, Switch(), "Turn the fan on, at {degrees}.", opposite="still", panel="Heat")
    light: bool = setting(False, Switch(), "Turn the light on.", decides=False)
    mode: str = setting("auto", Choice(("auto", "grill")), "Mode.", stands_for={"grill": "grill"})
    hours: float | None = setting(None, Number(above=0), "Time.", shown="until it is done")
    racks: tuple[str, ...] = setting((), Strings(), "Racks.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fan and self.mode == "grill":
            raise SettingsError(f"{option('mode', 'grill')} goes without {option('fan')}: turn it off")


@dataclass(frozen=True, kw_only=True)
class Kiln(Oven):
    cone: int = setting(4, Count(), "Cone.", called=("heat",))


def test_a_class_reads_its_own_values() -> None:
    oven = Oven(degrees="0.2k", hours="1.5", racks="low")  # type: ignore[arg-type]
    assert (oven.degrees, oven.hours, oven.racks) == (200, 1.5, ("low",))
    assert "light" not in oven.decisive()
    with pytest.raises(SettingsError) as caught:
        Oven(degrees=301)
    assert str(caught.value) == "degrees must be between 1 and 300, not 301"
    assert caught.value.facts == {"setting": "degrees", "value": 301}


def test_an_inherited_setting_leaves_its_name_to_the_class() -> None:
    assert declared(Oven)["degrees"].flags == ["--heat", "--degrees"]
    assert declared(Kiln)["degrees"].flags == ["--degrees"]
    assert keys(Kiln)["heat"].setting.name == "cone"


def test_words_of_a_command() -> None:
    given = {"degrees": 200, "fan": False, "light": False, "hours": 0.001, "racks": ["low", "-1"], "mode": None}
    assert argv(Oven, given) == ["--heat", "200", "--still", "--hours", "0.001", "--racks", "low", "--racks=-1"]
    assert differing(Oven, {"degrees": 180, "fan": True, "racks": [], "hours": 2.0}) == {"hours": 2.0}


def run(*words: str) -> Given:
    """What the command is called with."""
    kept: list[Given] = []

    @with_settings(*options(Oven), panels=("Heat",))
    def bake(out: str, given: Given) -> None:
        kept.append(given)

    Command(bake).main(["x", *words], standalone_mode=False)
    return kept[0]


def test_options() -> None:
    assert run() == {}
    assert run("-d", "0.2k", "--still", "--grill", "--racks", "low", "--racks", "high") == {
        "degrees": 200,
        "fan": False,
        "mode": "grill",
        "racks": ("low", "high"),
    }
    assert run("--mode", "auto", "--grill") == {"mode": "grill"}


def test_two_options_that_say_different_things() -> None:
    @with_settings(*options(PrepareSettings, "dedup"))
    def command(given: Given) -> None: ...

    with pytest.raises(SettingsError, match='no_dedup contradicts dedup="doc": use only one of them'):
        command(dedup="doc", no_dedup=True)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    run_help: Any = run
    with pytest.raises((SystemExit, IndexError)):
        run_help("--help")
    told = " ".join(capsys.readouterr().out.split())
    for line in (
        "-d, --heat, --degrees N Heat. [default: 180]",
        "--fan / --still Turn the fan on, at --heat. [default: fan]",
        "--grill Same as --mode grill.",
        "--hours F Time. [default: until it is done]",
    ):
        assert line in told


def read(tmp_path: Path, text: str) -> SettingsReader:
    path = tmp_path / "oven.yaml"
    path.write_text(text)
    reader = SettingsReader("oven.yaml", Oven)
    for key, value in reader.pairs(compose(str(path))):  # type: ignore[arg-type]
        reader.take(reader.key(key, list(reader.keys)), key, value)
    return reader


def test_keys(tmp_path: Path) -> None:
    found = read(tmp_path, "heat: 0.2k\nstill: true\ngrill: true\nhours: null\nracks: [low]\n").made(None)
    assert found == Oven(degrees=200, fan=False, mode="grill", racks=("low",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("degrees: 5\nheat: 6\n", "line 2: 'heat' and 'degrees' mean the same (the other is in line 1)"),
        ("fan: true\nstill: false\n", "line 2: 'still' and 'fan' mean the same"),
        ("light: true\nheat: 400\n", "line 2: heat must be between 1 and 300, not 400"),
        ("light: true\nmode: grill\n", "line 2: mode: grill goes without fan: turn it off"),
    ],
)
def test_mistakes_have_their_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text).made(None)
    assert str(caught.value).startswith(f"oven.yaml, {sentence}")


def test_a_flag_is_that_of_the_command_that_runs() -> None:
    """A setting is named as the help shows it first; its older names, here `--format` of both, still work."""
    own = declared(PrepareSettings)
    assert as_flag("format", "text", own) == "--input-format text"
    assert as_flag("output_format", None, own) == "--output-format"
    assert (as_flag("documents", "line"), as_flag("kind", "char")) == ("--docs line", "--type char")
    assert as_flag("out", None) == "--out"
