"""The scores of a suite: one table, with the average as the benchmark defines it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from finetune.suites.definition import (
    AVERAGES,
    RESULT_FILES,
    RESULTS_FILE,
    Member,
    Score,
    Suite,
)
from finetune.types import abbreviated

COLUMNS = ("data set", "split", "metric", "score", "seeds", "published", "verdict")


@dataclass(frozen=True, eq=False)
class MemberScore:
    """A score of a member by seed, empty if there is none yet, with the published score."""

    member: Member
    score: Score
    seeds: Mapping[str, float]
    verdict: ScoreVerdict | None


class SuiteResults:
    """The scores of all finished runs in the folder of a suite."""

    def __init__(self, suite: Suite, folder: Path, failures: Mapping[str, str]) -> None:
        """``failures`` are the messages of failed members, by name."""
        self.suite, self.folder, self.failures = suite, folder, failures
        members = suite.members.values()
        self.scores = [score for member in members for score in self._read(member)]
        verdicts = [score.verdict for score in self.scores if score.verdict is not None]
        self.sources = list(dict.fromkeys(verdict.expected.cited for verdict in verdicts))

    def _read(self, member: Member) -> list[MemberScore]:
        run, reference = read_run(self.folder / member.name), member.published or member.recipe
        free = () if member.start is None or member.published else ("init_from",)
        verdicts = recipe_verdicts(run, reference, *free) if run.seeds else []
        by_score = {Score(v.expected.split, v.expected.metric): v for v in verdicts}
        scores = []
        for score in member.scores:
            summary = run.metrics.get(score.split, {}).get(score.metric, {}) if run.seeds else {}
            seeds = {
                str(seed): float(value)
                for seed, value in summary.get("seeds", {}).items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            scores.append(MemberScore(member, score, seeds, by_score.get(score)))
        return scores

    def average(self) -> dict[str, float]:
        """Compute the average by seed, over the seeds that all tasks have."""
        counted = [score for score in self.scores if score.member.weight]
        if self.suite.average not in AVERAGES or not counted:
            return {}
        shared = set.intersection(*({*score.seeds} for score in counted))
        averages = {}
        for seed in sorted(shared, key=lambda seed: (len(seed), seed)):
            values: dict[Any, list[float]] = {}
            weights = {}
            for score in counted:
                key = score.member.name if self.suite.average == "members" else score
                values.setdefault(key, []).append(score.seeds[seed])
                weights[key] = score.member.weight
            means = map(statistics.fmean, values.values())
            averages[seed] = statistics.fmean(means, weights.values())
        return averages

    def rows(self) -> list[list[Any]]:
        """Make the rows of the table: the tasks with scores, and the average."""
        rows: list[list[Any]] = []
        for score in self.scores:
            if not score.seeds:
                continue
            row = [score.member.name, *score.score, _cell(score.seeds, score.score.metric)]
            row += [len(score.seeds), "", ""]
            if score.verdict is not None:
                expected = score.verdict.expected
                published = _number(expected.value, expected.metric)
                row[-2] = f"{published} [{self.sources.index(expected.cited) + 1}]"
                row[-1] = score.verdict.verdict
            rows.append(row)
        if average := self.average():
            rows.append(["average", "", "", _cell(average), len(average), "", ""])
        return rows

    def notes(self) -> list[str]:
        """Format the lines below the table."""
        lines = [f"[{number}] {source}" for number, source in enumerate(self.sources, 1)]
        if self.suite.average in AVERAGES:
            missing = {s.member.name: 0 for s in self.scores if s.member.weight and not s.seeds}
            none = f"none yet, as {abbreviated(missing, 30)} lacks scores"
            lines.append(f"Average: {none if missing else AVERAGES[self.suite.average]}.")
        for member in self.suite.members.values():
            left_out = "" if member.weight else "Left out of the average: "
            lines += [f"{left_out}{member.name}: {member.note}."] if member.note else []
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
                "member": score.member.name,
                "split": score.score.split,
                "metric": score.score.metric,
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
