"""A module that is trained, with its loss, on its device.

    subject = Subject.of(module, loss, device=None, threads=None, precision="fp32")
    plan, trainee = subject.plan(batch, budget, meter, ...), subject.trainee("adamw", settings, plan)

The rest of ramlet knows torch only by this object (`open_subject` in ramlet.engines.opening).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ramlet.engines import Hyperparameters
from ramlet.engines.torch.base_memory import KeptBlocks, keep_large_blocks
from ramlet.engines.torch.engine import TorchEngine
from ramlet.engines.torch.modules import batches, optimizers
from ramlet.engines.torch.modules.checkpointing import Checkpointing
from ramlet.engines.torch.modules.losses import Loss
from ramlet.engines.torch.modules.pieces import Piece, divided, parts_of
from ramlet.engines.torch.modules.plan import ModulePlan
from ramlet.engines.torch.modules.search import Search
from ramlet.engines.torch.modules.seeding import DATA, EVAL, key_of, restored_generators, seed_all
from ramlet.engines.torch.modules.trainee import ModuleTrainee, named_tensors
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.stored import stored
from ramlet.errors import SettingsError, option
from ramlet.model.tensor_file import read_tensors_into
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural

PRECISIONS = ("fp32", "bf16")
TRAINED = (torch.float32, torch.bfloat16, torch.float64)
"""What parameters may be while they are trained. In fp16 an `eps` of 1e-8 is 0, and so a step without gradients NaN."""
Module = nn.Module
Optimizer = torch.optim.Optimizer


class Subject:
    def __init__(self, module: nn.Module, loss: Any, engine: TorchEngine, device: torch.device, precision: str) -> None:
        self.module, self.engine, self.device, self.precision = module, engine, device, precision
        self.loss = Loss(module, loss, precision)

    @classmethod
    def of(cls, module: Any, loss: Any, *, device: str | None, precision: str) -> Subject:
        """Refuses what cannot be trained; moves the module if `device` is another than its own."""
        if not isinstance(module, nn.Module):
            raise SettingsError(f"{option('module')} must be a torch.nn.Module, not {type(module).__name__}")
        if precision not in PRECISIONS:
            raise SettingsError(f"a module is trained in {' or '.join(PRECISIONS)}, not {precision}")
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise SettingsError(
                "the module has lazy parameters, whose shapes are not known yet: run it once on a batch before"
            )
        if not optimizers.trainable(module):
            raise SettingsError(
                "the module has no trainable parameter: set requires_grad of those that should be trained"
            )
        devices = sorted({str(each.device) for each in (*module.parameters(), *module.buffers())})
        if len(devices) > 1:
            raise SettingsError(
                f"the module is on several devices ({', '.join(devices)}), and a budget is that of one: "
                "move it to one with module.to(device)"
            )
        if devices == ["meta"]:
            raise SettingsError("the module has no weights, only their shapes (meta): create it on a device")
        named_tensors(module)
        for name, parameter in optimizers.trainable(module):
            if parameter.dtype not in TRAINED:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise SettingsError(
                    f"{name} of the module is trained in {kind}, whose numbers are too coarse for updates: convert it "
                    "with module.float() or module.bfloat16(), or freeze it"
                )
        where = _place(devices[0] if device in (None, "auto") else str(device))
        engine = TorchEngine.on(where.type)
        if where.type == "cuda":
            where = torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
            engine = TorchEngine("cuda", where.index, TorchRanks(), "cuda")
        return cls(module, loss, engine, where, precision)

    def place(self) -> None:
        """Moves the module to its device, and into training mode."""
        if next(self.module.parameters()).device != self.device:
            self.module.to(self.device)
        if not self.module.training:
            self.module.train()

    def described(self) -> dict[str, Any]:
        """For settings.yaml: what distinguishes this module from others."""
        tensors = named_tensors(self.module)
        listed = "".join(f"{name} {tuple(each.shape)} {each.dtype}\n" for name, each in sorted(tensors.items()))
        return {
            "module": type(self.module).__name__,
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "trainable": sum(parameter.numel() for _, parameter in optimizers.trainable(self.module)),
            "tensors": hashlib.sha256(listed.encode()).hexdigest()[:16],
        }

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The module and the random generators are the caller's again after the block: hooks, modes, allocator."""
        checkpointing, training = Checkpointing(self.module), self.module.training
        try:
            with restored_generators(self.device):
                yield
        finally:
            checkpointing.disable()
            self.module.zero_grad()
            if not training:
                self.module.eval()
            keep_large_blocks(True)
            self.engine.release()
            if self.device.type == "cuda":
                torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    # Plans.

    def plan(
        self,
        batch: Any,
        budget: Budget,
        meter: Meter,
        settings: Hyperparameters,
        *,
        optimizer: Any,
        clip: float,
        accumulation: int,
        **fixed: Any,
    ) -> ModulePlan:
        """A plan that fits and was measured; `fixed` are micro_batch, recompute and reuse. Leaves the module ready."""
        search = Search(
            self.module,
            self.loss,
            batch,
            engine=self.engine,
            device=self.device,
            budget=budget,
            meter=meter,
            settings=settings,
            clip=clip,
            precision=self.precision,
            accumulation=accumulation,
        )
        return search.plan(optimizer, **fixed)

    def read_weights(self, file: Path) -> None:
        """Those of a run that is done."""
        read_tensors_into(file, stored(named_tensors(self.module)))

    def optimizer_name(self, optimizer: Any) -> str:
        return optimizers.name_of(optimizer, self.module)

    def noted_plan(self, values: Mapping[str, Any]) -> ModulePlan:
        return ModulePlan.from_dict(values)

    def trainee(self, optimizer: Any, settings: Hyperparameters, plan: ModulePlan) -> ModuleTrainee:
        made = optimizers.make(optimizer, self.module, settings, precision=self.precision)
        kept = KeptBlocks(plan.budget) if plan.reuse and self.device.type == "cpu" else None
        return ModuleTrainee(self.module, self.loss, made, device=self.device, seed=settings.seed, kept=kept)

    # Data.

    def tensors(self, batch: Any) -> Any:
        return batches.as_tensors(batch)

    def size(self, batch: Any) -> int:
        """Elements of a batch."""
        return sum(tensor.numel() for tensor in batches.tensors(batch))

    def rows(self, batch: Any) -> int:
        return batches.rows(batch)

    def count(self, batch: Any) -> float:
        """What a batch counts: targets or samples; 0 if all of its targets are ignored."""
        return self.loss.count(batch)

    def pieces(self, batch: Any, plan: ModulePlan, *, number: int, last_of_step: bool) -> Iterator[Piece]:
        return divided(batch, plan, self.loss, number=number, last_of_step=last_of_step)

    def seed_loader(self, loader: Any, seed: int, epoch: int) -> None:
        """Before an epoch begins; also the generators that a DataLoader has been given."""
        for owner in (loader, getattr(loader, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(key_of(seed, DATA, epoch))
        seed_all(self.device, seed, DATA, epoch)

    def seed_data(self, seed: int, epoch: int, number: int) -> None:
        """Before a batch is read."""
        seed_all(self.device, seed, DATA, epoch, number)

    def seed_evaluation(self, seed: int, number: int) -> None:
        seed_all(self.device, seed, EVAL, number)

    def scored(
        self, trainee: ModuleTrainee, found: Iterator[Any], plan: ModulePlan, progress: Callable[[int], None]
    ) -> tuple[float, float]:
        """The mean loss over batches, and what they count; `progress` is called with the batches done."""
        total = count = 0.0
        with trainee.evaluating():
            for done, batch in enumerate(found):
                progress(done)
                for start, stop in parts_of(batch, plan):
                    part = batches.sliced(batch, start, stop)
                    if self.loss.count(part):
                        mean, weight = trainee.mean_loss(part)
                        total, count = total + mean * weight, count + weight
        return total / (count or 1.0), count


def _place(name: str) -> torch.device:
    """A device by its name, such as cuda:1."""
    if re.fullmatch(r"(cpu|cuda(:\d{1,3})?)", name) is None:
        raise SettingsError(f"a module is trained on cpu, cuda or a GPU such as cuda:1, not on {name!r}")
    where = torch.device(name)
    if where.index is not None and where.index >= torch.cuda.device_count():
        raise SettingsError(
            f"there is no {name}: PyTorch finds {plural(torch.cuda.device_count(), 'GPU')}, counted from 0; choose "
            f"another {option('device')}"
        )
    return where
