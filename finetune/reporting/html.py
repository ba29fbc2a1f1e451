"""The HTML report: one file that needs no network, made from what run folders hold.

This module collects the values that the page shows; ``templates/page.html`` sets their markup.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from finetune.config.tasks import CONFIGS, settings
from finetune.evaluation.calibration import error_of_bins
from finetune.evaluation.compare import SystemComparison, compare_systems, seed_note, verdict
from finetune.evaluation.error_analysis import TITLES
from finetune.evaluation.errors import count_categories
from finetune.evaluation.significance import ALPHA
from finetune.evaluation.subgroups import SENTENCE_LENGTHS, bucket, buckets, num_words
from finetune.reporting.charts import (
    Chart,
    bar_chart,
    interval_chart,
    line_chart,
    reliability_chart,
    scatter_chart,
)
from finetune.reporting.error_examples import MOST_EXAMPLES, error_examples, value_counts
from finetune.reporting.model_card import write_card
from finetune.reporting.rendering import render
from finetune.reporting.runs import Evaluated, Run, System, gather
from finetune.types import UserError

REPORT_FILE = "report.html"
MOST_RUNS = 12
"""Most runs that one report shows."""
MOST_LABELS = 20
"""Labels of the largest confusion matrix that is shown."""
MOST_CONFUSED = 15
"""Pairs of confused labels that are listed."""
MOST_POINTS = 1500
"""Points of a scatter chart."""
_BARS = frozenset({"precision", "recall", "f1", "accuracy"})
"""Columns of fractions, which are also drawn as bars."""
_CLASS_TABLES = ("type", "label", "tag", "counted")
_CONFUSION_TABLES = ("confusion", "confused")

NamedRuns = Sequence[tuple[str, Run]]


class WrittenReport(NamedTuple):
    """A report that was written: its path and a line for everything that its runs lack."""

    path: Path
    warnings: list[str]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; the columns ``bars`` hold fractions."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    bars: Sequence[int] = ()


def write_report(
    folders: Sequence[Path],
    *,
    out: Path | None = None,
    split: str | None = None,
    most_examples: int = MOST_EXAMPLES,
) -> WrittenReport:
    """Write one report on the runs in ``folders``, and the model card of a run that has none.

    Args:
        folders: Run folders, or folders of several seeds.
        out: File to write; None is `report.html` in the only folder, or in the working directory.
        split: Split whose predictions are shown; None is the test split, or another with gold.
        most_examples: Most examples with errors that the report holds.

    Raises:
        UserError: A folder holds no run or is named twice, there are too many runs, or ``out``
            cannot be written.
    """
    if most_examples < 0:
        raise UserError(f"--examples must be 0 or more, not {most_examples}.")
    if repeated := [path for path in folders if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]}: named twice: name each run once.")
    systems = _with_distinct_names([gather(path, split) for path in folders])
    if (number := sum(len(system.runs) for system in systems)) > MOST_RUNS:
        raise UserError(f"{number} runs are too many for one report: name {MOST_RUNS} at most.")
    out = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    _write_page(systems, out, most_examples)
    if len(systems) == 1 and not (systems[0].folder / "best" / "README.md").exists():
        _write_card(systems[0])  # an existing card may have been edited
    warnings = [
        f"{each.folder}: {line}"
        for system in systems
        for each in (system, *system.runs)
        for line in each.warnings
    ]
    return WrittenReport(out, warnings)


def write_run_report(folder: Path) -> None:
    """Write the report and the model card of a finished run, or the report of a seeds folder."""
    system = gather(folder, None)
    _write_page([system], folder / REPORT_FILE, MOST_EXAMPLES)
    _write_card(system)


def _write_page(systems: Sequence[System], out: Path, most_examples: int) -> None:
    text = page(systems, most_examples)
    if out.is_dir() or not out.absolute().parent.is_dir():
        problem = "is a folder" if out.is_dir() else "its folder does not exist"
        raise UserError(f"--out {out}: {problem}: name a file in a folder that exists.")
    fresh = out.with_name(out.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(out)


def _write_card(system: System) -> None:
    """Write the card of a finished run's model; a folder of seeds has one card in each run."""
    run = system.runs[0]
    if run.folder == system.folder and run.metrics and (run.folder / "best").is_dir():
        write_card(system)


