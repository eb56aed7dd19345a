"""A run with all of its settings resolved.

job = resolve(settings, feed, engine)
job.shape, job.seq_len, job.sequences, job.steps, job.schedule, job.precision
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ramlet.engines import Engine
from ramlet.errors import DatasetError, ModelError, SettingsError, option
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.training.feed import Feed
from ramlet.training.model_config import refuse_other_shape, shape_from_file
from ramlet.training.pace import times_left
from ramlet.training.recipe import QK_NORM, Recipe, default_rate, recipe_for, recipe_of
from ramlet.training.schedule import Schedule
from ramlet.training.settings import EVAL_SHARE, EVAL_TOKENS, EVALUATIONS, RunSettings, default_seq_len

MOST_WARMUP = 2000
SAMPLE_EACH = 2
EVALUATION_COST = 1 / 3
"""Of a token, relative to training on it: a forward pass without the backward pass, which costs twice as much."""
LEAST_EVAL_TOKENS = 8192
"""Fewer say little: before an evaluation gets smaller than this, there are fewer of them, down to the one at the end.
"""


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Job:
    settings: RunSettings
    recipe: Recipe
    shape: Shape
    seq_len: int
    sequences: int
    """In a step, over all ranks."""
    steps: int
    precision: str
    schedule: Schedule
    eval_every: int
    eval_tokens: int
    """Per set and evaluation."""
    sample_every: int
    checkpoint_every: int

    def described(self) -> dict[str, Any]:
        """The resolved settings, for settings.yaml."""
        return {
            "shape": self.shape.to_dict(),
            "parameters": self.shape.parameters,
            "seq_len": self.seq_len,
            "sequences_per_step": self.sequences,
            "steps": self.steps,
            "precision": self.precision,
            "lr": self.schedule.peak,
            "min_lr": self.schedule.floor,
            "warmup": self.schedule.warmup,
            "eval_every": self.eval_every,
            "eval_tokens": self.eval_tokens,
            "recipe": asdict(self.recipe),
        }

    def as_begun(self, noted: Mapping[str, Any]) -> Job:
        """This job for a run that was begun with another, as `described`, and is resumed.

        What was computed then stays, unless it is given now: the learning rate and the warmup, because they may depend
        on the number of steps, and the size of the evaluations, because only equal ones can be compared.
        """
        settings, schedule = self.settings, self.schedule

        def kept(name: str, now: Any, given: Any) -> Any:
            return noted_number(noted, name, now) if given is None else now

        peak = kept("lr", schedule.peak, settings.lr)
        warmup = kept("warmup", schedule.warmup, settings.warmup)
        floor = _floor(settings, self.recipe, peak)
        recipe = noted.get("recipe") or {}
        if (peak, schedule.kind) == (noted.get("lr"), recipe.get("schedule")):  # others have a floor of their own
            floor = kept("min_lr", floor, settings.min_lr)
        schedule = replace(schedule, peak=peak, floor=floor, warmup=warmup)
        eval_tokens = kept("eval_tokens", self.eval_tokens, settings.eval_tokens)
        return replace(self, schedule=schedule, eval_tokens=eval_tokens)


def noted_number(noted: Mapping[str, Any], name: str, otherwise: N) -> N:
    """A number of a run that is resumed, if it is one."""
    before: Any = noted.get(name)
    usable = isinstance(before, type(otherwise)) and not isinstance(before, bool) and 0 <= before < math.inf
    found: N = before if usable else otherwise
    return found


def resolve(
    settings: RunSettings, feed: Feed, engine: Engine, *, evals: int = 0, begun: Mapping[str, Any] | None = None
) -> Job:
    """Resolves the defaults that depend on the data, and refuses settings that contradict each other.

    `evals` is the number of evaluation sets besides the data's own, `begun` the settings.yaml of the run to resume.
    """
    settings.require_size()
    known = _known_shape(settings, feed)
    seq_len = settings.seq_len or feed.packed_length
    if seq_len is None and known is not None:
        seq_len = known.context if settings.init_from is None else known.usual_length
    if seq_len is None:
        seq_len = default_seq_len(settings.params or 0)
    shape = known or begun_shape(settings, feed, seq_len, begun)
    if shape is None:
        assert settings.params is not None
        shape = shape_for(
            settings.params,
            vocab_size=feed.vocab_size,
            context=seq_len,
            tied=settings.tied,
            kv_groups=settings.kv_groups,
            qk_norm=_qk_norm(settings, begun),
        )
    if seq_len > shape.context:
        raise SettingsError(f"{option('seq_len', seq_len)} must be at most the model's context of {shape.context:,}")
    sequences = settings.step_sequences(seq_len)
    steps = _steps(settings, feed, seq_len, sequences)
    sets = len(feed.validation()) + evals
    eval_every, eval_tokens = evaluations(settings, steps, sequences * seq_len, seq_len, sets)
    tenth = math.ceil(steps / EVALUATIONS)
    continued = settings.init_from is not None
    if begun is None:
        recipe = recipe_for(shape, step_tokens=sequences * seq_len, continued=continued)
    else:
        recipe = recipe_of(begun)
    recipe = recipe.given(settings)
    peak = settings.lr
    if peak is None:
        peak = default_rate(shape.parameters, recipe.optimizer, continued=continued)
    warmup = min(MOST_WARMUP, math.ceil(steps / 20)) if settings.warmup is None else settings.warmup
    return Job(
        settings=settings,
        recipe=recipe,
        shape=shape,
        seq_len=seq_len,
        sequences=sequences,
        steps=steps,
        precision=engine.precision(settings.precision),
        schedule=Schedule(
            peak=peak,
            floor=_floor(settings, recipe, peak),
            warmup=warmup,
            steps=steps,
            kind=recipe.schedule,
            decay=recipe.decay,
        ),
        eval_every=eval_every,
        eval_tokens=eval_tokens,
        sample_every=SAMPLE_EACH * tenth if settings.sample_every is None else settings.sample_every,
        checkpoint_every=(settings.eval_every or tenth)
        if settings.checkpoint_every is None
        else settings.checkpoint_every,
    )


def evaluations(settings: RunSettings, steps: int, step_tokens: int, seq_len: int, sets: int) -> tuple[int, int]:
    """Steps between evaluations, and tokens per set and evaluation.

    The defaults are such that all evaluations together take at most a tenth of the run, except that the one at the end
    has at least a sequence of each set.
    """
    sets = max(1, sets)
    before = settings.init_from is not None  # one more before the first step
    spent = EVAL_SHARE / EVALUATION_COST * steps * step_tokens / sets
    if settings.eval_every is not None:
        every = settings.eval_every
    else:
        least = min(LEAST_EVAL_TOKENS, settings.eval_tokens or LEAST_EVAL_TOKENS)
        times = min(EVALUATIONS, max(1, int(spent / least) - before))
        every = math.ceil(steps / times)
    if settings.eval_tokens is not None:
        return every, settings.eval_tokens
    times = times_left(0, steps, every) + before
    return every, max(seq_len, min(EVAL_TOKENS, int(spent / times)))


def _known_shape(settings: RunSettings, feed: Feed) -> Shape | None:
    """The shape from a config, or of the model to start from."""
    if settings.init_from is not None:
        shape = _start_shape(settings.init_from, feed)
        if settings.params is not None or settings.config is not None:
            raise SettingsError(
                f"the model has the size of {settings.init_from}: do not give {option('params')} or {option('config')}"
            )
        refuse_other_shape(settings, shape, settings.init_from)
        return shape
    if settings.config is None:
        return None
    return shape_from_file(settings.config, settings, vocab_size=feed.vocab_size, packed_length=feed.packed_length)


def _start_shape(name: str, feed: Feed) -> Shape:
    from ramlet.model.folder import find_model
    from ramlet.tokenizer.tokenizer import Tokenizer

    found = find_model(name)
    shape = found.shape()
    file = found.described / "tokenizer.json"
    if file.is_file() and feed.fingerprint is not None:
        theirs = Tokenizer.load(file).fingerprint
        if theirs != feed.fingerprint:
            raise DatasetError(
                f"{name} was trained with another tokenizer ({theirs[:12]}) than the data was made with "
                f"({feed.fingerprint[:12]}): prepare the data with {option('tokenizer', file)}"
            )
    if feed.vocab_size > shape.vocab_size:
        raise ModelError(
            f"the data has a vocabulary of {feed.vocab_size:,}, {name} one of {shape.vocab_size:,}: "
            "prepare the data with the model's own tokenizer"
        )
    return shape


def begun_shape(settings: RunSettings, feed: Feed, seq_len: int, begun: Mapping[str, Any] | None) -> Shape | None:
    """That of the run to resume, if the same is asked for: this version may choose another one for a new run."""
    if begun is None:
        return None
    asked = {"params": settings.params, "tied": settings.tied, "kv_groups": settings.kv_groups}
    if any(begun["settings"].get(name) != value for name, value in asked.items()):
        return None
    try:
        shape = Shape(**begun["job"]["shape"])
    except (TypeError, SettingsError):  # damaged, or by a newer version
        return None
    same = (shape.vocab_size, shape.context, shape.qk_norm) == (feed.vocab_size, seq_len, _qk_norm(settings, begun))
    return shape if same else None


def _qk_norm(settings: RunSettings, begun: Mapping[str, Any] | None) -> bool:
    if settings.qk_norm is not None:
        return settings.qk_norm
    return QK_NORM if begun is None else bool(begun["job"]["shape"].get("qk_norm", False))


def _floor(settings: RunSettings, recipe: Recipe, peak: float) -> float:
    if settings.min_lr is not None:
        return settings.min_lr
    return 0.0 if recipe.schedule == "wsd" else peak / 10


def _steps(settings: RunSettings, feed: Feed, seq_len: int, sequences: int) -> int:
    if settings.max_steps is not None:
        return settings.max_steps
    if settings.tokens is not None:
        return math.ceil(settings.tokens / (sequences * seq_len))
    examples = feed.examples(seq_len)
    if examples is None:
        raise SettingsError(
            f"this stream has no known length: give {option('max_steps')} or {option('tokens')}, "
            f"or the length of an epoch with {option('max_examples')}"
        )
    return math.ceil((settings.epochs or 1) * examples / sequences)
