"""Any system's answers laid beside gold, if they belong together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from finetune.data import DataError
from finetune.data.nli_labels import canonical_names
from finetune.data.span_records import read_spans
from finetune.data.tag_schemes import convert_tags, detect_scheme, spans_to_tags, tags_to_spans
from finetune.evaluation.gold import Gold
from finetune.evaluation.predictions import Rows, file_of, kind_of_rows
from finetune.types import Example, Span, TokenExample


class AlignedPredictions(NamedTuple):
    """Gold and one system's answers, side by side, of the examples that have gold.

    ``form`` says what they are: ``label`` (a name), ``labels`` (a tuple of names), ``number``,
    ``tags`` (a list for each sentence; ``schemes`` are those of gold and answers, None where tags
    spell no spans) or ``spans``. ``rows`` are the lines of the predictions.
    """

    kind: str
    gold: Sequence[Any]
    predicted: Sequence[Any]
    schemes: tuple[str | None, str | None] = (None, None)
    examples: Sequence[Example] = ()
    rows: Sequence[Mapping[str, Any]] = ()


def align(rows: Rows, gold: Gold, form: str | None = None) -> AlignedPredictions:
    """Predictions beside their gold; both belong together in order.

    ``form`` asks for ``spans`` where lines have tags (which then spell them), and for ``number``
    where whole numbers would be the names of classes. Raises DataError where predictions and gold
    do not fit each other.
    """
    if form == "number":
        return _labels(rows, gold, numbers=True)
    read = {"tags": _tags, "spans": _spans, "label": _labels}
    return read[form or kind_of_rows(rows)](rows, gold)


def _labels(rows: Rows, gold: Gold, numbers: bool = False) -> AlignedPredictions:
    """Names, sets of names, or numbers: as in training, whole numbers are names unless gold has
    numbers with a decimal point, or the answers have."""
    labelled = [example for example in gold.texts if example.label is not None]
    if not labelled:
        raise DataError(f"{gold.name}: no row has a label.")
    # a run leaves rows without label out of its predictions
    examples = labelled if len(rows) == len(labelled) else gold.texts
    _same_number(rows, examples, gold)
    pairs = [
        (row, example)
        for (_, row), example in zip(rows, examples, strict=True)
        if example.label is not None
    ]
    answers, right = [row["label"] for row, _ in pairs], [example.label for _, example in pairs]
    if any(isinstance(label, list | tuple) for label in (*answers, *right)):
        form, sides = "labels", [[_names(label) for label in side] for side in (right, answers)]
    elif all(map(_is_number, answers)) and (numbers or _measured(right, answers)):
        form, sides = "number", [_numbers(right, gold.name), [float(x) for x in answers]]
    else:
        _refuse_names_for_measures(right, answers, gold.name)
        both = canonical_names(map(_name, (*right, *answers)))  # of both sides or of neither
        form, sides = "label", [both[: len(right)], both[len(right) :]]
    kept_rows, kept = zip(*pairs, strict=True) if pairs else ((), ())
    return AlignedPredictions(form, *sides, examples=kept, rows=kept_rows)


def _refuse_names_for_measures(right: Sequence[Any], answers: Sequence[Any], gold: str) -> None:
    decimal = any(isinstance(x, float) and not x.is_integer() for x in right)
    if decimal and not any(_spells_number(str(answer)) for answer in answers):
        raise DataError(
            f"{gold}: its labels are numbers, but the predictions are names such as "
            f"{answers[0]!r}: the files do not belong together."
        )


def has_numbers(rows: Rows) -> bool:
    """Whether each line answers with a number, not with the name of one."""
    return all(_is_number(row["label"]) for _, row in rows)


def _is_number(label: Any) -> bool:
    return isinstance(label, float | int) and not isinstance(label, bool)


def _measured(right: Sequence[Any], answers: Sequence[Any]) -> bool:
    """Whether numbers are measures and not names of classes; also where gold has no numbers, so
    that they are refused."""
    if any(isinstance(x, float) for x in right) or not all(float(x).is_integer() for x in answers):
        return True
    spelled = [label for label in map(str, right) if _spells_number(label)]
    if len(spelled) == len(right):
        return any("." in label for label in spelled)  # tables have all labels as text
    return not spelled


def _spells_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _name(label: Any) -> str:
    """A label as a model names it: 1.0 is the class `1`."""
    if isinstance(label, bool):
        return str(label).lower()
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


def _tags(rows: Rows, gold: Gold) -> AlignedPredictions:
    examples = gold.tagged
    examples = _asked(examples, [example.tags is not None for example in examples], len(rows))
    _same_number(rows, examples, gold)
    for (where, row), example in zip(rows, examples, strict=True):
        if example.tags is None:
            raise DataError(f"{example.where}: no tags to score against.")
        if len(row["tags"]) != len(example.words):
            raise DataError(
                f"{where}: {len(row['tags'])} tags for the {len(example.words)} words of "
                f"{example.where}. Every word needs exactly one."
            )
        if isinstance(words := row.get("words"), list) and all(isinstance(w, str) for w in words):
            _same_words(where, words, example)
    right = [list(example.tags or ()) for example in examples]
    predicted = [list(row["tags"]) for _, row in rows]
    source = detect_scheme(right)
    answered = source and (_answered_scheme(predicted, source) or source)
    if source not in (None, "BIO", answered):  # as training reads gold, so that scores agree
        right, source = [convert_tags(tags, source, "BIO") for tags in right], "BIO"
    schemes = source, answered
    return AlignedPredictions("tags", right, predicted, schemes, examples, [row for _, row in rows])


def _asked(
    examples: Sequence[TokenExample], has_gold: Sequence[bool], number: int
) -> Sequence[TokenExample]:
    """Those examples that so many predictions are about.

    A run leaves rows without words, and some systems those without gold, out of its predictions.
    """
    worded = [example for example in examples if example.words]
    gold = [example for example, has in zip(examples, has_gold, strict=True) if has]
    both = [example for example in gold if example.words]
    fitting = (kept for kept in (examples, worded, both, gold) if len(kept) == number)
    return next(fitting, examples)


def _answered_scheme(predicted: Sequence[Sequence[str]], source: str | None) -> str | None:
    answered = detect_scheme(predicted)
    if answered in ("IO", "IOB1") and source not in ("IO", "IOB1"):
        answered = "BIO"  # a few ill-formed tags do not make the answers another scheme's
    return answered


def in_scheme_of_gold(run: AlignedPredictions) -> Sequence[Sequence[str]]:
    """The answered tags, written in the scheme of gold where theirs is another."""
    source, answered = run.schemes
    if source is None or answered in (None, source):
        return run.predicted
    return [spans_to_tags(tags_to_spans(t, answered), len(t), source) for t in run.predicted]


def _spans(rows: Rows, gold: Gold) -> AlignedPredictions:
    examples = gold.marked
    if all(example.spans is None for example in examples):
        raise DataError(
            f"{gold.name}: no spans to score against: give spans, or tags that spell spans "
            "(B-TYPE, I-TYPE, O)."
        )
    examples = _asked(examples, [example.spans is not None for example in examples], len(rows))
    _same_number(rows, examples, gold)
    rows = _spelled(rows)
    kept = [
        (_answered(where, row, example), example, row)
        for (where, row), example in zip(rows, examples, strict=True)
        if example.spans is not None
    ]
    answers, examples, kept_rows = map(list, zip(*kept, strict=True)) if kept else ([], [], [])
    right = [example.spans for example in examples]
    return AlignedPredictions("spans", right, answers, examples=examples, rows=kept_rows)


def _spelled(rows: Rows) -> Rows:
    """Rows that have tags only with the spans that these spell."""
    only_tags = [row["tags"] for _, row in rows if "spans" not in row]
    if not only_tags:
        return rows
    scheme = _answered_scheme(only_tags, None)
    if scheme is None:
        raise DataError(
            f"{file_of(rows)}: its tags spell no spans (B-TYPE, I-TYPE, O), so they cannot be laid "
            "beside spans."
        )
    return [
        (where, row if "spans" in row else {**row, "spans": tags_to_spans(row["tags"], scheme)})
        for where, row in rows
    ]


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


def _same_number(rows: Rows, examples: Sequence[Example], gold: Gold) -> None:
    if len(rows) != len(examples):
        raise DataError(
            f"{gold.name}: {len(examples):,} examples, but {len(rows):,} predictions in "
            f"{file_of(rows)}: the files do not belong together, or one was cut."
        )


def with_probabilities(run: AlignedPredictions) -> list[list[tuple[float, bool]]] | None:
    """The probability of each answer, and whether it is right, for each example.

    Answers are labels; for sets of labels every label that has a probability, which is that it
    applies; the tags of words; or spans. None where not all of their probabilities are known.
    """
    found = _judged(run)
    return found if found and any(found) else None


def _judged(run: AlignedPredictions) -> list[list[tuple[float, bool]]] | None:
    if run.kind == "spans":
        return _judged_spans(run)
    if run.kind == "label" and (known := predicted_label_probabilities(run)):
        sides = zip(known, run.gold, run.predicted, strict=True)
        return [[(sure, right == answer)] for sure, right, answer in sides]
    if run.kind == "labels" and (chances := label_probabilities(run)):
        return [
            [(chance, name in right) for name, chance in each.items()]
            for right, each in zip(run.gold, chances, strict=True)
        ]
    if run.kind == "tags" and (values := word_probabilities(run)):
        rows = zip(values, run.gold, in_scheme_of_gold(run), strict=True)
        return [[(sure, r == a) for sure, r, a in zip(*row, strict=True)] for row in rows]
    return None


def _judged_spans(run: AlignedPredictions) -> list[list[tuple[float, bool]]] | None:
    found = []
    confidences = span_probabilities(run, run.gold, run.predicted, None)
    for right, spans, known in zip(run.gold, run.predicted, confidences, strict=True):
        if any(span not in known for span in spans):
            return None
        found.append([(known[span], span in set(right)) for span in dict.fromkeys(spans)])
    return found


def predicted_label_probabilities(run: AlignedPredictions) -> list[float] | None:
    """The probability of each answered label: ``score``, or its entry in ``scores``."""
    found = []
    for row in run.rows:
        value = row.get("score")
        if value is None and isinstance(scores := row.get("scores"), dict):
            value = scores.get(str(row.get("label")))
        if not _is_probability(value):
            return None
        found.append(float(value))
    return found or None


def label_probabilities(run: AlignedPredictions) -> list[dict[str, float]] | None:
    """The probability of every label for each text, from ``scores``."""
    found = []
    for row in run.rows:
        scores = row.get("scores")
        if not isinstance(scores, dict) or not all(map(_is_probability, scores.values())):
            return None
        found.append({name: float(value) for name, value in scores.items()})
    return found or None


def word_probabilities(run: AlignedPredictions) -> list[list[float]] | None:
    """The probability of each word's tag, from ``scores``."""
    found = []
    for row, tags in zip(run.rows, run.predicted, strict=True):
        scores = row.get("scores")
        if not isinstance(scores, list) or len(scores) != len(tags):
            return None
        if not all(map(_is_probability, scores)):
            return None
        found.append([float(value) for value in scores])
    return found or None