def _with_distinct_names(systems: Sequence[System]) -> list[System]:
    """Name systems by their whole path where their folders have the same name."""
    names = [system.name for system in systems]
    return [
        replace(system, name=str(system.folder)) if names.count(system.name) > 1 else system
        for system in systems
    ]


def page(systems: Sequence[System], most_examples: int = MOST_EXAMPLES) -> str:
    """Return the report on one system or several as HTML."""
    runs = [(_run_name(s, run, systems), run) for s in systems for run in s.runs]
    evaluated = [(name, run.evaluated) for name, run in runs if run.evaluated]
    templates = resources.files("finetune.reporting") / "templates"
    script = (templates / "script.js").read_text(encoding="utf-8")
    return render(
        "page.html",
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=(templates / "style.css").read_text(encoding="utf-8"),
        names=[system.name for system in systems],
        tasks=list(dict.fromkeys(run.task for _, run in runs)),
        kind="comparison" if len(systems) > 1 else "seeds" if len(runs) > 1 else "run",
        sources=_sources(systems),
        fingerprints=_distinct(run.config.get("fingerprint") for _, run in runs),
        level=1 - ALPHA,
        results=[_result(system) for system in systems],
        intervals=_intervals(systems),
        comparison=_comparison(systems),
        errors=_errors(evaluated, most_examples),
        score_tables=_score_tables(systems, runs),
        curves=_curves(runs, next((s.headline.metric for s in systems if s.headline), None)),
        class_tables=_class_tables(evaluated),
        evaluations=[_evaluation(name, each) for name, each in evaluated],
        environments=[_environment(name, run) for name, run in runs],
    )


def _run_name(system: System, run: Run, systems: Sequence[System]) -> str:
    """Name a run by its folder, and by that of its system where there are several."""
    if len(system.runs) == 1:
        return system.name
    return run.folder.name if len(systems) == 1 else f"{system.name}/{run.folder.name}"


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value))


def _sources(systems: Sequence[System]) -> list[tuple[str, str]]:
    """Return the distinct pairs of model and data."""
    configs = [system.runs[0].config for system in systems]
    return list(dict.fromkeys(
        (str(config.get("init_from") or config.get("model", "?")), str(config.get("data", "?")))
        for config in configs
    ))  # fmt: skip


def _result(system: System) -> dict[str, Any]:
    """Collect the main score of a system with what it is compared with, and its warnings."""
    found, first = system.headline, system.runs[0]
    kinds = [run.evaluated.predictions.kind for run in system.runs if run.evaluated]
    baselines = system.seeds.get("baselines") or first.environment.get("baselines") or {}
    verdicts = system.seeds.get("verdicts")
    recipe = first.environment.get("recipe")
    if verdicts is None and isinstance(recipe, Mapping):
        verdicts = recipe.get("verdicts")
    return {
        "name": system.name,
        "headline": found,
        "unit": "sentences" if kinds and kinds[0] in ("tags", "spans") else "texts",
        "deviation": statistics.stdev(found.runs) if found and len(found.runs) > 1 else None,
        "baseline": baselines.get(found.split) if found else None,
        "verdicts": [
            {"statistic": "mean", "source": None, "measured": each.get("mean", each.get("value"))}
            | each
            for each in verdicts or ()
        ],
        "warnings": _warnings(system),
    }


def _warnings(system: System) -> list[str]:
    """Return what the folder lacks, and which of its runs are degenerate."""
    lines = list(system.warnings)
    for run in system.runs:
        prefix = f"{run.folder.name}: " if len(system.runs) > 1 else ""
        lines += [f"{prefix}{line}" for line in run.warnings]
        if not system.seeds and (reasons := run.environment.get("degenerate")):
            lines.append(f"{run.folder.name} is degenerate: {'; '.join(reasons)}")
    for each in system.seeds.get("degenerate", ()):
        lines.append(f"seed {each.get('seed')} is degenerate: {'; '.join(each.get('reasons', ()))}")
    return lines


