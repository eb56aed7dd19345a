"""Sections about a run: what it is, its losses, its speed, its samples, and what else was measured.

`measures` draws RUN/measures.json, which any tool that evaluates a model may write there:

    {"measures": [{"name": "lines that parse", "explanation": "share of lines that Python's parser accepts",
                   "unit": "%",  (or "")
                   "points": [{"label": "untrained", "step": 0, "value": 1.5},
                              {"label": "trained", "step": 400, "value": 61.0}]}]}

`step` may be null. Up to 12 points are drawn as bars; more, all with a step, as a line.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ramlet.reporting.bars import measured_bars
from ramlet.reporting.charts import Series, line_chart
from ramlet.reporting.found import Run, number_at, value_at
from ramlet.reporting.markup import duration, escape, highlights, number, share, short, size, table
from ramlet.reporting.memory_sections import peak_of_budget
from ramlet.reporting.metrics import Metrics, Sample
from ramlet.runtime.plurals import plural

BARS = 12


def run_head(run: Run, data: list[str]) -> str:
    """What it is in a sentence, and the result in three numbers."""
    job, metrics = run.settings["job"], run.metrics
    parameters = number_at(job, "parameters")
    of_size = "" if parameters is None else f" of <b>{number(parameters)} parameters</b>{_shape(job)}"
    trained = f"on <b>{number(metrics.tokens)} {metrics.unit}</b>" + (
        f" of {', '.join(map(escape, data))}" if data else ""
    )
    steps = number_at(job, "steps")
    state = (
        plural(metrics.step, "step")
        if run.statistics
        else f"{metrics.step:,} of {plural(int(steps or 0), 'step')} so far"
    )
    origin = value_at(run.settings, "settings", "init_from")
    origin = f", starting from {escape(origin)}" if origin else ""
    mark = "" if run.statistics else '<span class="state">not finished</span>'
    module = value_at(job, "module")
    kind = "A language model" if module is None else f"A module <code>{escape(module)}</code>"
    return f"<p class=lead>{kind}{of_size}, trained {trained} in {state}{origin}. {mark}</p>" + highlights(
        [_score_highlight(run), _speed_highlight(metrics), memory_highlight(*peak_of_budget(None, run), run)]
    )


def _shape(job: Any) -> str:
    layers, width, heads = (number_at(job, "shape", name) for name in ("layers", "width", "heads"))
    if None in (layers, width, heads):
        return ""
    return f" ({plural(int(layers or 0), 'layer')} of width {number(width or 0)}, {plural(int(heads or 0), 'head')})"


def _main_score(run: Run) -> tuple[str, dict[str, Any]] | None:
    """The set that a model is judged by: the validation split, or else the first one.

    A finished run has the scores of the model that it kept, which need not be the last; one that continues, the last.
    """
    kept, last = value_at(run.statistics, "scores"), run.metrics.scores
    if number_at(run.statistics, "steps") != run.metrics.step or not isinstance(kept, dict):
        kept = {}
    names = sorted(last, key=lambda name: (name != "val", not name.startswith("val")))
    if not names:
        return None
    scored = number_at(kept, names[0], "loss") is not None
    return names[0], kept[names[0]] if scored else last[names[0]]


def _score_highlight(run: Run) -> tuple[str, str, str]:
    main = _main_score(run)
    if main is None:
        last = run.metrics.curves["loss"].smooth()[-1:]
        return "training loss", f"{last[0][1]:.3f}" if last else "none yet", "no evaluation yet"
    name, score = main
    more = []
    if number_at(score, "bits_per_byte") is not None:
        more.append(f"{score['bits_per_byte']:.3f} bits per byte")
    if number_at(score, "perplexity") is not None:
        more.append(f"perplexity {number(score['perplexity'])}")
    step = number_at(run.statistics, "model", "step")
    if step is not None and step < run.metrics.step and number_at(run.statistics, "steps") == run.metrics.step:
        more.append(f"the model of step {number(step)}")
    return f"{'validation' if name == 'val' else escape(name)} loss", f"{score['loss']:.3f}", ", ".join(more)


def _speed_highlight(metrics: Metrics) -> tuple[str, str, str]:
    mean = metrics.curves["tokens_per_second"].mean()
    total = f"{duration(metrics.seconds)} in total, including evaluation"
    return f"{metrics.unit} per second", "none yet" if mean is None else number(round(mean)), total


def memory_highlight(peak: float | None, budget: float | None, run: Run | None = None) -> tuple[str, str, str]:
    """The peak, with a bar that shows how much of the budget it is."""
    if peak is None:
        return "peak memory", "unknown", ""
    if not budget:
        return "peak memory", size(peak), ""
    part = min(1.0, peak / budget)
    full = f'<span class="meter"><i style="width:{100 * part:.1f}%"></i></span>'
    total = number_at(run.settings, "plan", "peak") if run is not None else None
    plan = "" if total is None else f", predicted {size(total)}"
    return "peak memory", size(peak), f"of {size(budget)}{plan}{full}"


def losses(metrics: Metrics) -> str:
    """Training, validation and every evaluation set on one chart."""
    series = [
        Series("train", metrics.curves["loss"].points(), 1, "thin"),
        Series("train", metrics.curves["loss"].smooth(), 1),
        *(Series(name, curve.points(), at % 7 + 2, "dots") for at, (name, curve) in enumerate(metrics.losses.items())),
    ]
    changes = [
        f"{each.name} from {each.points[0][1]:.3f} to {each.points[-1][1]:.3f}"
        for each in series
        if each.points and each.style != "thin"
    ]
    nats = " in nats" if metrics.unit == "tokens" else ""
    about = f"Loss{nats} over steps: {', '.join(changes)}. The thin line is every step, the thick one the trend."
    return line_chart("Loss", series, about=about, height=360, form=lambda loss: f"{loss:.3f}")


def lr_and_grad_norm(metrics: Metrics) -> str:
    """Two small charts."""
    lr, grad_norm = metrics.curves["lr"], metrics.curves["grad_norm"]
    charts = line_chart(
        "Learning rate",
        [Series("lr", lr.points(), 3)],
        about="The learning rate over steps",
        height=150,
        form=lambda value: f"{value:.2g}",
        zero=True,
    ) + line_chart(
        "Gradient norm",
        [Series("norm", grad_norm.points(), 4, "thin"), Series("norm", grad_norm.smooth(), 4)],
        about="The gradient norm before clipping, over steps",
        height=150,
        form=lambda value: f"{value:.2f}",
        zero=True,
    )
    return f'<div class="pair">{charts}</div>' if charts else ""


def forgetting(metrics: Metrics) -> str:
    """How far the loss of each set has risen above what it was before the first step."""
    series = [
        Series(name, curve.points(), at % 7 + 2, "dots") for at, (name, curve) in enumerate(metrics.forgetting.items())
    ]
    rises = ", ".join(f"{each.name} {each.points[-1][1]:+.3f}" for each in series if each.points)
    return line_chart(
        "Forgetting",
        series,
        about=f"Loss minus the loss before training: {rises}",
        height=200,
        form=lambda rise: f"{rise:+.3f}",
        rule=(0.0, "before training"),
    )


def speed(metrics: Metrics) -> str:
    """Tokens or samples per second over steps."""
    curve, unit = metrics.curves["tokens_per_second"], metrics.unit
    series = [Series("each step", curve.points(), 6, "thin"), Series(f"{unit}/s", curve.smooth(), 6)]
    title = f"{unit.capitalize()} per second"
    about = f"{title} over steps, {number(round(curve.mean() or 0.0))} on average"
    return line_chart(title, series, about=about, height=200, form=short, zero=True)


def samples(metrics: Metrics, prompt: str) -> str:
    """Text that the model wrote; the first, the middle and the last sample are open."""
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
    drawn = ""
    for one in run.measures:
        name, unit, explanation = one["name"], str(one.get("unit") or ""), str(one.get("explanation") or "")
        points = [(number_at(point, "step"), str(point["label"]), float(point["value"])) for point in one["points"]]
        if len(points) > BARS and all(step is not None for step, _, _ in points):
            line = sorted((step or 0.0, value) for step, _, value in points)
            form = partial(_with_unit, unit=unit)
            drawn += line_chart(name, [Series(name, line, 1, "dots")], about=explanation, height=200, form=form)
            drawn += f"<p class=note>{escape(explanation)}</p>"
        elif points:
            bars = [
                (label if step is None else f"{label} (step {number(step)})", value)
                for step, label, value in points[: 4 * BARS]
            ]
            drawn += measured_bars(name, explanation, bars, unit)
    return drawn


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value, 2)}{escape(unit)}"


def compared(runs: list[Run]) -> str:
    """Several runs: their validation losses on one chart, their results in a table."""
    series, rows = [], []
    for at, run in enumerate(runs):
        metrics, main = run.metrics, _main_score(run)
        curve = metrics.losses[main[0]].points() if main else metrics.curves["loss"].smooth()
        series.append(Series(run.path.name, curve, at % 8 + 1, "dots" if main else "line"))
        peak, budget = peak_of_budget(None, run)
        score = main[1] if main else {}
        loss, bits = number_at(score, "loss"), number_at(score, "bits_per_byte")
        rows.append(
            (
                escape(run.path.name),
                number(number_at(run.settings, "job", "parameters") or 0),
                number(metrics.tokens),
                "" if loss is None else f"{loss:.3f}",
                "" if bits is None else f"{bits:.3f}",
                number(round(metrics.curves["tokens_per_second"].mean() or 0)),
                "" if peak is None else size(peak) + (f" ({share(peak, budget)})" if budget else ""),
            )
        )
    about = "The validation loss of each run over its steps"
    chart = line_chart("Validation loss of each run", series, about=about, height=320, form=lambda loss: f"{loss:.3f}")
    head = ("run", "parameters", "tokens", "val loss", "bits/byte", "tokens/s", "peak of budget")
    return chart + table(head, rows, numbers=range(1, 7))
