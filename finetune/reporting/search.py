"""The HTML page of a search: one file that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.expected_scores import SPLITS, Expected, metrics_of
from finetune.config.recipes import recipe_text
from finetune.config.search_space import Choices
from finetune.config.tasks import TrainConfig
from finetune.reporting.charts import Chart, line_chart, value_chart
from finetune.reporting.html import Table, inlined
from finetune.reporting.rendering import format_score, render
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
    columns, rows = result.table()
    scores = [
        (split, format_score(values[result.metric], result.metric))
        for split, values in (metrics or {}).items()
        if result.metric in values
    ]
    page = render(
        "search.html",
        **inlined(),
        result=result,
        scores=scores,
        charts=[*_progress(result), *_values(result)],
        importances=Table(
            "Fraction of the variance of the scores that a setting explains (fANOVA)",
            ["setting", "importance"],
            [[name, value] for name, value in result.importances.items()],
            bars=(1,),
        ),
        trials=Table("Trials, the best first", columns, rows),
        failed=[each for each in result.trials if each.error and each.same_as is None],
    )
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
        log = not isinstance(dimension, Choices) and dimension.log
        points: list[tuple[Any, float]] = [
            (t.settings[name], t.score)
            for t in result.trials
            if t.state == "finished" and t.score is not None and name in t.settings
        ]
        names = None
        if isinstance(dimension, Choices):
            names = list(dimension.values)
            order = dimension.examples()
            points = [(float(order.index(value)), score) for value, score in points]
        elif log:
            points = [(math.log10(value), score) for value, score in points]
        if points:
            caption = f"{result.metric} by {name}"
            charts.append(value_chart(caption, f"{caption}, one dot a trial", points, names, log))
    return charts
