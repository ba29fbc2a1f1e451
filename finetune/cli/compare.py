"""`finetune compare`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.options import Command, FormatOption, GoldOptions, ResampleOptions
from finetune.cli.output import in_percent, print_table, print_tables, score_cell, show
from finetune.cli.predict import predicted
from finetune.config.options import DATA, argument
from finetune.config.values import shown_value
from finetune.evaluation.runs import last_part
from finetune.types import UserError, abbreviated, quantity

if TYPE_CHECKING:
    from finetune.evaluation.compare import ComparisonOptions, Entry, SystemComparison
    from finetune.evaluation.significance import Estimate


@dataclass(frozen=True, kw_only=True)
class Compare(FormatOption, GoldOptions, ResampleOptions, Command):
    """Test whether models differ significantly on the same examples, and print tables for papers.

    Examples:
        finetune compare runs/a runs/b
        finetune compare base=runs/a-seeds large=runs/b-seeds runs/c --format latex
    """

    first: Annotated[str, argument("A")]
    """The first model: a run folder, several runs of it (A1,A2,A3 or a folder of run folders), a
    folder of `--folds`, or a file of predictions. Such a file is JSON Lines, or columns of words
    with the prediction last. `NAME=RUN` names the model, `NAME:DATA=RUN` also its data set."""
    second: Annotated[str, argument("B")]
    """The second model, in the same form."""
    more: Annotated[tuple[str, ...], argument("SYSTEM …")] = ()
    """More models. The result is then a table of models and data sets."""
    data: Annotated[str | None, DATA] = None
    """File with gold labels that the models (runs or hub ids) predict before they are compared."""
    baseline: str | None = None
    """Name of the model that all others in a table are tested against. Default: the first model."""
    metric: str | None = None
    """Metric to compare: one of `finetune score` or `report`, or a custom metric
    (FILE.py:FUNCTION). It may be the metric of one label, tag or type (`f1:NAME`,
    `span_f1_strict:PER`) or of one subgroup of the analysis (`span_f1_length:3`). Default: the
    metric that selects models in training."""
    split: Annotated[str, DATA] = "test"
    """Split whose predictions are read from run folders."""
    unit: Literal["example", "document"] = "example"
    """Unit of resampling: one example, or all examples of a document, if gold has documents."""

    def run(self) -> None:
        """Compare the systems and print the result."""
        entries = [self._entry(system) for system in (self.first, self.second, *self.more)]
        data = {entry.data for entry in entries}
        if len(entries) > 2 or len(data) > 1 or self.baseline is not None:
            return self._print_table([self._named(entry) for entry in entries])
        return self._compare_two(*entries)

    def _entry(self, argument: str) -> Entry:
        from finetune.evaluation.compare import Entry

        name, equals, runs = argument.partition("=")
        if not equals or Path(argument).exists():
            return Entry("", "", argument)
        system, colon, data = name.partition(":")
        if not system or not runs or (colon and not data):
            raise UserError(f"{argument}: write RUN, NAME=RUN or NAME:DATA=RUN.")
        return Entry(system, data, runs)

    def _named(self, entry: Entry) -> Entry:
        from finetune.evaluation.runs import data_of_run, name_of_run

        file = self.data or self.gold
        data = entry.data or (last_part(file) if file else data_of_run(entry.runs))
        return entry._replace(system=entry.system or name_of_run(entry.runs), data=data)

    def _options(self) -> ComparisonOptions:
        from finetune.evaluation.compare import ComparisonOptions

        source = self.source
        if self.data is not None:
            if self.gold is not None:
                raise UserError(f"--data {self.data} holds the gold, too: leave out --gold.")
            source = replace(source, gold=self.data)
        names = {field.name for field in fields(ComparisonOptions)} - {"source"}
        return ComparisonOptions(source=source, **{name: vars(self)[name] for name in names})

    def _compare_two(self, first: Entry, second: Entry) -> None:
        from finetune.evaluation.compare import compare_systems, comparison_dict

        if all((Path(entry.runs) / "folds.json").is_file() for entry in (first, second)):
            if self.data is not None:
                raise UserError(
                    f"--data {self.data}: folds have test splits of their own: leave it out."
                )
            return self._compare_folds(first, second)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(self._predictions_of(e.runs)) for e in (first, second)]
            comparison = compare_systems(*files, options=self._options())
        names = first.system or first.runs, second.system or second.runs
        if self.format == "json":
            content = comparison_dict(comparison)
            if self.data is not None:  # the files are temporary
                for side, entry in zip("ab", (first, second), strict=True):
                    content[side]["files"] = [entry.runs]
            show(json.dumps(content, indent=2))
        elif self.format == "table":
            print_comparison(comparison, names)
        else:
            result, metric = comparison.result, comparison.metric
            sides = zip(names, (result.first, result.second), result.runs, strict=True)
            rows: list[tuple[Any, ...]] = [
                (name, metric, *value, len(runs), None, None) for name, value, runs in sides
            ]
            p_values = result.p_bootstrap, result.p_randomization
            rows.append((" - ".join(names), metric, *result.difference, None, *p_values))
            columns = (*"system metric score low high runs p_bootstrap p_randomization".split(),)
            print_tables(self.format, ("", columns, rows))
            for note in _notes(comparison, names):
                show(note, error=True)

    def _print_table(self, entries: Sequence[Entry]) -> None:
        from finetune.evaluation.compare import score_systems

        baseline = self.baseline or entries[0].system
        systems, data = (list(dict.fromkeys(side)) for side in list(zip(*entries, strict=True))[:2])
        for (name, on), number in Counter(entry[:2] for entry in entries).items():
            if number > 1:
                raise UserError(
                    f"{number} systems are named {name!r} on the data set {on!r}: write "
                    "NAME=RUN or NAME:DATA=RUN; several runs of one system are RUN1,RUN2."
                )
        if baseline not in systems:
            raise UserError(f"--baseline {baseline}: name one of {abbreviated(systems)}.")
        if (file := self.data or self.gold) and len(data) > 1:
            raise UserError(
                f"{file}: the systems are on {quantity(len(data), 'data set')} "
                f"({abbreviated(data)}): leave it out and give run folders, which hold their gold."
            )
        for entry in entries:
            if (Path(entry.runs) / "folds.json").is_file():
                raise UserError(
                    f"{entry.runs}: systems of --folds are compared two at a time: finetune "
                    "compare A B"
                )
        with contextlib.ExitStack() as stack:
            read = [
                entry._replace(runs=stack.enter_context(self._predictions_of(entry.runs)))
                for entry in entries
            ]
            scores, notes = score_systems(read, baseline=baseline, options=self._options())
        if self.format in ("csv", "json"):
            columns = [*scores[0]]
            rows: list[list[Any]] = [[*score.values()] for score in scores]
        else:
            metrics = {score["data"]: score["metric"] for score in scores}
            columns = ["system", *(f"{name} {metrics[name]}" for name in data)]
            cells = {
                (s["system"], s["data"]): score_cell(
                    *(s["metric"], s["mean"], s["deviation"]),
                    bold=s["best"],
                    marked=s["significant"],
                )
                for s in scores
            }
            rows = [[name, *(cells.get((name, data_set)) for data_set in data)] for name in systems]
        print_tables(self.format, ("", columns, rows))
        legend = _legend(scores, baseline, self.resamples, self.seed)
        for note in (*([] if self.format in ("csv", "json") else [legend]), *notes):
            self.note(note)

    @contextlib.contextmanager
    def _predictions_of(self, name: str) -> Iterator[str]:
        if self.data is None:
            if "/" in name and not Path(name).exists() and "," not in name:
                raise UserError(
                    f"{name}: no such file or folder. If it is a hub id, add --data FILE: the "
                    "model predicts the examples of this file."
                )
            yield name
            return
        with contextlib.ExitStack() as stack:
            runs = [name] if Path(name).exists() else name.split(",")
            if (Path(name) / "seeds.json").is_file():
                runs = [str(path) for path in sorted(Path(name).glob("seed-*")) if path.is_dir()]
            files = [stack.enter_context(predicted(run, self.data, self)) for run in runs]
            yield ",".join(map(str, files))

    def _compare_folds(self, first: Entry, second: Entry) -> None:
        from finetune.evaluation.compare import compare_folds
        from finetune.evaluation.significance import ALPHA

        folders = Path(first.runs), Path(second.runs)
        metric, estimates, p, number = compare_folds(*folders, self.metric)
        names = [entry.system or entry.runs for entry in (first, second)]
        names.append(" - ".join(names))
        values = zip(names, estimates, (None, None, p), strict=True)
        rows = [(name, metric, *estimate, of_test) for name, estimate, of_test in values]
        columns = ("system", "metric", "mean", "low", "high", "p")
        print_tables(self.format, ("", columns, rows))
        significant = "" if p < ALPHA else "not "
        show(
            f"The difference over {quantity(number, 'fold')} is {significant}"
            f"significant at {ALPHA} (corrected resampled t-test, Nadeau & Bengio, 2003).",
            error=self.format != "table",
        )


def print_comparison(comparison: SystemComparison, names: tuple[str, str]) -> None:
    """Print the scores of both systems, the p-values and the verdict."""
    from finetune.evaluation.compare import seed_note, verdict
    from finetune.evaluation.significance import ALPHA

    result, run = comparison.result, comparison.runs[0]
    show(
        f"{comparison.metric} on {quantity(result.num_units, comparison.unit)} (gold: "
        f"{run.files[1]}, aligned by {run.aligned_by}), "
        f"{quantity(result.num_resamples, 'resample')}, seed {comparison.options.seed}"
    )
    print_table(
        ("", "score", f"{100 * (1 - ALPHA):.0f} % interval", "runs", ""),
        [
            ("A", *_cells(result.first), len(result.runs[0]), names[0]),
            ("B", *_cells(result.second), len(result.runs[1]), names[1]),
            ("A - B", *_cells(result.difference, "+"), None, ""),
        ],
    )
    show(
        f"p      {shown_value(result.p_bootstrap)} (paired bootstrap), "
        f"{shown_value(result.p_randomization)} (approximate randomization)"
    )
    show(f"{verdict(result, comparison.lower_is_better)} {seed_note(result)}")
    for note in _notes(comparison, names):
        show(note)


def _notes(comparison: SystemComparison, names: Sequence[str]) -> list[str]:
    pairs = zip(names, comparison.notes, strict=True)
    of_systems = [f"{name}: {note}" for name, note in pairs if note]
    return [*filter(None, [comparison.positive_note]), *of_systems]


def _legend(scores: Sequence[Mapping[str, Any]], baseline: str, resamples: int, seed: int) -> str:
    from finetune.evaluation.significance import ALPHA

    runs = sorted({score["runs"] for score in scores})
    number = quantity(runs[0], "run") if len(runs) == 1 else f"{runs[0]} to {runs[-1]} runs"
    mean = "scores of one run" if runs == [1] else f"mean ± standard deviation over {number}"
    tests = sum(score["p"] is not None for score in scores)
    tested = (
        f" † differs from {baseline} at {ALPHA} by the paired bootstrap and by approximate "
        f"randomization ({quantity(resamples, 'resample')}, seed {seed}), adjusted for "
        f"{quantity(tests, 'comparison')} (Holm, 1979)."
    )
    percent = "in percent, " if any(in_percent(score["metric"]) for score in scores) else ""
    return f"Scores: {percent}{mean}; the best in bold.{tested if tests else ''}"


def _cells(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    value, low, high = (f"{number:{sign}.4f}" for number in estimate)
    return value, f"{low} to {high}"
