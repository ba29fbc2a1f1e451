"""The scores of a suite: one table, with the average as the benchmark defines it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.data.json_files import read_object
from finetune.evaluation.metrics import score_limits
from finetune.evaluation.reproduction import (
    ScoreVerdict,
    read_run,
    recipe_verdicts,
    standard_deviation,
)
from finetune.evaluation.runs import RunFolder
from finetune.suites.definition import AVERAGES, Member, Score, SubmissionFile, Suite
from finetune.types import UserError, abbreviated

RESULTS_FILE = "suite.json"
"""File in the folder of a suite with its scores."""


@dataclass(frozen=True)
class SavedSuite:
    """The folder of a suite, without the file and the recipes of the suite."""

    folder: Path
    name: str
    title: str
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
    return SavedSuite(
        folder, content["suite"], content["title"], scores, submission["format"], files
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedScores:
    """A score by seed; empty if there is none."""

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
        expected = self.verdict.record() if self.verdict else {}
        names = {"value": "expected", "tolerance": "tolerance", "statistic": "statistic"}
        published = {name: expected[key] for name, key in names.items()} if expected else None
        return {
            "split": self.score.split,
            "metric": self.score.metric,
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "seeds": dict(self.seeds),
            "published": {**published, "source": expected["source"]} if published else None,
            "verdict": expected.get("verdict"),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Average(SeedScores):
    """The average of a suite over the seeds that all of its members have."""

    definition: str
    left_out: Mapping[str, str]
    """Members that the average leaves out, with the reason."""
    missing: Sequence[str]
    """Members without scores, for which there is no average."""
    published: float | None = None
    """The same average of the published scores; None unless all scores have one."""


@dataclass(frozen=True)
class SuiteResults:
    """The scores of the members of a suite in a folder."""

    suite: Suite
    folder: Path
    scores: Sequence[MemberScore]
    degenerate: Mapping[str, Mapping[str, Sequence[str]]]
    """Why seeds are degenerate, by member and seed."""
    failures: Mapping[str, str]
    """Why members have failed, by name."""
    chosen: Collection[str]
    """The members to run."""

    @property
    def shown(self) -> list[MemberScore]:
        """The scores in the table: those of members to run, and all that there are."""
        return [each for each in self.scores if each.seeds or each.member.name in self.chosen]

    @property
    def average(self) -> Average | None:
        """The average; None if the suite defines none."""
        if self.suite.average not in AVERAGES:
            return None
        members = {
            name: [score for score in self.scores if score.member.name == name]
            for name, member in self.suite.members.items()
            if member.weight
        }
        counted = [score for scores in members.values() for score in scores]
        missing = [name for name, own in members.items() if not all(each.seeds for each in own)]
        shared = {*counted[0].seeds} if counted and not missing else set()
        for score in counted:
            shared &= {*score.seeds}
        seeds = {
            seed: self._average({score: score.seeds[seed] for score in counted}, members)
            for seed in sorted(shared, key=lambda seed: (len(seed), seed))
        }
        expected = {
            score: score.verdict.expected.value for score in counted if score.verdict is not None
        }
        whole = len(expected) == len(counted) > 0
        return Average(
            seeds=seeds,
            definition=AVERAGES[self.suite.average],
            left_out={m.name: m.note for m in self.suite.members.values() if not m.weight},
            missing=missing,
            published=self._average(expected, members) if whole else None,
        )

    def _average(
        self, values: Mapping[MemberScore, float], members: Mapping[str, Sequence[MemberScore]]
    ) -> float:
        """Return the average of values by score."""
        if self.suite.average == "scores":
            return statistics.fmean(values.values(), [each.member.weight for each in values])
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
                "definition": average.definition,
                "mean": average.mean,
                "standard_deviation": average.deviation,
                "seeds": dict(average.seeds),
                "published": average.published,
                "left_out": dict(average.left_out),
                "missing": list(average.missing),
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
        average = self.average
        if average is not None and average.missing:
            names = abbreviated(average.missing, 30)
            lines.append(f"No average: {names} {_has(average.missing)} no scores yet.")
        elif average is not None:
            lines.append(f"Average: {average.definition}.")
            if not average.seeds:
                lines.append("No average: the members have no seed in common.")
        if average is not None:
            for name, note in average.left_out.items():
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


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


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
        verdicts = {}
        if run.seeds:
            free = () if member.start is None or member.published else ("init_from",)
            verdicts = {
                Score(each.expected.split, each.expected.metric): each
                for each in recipe_verdicts(run, member.reference, *free)
            }
        else:
            verdicts = {
                Score(each.split, each.metric): ScoreVerdict(each, None, "not measured")
                for each in member.reference.expected
            }
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
