"""One module of fit.py, by its number: trained by `ramlet.fit` or by a loop written by hand. Prints JSON lines.

    python fit_worker.py 7 --device cpu --out RUN [--memory 700000000]      ramlet.fit
    python fit_worker.py 7 --device cpu --hand --micro-batch 4              the same steps by hand, timed

What is measured is between the lines {"begin": ...} and {"end": ...}: importing torch and transformers and building the
module is not ramlet's, and neither is the end of the process, when the destructors of torch's libraries map 150 MB of
their files again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

KINDS = ("encoder", "lstm", "gpt2", "llama", "mamba", "mlp")
STEPS = 6


class Encoder(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.embedding(ids)).mean(1))
        return found


class Recurrent(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return found


def token_loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(module(batch["ids"]).flatten(0, 1), batch["targets"].flatten())


def label_loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(module(batch["ids"]), batch["targets"])


def own_loss(module: nn.Module, batch: dict[str, Tensor]) -> Any:
    return module(**batch).loss


class Case:
    """A random module with its batches."""

    def __init__(self, number: int, device: str) -> None:
        draw = random.Random(number)
        self.kind = KINDS[number % len(KINDS)]
        larger = 4 if device == "cuda" else 1
        width = 64 * draw.randint(1, 6 * larger)
        layers = draw.randint(1, 6)
        vocabulary = draw.choice((256, 2000, 8000))
        self.length = draw.choice((32, 64, 128, 256))
        if self.kind == "mamba" and device == "cpu":
            self.length, layers = draw.choice((16, 32)), min(layers, 2)
        self.batch_size = draw.choice((4, 8, 16, 32, 48))
        self.optimizer = draw.choice(("auto", "auto", "adamw", "muon", "adamw8bit"))
        self.precision = draw.choice(("fp32", "fp32", "bf16")) if device == "cuda" else "fp32"
        self.spread = draw.uniform(1.0, 6.0), 5e6 * 60 ** draw.random()
        torch.manual_seed(number)
        self.vocabulary = vocabulary
        self.loss: Callable[[Any, Any], Any] | None = None
        self.module = self._module(width, layers).train()
        if device == "cuda":
            self.module = self.module.to(device)

    def _module(self, width: int, layers: int) -> nn.Module:
        if self.kind == "mlp":
            self.loss = label_loss
            sizes = [self.length, *[width * 4] * layers]
            hidden = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(sizes)]
            return nn.Sequential(*hidden, nn.Linear(sizes[-1], 10))
        if self.kind == "encoder":
            self.loss = label_loss
            return Encoder(width, layers, self.vocabulary)
        if self.kind == "lstm":
            self.loss = token_loss
            return Recurrent(width, min(layers, 3), self.vocabulary)
        import transformers

        heads = width // 32
        if self.kind == "gpt2":
            config: Any = transformers.GPT2Config(
                vocab_size=self.vocabulary, n_positions=256, n_embd=width, n_layer=layers, n_head=heads
            )
            return transformers.GPT2LMHeadModel(config)
        if self.kind == "llama":
            config = transformers.LlamaConfig(
                vocab_size=self.vocabulary,
                hidden_size=width,
                intermediate_size=3 * width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
            )
            return transformers.LlamaForCausalLM(config)
        config = transformers.MambaConfig(vocab_size=self.vocabulary, hidden_size=width, num_hidden_layers=layers)
        return transformers.MambaForCausalLM(config)

    def batches(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        while True:
            ids = torch.randint(0, self.vocabulary, (self.batch_size, self.length), generator=generator)
            if self.kind in ("gpt2", "llama", "mamba"):
                yield {"input_ids": ids, "labels": ids}
            elif self.kind == "lstm":
                yield {"ids": ids, "targets": ids}
            else:
                given = ids.float() / self.vocabulary if self.kind == "mlp" else ids
                yield {"ids": given, "targets": torch.randint(0, 10, (self.batch_size,), generator=generator)}


class Endless:
    def __init__(self, case: Case) -> None:
        self._case = case

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self._case.batches()


def fitted(case: Case, arguments: argparse.Namespace) -> None:
    import ramlet
    from ramlet.engines.torch.base_memory import load_torch
    from ramlet.runtime.settled import settled_memory
    from ramlet.training.listener import Listener

    load_torch(arguments.threads)
    weights = sum(parameter.nbytes for parameter in case.module.parameters())
    times, extra = case.spread
    on_cpu = arguments.device == "cpu"
    resident = settled_memory() if on_cpu else torch.cuda.memory_reserved()
    memory = arguments.memory or int((resident + 50e6 if on_cpu else 0) + weights * times + extra)
    say(begin=memory, resident=resident, weights=weights)
    stepped: list[float] = []

    class Watch(Listener):
        def stepped(self, *_: Any) -> None:
            stepped.append(time.perf_counter())

    try:
        result = ramlet.fit(
            case.module,
            Endless(case),
            loss=case.loss,
            out=arguments.out,
            memory=memory,
            optimizer=case.optimizer,
            precision=case.precision,
            threads=arguments.threads,
            max_steps=arguments.steps,
            checkpoint_every=arguments.steps,
            evals=Endless(case),
            eval_batches=2,
            listener=Watch(),
        )
    except ramlet.BudgetError as error:
        say(end=True, refused=str(error), needed=error.facts.get("needed"))
        return
    say(end=True)
    plan = result.plan
    seconds = statistics.median([b - a for a, b in itertools.pairwise(stepped)]) if len(stepped) > 1 else 0.0
    say(
        micro_batch=plan.micro_batch,
        recompute=plan.recompute,
        optimizer=plan.optimizer,
        reuse=plan.reuse,
        predicted=plan.peak,
        peak=result.peak,
        seconds=seconds,
        loss=result.loss,
    )


def by_hand(case: Case, arguments: argparse.Namespace) -> None:
    """What a user would write: AdamW, clipping, accumulation, and reading the loss of every step."""
    module, device = case.module, torch.device(arguments.device)
    loss_of = case.loss or own_loss
    if arguments.recompute and hasattr(module, "gradient_checkpointing_enable"):
        module.gradient_checkpointing_enable({"use_reentrant": False})
    matrices = [each for each in module.parameters() if each.dim() > 1]
    others = [each for each in module.parameters() if each.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    say(begin=0)
    stepped = []
    batches = case.batches()
    for _ in range(arguments.steps):
        batch = next(batches)
        total = 0.0
        for start in range(0, case.batch_size, arguments.micro_batch):
            part = {name: value[start : start + arguments.micro_batch].to(device) for name, value in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16"):
                loss = loss_of(module, part)
            scaled = loss * (len(next(iter(part.values()))) / case.batch_size)
            scaled.backward()
            total += scaled.detach()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(total)
        stepped.append(time.perf_counter())
    say(seconds=statistics.median([b - a for a, b in itertools.pairwise(stepped)]))


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--out")
    parser.add_argument("--optimizer")
    parser.add_argument("--hand", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--micro-batch", type=int, default=1)
    arguments = parser.parse_args()
    case = Case(arguments.number, arguments.device)
    case.optimizer = arguments.optimizer or case.optimizer
    with contextlib.suppress(BrokenPipeError):
        (by_hand if arguments.hand else fitted)(case, arguments)
    if arguments.device == "cuda":
        say(device_peak=torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