def _intervals(systems: Sequence[System]) -> Chart | str | None:
    """Draw the scores with their intervals; return a sentence where they cannot be compared."""
    found = [(system.name, system.headline) for system in systems if system.headline]
    if len(found) < 2 and not any(len(each.runs) > 1 for _, each in found):
        return None
    if len({(each.metric, each.split) for _, each in found}) > 1:
        return "The runs were scored by different metrics or splits; see the tables."
    rows = [(name, *each.estimate, each.runs if len(each.runs) > 1 else ()) for name, each in found]
    caption = f"{found[0][1].metric} on {found[0][1].split} with {1 - ALPHA:.0%} intervals"
    label = "; ".join(f"{name} {value:.4f}, {low:.4f} to {high:.4f}"
                      for name, value, low, high, _ in rows)  # fmt: skip
    return interval_chart(caption, f"{caption}: {label}", rows)


def _comparison(systems: Sequence[System]) -> dict[str, Any]:
    """Run the paired tests of ``finetune compare`` on every two systems."""
    found, refused = [], []
    for first, second in combinations(systems, 2):
        try:
            found.append((first.name, second.name, _compare(first, second)))
        except (UserError, OSError) as error:
            refused.append(f"{first.name} and {second.name} cannot be compared: {error}")
    columns = ["A", "B", "A - B", f"{1 - ALPHA:.0%} interval", "p (bootstrap)",
               "p (randomization)", "verdict"]  # fmt: skip
    rows = [[first, second, *_comparison_cells(report)] for first, second, report in found]
    notes = [seed_note(report) for _, _, report in found]
    if len(set(notes)) == 1:
        notes = notes[:1]
    else:
        notes = [f"{first} and {second}: {note}"
                 for (first, second, _), note in zip(found, notes, strict=True)]  # fmt: skip
    caption = "Differences, by the paired tests of finetune compare"
    return {"refused": refused, "table": Table(caption, columns, rows), "notes": notes}


def _compare(first: System, second: System) -> SystemComparison:
    one, other = first.headline, second.headline
    if one is None or other is None:
        raise UserError("one of them has no score.")
    if (one.metric, one.split) != (other.metric, other.split):
        raise UserError(
            f"the first was scored by {one.metric} on {one.split}, the second by {other.metric} on "
            f"{other.split}."
        )
    files = (",".join(map(str, each.folders)) for each in (one, other))
    return compare_systems(*files, gold=None, metric=one.metric, split=one.split)


def _comparison_cells(report: SystemComparison) -> list[Any]:
    found = report.result
    value, low, high = found.difference
    return [f"{value:+.4f}", f"{low:+.4f} to {high:+.4f}", found.p_bootstrap,
            found.p_randomization, verdict(report)]  # fmt: skip


