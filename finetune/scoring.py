"""Score a file of predictions against gold without a model: any system's, not only ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.align import detect_scheme
from finetune.data import DataError, read_gold, read_text_file, read_token_file
from finetune.data.files import open_data
from finetune.data.span_rows import read_spans
from finetune.metrics import (
    classification_scores,
    multilabel_scores,
    regression_scores,
    tagging_scores,
)
from finetune.span_metrics import span_ner_scores
from finetune.tasks.labels import canonical_names
from finetune.types import Span, TokenExample

_FORMS = ("tags", "spans", "label")


def score_predictions(
    predictions: Path, gold: str, columns: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Metrics by name; lines of both files belong together in order.

    Predictions are JSON lines with ``label`` (a name, a list of names, or a number), ``tags``, or
    ``spans`` (in words; in characters where the line has a ``text`` and no words). Tags go before
    spans where a line has both. Raises ValueError where the files do not fit each other.
    """
    rows = list(_rows(predictions))
    if not rows:
        raise DataError(f"{predictions}: there is no prediction in it.")
    kinds = {next((form for form in _FORMS if form in row), "") for _, row in rows}
    scorers = {"tags": _score_tags, "spans": _score_spans, "label": _score_labels}
    if len(kinds) == 1 and (kind := kinds.pop()) in scorers:
        return scorers[kind](rows, gold, columns or {})
    raise DataError(
        f"{predictions}: each line must have `label`, or each must have `tags`, or each `spans`."
    )


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


def _score_spans(
    rows: list[tuple[str, dict[str, Any]]], gold: str, columns: Mapping[str, str]
) -> dict[str, float]:
    examples = read_gold(gold, columns=columns)
    if all(example.spans is None for example in examples):
        raise DataError(
            f"{gold}: no spans to score against: give spans, or tags that spell spans (B-TYPE, "
            "I-TYPE, O)."
        )
    for kept in (  # a run leaves rows without words, and without gold, out of its predictions
        [example for example in examples if example.words],
        [example for example in examples if example.words and example.spans is not None],
    ):
        examples = kept if len(rows) == len(kept) else examples
    _same_number(len(rows), len(examples), gold)
    pairs = [
        (example.spans, _answered(where, row, example))
        for (where, row), example in zip(rows, examples, strict=True)
        if example.spans is not None
    ]
    right, answers = zip(*pairs, strict=True)
    return span_ner_scores(right, answers)


def _answered(where: str, row: Mapping[str, Any], example: TokenExample) -> tuple[Span, ...]:
    """The spans of a prediction in words of the gold example."""
    words, text = row.get("words", row.get("tokens")), row.get("text")
    if isinstance(words, list) and words and all(isinstance(word, dict) for word in words):
        words = None  # tokens as objects, with the characters of the text
    if words is not None:
        _same_words(where, words, example)
    if not (words is None and text is not None) and not _only_characters(row["spans"]):
        return read_spans(row["spans"], where, len(example.words)).spans
    if example.text is None:
        raise DataError(
            f"{where}: the spans are in characters, but {example.where} has words and no text: "
            'give spans in words, {"start": 0, "end": 2, "label": "PER"}, end exclusive.'
        )
    if text not in (None, example.text):
        raise DataError(
            f"{where}: the text is not that of {example.where}: the files do not belong together."
        )
    return read_spans(row["spans"], where, len(example.words), example.text, example.offsets).spans


def _only_characters(spans: Any) -> bool:
    """Whether a span has a place in characters and none in words."""
    return isinstance(spans, list) and any(
        isinstance(span, dict) and "start" not in span and {"start_char", "start_offset"} & {*span}
        for span in spans
    )


def _same_words(where: str, words: Any, example: TokenExample) -> None:
    """Refuse a prediction on other words than those of the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        number = f"{len(words)} words" if isinstance(words, list) else repr(words)[:60]
        raise DataError(
            f"{where}: {number} for the {len(example.words)} words of {example.where}: the files "
            "do not belong together."
        )
    for index, (answered, right) in enumerate(zip(words, example.words, strict=True)):
        if answered != right:
            raise DataError(
                f"{where}: word {index} is {answered!r:.40}, but {right!r:.40} in {example.where}: "
                "the files do not belong together."
            )


def _same_number(predictions: int, examples: int, gold: str) -> None:
    if predictions != examples:
        raise DataError(
            f"{gold}: {examples:,} examples, but {predictions:,} predictions: the files do not "
            "belong together, or one was cut."
        )
