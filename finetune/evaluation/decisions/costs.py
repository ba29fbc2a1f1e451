"""The costs of mistakes: read from a file, checked for a model, and added up as a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from finetune.config.values import conforms
from finetune.data import DataError
from finetune.data.files import ReadOptions, open_data
from finetune.data.labels import canonical_names
from finetune.data.tables import read_file
from finetune.evaluation.decisions import Choice, Costs, Decisions
from finetune.evaluation.metrics import score
from finetune.evaluation.prediction_types.labels import LABEL, NO_LABEL
from finetune.evaluation.tables import PredictionType, TableRows, Tables
from finetune.types import UserError, abbreviated

MOST_COST = 1e12
_LEGAL = "give a CSV or TSV table with the column gold and a column for each predicted label"


def read_costs(path: str) -> Costs:
    """Read the cost of each predicted label for each gold label."""
    if not Path(path).is_file():
        raise DataError(f"--costs {path!r}: no such file: {_LEGAL}.")
    file = open_data(path)
    if file.format in ("txt", "unknown"):
        file.format = "tsv"
    table = read_file(file, ReadOptions(header_names=frozenset({"gold"})))
    costs: dict[str, dict[str, float]] = {}
    for row in table.rows:
        values = dict(row.values)
        gold = values.pop("gold", None)
        if not isinstance(gold, str) or gold in costs:
            problem = f"{gold!r:.60} is not one row of costs" if gold else "there is no gold label"
            raise DataError(f"--costs {row.where}: {problem}: {_LEGAL}.")
        costs[gold] = {}
        for name, value in values.items():
            try:
                costs[gold][name] = float(value)
            except (TypeError, ValueError, OverflowError):
                problem = f"{value!r:.60} for gold {gold!r} is not a number"
                raise DataError(f"--costs {row.where}: {problem}: {_LEGAL}.") from None
    if not costs:
        raise DataError(f"--costs {path}: there are no costs in it: {_LEGAL}.")
    return costs


def check_costs(costs: Costs, labels: Sequence[str], type: PredictionType) -> None:
    """Raise UserError unless there is one cost of each predicted label for each gold label."""
    if not (type.one_class and type.classes):
        raise UserError("--costs: costs are for models of one label for a text: leave it out.")
    if not conforms(costs, dict[str, dict[str, float]]):
        raise UserError(f"costs must be {{gold: {{predicted: cost}}}}, not {costs!r:.60}.")
    for where, row in (("gold", costs), *((f"gold {gold!r}", row) for gold, row in costs.items())):
        if {*row} != {*labels}:
            raise UserError(
                f"--costs: {where}: costs of {abbreviated(sorted(row))}, but the labels are "
                f"{abbreviated(labels)}: give one cost of each predicted label for each gold label."
            )
    for gold, of_gold in costs.items():
        for name, cost in of_gold.items():
            if not 0 <= cost <= MOST_COST:
                raise UserError(
                    f"--costs: {name!r} for gold {gold!r} costs {cost:g}: a cost must be from 0 to "
                    f"{MOST_COST:g}."
                )


def with_costs(tables: Tables, costs: Costs) -> Tables:
    """Add the costs of mistakes to labels, by the names that gold has."""
    names = canonical_names(costs)
    costs = {
        names[gold]: {names.get(name, name): cost for name, cost in row.items()}
        for gold, row in costs.items()
    }
    labels = {*tables.gold, *tables.predicted, *costs} - {NO_LABEL}
    check_costs(costs, sorted(labels, key=str), tables.type)  # tuples of several labels are refused
    return replace(tables, costs=costs)


def by_cost(tables: Tables) -> Tables:
    """Replace each predicted label by the one that costs the least."""
    predictions = list(map(Decisions(costs=tables.costs).apply, tables.predictions))
    labels = list(map(LABEL.answer, predictions))
    return LABEL.tables(replace(tables, predicted=labels, predictions=predictions, files=()))


def choose_costs(
    path: str, labels: Sequence[str], type: PredictionType, runs: Mapping[str, Tables]
) -> Choice:
    """Read the costs of a file, and compute the cost of the cheapest labels on each split."""
    costs = read_costs(path)
    check_costs(costs, labels, type)
    rows: TableRows = []
    for name, run in runs.items():
        with_cost = with_costs(run, costs)
        before, after = score(with_cost), score(by_cost(with_cost))
        row = {"split": name, "texts": len(run)}
        row |= {"cost before": before["mean_cost"], "cost": after["mean_cost"]}
        rows.append(row | {"accuracy before": before["accuracy"], "accuracy": after["accuracy"]})
    chosen_on, notes = rows[0], list[str]()
    if chosen_on["cost"] > chosen_on["cost before"]:
        notes.append(
            f"the cost on {chosen_on['split']} is higher than before: the probabilities are not "
            "calibrated: train with --calibrate temperature"
        )
    return Choice({"costs": costs}, {"splits": rows}, {"": rows}, notes)
