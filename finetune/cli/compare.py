"""`finetune compare`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from finetune.cli.output import EvaluationOptions, print_table, print_tables, show
from finetune.config.tasks import column_map
from finetune.types import quantity

if TYPE_CHECKING:
    from finetune.evaluation.compare import SystemComparison
    from finetune.evaluation.significance import Estimate


@dataclass(frozen=True, kw_only=True)
class Compare(EvaluationOptions):
    """Test whether two systems differ on the same examples by more than chance."""

    first: Annotated[Positional[str], arg(metavar="A")]
    """The first system: a file of predictions (JSON Lines, or columns of words with the prediction
    last), a run folder, several runs (A1,A2,A3 or a folder of run folders), or a folder of
    `--folds`."""
    second: Annotated[Positional[str], arg(metavar="B")]
    """The second system, in the same form."""
    metric: str | None = None
    """Metric of `finetune score` or `finetune analyze`, for one label, tag or type (`f1:NAME`,
    `span_f1_strict:PER`), or for one subgroup in a table of the analysis (`span_f1_length:3`).
    Unset is the metric that selects models in training. FILE.py:FUNCTION is your own metric."""
    unit: Literal["example", "document"] = "example"
    """Unit to resample: sentences or texts, or whole documents if gold has documents."""
    resamples: int = 10_000
    """Number of resamples of each test."""
    seed: int = 0
    """Seed of the resamples."""

    def run(self) -> None:
        """Compare the systems and print the result."""
        from finetune.evaluation.compare import compare_systems, comparison_record

        if all((Path(folder) / "folds.json").is_file() for folder in (self.first, self.second)):
            return self._compare_folds()
        comparison = compare_systems(
            self.first,
            self.second,
            gold=self.gold,
            columns=column_map(self.columns),
            encoding=self.encoding,
            metric=self.metric,
            split=self.split,
            unit=self.unit,
            resamples=self.resamples,
            train=self.train,
            positive=self.positive,
            seed=self.seed,
        )
        if self.format == "json":
            show(json.dumps(comparison_record(comparison), indent=2))
        elif self.format == "table":
            print_comparison(comparison)
        else:
            result, metric = comparison.result, comparison.metric
            names = comparison.first.name, comparison.second.name
            rows: list[tuple[Any, ...]] = [
                (name, metric, *estimate, len(runs), None, None)
                for name, estimate, runs in zip(
                    names, (result.first, result.second), result.runs, strict=True
                )
            ]
            p_values = result.p_bootstrap, result.p_randomization
            rows.append(("A - B", metric, *result.difference, None, *p_values))
            columns = ("system", "metric", "score", "low", "high", "runs", "p_bootstrap",
                       "p_randomization")  # fmt: skip
            print_tables(self.format, ("", columns, rows))
            if comparison.positive_note:
                show(comparison.positive_note, error=True)

    def _compare_folds(self) -> None:
        from finetune.evaluation.compare import compare_folds
        from finetune.evaluation.significance import ALPHA

        found = compare_folds(Path(self.first), Path(self.second), self.metric)
        rows = [(self.first, found.metric, *found.first, None),
                (self.second, found.metric, *found.second, None),
                ("A - B", found.metric, *found.difference, found.p)]  # fmt: skip
        columns = ("system", "metric", "mean", "low", "high", "p")
        print_tables(self.format, ("", columns, rows))
        significant = "" if found.p < ALPHA else "not "
        show(
            f"The difference over {quantity(found.num_folds, 'fold')} is {significant}significant "
            f"at {ALPHA} (corrected resampled t-test, Nadeau & Bengio, 2003).",
            error=self.format != "table",
        )


def print_comparison(comparison: SystemComparison) -> None:
    """Print the scores of both systems, the p-values and the verdict."""
    from finetune.evaluation.compare import seed_note, verdict
    from finetune.evaluation.significance import ALPHA

    result = comparison.result
    show(
        f"{comparison.metric} on {quantity(result.num_units, comparison.unit)} (gold: "
        f"{comparison.gold}, aligned by {comparison.aligned_by}), "
        f"{quantity(result.num_resamples, 'resample')}, seed {comparison.seed}"
    )
    print_table(
        ("", "score", f"{100 * (1 - ALPHA):.0f} % interval", "runs", ""),
        [
            ("A", *_cells(result.first), len(result.runs[0]), comparison.first.name),
            ("B", *_cells(result.second), len(result.runs[1]), comparison.second.name),
            ("A - B", *_cells(result.difference, "+"), None, ""),
        ],
    )
    show(
        f"p      {result.p_bootstrap:.4f} (paired bootstrap), {result.p_randomization:.4f} "
        "(approximate randomization)"
    )
    show(f"{verdict(comparison)} {seed_note(comparison)}")
    if comparison.positive_note:
        show(comparison.positive_note)


def _cells(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    value, low, high = (f"{number:{sign}.4f}" for number in estimate)
    return value, f"{low} to {high}"