def span_probabilities(
    run: AlignedPredictions,
    gold: Sequence[Collection[Span]],
    answers: Sequence[Collection[Span]],
    words: Sequence[Sequence[float]] | None,
) -> list[dict[Span, float]]:
    """The probability of each span, as far as it is known, for each sentence.

    With probabilities of words that of a span is the mean over its words, of a missed gold span
    too: how sure the system was of what it answered there.
    """
    if words is None:
        return [_of_row(row) for row in run.rows] or [{} for _ in gold]
    return [
        {span: sum(known[span.start : span.end]) / (span.end - span.start) for span in both}
        for known, both in (
            (values, {*right, *spans})
            for values, right, spans in zip(words, gold, answers, strict=True)
        )
    ]


def _of_row(row: Mapping[str, Any]) -> dict[Span, float]:
    if row.get("words", row.get("tokens")) is None and "text" in row:
        return {}  # its spans are in characters
    found = {}
    spans = row.get("spans")
    for span in spans if isinstance(spans, list | tuple) else ():
        if isinstance(span, dict) and _is_probability(score := span.get("score")):
            start, end, label = (span.get(name) for name in ("start", "end", "label"))
            if isinstance(start, int) and isinstance(end, int):
                found[Span(start, end, str(label))] = float(score)
    return found


def _is_probability(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1 + 1e-6
