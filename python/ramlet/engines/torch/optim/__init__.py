"""Optimizers for little memory.

from ramlet.engines.torch.optim import AdamW8bit

optimizer = AdamW8bit(model.parameters(), lr=3e-4)
"""

from __future__ import annotations

from ramlet.engines.torch.optim.adamw8bit import AdamW8bit

__all__ = ["AdamW8bit"]
