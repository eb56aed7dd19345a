"""A model with its optimizer: accumulate the gradients of micro-batches, then step.

    trainee = Trainee(shape, choice, settings, device="cpu")
    for batch in micro_batches:
        loss += trainee.learn(batch, scale=1 / tokens)
    grad_norm = trainee.update(rate=1e-3, clip=1.0)

Dropout masks depend on the seed and on the number of each sequence since the beginning of the run, so they are the same
for every micro-batch, number of ranks and interruption. A captured step reads their keys from a tensor, like its ids.

The range of fp16 is too small for gradients: they are multiplied by `loss_scale`, and divided by it in the step. A step
with a NaN or infinite gradient is skipped and halves the scale; 2,000 good ones double it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters, Pending, training_names
from ramlet.engines.hashing import dropout_keys, seed_key
from ramlet.engines.plan import Choice, Plan
from ramlet.engines.torch.base_memory import keep_large_blocks
from ramlet.engines.torch.captured import CapturedStep, CapturedUpdate, warm_up
from ramlet.engines.torch.division import owners_of
from ramlet.engines.torch.exchange import Sharding
from ramlet.engines.torch.gpt import GPT, document_mask
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.engines.torch.model_files import load_weights, stored_weights
from ramlet.engines.torch.optim import needs_whole_matrices, optimizer_module
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.sizes import tensors_of
from ramlet.engines.torch.stored import Copies, stored
from ramlet.engines.torch.stored_shares import stored_states
from ramlet.engines.torch.weights import DTYPES
from ramlet.model.folder import ModelFolder
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Stored

LARGEST_LOSS_SCALE = 2.0**16
STEPS_TO_DOUBLE = 2000
DROPOUT_KEYS = "dropout_keys"
"""Next to the arrays of a batch."""


class Trainee:
    """Weights, gradients and optimizer states."""

    def __init__(
        self, shape: Shape, choice: Choice, settings: Hyperparameters, *, device: str, ranks: TorchRanks | None = None
    ) -> None:
        self.ranks = ranks or TorchRanks()
        keep_large_blocks(choice.reuse)
        self._sharding = _sharding(shape, choice, self.ranks)
        self.model = GPT(
            shape,
            device=device,
            dtype=DTYPES[choice.weights],
            compute=DTYPES[tensors_of(choice.compute)],
            chunk=choice.chunk,
            recompute=choice.recompute,
            held=choice.held,
            use_fp8=choice.compute == "fp8",
            keeps_qk=choice.keeps_qk,
            sharding=self._sharding,
        )
        self.model.weights.make_gradients()
        module = optimizer_module(choice.optimizer)
        self.optimizer = module.make(self.model.weights, settings)
        self._capturable = getattr(module, "CAPTURABLE", False) and self.ranks.world == 1
        divide = getattr(self.optimizer, "divide", None)
        if divide is not None:
            divide(self.ranks)
        self.loss_scale = LARGEST_LOSS_SCALE if choice.compute == "fp16" else 1.0
        self._scaled = choice.compute == "fp16"
        self._dropout = choice.dropout
        self._seed_key = seed_key(settings.seed)
        self._captured: dict[int, CapturedStep] = {}
        self._captured_update: CapturedUpdate | None = None
        self._good_steps = 0
        self._copies: Copies = {}

    def learn(self, batch: Mapping[str, Any], scale: float) -> Tensor:
        tensors = {name: torch.as_tensor(batch[name]) for name in training_names("document_ids" in batch)}
        samples = batch["samples"] if self._dropout else ()
        if not len(tensors["targets"]):  # a step with fewer sequences than ranks
            if self.model.weights.exchange is None:
                return torch.zeros((), device=self.model.device, dtype=torch.float64)
            # The others need this rank in between: a sequence of which nothing is learned.
            samples, length = (0,), tensors["targets"].shape[1]
            tensors = {name: torch.full((1, length), -100 if name == "targets" else 0) for name in tensors}
        if self._dropout:
            tensors[DROPOUT_KEYS] = self._dropout_keys(samples)
        placed = {name: tensor.to(self.model.device, non_blocking=True) for name, tensor in tensors.items()}
        captured = self._captured.get(len(placed["input_ids"]))
        if captured is not None and captured.fits(placed, scale):
            return captured.replay(placed)
        return self._learn(placed, scale)

    def _dropout_keys(self, samples: Sequence[int]) -> Tensor:
        return dropout_keys(self._seed_key, torch.tensor(samples, dtype=torch.int64))

    def _learn(self, placed: Mapping[str, Tensor], scale: float) -> Tensor:
        keys = placed.get(DROPOUT_KEYS)
        return self.model.learn(
            placed["input_ids"],
            placed["targets"],
            scale * self.loss_scale,
            positions=placed.get("position_ids"),
            mask=document_mask(placed.get("document_ids")),
            dropout=None if keys is None else Dropout(keys, self._dropout),
        )

    def prepare(self, plan: Plan, rank: int) -> None:
        scale = 1.0 / (plan.batch_size * plan.seq_len)
        self.capture(plan.part_sizes(rank), plan.seq_len, scale, document_mask=plan.document_mask)

    def capture(self, sizes: Iterable[int], seq_len: int, scale: float, *, document_mask: bool) -> None:
        """On a GPU: from here on batches of these sizes replay a CUDA graph. Clears the gradients."""
        if not self.model.can_capture or self._scaled:
            return
        names = training_names(document_mask)
        blanks = [
            {name: torch.zeros((rows, seq_len), dtype=torch.int64, device=self.model.device) for name in names}
            for rows in sorted(sizes, reverse=True)
        ]
        if self._dropout:
            for blank in blanks:
                blank[DROPOUT_KEYS] = torch.zeros(len(blank["targets"]), dtype=torch.int64, device=self.model.device)
        for blank in blanks:
            warm_up(self._learn, blank, scale)
        for blank in blanks:
            # One is replayed at a time, so the smaller ones fit into the memory of the largest.
            first = next(iter(self._captured.values()), None)
            self._captured[len(blank["targets"])] = CapturedStep(self._learn, blank, scale, shared=first)
        self.model.weights.clear_gradients()
        shared = next(iter(self._captured.values()), None)
        if shared is None:
            return
        self.model.captured(shared.pool)
        if self._capturable:
            self._grad_norm()  # compiles its kernel
            self._captured_update = CapturedUpdate(self._update, self.model.device, shared)

    def over_ranks(self, loss: Pending, tokens: int) -> tuple[Pending, int]:
        if self.ranks.world == 1:
            return loss, tokens
        total = torch.as_tensor(loss, device=self.model.device, dtype=torch.float64)
        # float32 is exact up to 16.7 million tokens only.
        counted = torch.tensor(float(tokens), device=self.model.device, dtype=torch.float64)
        self.ranks.sum(total, counted)
        return total, int(counted.item())

    def update(self, rate: float, clip: float, correction: float = 1.0) -> Tensor:
        """An optimizer step; returns the gradient norm. Gradients are zero afterwards.

        The gradients are first multiplied by `correction`: ignored labels make a step smaller than `learn` assumed. On
        a CPU, and with fp16, a NaN or infinite norm skips the update; on a GPU the caller reads it a step later, so
        that the device never waits.
        """
        weights = self.model.weights
        self.model.flush_gradients()
        if weights.exchange is None:
            self.ranks.sum(*weights.gradients())
        else:
            assert weights.gains.grad is not None
            self.ranks.sum(weights.gains.grad)
        if self._captured_update is not None:
            return self._captured_update.replay(rate, clip or math.inf, correction)
        return self._update(rate, clip or math.inf, correction)

    def _update(self, rate: float | Tensor, clip: float | Tensor, correction: float | Tensor) -> Tensor:
        """`rate`, `clip` and `correction` are tensors if it is captured."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        grad_norm = self._grad_norm() * (correction / self.loss_scale)
        factor = correction / self.loss_scale * (clip / (grad_norm + 1e-6)).clamp(max=1.0)
        complete = getattr(self.optimizer, "is_complete", False)
        if self.model.device.type == "cuda" and not self._scaled:
            if complete:
                self.optimizer.step(grad_scale=factor)
            else:
                for grad in self.model.weights.gradients():
                    grad.mul_(factor)
                self.optimizer.step()
        else:
            good = math.isfinite(float(grad_norm))
            if good:
                self.optimizer.step(grad_scale=float(factor))
            complete = complete and good
            self._rescale(good)
        if complete and self._sharding is None:
            self.model.weights.refresh_fp8()
        else:
            self.model.weights.updated()
            self.model.weights.clear_gradients()
        return grad_norm

    def _grad_norm(self) -> Tensor:
        norms = [self.model.kernels.grad_norm(grad) for grad in self.model.weights.gradients()]
        if self.model.weights.exchange is not None:
            # All but the last, that of the gains, are of what this rank owns.
            squares = torch.stack(norms[:-1]).double().square().sum()
            self.ranks.sum(squares)
            norms = [squares.sqrt().to(norms[-1].dtype), norms[-1]]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

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
        return self._scaled and self.loss_scale > 1.0

    def scale_state(self) -> dict[str, Any]:
        return {"loss_scale": self.loss_scale, "good_steps": self._good_steps}

    def restored(self, scale_state: Mapping[str, Any]) -> None:
        self.model.weights.refresh()
        self.loss_scale, self._good_steps = float(scale_state["loss_scale"]), int(scale_state["good_steps"])

    def weights(self) -> dict[str, Stored]:
        return stored_weights(self.model.weights, self._copies)

    def states(self) -> dict[str, Stored]:
        tensors = self.optimizer_tensors()
        return stored(tensors, self._copies) if self._sharding is None else stored_states(tensors, self._sharding)

    def load_weights(self, found: ModelFolder) -> None:
        load_weights(self.model, found)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's states by name: the tensors themselves."""
        named: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            for name, value in sorted(self.optimizer.state[group["params"][0]].items()):
                if isinstance(value, Tensor):
                    named[f"{group['name']}.{name}"] = value
        return named

    def prepare_states(self) -> None:
        """Allocates the optimizer's states, so that a checkpoint can be read directly into them.

        An optimizer allocates them in its first step: this is one with zero gradients and learning rate 0.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.model.weights.clear_gradients()
        self.optimizer.step()

    def reset(self, seed: int) -> None:
        self.optimizer.state.clear()
        # Allocate the states now: on a GPU, allocations before a step is captured are more compact.
        self.prepare_states()
        for name, value in self.optimizer_tensors().items():
            if name.endswith(".step"):
                value.zero_()
        self.model.weights.initialize(seed)


def _sharding(shape: Shape, choice: Choice, ranks: TorchRanks) -> Sharding | None:
    if choice.shard == "none":
        return None
    whole = needs_whole_matrices(choice.optimizer)
    return Sharding(choice.shard, owners_of(shape, whole_matrices=whole, world=ranks.world), ranks)
