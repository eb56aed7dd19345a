"""The four loops of docs/your-own-loop.md, as a user runs them: two ranks with two workers each, a crash, and again."""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import ramlet
from documented import ROOT, blocks
from oracles_training import make_data, ranks

PAGE = ROOT / "docs" / "your-own-loop.md"
LOOPS = dict(zip(("plain", "torch", "accelerate", "trainer", "lightning"), blocks(PAGE, "python")))
IMPORTS = {
    "torch": ("transformers.models.auto.modeling_auto",),
    "accelerate": ("accelerate",),
    "trainer": ("accelerate", "transformers.trainer"),
    "lightning": ("lightning.pytorch", "lightning.pytorch.callbacks", "transformers.models.auto.modeling_auto"),
}
STEPS, CRASH, SAVED, ROWS = 18, 14, 10, 8
"""Steps of an epoch; at which both ranks crash; the last checkpoint before that; sequences of a step."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a dataset and a model of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("loops")
    data = make_data(folder, "my-dataset", lines=86, val_fraction=0.0)
    assert len(ramlet.Loader(data, seq_len=16).examples) >= STEPS * ROWS
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "my-model")
    return folder


def work(program: str, folder: str, told: str, crash: bool) -> None:
    """One rank: runs the program in `folder`, with every forward pass told to a file, and crashes in the middle."""
    from transformers import LlamaForCausalLM

    warnings.simplefilter("ignore")
    os.environ.update(TORCHELASTIC_RUN_ID="test", ACCELERATE_USE_CPU="true", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    os.chdir(folder)
    torch.set_num_threads(1)
    forward = LlamaForCausalLM.forward
    calls = 0

    @functools.wraps(forward)
    def telling(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if crash and calls > CRASH:
            os._exit(9)
        answer = forward(self, *given, **named)
        rows = named["input_ids"]
        logits = answer.logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.detach(), named["labels"][:, 1:].flatten())
        with open(f"{told}.{os.environ['RANK']}", "a") as file:
            file.write(json.dumps([rows.tolist(), float(loss)]) + "\n")
        return answer

    LlamaForCausalLM.forward = telling  # type: ignore[method-assign]
    exec(compile(program, "a loop of the page", "exec"), {"__name__": "__main__"})


def told_by(path: Path) -> list[list[tuple[list[list[int]], float]]]:
    """The forward passes of both ranks, step by step."""
    both = [[json.loads(line) for line in Path(f"{path}.{rank}").read_text().splitlines()] for rank in range(2)]
    assert len(both[0]) == len(both[1])
    return [list(step) for step in zip(*both)]


@pytest.fixture(scope="module")
def expected(home: Path) -> list[tuple[list[list[int]], float]]:
    """The rows and the loss of each step, of a loop in one process without DataLoader, ranks or frameworks."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(home / "my-model").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    steps = []
    whole: dict[str, Any] = {"seq_len": 16, "batch_size": ROWS, "epochs": 1, "max_examples": STEPS * ROWS}
    with ramlet.Loader(home / "my-dataset", **whole, as_torch=True) as loader:
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append((sorted(batch.input_ids.tolist()), loss.item()))
    return steps


def test_they_are_short() -> None:
    assert all(len(block.splitlines()) <= 40 for block in LOOPS.values())
    assert set(re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)) == {
        "PyTorch",
        "accelerate",
        "transformers",
        "Lightning",
    }


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "plain"])
def test_every_row_once_the_same_loss_and_exact_after_a_crash(
    name: str, home: Path, expected: list[tuple[list[list[int]], float]], tmp_path: Path
) -> None:
    for link in ("my-dataset", "my-model"):
        (tmp_path / link).symlink_to(home / link)
    # Whole steps: a short last one is an uneven mean over ranks, in every framework.
    program = LOOPS[name].replace("seq_len=16", f"seq_len=16, max_examples={STEPS * ROWS}")
    assert program != LOOPS[name]
    given = (program, str(tmp_path))
    for module in IMPORTS[name]:  # once, instead of in each of the processes that are forked
        import_module(module)
    assert ranks(2, work, *given, str(tmp_path / "first"), True) == [9, 9]
    assert ranks(2, work, *given, str(tmp_path / "again"), False) == [0, 0]
    first, again = told_by(tmp_path / "first"), told_by(tmp_path / "again")
    assert len(first) == CRASH
    assert first[SAVED:] == again[: CRASH - SAVED]  # bit for bit
    steps = first[:SAVED] + again
    rows = [row for step in steps for rows, _ in step for row in rows]
    assert len(rows) == len(set(map(tuple, rows))) == STEPS * ROWS
    assert sorted(rows) == sorted(row for rows, _ in expected for row in rows)
    for step, (wanted, loss) in zip(steps, expected):
        assert sorted(row for rows, _ in step for row in rows) == wanted
        assert sum(each for _, each in step) / 2 == pytest.approx(loss, rel=1e-4)
