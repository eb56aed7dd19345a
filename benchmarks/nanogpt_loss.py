"""The validation loss of a nanoGPT checkpoint, on the sequences that ramlet evaluates its own models on.

    python benchmarks/nanogpt_loss.py NANOGPT out/ckpt.pt DATASET --tokens 1048576 --seq-len 1024 --device cuda

nanoGPT's own estimate is the mean over random batches. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ramlet.dataset.reader import Dataset
from ramlet.training.evaluate import EvalSet, byte_lengths, evaluate_model


class Checkpoint:
    """As much of `ramlet.engines.Model` as an evaluation needs."""

    def __init__(self, nanogpt: Path, file: Path, device: str) -> None:
        sys.path.insert(0, str(nanogpt))
        from model import GPT, GPTConfig

        saved = torch.load(file, map_location=device, weights_only=False)
        self.model = GPT(GPTConfig(**saved["model_args"]))
        prefix = "_orig_mod."  # of a compiled model
        self.model.load_state_dict({name.removeprefix(prefix): value for name, value in saved["model"].items()})
        self.model.to(device).eval()
        self.device = device

    @torch.no_grad()
    def token_losses(self, batch: Mapping[str, Any]) -> list[list[float]]:
        ids, targets = (torch.as_tensor(batch[name]).to(self.device) for name in ("input_ids", "targets"))
        # As in its training: bf16 on a GPU.
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits, _ = self.model(ids, targets)  # without targets it returns only the last position
        losses = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        return losses.view(targets.shape).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nanogpt", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    model = Checkpoint(given.nanogpt, given.checkpoint, given.device)
    lengths = byte_lengths(Dataset(given.dataset).tokenizer)
    wanted = EvalSet("val", str(given.dataset), "val", given.seq_len, 8, given.tokens, lengths)
    score = evaluate_model(model, wanted)  # type: ignore[arg-type]
    parameters = sum(each.numel() for each in model.model.parameters())
    print(json.dumps({"loss": score.loss, "bits_per_byte": score.bits_per_byte, "parameters": parameters}))


if __name__ == "__main__":
    main()
