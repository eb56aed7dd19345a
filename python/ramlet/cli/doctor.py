"""`ramlet doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from click.exceptions import Exit

from ramlet.cli.color import bold, marked
from ramlet.cli.options import Json, Quiet, print_json
from ramlet.cli.parameters import Argument
from ramlet.cli.plan import rough_duration
from ramlet.cli.wording import sentence_of
from ramlet.errors import RamletError
from ramlet.reporting.markup import short
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural

MISSING = "not installed"


def doctor(
    folder: Annotated[
        Path, Argument(metavar="DIR", shown="this folder", help="The folder you want to work in.")
    ] = Path("."),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what this machine has, what ramlet would do with it, and any problems.

    Takes a few seconds: the disk is measured with a 64 MB file, and the engine is loaded. The exit code is 1 if there
    is a problem, 0 if there are only warnings.

      ramlet doctor
      ramlet doctor --json
    """
    from ramlet.reporting.doctor import examine

    report = examine(folder)
    for one in report["advice"]:
        one["text"] = sentence_of(RamletError(one["text"]))
    if json:
        print_json(report)
    else:
        if not quiet:
            for title, rows in (("This machine", _machine(report)), ("What ramlet would do", _proposal(report))):
                print(bold(title, sys.stdout))
                for name, text in rows:
                    print(f"  {name:<12} {text}")
                print()
        for one in report["advice"]:
            print(marked(f"{one['level']}: {one['text']}", sys.stdout))
        if not report["advice"]:
            print("no problems found")
    if any(one["level"] == "problem" for one in report["advice"]):
        raise Exit(1)


def _machine(report: dict[str, Any]) -> list[tuple[str, str]]:
    memory, processor, disk = report["memory"], report["processor"], report["disk"]
    limit = memory["cgroup_limit"]
    within = "" if limit is None else f", {format_bytes(limit)} for this container"
    cores = f"{processor['allowed']} of {processor['cores']} cores"
    if processor["quota"] is not None:
        cores += f", limited to the time of {processor['quota']:g}"
    speed = "not measured"
    if disk["write_speed"] is not None:
        read = "" if disk["read_speed"] is None else f", reads {format_bytes(disk['read_speed'])}/s"
        speed = f"writes {format_bytes(disk['write_speed'])}/s{read}"
    files = report["limits"]["open_files"]
    rows = [
        ("memory", f"{format_bytes(memory['free'])} free of {format_bytes(memory['total'])}{within}"),
        ("processor", f"{processor['name']}, {cores}, vectors: {processor['vectors']}"),
        *(("GPU", _describe_gpu(gpu)) for gpu in report["engine"].get("gpus", [])),
        *([("JAX", _describe_devices(report["jax"]["devices"]))] if report["jax"].get("devices") else []),
        ("disk", f"{format_bytes(disk['free'])} free in {disk['path']} ({disk['kind'] or 'unknown'}), {speed}"),
        ("temporary", f"{format_bytes(report['temporary']['free'])} free in {report['temporary']['path']}"),
        ("open files", "unlimited" if files is None else f"at most {files:,}"),
    ]
    versions = {name: version or MISSING for name, version in report["versions"].items()}
    rows.append(("software", f"ramlet {versions['ramlet']}, Python {versions['python']}, {versions['system']}"))
    others = [name for name in versions if name not in ("ramlet", "python", "system")]
    rows.append(("", ", ".join(f"{name} {versions[name]}" for name in others if versions[name] != MISSING)))
    absent = [name for name in others if versions[name] == MISSING]
    return [*rows, ("", f"{MISSING}: {', '.join(absent)}")] if absent else rows


def _describe_gpu(gpu: dict[str, Any]) -> str:
    bf16 = "bf16" if gpu["bf16"] else "no bf16"
    return f"{gpu['name']}, {format_bytes(gpu['free'])} free of {format_bytes(gpu['memory'])}, {bf16}"


def _describe_devices(devices: list[dict[str, Any]]) -> str:
    first = devices[0]
    memory = f", {format_bytes(first['memory'])} each" if first["memory"] else ""
    return f"{plural(len(devices), 'device')}: {first['kind']} ({first['name']}){memory}; used with --engine jax"


def _proposal(report: dict[str, Any]) -> list[tuple[str, str]]:
    plan = report["plan"]
    rows = [
        ("budget", f"{format_bytes(plan['budget'])} (--memory auto: 60% of free memory)"),
        ("threads", str(plan["threads"])),
    ]
    if plan["device"] is None:
        return [*rows, ("training", "no engine starts; tokenizers and datasets work without one")]
    place = plan["device"]
    if place == "cuda":
        place += f", with {format_bytes(plan['device_budget'])} of its memory"
    rows.append(("training", f"on {place}, in {plan['precision']}, with the {report['engine']['name']} engine"))
    largest = plan["largest"]
    if largest is None:
        return [*rows, ("largest", "no model fits")]
    rows.append(("largest", _describe_model(largest) + "; larger ones were not tried" * report["engine"]["all_fit"]))
    if plan["in_a_day"] is not None:
        rows.append(("in a day", f"{_describe_model(plan['in_a_day'])}; see ramlet plan for more"))
    return rows


def _describe_model(row: dict[str, Any]) -> str:
    size = f"{short(row['params'])} parameters in {format_bytes(row['peak'])}"
    return f"{size}, about {rough_duration(row['seconds'])} for {short(row['tokens'])} tokens"
