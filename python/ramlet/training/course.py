"""How long to train a model of a given size on the available text, and with which batch size.

    course = course_for(3_000_000, text=1_000_000, seq_len=128)
    course.sequences, course.steps        # 8 sequences per step, 3,906 steps: four epochs

With enough text: 20 tokens per parameter, which is compute-optimal (Hoffmann et al., 2022). With less text, up to four
epochs, which is nearly as good as new text (Muennighoff et al., 2023), and up to 25 epochs if there would otherwise be
too few steps to learn anything. Then larger models are better up to about seven parameters per token, and many small
steps are better than few large ones (numbers in docs/design/training.md).
"""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_PER_PARAMETER = 20
PARAMETERS_PER_TOKEN = 7
MOST_EPOCHS = 4
MOST_REPEATS = 25
LEAST_STEPS = 600
MANY_STEPS = 2000
"""If there would be fewer steps than this, the batch size is smaller."""
BATCHES = (32, 16, 8)


@dataclass(frozen=True)
class Course:
    sequences: int
    """Per step."""
    steps: int
    seq_len: int

    @property
    def step_tokens(self) -> int:
        return self.sequences * self.seq_len

    @property
    def tokens(self) -> int:
        return self.steps * self.step_tokens


def course_for(params: int, *, text: int, seq_len: int) -> Course:
    """`text` is the number of tokens in the dataset, 0 if unknown."""
    wanted = TOKENS_PER_PARAMETER * params
    if text:
        wanted = min(wanted, MOST_EPOCHS * text)
    enough = (batch for batch in BATCHES if wanted >= MANY_STEPS * batch * seq_len)
    sequences = next(enough, BATCHES[-1])
    steps = wanted // (sequences * seq_len)
    if text:
        steps = max(steps, min(LEAST_STEPS, MOST_REPEATS * text // (sequences * seq_len)))
    return Course(sequences, max(1, steps), seq_len)


def largest_for(text: int) -> int:
    """Parameters beyond which a model only memorizes the text sooner."""
    return PARAMETERS_PER_TOKEN * text
