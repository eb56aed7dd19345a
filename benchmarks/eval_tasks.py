"""`ramlet eval --task` against lm-evaluation-harness, on the same model and items.

    python benchmarks/eval_tasks.py                              # 10M parameters: 15 minutes, most of them training
    python benchmarks/eval_tasks.py --params 1M --items 100 --repeats 1 --no-results

A run learns the text of Python's standard library. From the text that it has not seen come questions (some lines, then
four continuations of which one is right), questions with letters as answers, and pairs of lines (one with two words
exchanged). lm-evaluation-harness 0.4.13 gets them as local tasks: `multiple_choice` with the fields as they are, which
is also what its BLiMP is. It reads the run's own folder through transformers, in fp32, with the batch size that is
given (`--batch-size`; the best of a few is the fair one), offline. Both use all cores.

Compared are the log-likelihoods of all choices, the accuracies with their standard errors, the time from the start of
the process to its end, and the peak resident memory.

The harness is in an environment of its own, data/lm-eval, with PyTorch and transformers; `--python` selects another.
"""

from __future__ import annotations

import argparse
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from bpe_train import HERE, Check, check, print_checks, ramlet_python
from corpora import DATA
from measure import machine, markdown_table, measure, median, megabytes

HARNESS = ("lm-eval[hf]==0.4.13",)
KINDS = ("questions", "letters", "pairs")
CLOSE = 1e-4
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: {text}
doc_to_choice: {choices}
doc_to_target: {target}
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""
QUESTION = {"text": '"{{question}}"', "choices": '"{{choices}}"', "target": "answer"}
PAIR = {"text": '""', "choices": '"{{[sentence_good, sentence_bad]}}"', "target": 0}


def harness_python(given: str | None) -> str:
    """An interpreter with lm-evaluation-harness, created if missing."""
    folder = DATA / "lm-eval"
    if given:
        return given
    if not (folder / "made").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *HARNESS], check=True)
        (folder / "made").touch()
    return str(folder / "bin" / "python")


def text() -> list[str]:
    """Lines of the standard library."""
    files = sorted(glob.glob(f"{os.path.dirname(os.__file__)}/*.py"))
    lines = (line for name in files for line in Path(name).read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if 20 <= len(line.strip()) <= 100]


def write_items(folder: Path, lines: list[str], count: int) -> None:
    """Three files of so many items each."""
    chance = random.Random(7)
    made: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(count):
        at = chance.randrange(len(lines) - 8)
        question = "\n".join(lines[at : at + chance.randint(1, 5)])
        choices = [lines[at + 6].strip(), *(line.strip() for line in chance.sample(lines, 3))]
        right = choices[0]
        chance.shuffle(choices)
        answer = choices.index(right)
        made["questions"].append({"question": question, "choices": choices, "answer": answer})
        listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices))
        asked = f"{question}\n{listed}\nAnswer:"
        made["letters"].append({"question": asked, "choices": list("ABCD"), "answer": answer})
        words = lines[at + 7].split()
        if len(words) > 1:
            one, other = chance.sample(range(len(words)), 2)
            swapped = list(words)
            swapped[one], swapped[other] = words[other], words[one]
        else:
            swapped = words[::-1]
        made["pairs"].append({"sentence_good": " ".join(words), "sentence_bad": " ".join(swapped)})
    for kind, items in made.items():
        file = folder / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        fields = PAIR if kind == "pairs" else QUESTION
        (folder / "tasks").mkdir(exist_ok=True)
        (folder / "tasks" / f"{kind}.yaml").write_text(TASK.format(name=f"our_{kind}", file=file, **fields))


def ramlet_command(python: str, folder: Path) -> list[str]:
    return [python, str(Path(__file__).resolve()), "--work", str(folder)]


def run_ramlet(folder: Path) -> None:
    """What a user would run, and the log-likelihoods besides; prints JSON."""
    from ramlet.training.evaluate_tasks import Answered, evaluate_tasks

    with (folder / "ramlet.jsonl").open("w", encoding="utf-8") as file:

        def write(name: str, one: Answered) -> None:
            file.write(json.dumps({"task": name, "likelihoods": one.likelihoods}) + "\n")

        tasks = {kind: folder / f"{kind}.jsonl" for kind in KINDS}
        scores = evaluate_tasks(folder / "run", tasks, device="cpu", answered=write)
    print(json.dumps({name: score.to_dict() for name, score in scores.items()}))


