"""`ramlet.fit`: the same training as a loop written by hand, resumed exactly, whatever the module and the loader."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ramlet
from conftest import AMPLE
from documented import ROOT, blocks
from oracles_training import make_data
from ramlet.engines.constants import MARGIN
from ramlet.engines.torch.optim.muon import ROW_DECAY, TINY, UPDATE_SIZE
from ramlet.engines.torch.optim.plain_update import row_scales
from ramlet.engines.torch.optim.polar import orthogonalize
from ramlet.training.listener import Listener

THREADS = 1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


class Classifier(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList([Block(16) for _ in range(3)])
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        for each in self.modules():
            if isinstance(each, nn.Dropout):
                each.p = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found


def classifier(**given: Any) -> Classifier:
    torch.manual_seed(3)
    return Classifier(**given)


def pairs(batch_size: int = 8, *, shuffle: bool = True) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(44, 6, generator=generator)
    return DataLoader(TensorDataset(x, x.abs().argmax(1) % 4), batch_size=batch_size, shuffle=shuffle)


def gpt2() -> Any:
    import transformers

    torch.manual_seed(5)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.0)
    config.resid_pdrop = config.embd_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def ragged() -> list[dict[str, Tensor]]:
    """Language model batches, of which many labels are ignored, in some samples all."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(5):
        ids = torch.randint(0, 50, (6, 12), generator=generator)
        lengths = torch.randint(1, 12, (6, 1), generator=generator)
        found.append({"input_ids": ids, "labels": ids.masked_fill(torch.arange(12) >= lengths, -100)})
    return found


def fit(module: nn.Module, loader: Any, out: Path, **given: Any) -> ramlet.FitResult:
    given = {"memory": AMPLE, "threads": THREADS, "max_steps": 11, "lr": 1e-2, "log_every": 1, **given}
    return ramlet.fit(module, loader, out=out, **given)


def by_hand(module: nn.Module, batches: list[Any], loss: Any, steps: int, rate: float) -> list[float]:
    """A loop over whole batches."""
    decayed = [each for each in module.parameters() if each.dim() > 1]
    others = [each for each in module.parameters() if each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    module.train()
    losses = []
    for step in range(steps):
        value = loss(module, batches[step % len(batches)])
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(value.detach()))
    return losses


def logged(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: nn.Module, other: nn.Module, *, close: float = 0.0) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        if close:
            assert torch.allclose(a.float(), b.float(), atol=close, rtol=0), name
        else:
            assert torch.equal(a, b), name


def cross_entropy(module: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(module(batch[0]), batch[1])


CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup": 0}


def test_the_same_steps_as_by_hand(tmp_path: Path) -> None:
    """Whole batches: the same bits. The trial before it leaves no trace, not even in the statistics of a norm."""
    ours, theirs = classifier(dropout=0.0), classifier(dropout=0.0)
    batches = list(pairs(shuffle=False))
    result = fit(ours, batches, tmp_path / "run", loss=nn.CrossEntropyLoss(), **CONSTANT)
    losses = by_hand(theirs, batches, cross_entropy, 11, 1e-2)
    assert result.plan.micro_batch == 8
    assert_same(ours, theirs, close=2e-6)  # clipping divides in another order
    found = [line["loss"] for line in logged(tmp_path / "run") if "loss" in line]
    assert found == pytest.approx(losses, abs=2e-6)
    assert result.count == sum(len(batches[step % len(batches)][0]) for step in range(11))


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_ignored_labels_weigh_nothing(micro_batch: int, tmp_path: Path) -> None:
    """Micro-batches with different numbers of labels: the step is the mean over all of them."""
    ours, theirs = gpt2(), gpt2()
    batches = ragged()
    result = fit(ours, batches, tmp_path / "run", micro_batch=micro_batch, max_steps=5, lr=1e-3, **CONSTANT)
    losses = by_hand(theirs, batches, lambda module, batch: module(**batch).loss, 5, 1e-3)
    found = [line["loss"] for line in logged(tmp_path / "run") if "loss" in line]
    assert found == pytest.approx(losses, abs=1e-5)
    assert_same(ours, theirs, close=2e-4)
    assert result.plan.unit == "tokens"
    assert result.count == sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)


def test_a_loss_may_return_sum_and_count(tmp_path: Path) -> None:
    def summed(module: nn.Module, batch: Any) -> tuple[Tensor, int]:
        x, y = batch
        kept = y != 0
        return functional.cross_entropy(module(x)[kept], y[kept], reduction="sum"), int(kept.sum())

    def mean(module: nn.Module, batch: Any) -> Tensor:
        total, count = summed(module, batch)
        return total / count

    def plain() -> nn.Module:
        torch.manual_seed(4)
        return nn.Linear(6, 4)

    ours, theirs = plain(), plain()
    batches = list(pairs(shuffle=False))
    fit(ours, batches, tmp_path / "run", loss=summed, micro_batch=3, **CONSTANT)
    by_hand(theirs, batches, mean, 11, 1e-2)
    assert_same(ours, theirs, close=1e-5)


