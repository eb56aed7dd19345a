"""A model with its optimizer: learn from micro-batches, then step.

    trainee = Trainee(shape, choice, settings, device="cpu")
    for batch in micro_batches:
        loss += trainee.learn(batch, scale=1 / tokens)
    grad_norm = trainee.update(rate=1e-3, clip=1.0)

fp16 has too small a range for gradients: there they are made `loss_scale` times as large and made small again inside
the step; a step with a gradient that is no number is left out and halves it, 2,000 good ones double it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters, Pending, training_names
from ramlet.engines.plan import Choice, Plan
from ramlet.engines.torch.base_memory import keep_large_blocks
from ramlet.engines.torch.captured import CapturedStep, warm_up
from ramlet.engines.torch.gpt import GPT, document_mask
from ramlet.engines.torch.model_files import load_weights, tensors_by_name
from ramlet.engines.torch.optim.adamw import AdamW
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.stored import stored
from ramlet.engines.torch.weights import DTYPES
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored

__all__ = ["Trainee"]

LARGEST_LOSS_SCALE = 2.0**16
STEPS_TO_DOUBLE = 2000


class Trainee:
    """What is trained: weights, gradients, optimizer states."""

    def __init__(
        self, shape: Shape, choice: Choice, settings: Hyperparameters, *, device: str, ranks: TorchRanks | None = None
    ) -> None:
        self.ranks = ranks or TorchRanks()
        keep_large_blocks(choice.reuse)
        self.model = GPT(
            shape,
            device=device,
            dtype=DTYPES[choice.weights],
            compute=DTYPES[choice.compute],
            chunk=choice.chunk,
            recompute=choice.recompute,
            held=choice.held,
        )
        self.model.weights.make_gradients()
        self.optimizer = _optimizer(self.model, choice, settings)
        self.loss_scale = LARGEST_LOSS_SCALE if choice.compute == "fp16" else 1.0
        self._scaled = choice.compute == "fp16"
        self._captured: dict[int, CapturedStep] = {}
        self._good_steps = 0

    def learn(self, batch: Mapping[str, Any], scale: float) -> Tensor:
        """The batch's summed loss; `scale` times its gradient is added to the gradients."""
        if not len(batch["targets"]):  # a step smaller than the number of ranks
            return torch.zeros((), device=self.model.device, dtype=torch.float64)
        names = training_names("document_ids" in batch)
        placed = {name: torch.as_tensor(batch[name]).to(self.model.device, non_blocking=True) for name in names}
        captured = self._captured.get(len(placed["input_ids"]))
        if captured is not None and captured.fits(placed, scale):
            return captured.replay(placed)
        return self._learn(placed, scale)

    def _learn(self, placed: Mapping[str, Tensor], scale: float) -> Tensor:
        return self.model.learn(
            placed["input_ids"],
            placed["targets"],
            scale * self.loss_scale,
            positions=placed.get("position_ids"),
            mask=document_mask(placed.get("document_ids")),
        )

    def prepare(self, plan: Plan, rank: int) -> None:
        scale = 1.0 / (plan.batch_size * plan.seq_len)
        self.capture(plan.part_sizes(rank), plan.seq_len, scale, document_mask=plan.document_mask)

    def capture(self, sizes: Iterable[int], seq_len: int, scale: float, *, document_mask: bool) -> None:
        """On a GPU: from here on batches of these sizes are learned from by replaying. Clears the gradients."""
        if self.model.device.type != "cuda" or self._scaled:
            return
        names = training_names(document_mask)
        blanks = [
            {name: torch.zeros((rows, seq_len), dtype=torch.int64, device=self.model.device) for name in names}
            for rows in sorted(sizes, reverse=True)
        ]
        for blank in blanks:
            warm_up(self._learn, blank, scale)
        for blank in blanks:
            # One is replayed at a time, so the smaller ones find room in what the largest holds.
            first = next(iter(self._captured.values()), None)
            self._captured[len(blank["targets"])] = CapturedStep(self._learn, blank, scale, beside=first)
        self.model.weights.clear_gradients()

    def over_ranks(self, loss: Pending, tokens: int) -> tuple[Pending, int]:
        if self.ranks.world == 1:
            return loss, tokens
        total = torch.as_tensor(loss, device=self.model.device, dtype=torch.float64)
        counted = torch.tensor(float(tokens), device=self.model.device)
        self.ranks.sum(total, counted)
        return total, int(counted.item())

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Tensor:
        """One step of the optimizer; returns the gradient norm. Gradients are zero afterwards.

        `correction` is by how much the gradients are to be multiplied before all else: labels that were left out
        make a step smaller than was assumed while it was learned from. On a CPU, and in fp16, a norm that is no
        number leaves the weights as they are; on a GPU the caller looks at it a step later, so that the device
        never waits.
        """
        weights = self.model.weights
        self.model.settle_gradients()
        grads = [flat.grad for flat in weights.flat if flat.grad is not None]
        self.ranks.sum(*grads)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norms = [self.model.kernels.grad_norm(grad) for grad in grads]
        grad_norm: Tensor = torch.linalg.vector_norm(torch.stack(norms)) * (correction / self.loss_scale)
        clipping = (clip / (grad_norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(grad_norm)
        factor = correction / self.loss_scale * clipping
        if self.model.device.type == "cuda" and not self._scaled:
            for grad in grads:
                grad.mul_(factor)
            self.optimizer.step()
        else:
            good = math.isfinite(float(grad_norm))
            if good:
                self._step_by(grads, float(factor))
            self._rescale(good)
        weights.refresh()
        weights.clear_gradients()
        return grad_norm

    def _step_by(self, grads: list[Tensor], factor: float) -> None:
        if isinstance(self.optimizer, torch.optim.AdamW):
            if factor != 1.0:
                for grad in grads:
                    grad.mul_(factor)
            self.optimizer.step()
        else:
            self.optimizer.step(grad_scale=factor)  # type: ignore[call-overload]  # within the pass that it makes anyway

    def _rescale(self, good: bool) -> None:
        if not self._scaled:
            return
        self._good_steps = self._good_steps + 1 if good else 0
        if not good:
            self.loss_scale /= 2
        elif self._good_steps % STEPS_TO_DOUBLE == 0:
            self.loss_scale = min(LARGEST_LOSS_SCALE, self.loss_scale * 2)

    @property
    def overflow_is_normal(self) -> bool:
        """Whether a gradient that is no number is only fp16's range, and no end of the run."""
        return self._scaled and self.loss_scale > 1.0

    def scale_state(self) -> dict[str, Any]:
        return {"loss_scale": self.loss_scale, "good_steps": self._good_steps}

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        """All tensors have been read into."""
        self.model.weights.refresh()
        self.loss_scale, self._good_steps = float(scale_state["loss_scale"]), int(scale_state["good_steps"])

    def weights(self) -> dict[str, Stored]:
        """By transformers' names, the tensors themselves."""
        return stored(tensors_by_name(self.model.weights))

    def states(self) -> dict[str, Stored]:
        """Those of the optimizer."""
        return stored(self.optimizer_tensors())

    def take_weights(self, found: ModelFolder) -> None:
        """Those of a folder."""
        load_weights(self.model, found)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Its states by name, the tensors themselves: to be written down, or read into."""
        named: dict[str, Tensor] = {}
        for part, flat in zip(("matrices", "gains"), self.model.weights.flat):
            for name, value in sorted(self.optimizer.state[flat].items()):
                if isinstance(value, Tensor):
                    named[f"{part}.{name}"] = value
        return named

    def prepare_states(self) -> None:
        """Makes the optimizer's states, so that a checkpoint can be read straight into them.

        An optimizer makes them in its first step: here one of nothing, at rate 0.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.model.weights.clear_gradients()
        self.optimizer.step()

    def reset(self, seed: int) -> None:
        """As new: weights drawn by the seed, all states zero. After a probe, and before the first step."""
        self.optimizer.state.clear()
        # States are made now: on a GPU what is allocated before a step is recorded lies closer together.
        self.prepare_states()
        for name, value in self.optimizer_tensors().items():
            if name.endswith(".step"):
                value.zero_()
        self.model.weights.initialise(seed)


def _optimizer(model: GPT, choice: Choice, settings: Hyperparameters) -> torch.optim.Optimizer:
    matrices, gains = model.weights.flat
    groups = [
        {"params": [matrices], "weight_decay": settings.weight_decay},
        {"params": [gains], "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    if choice.optimizer == "adamw":
        return AdamW(groups, lr=0.0, betas=betas, eps=settings.eps, fused=True)
    from ramlet.engines.torch.optim import AdamW8bit

    return AdamW8bit(groups, lr=0.0, betas=betas, eps=settings.eps, seed=settings.seed)