def _errors(evaluated: Sequence[tuple[str, Evaluated]], most: int) -> dict[str, Any]:
    """Collect the examples with errors of all runs, and the values that they are filtered by."""
    per_run = max(1, most // max(1, len(evaluated)))
    found = [error_examples(name, each, per_run) for name, each in evaluated]
    examples = [example for some, _ in found for example in some]
    filters = {
        "run": ("Run", value_counts((e.run,) for e in examples) if len(evaluated) > 1 else []),
        "view": ("Show", value_counts(e.views for e in examples)),
        "kind": ("Kind", value_counts(e.kinds for e in examples)),
        "label": ("Label", value_counts(e.labels for e in examples)),
    }
    return {
        "examples": examples,
        "total": sum(number for _, number in found),
        "per_run": per_run,
        "notes": [(name, each.analysis.not_credible) for name, each in evaluated
                  if each.analysis.not_credible],
        "filters": filters,
    }  # fmt: skip


def _score_tables(systems: Sequence[System], runs: NamedRuns) -> list[Table]:
    """Tabulate every overall score of every split, with the mean of the runs of one system."""
    tables = []
    for split in dict.fromkeys(split for _, run in runs for split in run.metrics):
        scores = [run.metrics.get(split, {}) for _, run in runs]
        names = dict.fromkeys(name for each in scores for name in each if ":" not in name)
        rows: list[list[Any]] = [[name, *(each.get(name) for each in scores)] for name in names]
        columns = ["score", *(name for name, _ in runs)] if len(runs) > 1 else ["score", "value"]
        if len(runs) > 1 and len(systems) == 1:
            columns += ["mean", "deviation"]
            rows = [row + _mean_and_deviation(row[1:]) for row in rows]
        tables.append(Table(f"Scores on {split}", columns, rows))
    return tables


def _mean_and_deviation(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return [None, None]
    return [statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None]


def _curves(runs: NamedRuns, metric: str | None) -> list[Chart]:
    """Draw loss, validation scores, learning rate and speed over the steps of training."""

    def curve(caption: str, key: str) -> Chart | None:
        return _curve(caption, [(name, _points(run.training, key)) for name, run in runs])

    charts = [
        curve("Training loss", "loss"),
        _evaluation_curve(runs, metric),
        curve("Learning rate", "lr"),
        curve("Gradient norm", "gradient_norm"),
        curve("Training speed, examples per second", "examples_per_second"),
    ]
    return [chart for chart in charts if chart]


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(line["step"], line[key]) for line in lines if math.isfinite(line.get(key, math.nan))]


def _curve(
    caption: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]]
) -> Chart | None:
    series = [(name, points) for name, points in series if points]
    if max((len(points) for _, points in series), default=0) < 2:
        return None
    ends = "; ".join(f"{name}: {points[0][1]:.4g} at step {points[0][0]} to {points[-1][1]:.4g} "
                     f"at step {points[-1][0]}" for name, points in series)  # fmt: skip
    return line_chart(caption, f"{caption}. {ends}", series)


def _evaluation_curve(runs: NamedRuns, metric: str | None) -> Chart | None:
    """Draw all scores of one run, or the main score of several runs."""
    first = next((line for _, run in runs for line in run.evaluations), None)
    if first is None:
        return None
    left_out = re.compile("step|mse|inner_|.*:")  # counts, scores of single types, other scales
    metrics = [name for name, value in first.items()
               if isinstance(value, int | float) and not left_out.match(name)]  # fmt: skip
    split = first["split"]
    if len(runs) > 1:
        metric = metric if metric in metrics else next(iter(metrics), "")
        series = [(name, _points(run.evaluations, metric)) for name, run in runs]
        return _curve(f"{metric} on {split}", series)
    lines = runs[0][1].evaluations
    return _curve(f"Scores on {split}", [(name, _points(lines, name)) for name in metrics[:6]])


def _class_tables(evaluated: Sequence[tuple[str, Evaluated]]) -> list[Table]:
    """Tabulate scores by class: all scores of one run, or F1 of several runs."""
    if len(evaluated) == 1:
        return _analysis_tables(evaluated[0][1], _CLASS_TABLES)
    tables = []
    for key in _CLASS_TABLES[:3]:
        by_class = [{row[key]: row for row in each.analysis.tables.get(key, ())}
                    for _, each in evaluated]  # fmt: skip
        names = dict.fromkeys(name for rows in by_class for name in rows)
        if names:
            rows = [[name, *(rows.get(name, {}).get("f1") for rows in by_class),
                     max(rows.get(name, {}).get("support", 0) for rows in by_class)]
                    for name in names]  # fmt: skip
            columns = [key, *(name for name, _ in evaluated), "support"]
            caption = f"F1 {TITLES[key].lower()}"
            tables.append(Table(caption, columns, rows, range(1, len(evaluated) + 1)))
    return tables


def _analysis_tables(evaluated: Evaluated, names: Iterable[str]) -> list[Table]:
    """Return the tables of an analysis that have rows."""
    tables = evaluated.analysis.tables
    return [_record_table(TITLES.get(name, name), tables[name]) for name in names
            if tables.get(name)]  # fmt: skip


def _record_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = list(rows[0])
    bars = [index for index, name in enumerate(columns) if name in _BARS]
    return Table(caption, columns, [list(row.values()) for row in rows], bars)


