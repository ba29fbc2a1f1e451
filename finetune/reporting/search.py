"""The HTML page of a search: one file that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.config.expected_scores import SPLITS, Expected, metrics_of
from finetune.config.recipes import recipe_text
from finetune.config.search_space import Choices
from finetune.config.tasks import TrainConfig
from finetune.config.values import shown_value
from finetune.reporting.charts import Chart, Scale, chart, line_chart, padded, tick, ticks
from finetune.reporting.rendering import Section, Table, format_score, page_of
from finetune.reporting.runs import gather
from finetune.runtime.files import write_text

if TYPE_CHECKING:
    from finetune.training.search import SearchResult

SEARCH_FILE, PAGE_FILE = "search.json", "search.html"
RECIPE_FILE = "best.yaml"
"""The recipe of the best trial, in the folder of a search."""


def write_search(
    result: SearchResult, metrics: Mapping[str, Mapping[str, float]] | None = None
) -> Path:
    """Write the trials of a search and their page into its folder; return the path of the page.

    ``metrics`` are the scores of the best trial by split and name, once all trials have ended.
    """
    record = result.record() | {"metrics": metrics}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_text(result.folder / SEARCH_FILE, text)
    sections = [_best(result, metrics or {}), _settings(result), _trials(result)]
    kind = f"search over settings of {result.task}"
    page = page_of(kind, result.folder.name, sections, command="finetune search")
    write_text(result.folder / PAGE_FILE, page)
    return result.folder / PAGE_FILE


def write_best_recipe(
    result: SearchResult,
    config: TrainConfig,
    run: Path,
    metrics: Mapping[str, Mapping[str, float]],
    command: str,
) -> Path:
    """Write the settings of the best trial as a recipe; return its path.

    The recipe expects the ``metrics`` of the folder ``run``. The tolerance is half of the 95 %
    interval over the examples, at least 0.01.
    """
    assert result.best is not None
    source = f"trial {result.best.number} of {len(result.trials)} of: {command}"
    expected = []
    for split, values in metrics.items():
        if result.metric not in metrics_of(result.task) or split not in SPLITS:
            continue
        system = gather(run, split)
        found = system.headline
        wide = (found.estimate.high - found.estimate.low) / 2 if found else 0.0
        expected.append(
            Expected(
                split,
                result.metric,
                round(values[result.metric], 4),
                round(max(wide, 0.01), 4),
                f"{source}; the tolerance is half the 95 % interval over the examples",
                fingerprint=system.runs[0].config["fingerprint"],
            )
        )
    write_text(result.folder / RECIPE_FILE, recipe_text(result.task, config, source, expected))
    return result.folder / RECIPE_FILE


def _best(result: SearchResult, metrics: Mapping[str, Mapping[str, float]]) -> Section:
    """Return the best trial with its scores."""
    best = result.best
    if best is None:
        return Section("The best trial", ["No trial has a score yet."])
    line = (
        f"Trial {best.number} of {len(result.trials)}: {result.metric} {shown_value(best.score)} "
        "on validation."
    )
    for split, values in metrics.items():
        if result.metric in values and not split.startswith("validation"):
            line += f" On {split}: {format_score(values[result.metric], result.metric)}."
    chosen = ", ".join(f"{name} = {value}" for name, value in best.settings.items())
    unread = "" if metrics else " The test split has not been read yet."
    too_high = (
        "The score on validation is the highest of several, so that it is too high. Only a split "
        f"that the search did not read, such as test, measures the model.{unread}"
    )
    notes = [line, chosen or "The settings of the command.", too_high]
    return Section("The best trial", notes)


def _settings(result: SearchResult) -> Section:
    """Return which settings matter, and the scores by the values of each."""
    table = Table(
        "Fraction of the variance of the scores that a setting explains (fANOVA)",
        ["setting", "importance"],
        [[name, value] for name, value in result.importances.items()],
        bars=(1,),
    )
    note = "There are too few finished trials to tell which settings matter."
    if table.rows:
        note = "The importance of a setting depends on its range, and with few trials it is rough."
    charts = [*_progress(result), *_values(result)]
    return Section("Settings", [note], charts, [table] if table.rows else [])


def _trials(result: SearchResult) -> Section:
    """Return all trials, and why some failed."""
    columns, rows = result.table()
    notes = [
        f"Trial {each.number} failed: {each.error}"
        for each in result.trials
        if each.error and each.same_as is None
    ]
    notes += [
        "Trial 0 has the settings of the command. A pruned trial has the score of its last "
        "evaluation."
    ]
    return Section("Trials", notes, tables=[Table("Trials, the best first", columns, rows)])


def _progress(result: SearchResult) -> list[Chart]:
    """Draw the scores by number, and the best until then."""
    better = min if result.lower_is_better else max
    found = [(t.number, t.score) for t in result.trials if t.state == "finished"]
    if not found:
        return []
    own: list[tuple[float, float]] = [(n, score) for n, score in found if score is not None]
    best = [(n, better(score for _, score in own[: i + 1])) for i, (n, _) in enumerate(own)]
    title = f"{result.metric} on validation"
    label = f"{title} by number of the trial"
    series = [("best so far", best), ("finished trial", own)]
    return [line_chart(title, label, series, "trial", dotted=["finished trial"])]


def _values(result: SearchResult) -> list[Chart]:
    """Draw the scores of finished trials by the value of each setting."""
    charts = []
    for name, dimension in result.space.items():
        found = [
            (t.settings[name], t.score)
            for t in result.trials
            if t.state == "finished" and t.score is not None and name in t.settings
        ]
        if not found:
            continue
        values, scores = [value for value, _ in found], [score for _, score in found]
        log = not isinstance(dimension, Choices) and dimension.log
        if isinstance(dimension, Choices):
            names, order = list(dimension.values), dimension.examples()
            xs = [float(order.index(value)) for value in values]
            shown = [names[int(x)] for x in xs]
            left, right = -0.5, len(names) - 0.5
            places = [(float(place), each) for place, each in enumerate(names)]
        else:
            xs = [math.log10(value) if log else float(value) for value in values]
            shown = [f"{value:.3g}" for value in values]
            room = (max(xs) - min(xs)) * 0.04
            left, right = min(xs) - room, max(xs) + room
            places = [(x, tick(10**x if log else x)) for x in ticks(left, right)]
        scale = Scale(left, right, *padded(min(scores), max(scores)))
        dots = [(x, y, f"{at}: {y:.4g}") for x, y, at in zip(xs, scores, shown, strict=True)]
        caption = f"{result.metric} by {name}"
        label = f"{caption}, one dot a trial"
        charts.append(chart(caption, label, scale, "", places=places, dots=dots))
    return charts
