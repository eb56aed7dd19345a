"""Attention with a cache does not use cuDNN's kernels, which prepare themselves anew for every length."""

from __future__ import annotations

import pytest
import torch

from ramlet.engines.torch import gpt
from ramlet.engines.torch.cache import KVCache
from ramlet.engines.torch.gpt import GPT
from ramlet.model.shape import Shape


def test_generation_does_not_use_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = []
    real = gpt.scaled_dot_product_attention

    def recorded(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return real(*tensors, **options)

    monkeypatch.setattr(gpt, "scaled_dot_product_attention", recorded)
    torch.backends.cuda.enable_cudnn_sdp(True)
    shape = Shape(vocab_size=64, context=16, layers=1, width=32, heads=2)
    model = GPT(shape)
    model.weights.initialize(1)
    ids = torch.tensor([[1, 2, 3]])
    model.logits(ids)
    model.logits(ids, cache=KVCache(shape, rows=1, capacity=8, device="cpu", dtype=torch.float32))
    assert allowed == [True, False]
    assert torch.backends.cuda.cudnn_sdp_enabled()
