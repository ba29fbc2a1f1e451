"""Score a file of predictions against gold without a model: any system's, not only ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finetune.align import convert_tags, detect_scheme
from finetune.data import DataError, read_text_file, read_token_file
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
    kinds = {"tags" if "tags" in row else "label" if "label" in row else "" for _, row in rows}
    if kinds == {"tags"}:
        return _score_tags(rows, gold, columns or {})
    if kinds == {"label"}:
        return _score_labels(rows, gold, columns or {})
    raise DataError(f"{predictions}: each line must have `label`, or each must have `tags`.")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{where}: not a JSON line ({error.msg}).") from error
            if not isinstance(row, dict):
                raise DataError(f'{where}: a prediction is an object such as {{"label": "x"}}.')
            yield where, row


def _score_labels(
    rows: list[tuple[str, dict[str, Any]]], gold: str, columns: Mapping[str, str]
) -> dict[str, float]:
    examples = list(read_text_file(gold, columns=columns))
    _same_number(len(rows), len(examples), gold)
    pairs = [
        (row["label"], e.label)
        for (_, row), e in zip(rows, examples, strict=True)
        if e.label is not None
    ]
    if not pairs:
        raise DataError(f"{gold}: no row has a label.")
    predicted, right = map(list, zip(*pairs, strict=True))
    if any(isinstance(label, list | tuple) for label in (*predicted, *right)):
        answers = [tuple(x) if isinstance(x, list) else x for x in predicted]
        labels = sorted({name for names in (*right, *answers) for name in names})
        return multilabel_scores(right, answers, labels)
    if all(isinstance(label, float | int) for label in predicted):
        return regression_scores([float(x) for x in right], [float(x) for x in predicted])
    right, predicted = (
        canonical_names([str(x) for x in right]),
        canonical_names(map(str, predicted)),
    )
    return classification_scores(right, predicted, sorted({*right, *predicted}))


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
    if source not in (None, "BIO"):
        right = [convert_tags(tags, source, "BIO") for tags in right]
    scheme = None if source is None else "BIO"
    return tagging_scores(right, predicted, scheme, scheme and (answered or "BIO"))


def _same_number(predictions: int, examples: int, gold: str) -> None:
    if predictions != examples:
        raise DataError(
            f"{gold}: {examples:,} examples, but {predictions:,} predictions: the files do not "
            "belong together, or one was cut."
        )
