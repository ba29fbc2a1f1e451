"""The scores of a suite: one table, with the average as the benchmark defines it."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.cli.output import ScoreCell, table_text
from finetune.data.json_files import read_object
from finetune.evaluation.kinds import score_limits
from finetune.evaluation.reproduction import (
    ScoreVerdict,
    read_run,
    recipe_verdicts,
    standard_deviation,
)
from finetune.evaluation.runs import RunFolder
from finetune.reporting.html import REPORT_FILE
from finetune.reporting.rendering import Section, Table, page_of
from finetune.runtime.files import write_text
from finetune.suites.definition import AVERAGES, Member, Score, SubmissionFile, Suite
from finetune.types import UserError, abbreviated

RESULTS_FILE = "suite.json"
"""File in the folder of a suite with its scores."""
RESULT_FILES = ("suite.md", "suite.tex", RESULTS_FILE, "suite.html")
"""The files with the table."""


@dataclass(frozen=True)
class SavedSuite:
    """The folder of a suite, without the file and the recipes of the suite."""

    folder: Path
    name: str
    scores: Mapping[str, Sequence[Score]]
    """The scores by member."""
    submission: str | None
    """The format of a submission; None if the suite has none."""
    files: Sequence[SubmissionFile]

    def runs(self, member: str) -> list[int]:
        """Return the seeds of a member whose runs are finished."""
        seeds: list[int] = list(read_run(self.folder / member).seeds.get("seeds", ()))
        return [seed for seed in seeds if RunFolder.open(self.run(member, seed)).is_finished]

    def run(self, member: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.folder / member / f"seed-{seed}"


_TYPES: Mapping[str, Any] = {
    "suite": str,
    "title": str,
    "members": dict[str, dict[str, Any]],
    "submission": dict | None,
}


def open_suite(folder: Path) -> SavedSuite:
    """Read the folder of `finetune run SUITE`; UserError for another folder."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise UserError(
            f"{folder}: no {RESULTS_FILE} in it: give a folder of `finetune run SUITE`."
        )
    content = read_object(path, _TYPES)
    try:
        scores = {
            name: [Score(str(each["split"]), str(each["metric"])) for each in member["scores"]]
            for name, member in content["members"].items()
        }
        submission = content.get("submission") or {"format": None, "files": []}
        files = [SubmissionFile(**each) for each in submission["files"]]
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged: restore it, or write it again with the command of the suite."
        ) from error
    return SavedSuite(folder, content["suite"], scores, submission["format"], files)


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedScores:
    """A score by seed, empty if there is none; for example an average over members."""

    seeds: Mapping[str, float]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None without seeds."""
        return statistics.fmean(self.seeds.values()) if self.seeds else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for fewer than two."""
        return standard_deviation(list(self.seeds.values()))


@dataclass(frozen=True, eq=False, kw_only=True)
class MemberScore(SeedScores):
    """A score of a member over its seeds, and the published score."""

    member: Member
    score: Score
    verdict: ScoreVerdict | None = None
    """The published score with the verdict; None if there is none."""

    def record(self) -> dict[str, Any]:
        """Return the score as JSON values."""
        found = self.verdict.record() if self.verdict else None
        names = ("tolerance", "statistic", "source")
        published = found and {"value": found["expected"], **{name: found[name] for name in names}}
        return {
            "split": self.score.split,
            "metric": self.score.metric,
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "seeds": dict(self.seeds),
            "published": published,
            "verdict": found and found["verdict"],
        }


