"""The page's sections about a run: what it is, how it learned, how fast, what it wrote, what it was told.

`measures` draws RUN/measures.json, which whoever measures a model may put beside it:

    {"measures": [{"name": "lines that parse", "explanation": "share of lines that Python's parser takes",
                   "unit": "%",  (or "")
                   "points": [{"label": "untrained", "step": 0, "value": 1.5},
                              {"label": "trained", "step": 400, "value": 61.0}]}]}

`step` may be null. Up to a dozen points are bars; more of them, all with a step, are a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramlet.reporting.bars import measured_bars
from ramlet.reporting.charts import Series, line_chart
from ramlet.reporting.found import Run, figure, look
from ramlet.reporting.markup import duration, escape, figures, number, share, short, size, table
from ramlet.reporting.memory_sections import peak_of_budget
from ramlet.reporting.metrics import Metrics, Sample
from ramlet.runtime.plurals import plural

__all__ = ["compared", "forgetting", "losses", "main_score", "measures", "run_head", "samples", "speed", "thrift"]

BARS = 12


def run_head(run: Run, data: list[str]) -> str:
    """What it is in a sentence, and the result in three figures."""
    job, metrics = run.settings["job"], run.metrics
    parameters = figure(job, "parameters")
    size_words = "" if parameters is None else f" of <b>{number(parameters)} parameters</b>{_shape(job)}"
    learned = f"on <b>{number(metrics.tokens)} tokens</b>" + (f" of {', '.join(map(escape, data))}" if data else "")
    steps = figure(job, "steps")
    state = (
        plural(metrics.step, "step")
        if run.statistics
        else f"{metrics.step:,} of {plural(int(steps or 0), 'step')} so far"
    )
    origin = look(run.settings, "settings", "init_from")
    begun = f", going on from {escape(origin)}" if origin else ""
    mark = "" if run.statistics else '<span class="state">not finished</span>'
    return f"<p class=lead>A language model{size_words}, trained {learned} in {state}{begun}. {mark}</p>" + figures(
        [_score_figure(metrics), _speed_figure(metrics), memory_figure(*peak_of_budget(None, run), run)]
    )


def _shape(job: Any) -> str:
    layers, width, heads = (figure(job, "shape", name) for name in ("layers", "width", "heads"))
    if None in (layers, width, heads):
        return ""
    return f" ({plural(int(layers or 0), 'layer')} of {number(width or 0)}, {plural(int(heads or 0), 'head')})"


def main_score(metrics: Metrics) -> tuple[str, dict[str, Any]] | None:
    """The set that a model is judged by: the validation split, or the first there is."""
    names = sorted(metrics.scores, key=lambda name: (name != "val", not name.startswith("val")))
    return (names[0], metrics.scores[names[0]]) if names else None


def _score_figure(metrics: Metrics) -> tuple[str, str, str]:
    main = main_score(metrics)
    if main is None:
        last = metrics.loss.smooth()[-1:]
        return "training loss", f"{last[0][1]:.3f}" if last else "none yet", "nothing was evaluated"
    name, score = main
    words = []
    if figure(score, "bits_per_byte") is not None:
        words.append(f"{score['bits_per_byte']:.3f} bits per byte")
    if figure(score, "perplexity") is not None:
        words.append(f"perplexity {number(score['perplexity'])}")
    return f"{'validation' if name == 'val' else escape(name)} loss", f"{score['loss']:.3f}", ", ".join(words)


def _speed_figure(metrics: Metrics) -> tuple[str, str, str]:
    mean = metrics.speed.mean()
    words = f"{duration(metrics.seconds)} in all, evaluations included"
    return "tokens a second", "none yet" if mean is None else number(round(mean)), words


def memory_figure(peak: float | None, budget: float | None, run: Run | None = None) -> tuple[str, str, str]:
    """The peak with a bar that shows how much of the budget it is."""
    if peak is None:
        return "peak memory", "not known", ""
    if not budget:
        return "peak memory", size(peak), ""
    part = min(1.0, peak / budget)
    full = f'<span class="meter"><i style="width:{100 * part:.1f}%"></i></span>'
    total = figure(run.settings, "plan", "peak") if run is not None else None
    plan = "" if total is None else f", predicted {size(total)}"
    return "peak memory", size(peak), f"of {size(budget)}{plan}{full}"


def losses(metrics: Metrics) -> str:
    """Train, validation and every named set on one chart."""
    series = [
        Series("train", metrics.loss.points(), 1, "thin"),
        Series("train", metrics.loss.smooth(), 1),
        *(Series(name, curve.points(), at % 7 + 2, "dots") for at, (name, curve) in enumerate(metrics.losses.items())),
    ]
    words = [
        f"{each.name} from {each.points[0][1]:.3f} to {each.points[-1][1]:.3f}"
        for each in series
        if each.points and each.style != "thin"
    ]
    about = f"Loss in nats over steps: {', '.join(words)}. The thin line is every step, the thick one its trend."
    return line_chart("Loss", series, about=about, height=360, form=lambda loss: f"{loss:.3f}")


def thrift(metrics: Metrics) -> str:
    """The learning rate and the length of the gradient, small."""
    charts = [
        line_chart(
            "Learning rate",
            [Series("rate", metrics.rate.points(), 3)],
            about="The learning rate over steps",
            height=150,
            form=lambda rate: f"{rate:.2g}",
            zero=True,
        ),
        line_chart(
            "Length of the gradient",
            [
                Series("gradient", metrics.gradient.points(), 4, "thin"),
                Series("gradient", metrics.gradient.smooth(), 4),
            ],
            about="The gradient's length before clipping, over steps",
            height=150,
            form=lambda length: f"{length:.2f}",
            zero=True,
        ),
    ]
    return f'<div class="pair">{"".join(charts)}</div>' if any(charts) else ""


def forgetting(metrics: Metrics) -> str:
    """How far the loss of each set is above what it was before the first step."""
    series = [
        Series(name, curve.points(), at % 7 + 2, "dots") for at, (name, curve) in enumerate(metrics.forgetting.items())
    ]
    words = ", ".join(f"{each.name} {each.points[-1][1]:+.3f}" for each in series if each.points)
    return line_chart(
        "Forgetting",
        series,
        about=f"Loss above what it was before training: {words}",
        height=200,
        form=lambda rise: f"{rise:+.3f}",
        rule=(0.0, "as before training"),
    )


def speed(metrics: Metrics) -> str:
    """Tokens a second over steps."""
    mean = metrics.speed.mean() or 0.0
    series = [
        Series("each step", metrics.speed.points(), 6, "thin"),
        Series("tokens/s", metrics.speed.smooth(), 6),
    ]
    return line_chart(
        "Tokens a second", series, about=f"Tokens a second over steps, {number(round(mean))} on average",
        height=200, form=short, zero=True,
    )  # fmt: skip


def samples(metrics: Metrics, prompt: str) -> str:
    """What the model wrote; the first, the middle and the last are open."""
    found = metrics.samples
    opened = {0, len(found) // 2, len(found) - 1}
    return "".join(_sample(sample, prompt, at in opened) for at, sample in enumerate(found))


def _sample(sample: Sample, prompt: str, opened: bool) -> str:
    given = prompt if prompt and sample.text.startswith(prompt) else ""
    text = f"<mark>{escape(given)}</mark>" if given else ""
    text += escape(sample.text[len(given) :])
    left = sample.characters - len(sample.text)
    more = f"<p class=note>and {plural(left, 'character')} more</p>" if left > 0 else ""
    name = "before the first step" if sample.step == 0 else f"step {sample.step:,}"
    return (
        f"<details class=sample data-key=sample-{sample.step}{' open' if opened else ''}><summary>{name}</summary>"
        f"<pre dir=auto>{text}</pre>{more}</details>"
    )


def measures(run: Run) -> str:
    """What measures.json has."""
    drawn = []
    for one in run.measures:
        unit, points = str(one.get("unit") or ""), one["points"]
        form = _measure_form(unit)
        steps = [figure(point, "step") for point in points]
        if len(points) > BARS and None not in steps:
            line = sorted((step or 0.0, float(point["value"])) for step, point in zip(steps, points))
            drawn.append(
                line_chart(
                    one["name"],
                    [Series(one["name"], line, 1, "dots")],
                    about=str(one.get("explanation") or ""),
                    height=200,
                    form=form,
                )
                + f"<p class=note>{escape(one.get('explanation') or '')}</p>"
            )
        elif points:
            bars = [(_point_label(point), float(point["value"])) for point in points[: 4 * BARS]]
            drawn.append(measured_bars(one["name"], str(one.get("explanation") or ""), bars, unit))
    return "".join(drawn)


def _measure_form(unit: str) -> Callable[[float], str]:
    return lambda value: f"{number(value, 2)}{escape(unit)}"


def _point_label(point: dict[str, Any]) -> str:
    step = figure(point, "step")
    return str(point["label"]) if step is None else f"{point['label']} (step {number(step)})"


def compared(runs: list[Run]) -> str:
    """Several runs beside each other: their validation losses on one chart, their results in a table."""
    series = []
    for at, run in enumerate(runs):
        main = main_score(run.metrics)
        curve = run.metrics.losses[main[0]].points() if main else run.metrics.loss.smooth()
        series.append(Series(run.path.name, curve, at % 8 + 1, "dots" if main else "line"))
    chart = line_chart(
        "Validation loss of each run", series, about="The validation loss of each run over its steps",
        height=320, form=lambda loss: f"{loss:.3f}",
    )  # fmt: skip
    rows = []
    for run in runs:
        main = main_score(run.metrics)
        peak, budget = peak_of_budget(None, run)
        score = main[1] if main else {}
        loss, bits = figure(score, "loss"), figure(score, "bits_per_byte")
        held = "" if peak is None else size(peak) + (f" ({share(peak, budget)})" if budget else "")
        rows.append(
            (
                escape(run.path.name),
                number(figure(run.settings, "job", "parameters") or 0),
                number(run.metrics.tokens),
                "" if loss is None else f"{loss:.3f}",
                "" if bits is None else f"{bits:.3f}",
                number(round(run.metrics.speed.mean() or 0)),
                held,
            )
        )
    head = ("run", "parameters", "tokens", "val loss", "bits/byte", "tokens/s", "peak of budget")
    return chart + table(head, rows, numbers=range(1, 7))
