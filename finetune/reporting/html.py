"""The HTML report: one file that needs no network, made from the content of run folders.

The page is that of all pages; ``templates/report.html`` has the markup of scores and errors.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.metric_properties import METRIC_MEANINGS
from finetune.config.tasks import CONFIGS, settings
from finetune.data.examples import WITHOUT_LEAKS
from finetune.evaluation.error_analysis import NOTHING, Analysis, count_categories
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.evaluation.prediction_types.labels import metric_title
from finetune.evaluation.reproduction import summarize
from finetune.evaluation.significance import ALPHA
from finetune.reporting.analysis import MOST_EXAMPLES, analysis_tables, error_examples
from finetune.reporting.model_card import RECORDED, write_card
from finetune.reporting.rendering import Chart, PageTable, Ranges, Section, chart, markup, page_of
from finetune.reporting.runs import ModelRuns, Run, load_runs, summary_lines
from finetune.runtime.files import require_replaceable, write_text
from finetune.runtime.terminal import error_line
from finetune.runtime.terminal import printable as printable_text
from finetune.types import UserError

REPORT_FILE = "report.html"
MOST_CONFUSED, MOST_LABELS = 15, 20
"""Most pairs of confused labels to list, and labels of the largest confusion matrix."""
_CLASSES = ("type", "relation", "label", "tag")
_ELSEWHERE = ("risk", "confusion", "confused", "scores")
"""Tables of scores by class, and those that are shown otherwise than in tables."""

Explain = Callable[[Path, Sequence[Any]], Sequence[Any]]
"""A function that explains the predictions of a run for examples."""
NamedRuns = Sequence[tuple[str, Run]]
NamedEvaluations = Sequence[tuple[str, Analysis]]


def write_report(
    folders: Sequence[Path],
    *,
    out: Path | None = None,
    split: str | None = None,
    most_examples: int = MOST_EXAMPLES,
    explain: Explain | None = None,
) -> tuple[Path, list[str]]:
    """Write one report on the runs in ``folders``, and the model card of a run without one.

    Each folder holds a run or several seeds. ``explain`` explains predictions of a run, to
    show beside errors. Return the path of the report, and a line for each missing part.
    """
    if repeated := [path for path in folders if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]}: named twice: name each run once.")
    models = [load_runs(path, split) for path in folders]
    runs = [run for model in models for run in model.runs]
    if split is not None and not any(run.evaluated for run in runs):
        problem = next(line for line in runs[0].warnings if "predictions" in line)
        raise UserError(f"--split {split}: {runs[0].path}: {problem}: nothing was written.")
    names = Counter(model.name for model in models)
    models = [replace(s, name=str(s.folder)) if names[s.name] > 1 else s for s in models]
    out = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path(REPORT_FILE))
    _write_page(models, out, most_examples, explain)
    if len(models) == 1 and not (folders[0] / "best" / "README.md").exists():
        _write_card(models[0])  # an existing card may have been edited
    return out, [f"{model.folder}: {line}" for model in models for line in model.problems]


def report_run(folder: Path) -> list[str]:
    """Write the report and the model card of a finished run, and sum up the run in lines.

    Of a folder of seeds, it is their report. If that fails, a warning says why: the run itself is
    finished.
    """
    try:
        model = load_runs(folder, None)
        _write_page([model], folder / REPORT_FILE, MOST_EXAMPLES, None)
        _write_card(model)
        return summary_lines(model)
    except Exception as error:  # a bug writes its traceback to a file
        problem, _ = error_line(error)
        text = (
            "The run is finished, but its report or model card could not be written. Try again "
            f"with: finetune report {shlex.quote(str(folder))}\n{problem}"
        )
        logging.getLogger(__name__).warning(printable_text(text))
        return []


def _write_page(
    models: Sequence[ModelRuns], out: Path, most_examples: int, explain: Explain | None
) -> None:
    text = _page(models, most_examples, explain)
    require_replaceable(out, "<!doctype html")
    if out.is_dir() or not out.absolute().parent.is_dir():
        problem = "is a folder" if out.is_dir() else "its folder does not exist"
        raise UserError(f"--out {out}: {problem}: name a file in a folder that exists.")
    write_text(out, text, follow=True)


def _write_card(model: ModelRuns) -> None:
    if (model.folder / "best").is_dir() and model.runs[0].metrics:
        write_card(model)


def _page(models: Sequence[ModelRuns], most_examples: int, explain: Explain | None) -> str:
    runs = []
    for model in models:
        several = len(model.runs) > 1
        prefix = f"{model.name}/" if len(models) > 1 else ""
        runs += [(prefix + r.path.name if several else model.name, r) for r in model.runs]
    metric = next((model.score.metric for model in models if model.score), None)
    evaluated = [(name, run.evaluated) for name, run in runs if run.evaluated]
    why = {name: explain and partial(explain, run.path) for name, run in runs}
    scores = markup("report.html", "models_and_scores", models, 1 - ALPHA)
    sections = [
        Section("Results", html=scores, tables=_score_tables(models, runs)),
        *([_errors(evaluated, most_examples, why)] if evaluated else []),
        _by_run("Scores by class", partial(_tables, of_classes=True), evaluated),
        _by_run("Kinds of errors", _confusion, evaluated),
        _by_run("Calibration and decisions", _calibration, evaluated),
        _by_run("Subgroups", partial(_tables, of_classes=False), evaluated),
        Section("Training", charts=_curves(runs, metric)),
        _by_run("Environment", _environment, runs),
    ]
    tasks = ", ".join(dict.fromkeys(run.task for _, run in runs))
    what = "comparison" if len(models) > 1 else "seeds" if len(runs) > 1 else "run"
    fingerprints = dict.fromkeys(str(run.config.get("fingerprint", ""))[:16] for _, run in runs)
    named = ", ".join(filter(None, fingerprints))
    return page_of(
        f"{tasks} · {what}",
        ", ".join(model.name for model in models),
        sections,
        about="; ".join(dict.fromkeys("{} on {}".format(*model.source) for model in models)),
        source=f"Fingerprint of the data: {named}." if named else "",
        command="finetune report",
    )


def _by_run(title: str, section_of: Callable[[Any], Section], runs: Sequence[Any]) -> Section:
    parts = [replace(section_of(run), title=name) for name, run in runs]
    return replace(parts[0], title=title) if len(parts) == 1 else Section(title, parts=parts)


def _errors(evaluated: NamedEvaluations, most: int, explain: Mapping[str, Any]) -> Section:
    per_run = math.ceil(most / max(1, len(evaluated)))
    of_runs = [error_examples(name, run, per_run, explain[name]) for name, run in evaluated]
    examples = [example for some, _ in of_runs for example in some]
    values = {
        "run": [e["run"] for e in examples] if len(evaluated) > 1 else [],
        "category": [name for e in examples for name in e["categories"]],
        "label": [label for e in examples for label in e["labels"]],
    }
    errors = {
        "examples": examples,
        "total": sum(number for _, number in of_runs),
        "per_run": per_run,
        "sized": all(run.run.items.has_sizes for _, run in evaluated),
        "filters": {name: Counter(listed).most_common() for name, listed in values.items()},
    }
    html = markup("report.html", "error_list", errors, len(evaluated) > 1)
    return Section("Error analysis", html=html)


def _score_tables(models: Sequence[ModelRuns], runs: NamedRuns) -> list[PageTable]:
    names = {split for _, run in runs for split in run.metrics}
    splits = sorted(names, key=lambda split: (not split.startswith("test"), split))
    if len(runs) == 1:
        ((_, run),) = runs
        scores = {
            split: {metric_title(m, run.positive): value for m, value in run.metrics[split].items()}
            for split in splits
        }
        leaks = any(split.endswith(WITHOUT_LEAKS) for split in splits)
        about = f" ({WITHOUT_LEAKS}: without the examples that are also in train)" if leaks else ""
        return [_scores_table(f"All scores{about}", scores)] if scores else []
    summary = summarize({name: run.metrics for name, run in runs if run.metrics})
    tables = []
    for split in splits:
        columns = {name: run.metrics.get(split, {}) for name, run in runs}
        if len(models) == 1:
            statistics = summary.get(split, {}).items()
            columns["mean"] = {metric: of_metric["mean"] for metric, of_metric in statistics}
            columns["deviation"] = {m: of["standard_deviation"] for m, of in statistics}
        about = ", the examples that are not also in train" * split.endswith(WITHOUT_LEAKS)
        tables.append(_scores_table(f"Scores on {split}{about}", columns))
    return tables


def _scores_table(caption: str, scores: Mapping[str, Mapping[str, float]]) -> PageTable:
    names = dict.fromkeys(name for column in scores.values() for name in column if ":" not in name)
    rows = [
        [name, *(column.get(name) for column in scores.values()), METRIC_MEANINGS.get(name, "")]
        for name in names
    ]
    return PageTable(caption, ["score", *scores, "meaning"], rows)


def _curves(runs: NamedRuns, metric: str | None) -> list[Chart]:
    logs = [(name, [*run.training, *run.evaluations]) for name, run in runs]
    first = next((run.evaluations[0] for _, run in runs if run.evaluations), {})
    metric = next((name for name in (metric, *DEFAULT_METRICS.values()) if name in first), "")
    key_of = {"Training loss": "loss", f"{metric} on {first.get('split')}": metric}
    curves = []
    for caption, key in key_of.items():
        series = []
        for name, log in logs:
            defined = [line for line in log if math.isfinite(line.get(key, math.nan))]
            if len(defined) > 1:
                series.append((name, [(line["step"], line[key]) for line in defined]))
        ends = "; ".join(
            f"{name}: {points[0][1]:.4g} at step {points[0][0]} to {points[-1][1]:.4g} "
            f"at step {points[-1][0]}"
            for name, points in series
        )
        if series:
            label = f"{caption}. {ends}"
            curves.append(chart(caption, "step", label=label, lines=series))
    return curves


def _tables(analysis: Analysis, of_classes: bool) -> Section:
    shown = {name: t for name, t in analysis_tables(analysis).items() if name not in _ELSEWHERE}
    notes = [
        "By depth, “found” counts gold spans that are predicted, and “correct” predictions that "
        "are right: they differ, since a span may lie within others in gold alone."
    ]
    tables = [shown[name] for name in shown if (name in _CLASSES) == of_classes]
    return Section("", notes if "depth" in shown and not of_classes else [], tables=tables)


def _confusion(analysis: Analysis) -> Section:
    matrix, all_tables = analysis.tables.get("confusion", []), analysis_tables(analysis)
    tables, notes, html = [], [], ""
    if matrix and NOTHING in matrix[0]["predicted"]:
        notes = [
            "A gold and a predicted span that share words are a pair, also with other boundaries, "
            f"so more pairs than correct ones are on the diagonal. {NOTHING}: no such pair."
        ]
    if "confused" in all_tables:
        tables = [replace(all_tables["confused"], rows=all_tables["confused"].rows[:MOST_CONFUSED])]
    if analysis.errors and not matrix and not analysis.run.items.has_sizes:
        counts = list(map(list, count_categories(analysis.errors).items()))
        tables.append(PageTable("Errors by category", ["category", "number"], counts))
    if len(matrix) > MOST_LABELS:
        notes = [
            f"The matrix of {len(matrix)} labels is too large for this page: "
            "finetune report --format json prints it."
        ]
    elif matrix:
        html = markup("macros.html", "confusion_matrix", matrix)
    return Section("", notes, tables=tables, html=html)


def _calibration(analysis: Analysis) -> Section:
    notes, drawn = list[str](), list[Chart]()
    if analysis.bins:
        notes.append(
            f"ECE {analysis.calibration_error:.4f}. The expected calibration error is the mean "
            "distance of confidence and accuracy over all predictions. Each bar is the accuracy "
            "of the predictions with a confidence in its range; the line across it is their mean "
            "confidence. Bars below the diagonal are overconfident, bars above it underconfident."
        )
        caption = f"Accuracy by confidence ({analysis.run.type.wording.confidence})"
        label = f"{caption}. Expected calibration error {analysis.calibration_error:.4f}."
        unit = Ranges(0.0, 1.0, 0.0, 1.0)
        drawn.append(chart(caption, "confidence", label=label, bins=analysis.bins, ranges=unit))
    elif not analysis.run.items.has_sizes:
        notes.append("The predictions hold no probabilities, so calibration is unknown.")
    if "risk" in analysis.tables:
        notes.append(
            "Risk is the share of wrong answers if only the most confident ones are given, and "
            "coverage the share of answers that are given."
        )
        points = [(row["coverage"], row["risk"]) for row in analysis.tables["risk"][::-1]]
        top = max(risk for _, risk in points) or 1.0
        label = "Risk over coverage. All answers are given at coverage 1."
        ranges = Ranges(0.0, 1.0, 0.0, top * 1.1)
        lines = [("risk", points)]
        drawn.append(
            chart("Risk over coverage", "coverage", label=label, lines=lines, ranges=ranges)
        )
    return Section("", notes, drawn)


def _environment(run: Run) -> Section:
    about = run.environment
    defaults = settings(CONFIGS[run.task]()) if run.task in CONFIGS else {}
    changed = []
    for key, value in run.config.items():
        if value != defaults.get(key) and key not in RECORDED:
            values = value if isinstance(value, list) else ["unset" if value is None else value]
            changed.append([key, " ".join(map(str, values))])
    names = ("device", "precision", "cuda_graphs", "python", "platform", "cores", "threads")
    metadata = {key: about[key] for key in names if key in about} | about.get("versions", {})
    rows = [[key, str(value)] for key, value in metadata.items()]
    tables = [PageTable("Settings other than the defaults", ["setting", "value"], changed)]
    tables += [PageTable("Environment", ["name", "value"], rows)] if rows else []
    command = about.get("command")
    html = markup("report.html", "command", command) if command else ""
    return Section("", tables=tables, html=html)
