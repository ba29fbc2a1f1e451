"""Labels of texts in the form of a task: names, lists of names or numbers, in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from finetune.config.description import PROBLEMS
from finetune.config.metric_properties import can_select
from finetune.config.tasks import ClassifyConfig, TextConfig, flag
from finetune.config.values import finite_number
from finetune.data.examples import Dataset, Examples
from finetune.data.labels import NLI_LABELS, SINGLE, numbered_order
from finetune.data.splitting import label_types, per_class
from finetune.preprocessing.preparation import with_gold
from finetune.types import TextExample, UserError, abbreviated, quantity


def problem_of(config: TextConfig, data: Dataset) -> Literal["single", "multi", "regression"]:
    """The configured type of problem, else the one that the type of the labels implies."""
    if isinstance(config, ClassifyConfig) and config.problem != "auto":
        return config.problem
    types = label_types(data.splits.get("train", Examples()))
    if tuple in types:
        return "multi"
    return "regression" if types == {float} else "single"


def prepare_texts(config: TextConfig, data: Dataset) -> Dataset:
    """Drop training and validation rows without a label; convert all labels for the problem.

    Draw the training examples of ``--per-class``.
    """
    problem, data = problem_of(config, data), labeled(data)
    notes = list(data.notes)
    train_labels = data.splits.get("train", Examples()).column("label")
    has_lists = any(SINGLE in note for note in notes)
    has_lists = has_lists or any(isinstance(label, tuple) for label in train_labels)
    if problem == "multi" and not has_lists:
        notes.append(
            "each row has one label; write several as a list in JSON Lines or Parquet, as in "
            '"label": ["a", "b"]'
        )
    splits = {
        split: rows.recoded("label", partial(with_problem, rows, problem))
        for split, rows in data.splits.items()
    }
    data = replace(data, splits=splits, notes=notes)
    return data if config.per_class is None else _drawn(config, data)


def label_order(labels: Collection[str], numbered: Sequence[str] = ()) -> list[str]:
    """Order labels by their numbers in the data; without these by name, numbers by value."""
    if order := numbered_order(labels, numbered):
        return order
    names = sorted(labels)
    numeric = all(name.lstrip("-").isdecimal() for name in names)
    return sorted(names, key=int) if numeric else names


def nli_label_order(labels: Collection[str], numbered: Sequence[str] = ()) -> list[str]:
    """Order the three NLI labels by name: entailment, neutral, contradiction.

    Others keep their numbers, as ``not_entailment`` and ``entailment`` of WNLI.
    """
    if {*labels} != {*NLI_LABELS} and (order := numbered_order(labels, numbered)):
        return order
    standard = [name for name in (*NLI_LABELS, "not_entailment") if name in labels]
    return standard if len(standard) == len(labels) else label_order(labels)


def _drawn(config: TextConfig, data: Dataset) -> Dataset:
    train = data.splits.get("train", Examples())
    number = config.per_class
    assert number is not None
    if any(not isinstance(label, str) for label in train.column("label")):
        raise UserError(f"--per-class {number} needs texts with one label each: leave it out.")
    drawn = train.take(per_class(train, number, config.seed)).renumbered()
    rare = [name for name, count in Counter(e.label for e in drawn).items() if count < number]
    note = (
        f"--per-class {number}: drew {len(drawn):,} of {quantity(len(train), 'training example')}"
    )
    note += f"; fewer than {number} are labeled {abbreviated(sorted(rare))}" if rare else ""
    return replace(data, splits={**data.splits, "train": drawn}, notes=[*data.notes, note])


def check_text_settings(config: TextConfig, problem: str, data: Dataset) -> None:
    """Raise UserError if a setting does not apply to the problem and the texts."""
    labels = set(chain.from_iterable(map(names_of, data.splits["train"].column("label"))))
    encoder, window = config.pair_encoder, config.long_text == "window"
    numbers, single = problem == "regression", problem == "single"
    not_classes = f"the labels of {data.name} are numbers, not classes"
    one_sequence = f"--pair-encoder {encoder} reads one sequence of each text"
    one_label = "it compares texts by their one label, and these have several, or numbers"
    metrics, selecting = PROBLEMS[problem], filter(can_select, PROBLEMS[problem])
    is_of_another = config.metric in {*chain(*PROBLEMS.values())} - {*metrics}
    refused: list[tuple[bool, str, Sequence[str]]] = [
        (is_of_another, f"the metrics of these labels are {abbreviated(selecting)}", ("metric",)),
        (numbers, not_classes, ("class_weights", "sampling", "label_separator")),
        (numbers, "the predictions are numbers, not classes", ("loss", "label_smoothing")),
        (numbers, "the predictions are numbers and have no probabilities", ("calibrate",)),
        (
            not single or len(labels) != 2,
            "it applies to texts with one of two labels",
            ("positive",),
        ),
        (window and encoder != "cross", one_sequence, ("long_text",)),
        (not single, one_label, ("few_shot",)),
        (len(labels) < 2, "it needs two labels or more", ("few_shot",)),
    ]
    for wrong, reason, names in refused:
        for name in names if wrong else ():
            if (value := getattr(config, name, None)) != getattr(type(config), name, None):
                shown = flag(name) if value is True else f"{flag(name)} {value}"
                raise UserError(f"{shown}: {reason}: leave {flag(name)} out.")
    target = {"multi": "any number of labels", "regression": "a number"}.get(problem)
    advice = "write one label for each text, or leave out --problem"
    if target is None and config.few_shot:
        target = "one label with --few-shot"
        advice = "write the label of the majority, or leave out --few-shot"
    if target is not None and (where := _first_where(data, "votes", True)) is not None:
        raise UserError(f"{where}: votes for labels, but each text has {target}: {advice}.")
    if encoder != "cross" and (where := _first_where(data, "pair", False)) is not None:
        raise UserError(
            f"{where}: a single text: --pair-encoder {encoder} needs pairs of texts: name the "
            "second column with --columns pair=NAME, or leave --pair-encoder out."
        )


def _first_where(data: Dataset, field: str, has_value: bool) -> str | None:
    columns = chain.from_iterable(rows.columns(field, "where") for rows in data.splits.values())
    return next((where for value, where in columns if (value is not None) == has_value), None)


def names_of(label: Any) -> Sequence[str]:
    """The names of a label: none, one or several."""
    return TextExample.labels_of(label) or []


def labeled(data: Dataset) -> Dataset:
    """Drop training and validation rows without a label; keep test splits without any."""
    dropped = "label (empty, '-', NaN or -1)"
    missing = "a label: name its column, --columns label=NAME."
    return with_gold(data, "label", "row", missing, dropped)


def with_problem(examples: Examples, problem: str, label: Any, first: int) -> Any:
    """Convert a label for the problem; raise UserError if that is impossible.

    ``first`` is the index of the first example that has it.
    """
    if label is None:
        return None
    if problem == "regression":
        if (number := finite_number(label)) is not None:
            return number
        raise UserError(
            f"{examples[first].where}: label {label!r} is not a number, as regression needs: "
            "correct the row, or write --problem single."
        )
    if isinstance(label, tuple):
        if problem == "multi":
            return label
        raise UserError(
            f"{examples[first].where}: the label is a list {list(label)!r} in place of one label: "
            "write --problem multi, or correct the row."
        )
    name = f"{label:g}" if isinstance(label, float) else str(label)
    return (name,) if problem == "multi" else name
