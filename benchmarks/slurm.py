"""The script of docs/clusters.md on a Slurm of one node, started for it: the dataset must be that of one machine.

    python benchmarks/slurm.py       needs slurmctld and slurmd (Debian: slurm-wlm), and root; else it says why not

Also runs the command line of the page's Kubernetes Job, which is parsed, with a JOB_COMPLETION_INDEX as Kubernetes sets
it. Everything listens on this machine only and ends with the script.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "clusters.md"
sys.path.insert(0, str(HERE.parent / "tests"))

from cluster import write_text  # noqa: E402
from oracles_cluster import results  # noqa: E402

CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={daemon}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,defer_batch
MinJobAge=600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return "" if os.geteuid() == 0 else "slurmd needs root"


PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A controller and one node; yields the environment for its commands."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        control, daemon = one.getsockname()[1], other.getsockname()[1]
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    values = {"host": host, "control": control, "daemon": daemon, "folder": folder, "cpus": os.cpu_count()}
    conf.write_text(CONF.format(**values))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(conf)}
    programs = [
        subprocess.Popen([name, "-D", "-f", str(conf)], env=environment, stdout=log, stderr=log)
        for name in ("slurmctld", "slurmd")
        for log in [(folder / f"{name}.out").open("w")]
    ]
    try:
        for _ in range(300):
            shown = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
            if shown.stdout.strip() in ("idle", "mixed", "allocated"):
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"Slurm did not start: {shown}\n{(folder / 'slurmd.log').read_text()[-2000:]}")
        yield environment
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait()


def block(heading: str, language: str) -> str:
    section = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    return section.partition(f"```{language}\n")[2].partition("```")[0]


def run_array(inputs: Path, out: Path, folder: Path) -> None:
    script = folder / "prepare.sh"
    script.write_text(block("Slurm", "bash"))
    with slurm(folder) as environment:
        environment |= {"SLICES": "3", "CPUS": "1", "MEM": "1G", "BUDGET": "700MB", "LOGS": str(folder)}
        command = ["bash", str(script), str(inputs), str(out), "--near", "0.8", "--tokens-per-shard", "20000"]
        started = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        if started.returncode:
            raise SystemExit(started.stderr)
        while subprocess.run(["squeue", "-h"], env=environment, capture_output=True, text=True).stdout.strip():
            time.sleep(0.5)
            left = subprocess.run(["squeue", "-h", "-o", "%r"], env=environment, capture_output=True, text=True).stdout
            if "DependencyNeverSatisfied" in left:
                logs = "\n".join(path.read_text() for path in sorted(folder.glob("ramlet-*.log")))
                raise SystemExit(f"a stage failed:\n{logs}")


def run_kubernetes(inputs: Path, out: Path, folder: Path) -> None:
    """The Job's command for every index, as its pods would run it, with the paths of this machine."""
    import yaml

    job = yaml.safe_load(block("Kubernetes", "yaml"))
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert job["spec"]["completionMode"] == "Indexed"
    assert container["command"] == ["sh", "-c"]
    (line,) = container["args"]
    count = job["spec"]["completions"]
    line = line.replace("/shared/corpus", str(inputs)).replace("/shared/data", str(out))
    line = line.replace("--memory 3GB", "--memory 700MB --near 0.8 --tokens-per-shard 20000")
    stages = re.search(r"for stage in ([\w ]+);", block("Slurm", "bash"))
    assert stages is not None
    for stage in stages[1].split():
        for index in range(count if stage == "scan" else 1):
            own = line.replace("--stage scan", f"--stage {stage}")
            own = own if stage == "scan" else own.replace(f"/{count}", "/1")
            environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}
            subprocess.run(["sh", "-c", own], env=environment, check=True, stdout=subprocess.DEVNULL, cwd=folder)


def main() -> None:
    if reason := why_not():
        raise SystemExit(f"skipped: {reason}")
    with tempfile.TemporaryDirectory(prefix="ramlet-slurm-") as name:
        folder = Path(name)
        inputs = folder / "text.jsonl"
        write_text(inputs, 600_000)
        alone = ["ramlet", "prepare", str(inputs), "--out", str(folder / "alone"), "--near", "0.8"]
        subprocess.run([*alone, "--tokens-per-shard", "20000", "--quiet"], check=True)
        expected = results(folder / "alone")
        for what, run in (("Kubernetes Job", run_kubernetes), ("Slurm array", run_array)):
            out = folder / "data"
            run(inputs, out, folder)
            print(f"{what}: {'the same bytes' if results(out) == expected else 'DIFFERENT'}", flush=True)
            if results(out) != expected:
                sys.exit(1)
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