class StopAt(Listener):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, *_: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("optimizer", ["auto", "adamw8bit", "muon", sgd])
def test_resumes_exactly(optimizer: Any, tmp_path: Path) -> None:
    """Dropout, batch statistics, a shuffled DataLoader, several epochs, two batches per step."""
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "micro_batch": 3}
    given |= {"gradient_accumulation_steps": 2, "evals": pairs(shuffle=False), "eval_every": 4}
    if optimizer is sgd:
        given["lr"] = None
    whole = classifier()
    fit(whole, pairs(), tmp_path / "whole", **given)
    stopped = classifier()
    with pytest.raises(ramlet.Interrupted, match="saved"):
        fit(stopped, pairs(), tmp_path / "parts", listener=StopAt(7), **given)
    resumed = classifier()
    torch.manual_seed(99)  # whatever the caller's generators are
    before = torch.get_rng_state()
    result = fit(resumed, pairs(), tmp_path / "parts", **given)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(resumed, whole)
    assert result.steps == 11
    times = ("samples_per_second", "memory", "seconds")
    lines = [
        [{k: v for k, v in line.items() if k not in times} for line in logged(tmp_path / n)] for n in ("whole", "parts")
    ]
    assert lines[0] == lines[1]
    if optimizer is sgd:
        assert max(line["lr"] for line in lines[0] if "lr" in line) == 0.05


def test_an_optimizer_that_was_stopped_has_its_own_rate_again(tmp_path: Path) -> None:
    """As in a notebook, where the cell of a run that was stopped runs again, with the same objects."""
    modules = [classifier(), classifier()]
    whole, parts = (
        {"loss": nn.CrossEntropyLoss(), "optimizer": sgd(each.parameters()), "lr": None} for each in modules
    )
    fit(modules[0], pairs(), tmp_path / "whole", **whole)
    with pytest.raises(ramlet.Interrupted, match="saved"):
        fit(modules[1], pairs(), tmp_path / "parts", listener=StopAt(9), **parts)
    assert parts["optimizer"].param_groups[0]["lr"] == 0.05
    fit(modules[1], pairs(), tmp_path / "parts", **parts)
    assert_same(modules[1], modules[0])


def test_a_longer_run_keeps_its_warmup_and_its_floor(tmp_path: Path) -> None:
    given = {"loss": nn.CrossEntropyLoss(), "eval_every": 0}
    fit(classifier(), pairs(), tmp_path / "run", min_lr=1e-4, **given)
    fit(classifier(), pairs(), tmp_path / "run", max_steps=41, resume=True, **given)
    job = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["job"]
    assert (job["steps"], job["warmup"], job["min_lr"]) == (41, 1, 1e-4)


def test_a_finished_run_gives_its_weights(tmp_path: Path) -> None:
    done, again = classifier(), classifier()
    fit(done, pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss())
    result = fit(again, pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss())
    assert result.already_done
    assert_same(again, done)
    longer = fit(again, pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss(), max_steps=13, resume=True)
    assert longer.steps == 13


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    plain, recomputed = classifier(), classifier()
    for module, recompute in ((plain, False), (recomputed, True)):
        result = fit(module, pairs(), tmp_path / str(recompute), loss=nn.CrossEntropyLoss(), recompute=recompute)
        assert result.plan.recompute is recompute
        assert all("forward" not in vars(each) for each in module.modules())
    assert_same(plain, recomputed)


def test_transformers_checkpoint_themselves(tmp_path: Path) -> None:
    plain, recomputed = gpt2(), gpt2()
    for module, recompute in ((plain, False), (recomputed, True)):
        fit(module, ragged(), tmp_path / str(recompute), recompute=recompute, max_steps=3)
        assert not module.is_gradient_checkpointing
    assert_same(plain, recomputed)


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    module, other = gpt2(), gpt2()
    fit(module, ragged(), tmp_path / "run", max_steps=3)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert "transformer.wte.weight" in saved
    assert "lm_head.weight" not in saved
    load_model(other, tmp_path / "run" / "model.safetensors")
    assert_same(module, other)


