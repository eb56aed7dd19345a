"""Log-likelihoods of choices as lm-evaluation-harness defines them, by transformers, one text at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from ramlet.training.task_file import Item


class Harness:
    """A model of transformers; benchmarks/eval_tasks.py compares with the real one."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.context: int = self.model.config.max_position_embeddings

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def likelihood(self, context: str, continuation: str) -> float:
        if context:
            spaces = len(context) - len(context.rstrip())
            if spaces:
                context, continuation = context[:-spaces], context[-spaces:] + continuation
            before = self.encode(context)
            after = self.encode(context + continuation)[len(before) :]
        else:
            before, after = [self.tokenizer.bos_token_id], self.encode(continuation)
        inputs = (before + after)[-(self.context + 1) :][:-1]
        with torch.no_grad():
            logits = self.model(torch.tensor([inputs])).logits[0].double()
        chosen = torch.log_softmax(logits, -1)[-len(after) :]
        return float(chosen.gather(1, torch.tensor(after)[:, None]).sum())

    def likelihoods(self, item: Item) -> list[float]:
        return [self.likelihood(item.context, f" {choice}") for choice in item.choices]
