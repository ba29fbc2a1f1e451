"""Compare two systems on the same gold, and say what the tests say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data import DataError
from finetune.evaluation.alignment import AlignedPredictions, align, has_numbers
from finetune.evaluation.gold import Gold, training_examples
from finetune.evaluation.predictions import Rows, file_of, kind_of_rows, read_rows
from finetune.evaluation.runs import System, find_gold, find_system
from finetune.evaluation.significance import LEVEL, Comparison, Estimate, compare
from finetune.evaluation.sufficient_statistics import LOWER_IS_BETTER, count, default_metric
from finetune.types import Example, TextExample, TokenExample, UserError, shortened

if TYPE_CHECKING:
    from finetune.cli.arguments import CompareCommand


@dataclass(frozen=True)
class Report:
    """A comparison with what was compared; ``unit`` is the plural of what was drawn."""

    first: System
    second: System
    gold: str
    metric: str
    unit: str
    seed: int
    found: Comparison


def print_comparison(
    first: str, second: str, command: CompareCommand, columns: Mapping[str, str]
) -> None:
    """What the command does."""
    report = compare_systems(
        first,
        second,
        gold=command.gold,
        columns=columns,
        metric=command.metric,
        split=command.split,
        unit=command.unit,
        resamples=command.resamples,
        train=command.train,
        seed=command.seed,
    )
    print(json.dumps(record(report), indent=2) if command.json else table(report))


def compare_systems(
    first: str,
    second: str,
    *,
    gold: str | None = None,
    columns: Mapping[str, str] | None = None,
    metric: str | None = None,
    split: str = "test",
    unit: str = "example",
    resamples: int = 10_000,
    seed: int = 0,
    train: str | None = None,
) -> Report:
    """Compare two systems, each a file of predictions, a run folder, or several of these.

    Several runs of one system are a list with commas or a folder of run folders. Gold is a file,
    or else the last column but one of the predictions, or else what the run folder says it was
    trained on. ``train`` is a file of what tells seen from unseen; a run folder without ``gold``
    knows it (of several the first). Raises ValueError where anything of this does not fit together.
    """
    if resamples < 1:
        raise UserError(f"--resamples must be 1 or more, not {resamples}.")
    systems = find_system(first, split), find_system(second, split)
    rows = [read_rows(path) for system in systems for path in system.files]
    for other in rows[1:]:
        _check_ids(rows[0], other)
    of_gold = {} if gold is None and train is not None else columns or {}
    right = find_gold(gold, of_gold, systems, split)
    forms = {kind_of_rows(each) for each in rows}
    form = "spans" if forms == {"tags", "spans"} else None
    runs = [align(each, right, form) for each in rows]
    if {run.kind for run in runs} == {"label", "number"} and all(map(has_numbers, rows)):
        runs = [align(each, right, "number") for each in rows]  # some have whole numbers only
    _check_same(runs, rows)
    if gold is None and right.from_column:
        _check_gold(runs[0], right)
    metric = metric or default_metric(runs[0])
    seen = right.train if train is None else training_examples(train, columns, runs[0].kind)
    counts = count(metric, runs, seen)
    if unit == "document":
        documents = _documents(runs[0].examples, right.name)
        counts = [each.by_unit(documents) for each in counts]
    num_first = len(systems[0].files)
    found = compare(counts[:num_first], counts[num_first:], num_resamples=resamples, seed=seed)
    named = "texts" if isinstance(runs[0].examples[0], TextExample) else "sentences"
    named = "documents" if unit == "document" else named
    return Report(*systems, right.name, metric, named, seed, found)


def _check_ids(first: Rows, other: Rows) -> None:
    """Refuse files of different lengths, and other examples."""
    if len(first) != len(other):
        raise DataError(
            f"{file_of(other)}: {len(other):,} predictions, but {len(first):,} in "
            f"{file_of(first)}: the files do not belong together, or one was cut."
        )
    for (one, left), (place, right) in zip(first, other, strict=True):
        if "id" in left and "id" in right and left["id"] != right["id"]:
            raise DataError(
                f"{place}: id {right['id']!r:.40}, but {left['id']!r:.40} in {one}: both systems "
                "must answer the same examples in the same order."
            )


def _check_same(runs: Sequence[AlignedPredictions], rows: Sequence[Rows]) -> None:
    """Refuse answers of another form than those of the first file."""
    for run, its_rows in zip(runs, rows, strict=True):
        if run.kind != runs[0].kind:
            raise DataError(
                f"{file_of(its_rows)} answers with {_FORMS[run.kind]}, but {file_of(rows[0])} with "
                f"{_FORMS[runs[0].kind]}: only answers of one kind can be compared."
            )


def _check_gold(run: AlignedPredictions, gold: Gold) -> None:
    """Refuse a column that was taken for gold and shares no tag with the answers."""
    if run.kind != "tags":
        return
    right, answered = ({tag for tags in side for tag in tags} for side in (run.gold, run.predicted))
    if answered - {"O"} and not (right & answered) - {"O"}:
        raise DataError(
            f"{gold.name}: the last column but one ({shortened(sorted(right), 4)}) holds no gold "
            f"for the last ({shortened(sorted(answered), 4)}): name the gold with --gold FILE."
        )


_FORMS = {"label": "a label", "labels": "sets of labels", "number": "numbers", "tags": "tags",
          "spans": "spans"}  # fmt: skip


def _documents(examples: Sequence[Example], gold: str) -> np.ndarray:
    """The number of each example's document [N]; one without a document is its own."""
    named = [e.document if isinstance(e, TokenExample) else None for e in examples]
    if all(name is None for name in named):
        raise DataError(
            f"{gold}: --unit document: its examples name no documents: -DOCSTART- or # newdoc "
            "lines in columns, a column `document` in tables; or leave --unit out."
        )
    keys = [(name,) if name is not None else index for index, name in enumerate(named)]
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return np.array([number[key] for key in keys])


