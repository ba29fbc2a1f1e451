"""The scores of a suite: one table, with the average as the benchmark defines it."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.output import ScoreCell, print_table, print_tables, table_text
from finetune.evaluation.prediction_types import score_limits
from finetune.evaluation.reproduction import (
    ScoreVerdict,
    read_run,
    recipe_verdicts,
    standard_deviation,
)
from finetune.runtime.files import write_text
from finetune.suites.commands import LoadedSuite
from finetune.suites.definition import AVERAGES, RESULT_FILES, RESULTS_FILE, Suite, SuiteTask
from finetune.types import abbreviated

COLUMNS = ("data set", "split", "metric", "score", "seeds", "published", "verdict")


class TaskScore(NamedTuple):
    """A score of a task by seed, empty if there is none yet, with the published score."""

    task: SuiteTask
    split: str
    metric: str
    seeds: Mapping[str, float]
    verdict: ScoreVerdict | None


class SuiteResults:
    """The scores of all finished runs in the folder of a suite.

    ``failures`` are the messages of failed tasks, by name.
    """

    def __init__(self, suite: Suite, folder: Path, failures: Mapping[str, str]) -> None:
        self.suite, self.folder, self.failures = suite, folder, failures
        self.scores: list[TaskScore] = []
        for task in suite.tasks.values():
            run = read_run(folder / task.name)
            free = () if task.start is None or task.published else ("init_from",)
            reference = task.published or task.recipe
            verdicts = {
                (verdict.expected.split, verdict.expected.metric): verdict
                for verdict in (recipe_verdicts(run, reference, *free) if run.seeds else ())
            }
            for score in task.scores:
                summary = run.metrics.get(score.split, {}).get(score.metric, {})
                seeds = {
                    str(seed): float(value)
                    for seed, value in (summary.get("seeds", {}) if run.seeds else {}).items()
                    if isinstance(value, int | float) and math.isfinite(value)
                }
                self.scores.append(TaskScore(task, *score, seeds, verdicts.get(score)))
        cited = (score.verdict.expected.cited for score in self.scores if score.verdict is not None)
        self.sources = list(dict.fromkeys(cited))

    def average(self) -> dict[str, float]:
        """Compute the average by seed, over the seeds that all tasks have."""
        counted = [score for score in self.scores if score.task.weight]
        if self.suite.average not in AVERAGES or not counted:
            return {}
        averages = {}
        for seed in sorted(set.intersection(*({*score.seeds} for score in counted)), key=int):
            values, weights = defaultdict[Any, list[float]](list), dict[Any, float]()
            for score in counted:
                key = score.task.name if self.suite.average == "members" else score[:3]
                values[key].append(score.seeds[seed])
                weights[key] = score.task.weight
            means = map(statistics.fmean, values.values())
            averages[seed] = statistics.fmean(means, weights.values())
        return averages

    def rows(self) -> list[list[Any]]:
        """Make the rows of the table: the tasks with scores, and the average."""
        rows: list[list[Any]] = []
        for task, split, metric, seeds, verdict in self.scores:
            if not seeds:
                continue
            published, judged = "", ""
            if verdict is not None:
                number = self.sources.index(verdict.expected.cited) + 1
                published = f"{_number(verdict.expected.value, metric)} [{number}]"
                judged = verdict.verdict
            cell = _cell(seeds, metric)
            rows.append([task.name, split, metric, cell, len(seeds), published, judged])
        if average := self.average():
            rows.append(["average", "", "", _cell(average), len(average), "", ""])
        return rows

    def notes(self) -> list[str]:
        """Format the lines below the table."""
        lines = [f"[{number}] {source}" for number, source in enumerate(self.sources, 1)]
        if self.suite.average in AVERAGES:
            missing = {s.task.name: 0 for s in self.scores if s.task.weight and not s.seeds}
            none = f"none yet, as {abbreviated(missing, 30)} lacks scores"
            lines.append(f"Average: {none if missing else AVERAGES[self.suite.average]}.")
        for task in self.suite.tasks.values():
            left_out = "" if task.weight else "Left out of the average: "
            lines += [f"{left_out}{task.name}: {task.note}."] if task.note else []
        return lines + [f"{name} failed: {reason}" for name, reason in self.failures.items()]

    def show(self, command: LoadedSuite) -> None:
        """Print the table and its notes."""
        rows = self.rows()
        if command.format == "table":
            print_table(COLUMNS, rows, self.suite.title)
        else:
            print_tables(command.format, ("", COLUMNS, rows))
        for line in self.notes():
            command.note(line)
        command.note(f"Everything is in {self.folder}: {', '.join(RESULT_FILES)} have the table.")

    def write(self) -> None:
        """Write the table to the folder as Markdown, LaTeX and JSON."""
        rows, title, notes = self.rows(), self.suite.title, self.notes()
        markdown = table_text("markdown", "", COLUMNS, rows)
        latex = table_text("latex", title, COLUMNS, rows)
        scores = [
            {
                "member": score.task.name,
                "split": score.split,
                "metric": score.metric,
                "seeds": score.seeds,
                "verdict": score.verdict and score.verdict.verdict,
            }
            for score in self.scores
        ]
        content = {"suite": str(self.suite.path), "scores": scores, "average": self.average()}
        texts = {
            "suite.md": f"# {title}\n\n{markdown}\n\n" + "".join(f"- {line}\n" for line in notes),
            "suite.tex": f"{latex}\n" + "".join(f"% {line}\n" for line in notes),
            RESULTS_FILE: json.dumps(content, indent=2, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            write_text(self.folder / name, text)


def _number(value: float, metric: str | None = None) -> str:
    percent = metric is None or math.isfinite(score_limits(metric)[1])
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _cell(seeds: Mapping[str, float], metric: str | None = None) -> ScoreCell:
    deviation = standard_deviation(list(seeds.values()))
    shown = None if deviation is None else _number(deviation, metric)
    return ScoreCell(_number(statistics.fmean(seeds.values()), metric), shown)