def test_muon_is_that_of_ramlets_models(tmp_path: Path) -> None:
    """The first step, against its definition in plain torch; the output layer gets AdamW."""

    def plain() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 24, bias=False), nn.Tanh(), nn.Linear(24, 24, bias=False), nn.Linear(24, 4))

    ours, theirs = plain(), plain()
    batches = list(pairs(shuffle=False))
    fit(ours, batches, tmp_path / "run", loss=nn.CrossEntropyLoss(), optimizer="muon", max_steps=1, weight_decay=0.0)
    cross_entropy(theirs, batches[0]).backward()
    for number in (0, 2):
        matrix = theirs[number].weight
        assert matrix.grad is not None
        tall = matrix.shape[0] > matrix.shape[1]
        grad = matrix.grad.mT if tall else matrix.grad
        x = orthogonalize((grad / (grad.norm() * MARGIN))[None].contiguous())
        update = x.mT if tall else x
        squares = torch.zeros(1, len(matrix), 1)
        scales = row_scales(update, squares, torch.tensor(1e-2 * UPDATE_SIZE), ROW_DECAY, TINY)
        wanted = matrix.detach() - (update * scales[:, :, None])[0]
        assert torch.allclose(ours[number].weight, wanted, atol=1e-5)
    moved = (ours[3].weight - theirs[3].weight).abs()
    assert torch.allclose(moved, torch.full_like(moved, 1e-2), rtol=1e-2)  # Adam's first step is the sign


def test_ramlets_own_loader(tmp_path: Path) -> None:
    data = make_data(tmp_path, lines=120)
    import transformers

    def model() -> Any:
        torch.manual_seed(5)
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        )

    def loader() -> ramlet.Loader:
        return ramlet.Loader(data, seq_len=16, batch_size=5)

    given: dict[str, Any] = {"evals": {"val": ramlet.Loader(data, split="val", seq_len=16, batch_size=5)}}
    whole, parts = model(), model()
    result = fit(whole, loader(), tmp_path / "whole", **given)
    assert result.scores["val"]["perplexity"] > 1
    with pytest.raises(ramlet.Interrupted):
        fit(parts, loader(), tmp_path / "parts", listener=StopAt(6), **given)
    parts = model()
    fit(parts, loader(), tmp_path / "parts", **given)
    assert_same(parts, whole)
    steps = ramlet.fit(model(), loader(), out=tmp_path / "epoch", memory=AMPLE, threads=THREADS).steps
    assert steps == -(-len(loader().examples) // 5)


def test_longer_samples_than_were_measured(tmp_path: Path) -> None:
    """They are trained in smaller micro-batches; without room for one, the run stops before."""

    class Growing:
        def __iter__(self) -> Iterator[Any]:
            for number in range(12):
                yield torch.ones(8, 4 if number < 9 else 9, 3), torch.zeros(8, dtype=torch.int64)

    seen = []

    def loss(module: nn.Module, batch: Any) -> Tensor:
        seen.append(tuple(batch[0].shape[:2]))
        return functional.cross_entropy(module(batch[0].mean(1)), batch[1])

    fit(nn.Linear(3, 2), Growing(), tmp_path / "run", loss=loss, max_steps=10)
    assert seen[-1][1] == 9
    assert seen[-1][0] < 8


def test_arrays_that_torch_does_not_take(tmp_path: Path) -> None:
    """Reversed ones and those of another byte order are copied; text is a list, sliced like the tensors."""
    x, names = np.arange(12, dtype=">f4").reshape(4, 3) / 12, np.array(["a", "b", "c", "d"])
    seen: list[tuple[Any, list[str]]] = []

    def watched(module: nn.Module, batch: Any) -> Tensor:
        assert isinstance(batch["names"], list)
        seen.append((batch["x"].tolist(), batch["names"]))
        return module(batch["x"]).square().mean()

    fit(nn.Linear(3, 2), [{"x": x[::-1], "names": names}], tmp_path / "run", loss=watched, max_steps=1, micro_batch=2)
    assert seen[-2:] == [(x[::-1][:2].tolist(), ["a", "b"]), (x[::-1][2:].tolist(), ["c", "d"])]


def test_a_report(tmp_path: Path) -> None:
    fit(classifier(), pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss(), evals=pairs(shuffle=False))
    page = ramlet.report(tmp_path / "run").read_text()
    assert "Classifier" in page
    assert "samples per second" in page.lower()
    assert "language model" not in page
    assert "Predicted and measured" in page


def test_folders_of_other_runs(tmp_path: Path) -> None:
    fit(classifier(), pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss())
    with pytest.raises(ramlet.SettingsError, match=r"ramlet\.fit"):
        ramlet.train(make_data(tmp_path), tmp_path / "run", params=40_000, memory=AMPLE)
    with pytest.raises(ramlet.SettingsError, match="another module"):
        fit(nn.Linear(6, 4), pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss())
    with pytest.raises(ramlet.SettingsError, match="clip"):
        fit(classifier(), pairs(), tmp_path / "run", loss=nn.CrossEntropyLoss(), clip=0.5)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/your-own-model.md, from top to bottom."""
    make_data(tmp_path, "my-dataset", lines=400)
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "docs" / "your-own-model.md", "python")
    assert len(found) == 3
    for block in found:
        exec(compile(block.replace('"4GB"', f'"{AMPLE}"'), "the page", "exec"), {})
    assert (tmp_path / "my-module" / "model.safetensors").is_file()
    assert (tmp_path / "my-gpt2" / "stats.json").is_file()