def harness_command(python: str, folder: Path, batch_size: str) -> list[str]:
    return [
        *(python, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", batch_size),
        *("--model_args", f"pretrained={folder / 'run'},dtype=float32"),
        *("--include_path", str(folder / "tasks"), "--tasks", ",".join(f"our_{kind}" for kind in KINDS)),
        *("--log_samples", "--output_path", str(folder / "harness")),
    ]


def of_ramlet(folder: Path, output: str) -> dict[str, Any]:
    likelihoods: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for line in (folder / "ramlet.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        likelihoods[one["task"]].append(one["likelihoods"])
    return {"scores": json.loads(output.splitlines()[-1]), "likelihoods": likelihoods}


def of_harness(folder: Path) -> dict[str, Any]:
    scores, likelihoods = {}, {}
    told = json.loads(max((folder / "harness").rglob("results_*.json")).read_text())["results"]
    for kind in KINDS:
        given = told[f"our_{kind}"]
        scores[kind] = {
            f"{name}{more}": given[f"{name}{more},none"] for name in ("acc", "acc_norm") for more in ("", "_stderr")
        }
        lines = max((folder / "harness").rglob(f"samples_our_{kind}_*.jsonl")).read_text().splitlines()
        items = sorted(map(json.loads, lines), key=lambda one: one["doc_id"])
        likelihoods[kind] = [[float(one[0]) for one in item["filtered_resps"]] for item in items]
    return {"scores": scores, "likelihoods": likelihoods}


def apart(ours: dict[str, Any], theirs: dict[str, Any], kind: str) -> tuple[float, float]:
    """How far log-likelihoods and scores are apart, at most."""
    pairs = zip(ours["likelihoods"][kind], theirs["likelihoods"][kind], strict=True)
    likelihood = max(abs(mine - other) for one, two in pairs for mine, other in zip(one, two, strict=True))
    scores = ours["scores"][kind]
    return likelihood, max(abs(scores[name] - theirs["scores"][kind][name]) for name in scores if name != "items")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="10M", help="of the model [default: 10M]")
    parser.add_argument("--steps", type=int, default=200, help="of training [default: 200]")
    parser.add_argument("--vocab-size", default="8k", help="of the tokenizer [default: 8k]")
    parser.add_argument("--items", type=int, default=500, help="of each kind [default: 500]")
    parser.add_argument("--repeats", type=int, default=3, help="[default: 3]")
    parser.add_argument("--batch-size", default="16", help="of the harness [default: 16]")
    parser.add_argument("--python", help="an interpreter with lm-eval [default: that of benchmarks/data/lm-eval]")
    parser.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
    parser.add_argument("--folder", type=Path, default=DATA / "eval-tasks", help="[default: data/eval-tasks]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        run_ramlet(given.work)
        return 0
    own, other = ramlet_python(given.ramlet_python), harness_python(given.python)
    folder: Path = given.folder / f"{given.params}-{given.vocab_size}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = text()
    held = lines[len(lines) * 9 // 10 :]
    write_items(folder, held, given.items)
    if not (folder / "run" / "stats.json").exists():
        (folder / "text.py").write_text("\n".join(lines[: -len(held)]), encoding="utf-8")
        ramlet = [own, "-m", "ramlet"]
        for words in (
            f"tokenizer train {folder}/text.py -v {given.vocab_size} -s <|endoftext|> -o {folder}/tokenizer",
            f"prepare {folder}/text.py --tokenizer {folder}/tokenizer --out {folder}/data",
            f"train --data {folder}/data --out {folder}/run --params {given.params} --seq-len 512 --batch-size 8 "
            f"--max-steps {given.steps} --device cpu",
        ):
            subprocess.run([*ramlet, *words.split(), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    environment = {**offline, "TOKENIZERS_PARALLELISM": "false"}
    runs: dict[str, list[Any]] = {"ramlet": [], "lm-evaluation-harness": []}
    for _ in range(given.repeats):
        runs["ramlet"].append(measure(ramlet_command(own, folder), environment=environment))
        command = harness_command(other, folder, given.batch_size)
        runs["lm-evaluation-harness"].append(measure(command, environment=environment))
    ours, theirs = of_ramlet(folder, runs["ramlet"][-1].output), of_harness(folder)
    differences = {kind: apart(ours, theirs, kind) for kind in KINDS}
    rows = [
        [kind, *(f"{side['scores'][kind]['acc']:.4f}" for side in (ours, theirs)), *(f"{each:.1e}" for each in found)]
        for kind, found in differences.items()
    ]
    header = ["items", "acc, ramlet", "acc, harness", "log-likelihoods apart", "scores and errors apart"]
    print(markdown_table(header, rows), end="\n\n")
    seconds = {name: median([one.seconds for one in some]) for name, some in runs.items()}
    peaks = {name: max(one.peak_rss for one in some) for name, some in runs.items()}
    print(markdown_table(["", "seconds", "peak memory"], [
        [name, f"{seconds[name]:.1f}", megabytes(peaks[name])] for name in runs
    ]), end="\n\n")  # fmt: skip
    checks = judged(differences, *(list(each.values()) for each in (seconds, peaks)))
    print_checks(checks)
    if not given.no_results:
        target = HERE / "results" / f"{datetime.date.today()}-eval-tasks.json"
        measured = {name: [one.as_json() for one in some] for name, some in runs.items()}
        told = {"machine": machine(), "settings": {"params": given.params, "items": given.items}, "runs": measured}
        target.write_text(json.dumps({**told, "apart": differences, "checks": checks}, indent=1) + "\n")
    return 0 if all(one["met"] for one in checks) else 1


def judged(differences: dict[str, tuple[float, float]], seconds: list[float], peaks: list[float]) -> list[Check]:
    worst = [max(each) for each in zip(*differences.values(), strict=True)]
    time, memory = seconds[0] / seconds[1], peaks[0] / peaks[1]
    return [
        check("log-likelihoods apart", f"{worst[0]:.1e}", f"at most {CLOSE}", worst[0] <= CLOSE),
        check("accuracies and standard errors apart", f"{worst[1]:.1e}", f"at most {CLOSE}", worst[1] <= CLOSE),
        check("time, of the harness's", f"{time:.2f}", "at most 0.5", time <= 0.5),
        check("memory, of the harness's", f"{memory:.2f}", "at most 0.33", memory <= 1 / 3),
    ]


if __name__ == "__main__":
    sys.exit(main())
