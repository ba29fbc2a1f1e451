"""Score a file of predictions against gold without a model: any system's, not only ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.align import detect_scheme
from finetune.data import DataError, read_text_file, read_token_file
from finetune.data.files import open_data
from finetune.metrics import (
    classification_scores,
    multilabel_scores,
    regression_scores,
    tagging_scores,
)
from finetune.tasks.labels import canonical_names


def score_predictions(
    predictions: Path, gold: str, columns: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Metrics by name; lines of both files belong together in order.

    Predictions are JSON lines with ``label`` (a name, a list of names, or a number) or ``tags``.
    Raises ValueError where the files do not fit each other.
    """
    rows = list(_rows(predictions))
    if not rows:
        raise DataError(f"{predictions}: there is no prediction in it.")
    kinds = {"tags" if "tags" in row else "label" if "label" in row else "" for _, row in rows}
    if kinds == {"tags"}:
        return _score_tags(rows, gold, columns or {})
    if kinds == {"label"}:
        return _score_labels(rows, gold, columns or {})
    raise DataError(f"{predictions}: each line must have `label`, or each must have `tags`.")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in open_data(path, "jsonl"):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not a JSON line ({error.msg}): was the file cut?") from error
        if not isinstance(row, dict):
            raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
        _check_row(where, row)
        yield where, row


def _check_row(where: str, row: Mapping[str, Any]) -> None:
    """Refuse labels and tags of a wrong kind."""
    tags, label = row.get("tags", []), row.get("label", "")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise DataError(
            f"{where}: tags must be a list with a text for each word, not {tags!r:.60}."
        )
    parts = label if isinstance(label, list) else [label]
    if not all(isinstance(part, str | float | int) for part in parts):
        raise DataError(
            f"{where}: label must be a name, a list of names or a number, not {label!r:.60}."
        )


def _score_labels(
    rows: list[tuple[str, dict[str, Any]]], gold: str, columns: Mapping[str, str]
) -> dict[str, float]:
    examples = list(read_text_file(gold, columns=columns))
    labelled = [example for example in examples if example.label is not None]
    if not labelled:
        raise DataError(f"{gold}: no row has a label.")
    if len(rows) == len(labelled):  # a run leaves rows without label out of its predictions
        examples = labelled
    _same_number(len(rows), len(examples), gold)
    pairs = [
        (row["label"], example.label)
        for (_, row), example in zip(rows, examples, strict=True)
        if example.label is not None
    ]
    answers, right = zip(*pairs, strict=True)
    if any(isinstance(label, list | tuple) for label in (*answers, *right)):
        sets = [[_names(label) for label in side] for side in (right, answers)]
        names = {name for side in sets for label in side for name in label}
        return multilabel_scores(*sets, sorted(names))
    if all(isinstance(label, float | int) for label in answers):
        return regression_scores(_numbers(right, gold), [float(x) for x in answers])
    gold_names, named = (canonical_names(map(_name, side)) for side in (right, answers))
    return classification_scores(gold_names, named, sorted({*gold_names, *named}))


def _name(label: Any) -> str:
    """A label as a model names it: 1.0 is the class `1`."""
    return f"{label:g}" if isinstance(label, float) else str(label)


def _names(label: Any) -> tuple[str, ...]:
    return tuple(map(_name, label)) if isinstance(label, list | tuple) else (_name(label),)


def _numbers(labels: Sequence[Any], gold: str) -> list[float]:
    try:
        return [float(label) for label in labels]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{gold}: its labels are no numbers ({error}), but the predictions are."
        ) from error


def _score_tags(
    rows: list[tuple[str, dict[str, Any]]], gold: str, columns: Mapping[str, str]
) -> dict[str, float]:
    examples = list(read_token_file(gold, columns=columns))
    _same_number(len(rows), len(examples), gold)
    for (where, row), example in zip(rows, examples, strict=True):
        if example.tags is None:
            raise DataError(f"{example.where}: no tags to score against.")
        if len(row["tags"]) != len(example.words):
            raise DataError(
                f"{where}: {len(row['tags'])} tags for the {len(example.words)} words of "
                f"{example.where}. Every word needs exactly one."
            )
    right = [list(example.tags or ()) for example in examples]
    predicted = [list(row["tags"]) for _, row in rows]
    source, answered = detect_scheme(right), detect_scheme(predicted)
    if answered in ("IO", "IOB1") and source not in ("IO", "IOB1"):
        answered = "BIO"  # a few ill-formed tags do not make the answers another scheme's
    return tagging_scores(right, predicted, source, source and (answered or source))


def _same_number(predictions: int, examples: int, gold: str) -> None:
    if predictions != examples:
        raise DataError(
            f"{gold}: {examples:,} examples, but {predictions:,} predictions: the files do not "
            "belong together, or one was cut."
        )