def table(report: Report) -> str:
    """The report for people."""
    found = report.found
    rows = [
        ("", "score", f"{1 - LEVEL:.0%} interval".replace("%", " %"), "runs", ""),
        ("A", *_cells(found.first), str(len(found.runs[0])), report.first.name),
        ("B", *_cells(found.second), str(len(found.runs[1])), report.second.name),
        ("A - B", *_cells(found.difference, "+"), "", ""),
    ]
    lines = [f"{a:6} {b:>8}  {c:<20}  {d:>4}  {e}".rstrip() for a, b, c, d, e in rows]
    return "\n".join(
        [
            f"{report.metric} on {found.num_units:,} {report.unit} (gold: {report.gold}), "
            f"{found.num_resamples:,} resamples, seed {report.seed}",
            *lines,
            f"p      {found.p_bootstrap:.4f} (paired bootstrap), {found.p_randomization:.4f} "
            "(approximate randomization)",
            f"{verdict(report)} {about_seeds(report)}",
        ]
    )


def _cells(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    value, low, high = (f"{number:{sign}.4f}" for number in estimate)
    return value, f"{low} to {high}"


def verdict(report: Report) -> str:
    """One sentence: significant is what both tests find so."""
    found = report.found
    both = found.p_bootstrap < LEVEL, found.p_randomization < LEVEL
    if all(both):
        first = (found.difference.value > 0) != (report.metric in LOWER_IS_BETTER)
        return f"The difference is significant at {LEVEL}: {'A' if first else 'B'} is better."
    if not any(both):
        return f"The difference is not significant at {LEVEL}."
    if both[1] and found.deviation is not None:
        return (
            f"The difference is not significant at {LEVEL}: these runs differ, but runs with other "
            "seeds may not."
        )
    return f"The tests disagree at {LEVEL}: the difference is not shown to be significant."


def about_seeds(report: Report) -> str:
    """What the verdict says of runs with other seeds."""
    found = report.found
    if found.deviation is None:
        return "With one run each, this says nothing about other seeds."
    few = " So few runs say little on seeds: give three or more." if _few(found.runs) else ""
    return (
        f"Runs of a system vary by {found.deviation:.4f} (standard deviation) beyond what their "
        "different answers explain; the bootstrap counts that in, the randomization test is about "
        f"these runs alone.{few}"
    )


def _few(runs: Sequence[Sequence[float]]) -> bool:
    """Whether the variance between runs has two degrees of freedom or less."""
    return sum(len(values) - 1 for values in runs) <= 2


def record(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    found = report.found
    estimates = {
        name: estimate._asdict() | {"runs": list(runs), "files": [str(f) for f in system.files]}
        for name, estimate, runs, system in (
            ("a", found.first, found.runs[0], report.first),
            ("b", found.second, found.runs[1], report.second),
        )
    }
    return {
        "metric": report.metric,
        "gold": report.gold,
        "unit": report.unit,
        "num_units": found.num_units,
        "resamples": found.num_resamples,
        "seed": report.seed,
        **estimates,
        "difference": found.difference._asdict(),
        "p_bootstrap": found.p_bootstrap,
        "p_randomization": found.p_randomization,
        "deviation_between_runs": found.deviation,
        "level": LEVEL,
        "verdict": verdict(report),
    }
