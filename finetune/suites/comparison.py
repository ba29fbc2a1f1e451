"""Compare two suites: a paired test on each data set, and tests over the data sets.

The p-values of the data sets are adjusted for their number by the procedure of Holm (1979, "A
simple sequentially rejective multiple test procedure"). Whether one system is better over data
sets is the question of the signed-ranks test of Wilcoxon (Demšar, 2006, "Statistical comparisons of
classifiers over multiple data sets").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from finetune.evaluation.compare import ComparisonOptions, SystemComparison, compare_systems
from finetune.evaluation.significance import ALPHA, holm
from finetune.suites.definition import Score
from finetune.suites.results import SavedSuite
from finetune.types import UserError, abbreviated

FEWEST_DATA_SETS = 6
"""With fewer data sets the smallest p-value of the signed-ranks test exceeds ``ALPHA``."""


class DataSetComparison(NamedTuple):
    """Two systems on a split of a data set; ``adjusted`` is the p-value by Holm."""

    member: str
    score: Score
    comparison: SystemComparison
    p: float
    """The larger p-value of the bootstrap and the randomization test."""
    adjusted: float

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        result = self.comparison.result
        return {
            "data": self.member,
            "split": self.score.split,
            "metric": self.score.metric,
            "a": result.first.value,
            "b": result.second.value,
            **{f"difference_{k}": v for k, v in result.difference._asdict().items()},
            "runs_a": len(result.runs[0]),
            "runs_b": len(result.runs[1]),
            "p_bootstrap": result.p_bootstrap,
            "p_randomization": result.p_randomization,
            "p": self.p,
            "p_holm": self.adjusted,
            "significant": self.adjusted < ALPHA,
        }


@dataclass(frozen=True)
class SuiteComparison:
    """The comparison of two suites."""

    data: Sequence[DataSetComparison]
    signed_ranks: float | None
    """The p-value of Wilcoxon's signed-ranks test over data sets; None for fewer than two."""
    left_out: Sequence[str]
    """Data sets that only one of the suites has."""


def compare_suites(
    first: SavedSuite, second: SavedSuite, options: ComparisonOptions
) -> SuiteComparison:
    """Compare the systems of two suites on each data set that both have.

    A data set with several test sets counts once for each, with the first metric of its scores.
    Raises UserError if they share no data set with finished runs.
    """
    found: list[tuple[str, Score, SystemComparison]] = []
    left_out = [
        name for name in {**first.scores, **second.scores} if not _both(first, second, name)
    ]
    for name, scores in first.scores.items():
        if name in left_out:
            continue
        by_split = {score.split: score for score in reversed(scores)}
        for score in (each for each in scores if by_split[each.split] == each):
            runs = [
                ",".join(str(suite.run(name, seed)) for seed in suite.runs(name))
                for suite in (first, second)
            ]
            own = replace(options, metric=score.metric, split=score.split, run_files=False)
            try:
                found.append((name, score, compare_systems(*runs, options=own)))
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
    if not found:
        raise UserError(
            f"{first.folder} and {second.folder} share no data set with finished runs: they have "
            f"{abbreviated(first.scores)} and {abbreviated(second.scores)}."
        )
    p_values = [max(each.result.p_bootstrap, each.result.p_randomization) for *_, each in found]
    data = [
        DataSetComparison(*each, p, adjusted)
        for each, p, adjusted in zip(found, p_values, holm(p_values), strict=True)
    ]
    differences = [
        (-1 if each.comparison.lower_is_better else 1) * each.comparison.result.difference.value
        for each in data
    ]
    return SuiteComparison(data, signed_ranks(differences), left_out)


def _both(first: SavedSuite, second: SavedSuite, member: str) -> bool:
    return all(member in suite.scores and suite.runs(member) for suite in (first, second))


def signed_ranks(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-ranks test; None for fewer than two.

    Ranks of differences of zero are divided between both sides, as Demšar (2006) does.

    >>> round(signed_ranks([0.2, 0.1, 0.3, 0.05, 0.4, 0.15]), 5)
    0.03125
    """
    from scipy.stats import wilcoxon  # imported late: it costs half a second

    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="zsplit").pvalue)
