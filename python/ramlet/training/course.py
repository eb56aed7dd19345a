"""How long a model of a size should learn, in steps of which size, from the text there is.

    course = course_for(3_000_000, text=1_000_000, seq_len=128)
    course.sequences, course.steps        # 8 sequences a step, 3,906 steps: four times through the text

With text enough: 20 tokens a parameter, which is the best for the work it takes (Hoffmann et al., 2022). Where text is
short it is read up to four times, which is nearly as good as new text (Muennighoff et al., 2023), and up to 25 times
where there would else be too few steps to learn anything. Then a larger model is better than a smaller one up to about
seven parameters a token, and many small steps better than few large ones (docs/design/training.md has the figures).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Course", "course_for", "largest_for"]

TOKENS_A_PARAMETER = 20
PARAMETERS_A_TOKEN = 7
MOST_PASSES = 4
MOST_REPEATS = 25
LEAST_STEPS = 600
MANY_STEPS = 2000
"""With fewer steps than this, they are made of fewer sequences."""
BATCHES = (32, 16, 8)


@dataclass(frozen=True)
class Course:
    sequences: int
    """A step."""
    steps: int
    seq_len: int

    @property
    def step_tokens(self) -> int:
        return self.sequences * self.seq_len

    @property
    def tokens(self) -> int:
        return self.steps * self.step_tokens


def course_for(params: int, *, text: int, seq_len: int) -> Course:
    """What a model of `params` is best trained for; `text` is its tokens, 0 where no one knows."""
    wanted = TOKENS_A_PARAMETER * params
    if text:
        wanted = min(wanted, MOST_PASSES * text)
    enough = (batch for batch in BATCHES if wanted >= MANY_STEPS * batch * seq_len)
    sequences = next(enough, BATCHES[-1])
    steps = wanted // (sequences * seq_len)
    if text:
        steps = max(steps, min(LEAST_STEPS, MOST_REPEATS * text // (sequences * seq_len)))
    return Course(sequences, max(1, steps), seq_len)


def largest_for(text: int) -> int:
    """Parameters, beyond which a model only knows the text by heart sooner."""
    return PARAMETERS_A_TOKEN * text