@dataclass(frozen=True)
class SuiteResults:
    """The scores of the members of a suite in a folder."""

    suite: Suite
    folder: Path
    scores: Sequence[MemberScore]
    degenerate: Mapping[str, Mapping[str, Sequence[str]]]
    """The reasons why seeds are degenerate, by member and seed."""
    failures: Mapping[str, str]
    """The messages of failed members, by name."""
    chosen: Collection[str]
    """The members to run."""

    @property
    def shown(self) -> list[MemberScore]:
        """The scores in the table: of members to run, and of members with a finished run."""
        return [each for each in self.scores if each.seeds or each.member.name in self.chosen]

    @property
    def _counted(self) -> dict[str, list[MemberScore]]:
        return {
            name: [score for score in self.scores if score.member.name == name]
            for name, member in self.suite.members.items()
            if member.weight
        }

    @property
    def missing(self) -> list[str]:
        """The members without scores, for which there is no average."""
        return [name for name, own in self._counted.items() if not all(each.seeds for each in own)]

    @property
    def left_out(self) -> dict[str, str]:
        """The members that the average leaves out, with the reason."""
        return {m.name: m.note for m in self.suite.members.values() if not m.weight}

    @property
    def average(self) -> SeedScores | None:
        """The average over the seeds that all members have; None if the suite defines none."""
        if self.suite.average not in AVERAGES:
            return None
        counted = [score for own in self._counted.values() for score in own]
        shared = {*counted[0].seeds} if counted and not self.missing else set()
        for score in counted:
            shared &= {*score.seeds}
        seeds = {
            seed: self._average({score: score.seeds[seed] for score in counted})
            for seed in sorted(shared, key=lambda seed: (len(seed), seed))
        }
        return SeedScores(seeds=seeds)

    @property
    def published_average(self) -> float | None:
        """The average of the published scores; None unless all scores have one."""
        counted = [score for own in self._counted.values() for score in own]
        expected = {
            score: score.verdict.expected.value for score in counted if score.verdict is not None
        }
        return self._average(expected) if len(expected) == len(counted) > 0 else None

    def _average(self, values: Mapping[MemberScore, float]) -> float:
        if self.suite.average == "scores":
            return statistics.fmean(values.values(), [each.member.weight for each in values])
        members = self._counted
        means = [statistics.fmean(values[each] for each in own) for own in members.values()]
        return statistics.fmean(means, [self.suite.members[name].weight for name in members])

    def record(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        members = {}
        for name, member in self.suite.members.items():
            members[name] = {
                "recipe": member.recipe.name,
                "task": member.recipe.task,
                "from": member.start,
                "weight": member.weight,
                "note": member.note,
                "degenerate": dict(self.degenerate.get(name, {})),
                "failure": self.failures.get(name),
                "scores": [each.record() for each in self.scores if each.member.name == name],
            }
        average = self.average
        found = None
        if average is not None:
            found = {
                "definition": AVERAGES[self.suite.average],
                "mean": average.mean,
                "standard_deviation": average.deviation,
                "seeds": dict(average.seeds),
                "published": self.published_average,
                "left_out": self.left_out,
                "missing": self.missing,
            }
        return {
            "suite": self.suite.name,
            "title": self.suite.title,
            "source": self.suite.source,
            "members": members,
            "average": found,
            "submission": self.suite.submission
            and {
                "format": self.suite.submission,
                "files": [dataclasses.asdict(file) for file in self.suite.files],
            },
        }

    @property
    def sources(self) -> list[str]:
        """The sources of the published scores, in the order of the table."""
        cited = (score.verdict.expected.cited for score in self.shown if score.verdict)
        return list(dict.fromkeys(cited))

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        lines = [f"[{number}] {source}" for number, source in enumerate(self.sources, 1)]
        average, missing = self.average, self.missing
        if average is not None and missing:
            have = "has" if len(missing) == 1 else "have"
            lines.append(f"No average: {abbreviated(missing, 30)} {have} no scores yet.")
        elif average is not None:
            lines.append(f"Average: {AVERAGES[self.suite.average]}.")
            if not average.seeds:
                lines.append("No average: the members have no seed in common.")
        if average is not None:
            for name, note in self.left_out.items():
                lines.append(f"Left out of the average: {name}: {note}.")
        for member in self.suite.members.values():
            if member.note and member.weight:
                lines.append(f"{member.name}: {member.note}.")
        for name, seeds in self.degenerate.items():
            listed = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}"
            are = "is" if len(seeds) == 1 else "are"
            lines.append(f"{name}: {listed} {are} degenerate; {RESULTS_FILE} has the reasons.")
        lines += [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        return lines


def read_results(
    suite: Suite,
    folder: Path,
    failures: Mapping[str, str] | None = None,
    chosen: Collection[str] | None = None,
) -> SuiteResults:
    """Read the scores of all finished runs in the folder of a suite.

    ``chosen`` are the members to run, by default all.
    """
    scores: list[MemberScore] = []
    degenerate = {}
    for name, member in suite.members.items():
        run = read_run(folder / name)
        free = () if member.start is None or member.published else ("init_from",)
        reference = member.published or member.recipe
        found = (
            recipe_verdicts(run, reference, *free)
            if run.seeds
            else [ScoreVerdict(each, None, "not measured") for each in reference.expected]
        )
        verdicts = {Score(each.expected.split, each.expected.metric): each for each in found}
        seeds = run.seeds.get("degenerate", ())
        if reasons := {str(seed["seed"]): list(seed.get("reasons", ())) for seed in seeds}:
            degenerate[name] = reasons
        for score in member.scores:
            summary = run.metrics.get(score.split, {}).get(score.metric, {}) if run.seeds else {}
            values = {
                str(seed): float(value)
                for seed, value in summary.get("seeds", {}).items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            verdict = verdicts.get(score)
            scores.append(MemberScore(seeds=values, member=member, score=score, verdict=verdict))
    chosen = suite.members if chosen is None else chosen
    return SuiteResults(suite, folder, scores, degenerate, dict(failures or {}), chosen)


def number(value: float | None, metric: str | None = None) -> str:
    """Return a score as papers print it: in percent unless the metric has no limits."""
    if value is None:
        return ""
    percent = metric is None or math.isfinite(score_limits(metric)[1])
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def score_table(results: SuiteResults) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the scores of a suite, the average last."""
    columns = ["data set", "split", "metric", "score", "seeds", "published", "verdict"]
    rows = [
        [
            score.member.name,
            score.score.split,
            score.score.metric,
            _cell(score, score.score.metric),
            len(score.seeds),
            _published(score, results.sources),
            score.verdict.verdict if score.verdict and score.seeds else "",
        ]
        for score in results.shown
    ]
    average = results.average
    if average is not None and average.seeds:
        published = number(results.published_average)
        rows.append(["average", "", "", _cell(average), len(average.seeds), published, ""])
    return columns, rows


def _cell(scores: SeedScores, metric: str | None = None) -> ScoreCell:
    deviation = scores.deviation
    shown = None if deviation is None else number(deviation, metric)
    return ScoreCell(number(scores.mean, metric), shown)


def _published(score: MemberScore, sources: Sequence[str]) -> str:
    if score.verdict is None:
        return ""
    expected = score.verdict.expected
    value = number(expected.value, expected.metric)
    return f"{value} [{sources.index(expected.cited) + 1}]"


def write_results(results: SuiteResults) -> None:
    """Write the table of a suite to its folder in all formats."""
    columns, rows = score_table(results)
    title, notes = results.suite.title, results.notes()
    markdown = [f"# {title}", table_text("markdown", "", columns, rows)]
    markdown.append("\n".join(f"- {line}" for line in notes))
    comments = "".join(f"% {line}\n" for line in notes)
    texts = {
        "suite.md": "\n\n".join(markdown) + "\n",
        "suite.tex": f"{table_text('latex', title, columns, rows)}\n{comments}",
        RESULTS_FILE: json.dumps(results.record(), indent=2, ensure_ascii=False) + "\n",
        "suite.html": _page(results, columns, rows),
    }
    for name, text in texts.items():
        write_text(results.folder / name, text)


def _page(results: SuiteResults, columns: list[str], rows: Sequence[Sequence[Any]]) -> str:
    suite = results.suite
    reports = [(name, f"{name}/{REPORT_FILE}") for name in suite.members]
    reports = [(name, path) for name, path in reports if (results.folder / path).is_file()]
    cells = [[str(cell) if isinstance(cell, ScoreCell) else cell for cell in row] for row in rows]
    percent = "Mean ± standard deviation over seeds, in percent unless a metric has no limits."
    table = Table(f"Scores of {suite.title}", columns, cells)
    sections = [
        Section("Scores", [percent, *results.notes()], tables=[table]),
        Section("Reports", links=reports),
    ]
    about = suite.description or str(suite.source)
    return page_of("suite", suite.title, sections, about=about, command="finetune run")
