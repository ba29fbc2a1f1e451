"""The scores of a suite: one table, with the average as the benchmark defines it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.output import ScoreCell, score_cell, table_text
from finetune.evaluation.reproduction import (
    ScoreVerdict,
    recipe_verdicts,
    standard_deviation,
)
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import write_text
from finetune.suites.definition import RESULTS_FILE, Suite, SuiteTask
from finetune.types import abbreviated

COLUMNS = ("data set", "split", "metric", "score", "seeds", "published", "verdict")


class TaskScore(NamedTuple):
    """A score of a task by seed, empty if there is none yet, with the published score."""

    task: SuiteTask
    split: str
    metric: str
    seeds: Mapping[str, float]
    verdict: ScoreVerdict | None


def write_results(
    suite: Suite, folder: Path, failures: Mapping[str, str]
) -> tuple[list[list[Any]], list[str]]:
    """Write the scores of all finished runs of a suite as Markdown and JSON.

    ``failures`` are the messages of failed tasks, by name.

    Returns:
        The rows of the table: the tasks with scores, and the average; and the lines below it.
    """
    scores = _read_scores(suite, folder)
    averages = _average(suite, scores)
    cited = (score.verdict.expected.cited for score in scores if score.verdict is not None)
    sources = {source: number for number, source in enumerate(dict.fromkeys(cited), 1)}
    rows: list[list[Any]] = []
    for task, split, metric, seeds, verdict in scores:
        if seeds:
            row = [task.name, split, metric, _cell(seeds, metric), len(seeds), "", ""]
            if verdict is not None:
                expected = verdict.expected
                row[-2] = f"{score_cell(metric, expected.value, None)} [{sources[expected.cited]}]"
                row[-1] = verdict.verdict
            rows.append(row)
    if averages:
        rows.append(["average", "", "", _cell(averages), len(averages), "", ""])
    notes = [f"[{number}] {source}" for source, number in sources.items()]
    if not all(task.left_out for task in suite.tasks.values()):
        missing = {s.task.name: 0 for s in scores if not (s.task.left_out or s.seeds)}
        none = f"none yet, as there are no scores of {abbreviated(missing, 30)}"
        notes.append(f"Average: {none if missing else 'mean over data sets of their mean scores'}.")
    for task in suite.tasks.values():
        if task.left_out:
            notes.append(f"Left out of the average: {task.name}: {task.left_out}.")
    notes += [f"{name} failed: {reason}" for name, reason in failures.items()]
    markdown = table_text("markdown", "", COLUMNS, rows)
    content = {
        "suite": str(suite.path),
        "scores": [
            score._asdict()
            | {"task": score.task.name, "verdict": score.verdict and score.verdict.verdict}
            for score in scores
        ],
        "average": averages,
    }
    items = "".join(f"- {line}\n" for line in notes)
    write_text(folder / "suite.md", f"# {suite.title}\n\n{markdown}\n\n{items}")
    write_text(folder / RESULTS_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return rows, notes


def _read_scores(suite: Suite, folder: Path) -> list[TaskScore]:
    scores = []
    for task in suite.tasks.values():
        run = RunFolder.open_all(folder / task.name)
        free = () if task.start is None or task.published else ("init_from",)
        reference = task.published or task.recipe
        verdicts = {
            (verdict.expected.split, verdict.expected.metric): verdict
            for verdict in (recipe_verdicts(run, reference, *free) if run.seeds else ())
        }
        for score in task.scores:
            summary = run.metrics.get(score.split, {}).get(score.metric, {}) if run.seeds else {}
            seeds = {s: value for s, value in summary.get("seeds", {}).items() if value is not None}
            scores.append(TaskScore(task, *score, seeds, verdicts.get(score)))
    return scores


def _average(suite: Suite, scores: Sequence[TaskScore]) -> dict[str, float]:
    counted = [score for score in scores if not score.task.left_out]
    if not counted:
        return {}
    averages = {}
    for seed in sorted(set.intersection(*({*score.seeds} for score in counted)), key=int):
        values = defaultdict[str, list[float]](list)
        for score in counted:
            values[score.task.name].append(score.seeds[seed])
        averages[seed] = statistics.fmean(map(statistics.fmean, values.values()))
    return averages


def _cell(seeds: Mapping[str, float], metric: str = "accuracy") -> ScoreCell:
    values = list(seeds.values())
    return score_cell(metric, statistics.fmean(values), standard_deviation(values))