def _evaluation(name: str, evaluated: Evaluated) -> dict[str, Any]:
    """Collect confusion, calibration and subgroups of one run."""
    analysis = evaluated.analysis
    matrix = analysis.tables.get("confusion", [])
    pairs = analysis.tables.get("confused", [])[:MOST_CONFUSED]
    tables = [_record_table(TITLES["confused"], pairs)] if pairs else []
    counts = count_categories(analysis.errors)
    if counts and not matrix and analysis.kind != "number":
        rows = list(counts.items())
        tables.append(Table("Errors by kind", ["kind", "number"], rows))
    subgroups = [key for key in analysis.tables if key not in (*_CLASS_TABLES, *_CONFUSION_TABLES)]
    return {
        "name": name,
        "kind": analysis.kind,
        "scatter": _scatter(evaluated) if analysis.kind == "number" else None,
        "matrix": matrix if len(matrix) <= MOST_LABELS else [],
        "num_labels": len(matrix),
        "confusion_tables": tables,
        "calibration": _calibration(evaluated),
        "lengths": _lengths(evaluated),
        "subgroup_tables": _analysis_tables(evaluated, subgroups),
    }


def _scatter(evaluated: Evaluated) -> Chart:
    run = evaluated.predictions
    number = len(run.gold)
    every = math.ceil(number / MOST_POINTS)  # not the first ones: data may be sorted
    points = list(zip(run.gold, run.predicted, strict=True))[::every]
    of_all = f" of {number:,}" if every > 1 else ""
    caption = f"Predicted over gold, {len(points):,}{of_all} texts"
    return scatter_chart(caption, f"{caption}; the line is where both are equal", points)


def _calibration(evaluated: Evaluated) -> dict[str, Any] | None:
    bins = evaluated.analysis.bins
    if not bins:
        return None
    units = {"label": "labels", "labels": "labels that may apply", "tags": "words"}
    caption = f"Accuracy by confidence ({units.get(evaluated.analysis.kind, 'predicted spans')})"
    rows = [[f"{each.low:.2f} to {each.high:.2f}", *each[2:]] for each in bins if each.number]
    columns = ["confidence", "predictions", "mean confidence", "accuracy"]
    error = error_of_bins(bins)
    label = f"{caption}. Expected calibration error {error:.4f}."
    return {
        "error": error,
        "chart": reliability_chart(caption, label, bins),
        "table": Table(caption, columns, rows, [3]),
    }


def _lengths(evaluated: Evaluated) -> Chart:
    """Draw the number of examples by length in words."""
    sizes = [num_words(example) for example in evaluated.predictions.examples]
    counts = dict.fromkeys(buckets(SENTENCE_LENGTHS), 0)
    for size in sizes:
        counts[bucket(size, SENTENCE_LENGTHS)] += 1
    caption = (
        f"Examples of the split {evaluated.split} by length in words: mean "
        f"{statistics.fmean(sizes):.1f}, median {statistics.median(sizes):g}, longest "
        f"{max(sizes):,}"
    )
    listed = ", ".join(f"{name}: {number:,}" for name, number in counts.items())
    return bar_chart(caption, f"{caption}; {listed}", list(counts.items()), "words")


def _environment(name: str, run: Run) -> dict[str, Any]:
    """Collect the command, the settings and the environment of a run."""
    about = run.environment
    defaults = settings(CONFIGS[run.task]()) if run.task in CONFIGS else {}
    changed, default = [], []
    for key, value in run.config.items():
        rows = default if value == defaults.get(key) else changed
        rows.append([key, "unset" if value is None else str(value)])
    facts = {key: about[key] for key in ("device", "precision", "python", "platform", "cores")
             if key in about} | about.get("versions", {})  # fmt: skip
    return {
        "name": name,
        "command": about.get("command"),
        "changed": Table("Settings other than the defaults", ["setting", "value"], changed),
        "default": Table("Defaults", ["setting", "value"], default),
        "facts": Table("Environment", ["fact", "value"], [[k, str(v)] for k, v in facts.items()]),
    }
