"""Align the predictions of any system with gold, and refuse files that do not belong together."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, compress, pairwise
from typing import Any, NamedTuple

from finetune.data import DataError
from finetune.data.character_spans import chars_to_words, words_to_chars
from finetune.data.dataset import normalized_texts
from finetune.data.nli_labels import canonical_names
from finetune.data.tag_conversion import respelled
from finetune.data.tag_schemes import convert_tags, detect_scheme, tags_to_spans
from finetune.data.token_records import ParsedSpans, TokenRecord, read_relations, read_spans
from finetune.evaluation.answers import exact_match
from finetune.evaluation.kinds import KINDS
from finetune.evaluation.pairs import NO_LABEL, CharacterSpans, Pairs, pair, spans_in_characters
from finetune.evaluation.predictions import PredictionFile, ids_of
from finetune.types import Example, Relation, SenseTarget, Span, TokenExample, quantity


class AlignedPredictions(NamedTuple):
    """Gold and predictions of one system, in the same order, for the examples that have gold.

    The kind of values is ``label`` (a name), ``labels`` (a tuple of names), ``number``, ``choice``
    (an index), ``tags`` (a list for each sentence), ``spans``, ``relations``, ``subwords`` (a list
    for each sequence), ``answers`` (gold: a tuple of texts; predicted: a text) or ``senses`` (names
    for each target). ``schemes`` are the tag schemes of gold and predictions, None where tags do
    not spell spans. ``rows`` are the lines of the prediction file, which may hold probabilities;
    they were aligned ``by`` id or position. ``Pairs`` explains ``characters`` and ``positive``.
    """

    kind: str
    gold: Sequence[Any]
    predicted: Sequence[Any]
    schemes: tuple[str | None, str | None] = (None, None)
    examples: Sequence[Any] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    characters: CharacterSpans = ()
    by: str = ""
    positive: str | None = None

    def pairs(self) -> Pairs:
        """Return gold and predictions for ``metrics``."""
        if self.kind == "subwords":
            losses, boundary_losses = (
                [row.get(name) or () for row in self.rows] for name in ("losses", "boundary_losses")
            )
            following = [
                (row["follows"], row["follows_score"] >= 0.5) if "follows_score" in row else ()
                for row in self.rows
            ]
            return Pairs(
                self.kind,
                self.gold,
                self.predicted,
                losses=losses,
                boundary_losses=boundary_losses,
                next_sentences=following,
            )
        return pair(
            self.kind,
            self.gold,
            self.predicted,
            self._labels_of_model(),
            schemes=self.schemes,
            characters=self.characters,
            positive=self.positive,
        )

    def _labels_of_model(self) -> tuple[str, ...]:
        """Return the labels of a model of several, over which averages are; () if unknown."""
        if self.kind != "labels":
            return ()
        scores: list[Mapping[str, float]] = [row["scores"] for row in self.rows if "scores" in row]
        names = {tuple(each) for each in scores if isinstance(each, dict)}
        return names.pop() if len(names) == 1 else ()


class Gold(NamedTuple):
    """Examples with gold, and the name of the file they are from."""

    name: str
    examples: Sequence[Example | SenseTarget]


def align(file: PredictionFile, gold: Gold, kind: str | None = None) -> AlignedPredictions:
    """Align predictions with gold, as a kind of values; the default is the kind of the file.

    ``spans`` reads the spans that tags spell; of kind ``number``, whole numbers are not classes.
    """
    kind = kind or file.kind
    return KINDS[kind].align(file, gold) if kind in KINDS else _ALIGN[kind](file, gold)


def _align_labels(file: PredictionFile, gold: Gold, numbers: bool) -> AlignedPredictions:
    """Align names, sets of names, or numbers.

    As in training, whole numbers are names, unless gold or predictions have a decimal point.
    """
    aligned, by = _pair_rows(file, gold, lambda example: example.label)
    labeled = [(row, example) for (_, row), example in aligned if example.label is not None]
    if not labeled:
        raise DataError(f"{gold.name}: no row has a label.")
    rows, texts = map(list, zip(*labeled, strict=True))
    predicted: list[Any] = [row["label"] for row in rows]
    gold_labels: list[Any] = [example.label for example in texts]
    kind = "label"
    blank = sum(label == NO_LABEL for label in predicted)
    known = [label for label in predicted if label != NO_LABEL]
    of_numbers = bool(known) and all(map(_is_number, known))
    if blank and of_numbers and (numbers or _is_regression(gold_labels, known)):
        raise DataError(
            f"{file.path}: {quantity(blank, 'text is', 'texts are')} blank, and so without a "
            "number: remove them from the data to score numbers."
        )
    if any(isinstance(label, list | tuple) for label in (*predicted, *gold_labels)):
        kind = "labels"
        gold_labels, predicted = ([*map(_names, side)] for side in (gold_labels, predicted))
    elif all(map(_is_number, predicted)) and (numbers or _is_regression(gold_labels, predicted)):
        kind, predicted = "number", [float(label) for label in predicted]
        try:
            gold_labels = [float(label) for label in gold_labels]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{gold.name}: its labels are not numbers ({error}), but the predictions are."
            ) from error
    else:
        decimal = any(isinstance(x, float) and not x.is_integer() for x in gold_labels)
        if decimal and not any(_spells_number(str(label)) for label in predicted):
            raise DataError(
                f"{gold.name}: its labels are numbers, but the predictions are names such as "
                f"{predicted[0]!r}: the files do not belong together."
            )
        names = canonical_names(map(_name, (*gold_labels, *predicted)))  # of both or of neither
        gold_labels, predicted = names[: len(gold_labels)], names[len(gold_labels) :]
    return AlignedPredictions(kind, gold_labels, predicted, examples=texts, rows=rows, by=by)


def _align_answers(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    """Align answers to questions; an empty one is no answer."""
    pairs, by = _pair_rows(file, gold, lambda example: example.answers)
    known = [(row, example) for (_, row), example in pairs if example.answers is not None]
    if not known:
        raise DataError(f"{gold.name}: no question has gold answers.")
    rows, examples = map(list, zip(*known, strict=True))
    texts = [tuple(answer.text for answer in example.answers) for example in examples]
    predicted = [row["answer"] for row in rows]
    return AlignedPredictions("answers", texts, predicted, examples=examples, rows=rows, by=by)


def best_answers(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[str], list[float]] | tuple[None, None]:
    """Return the most probable answers and the probabilities of no answer; None if unknown."""
    best, no_answer = [], []
    for row in rows:
        score, found = row.get("no_answer_score"), row.get("best")
        if score is None or found is None:
            return None, None
        best.append(str(found[0].get("text", "")) if found else "")
        no_answer.append(float(score))
    return best, no_answer


def _align_subwords(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    """Align predictions at masked positions, which a file holds together with their gold."""
    aligned, by = _pair_rows(file, gold, lambda example: example.label)
    predicted, subwords, rows, examples = [], [], [], []
    for (where, row), example in aligned:
        sides = row["subwords"], row.get("losses", ()), example.label or ()
        if len({len(side) for side in sides}) > 1 or not all(isinstance(x, str) for x in sides[2]):
            raise DataError(
                f"{where}: subwords, losses and gold must be lists of the same length: name a "
                "prediction file that finetune pretrain wrote."
            )
        predicted.append(sides[0])
        subwords.append(list(sides[2]))
        rows.append(row)
        examples.append(example)
    return AlignedPredictions("subwords", subwords, predicted, examples=examples, rows=rows, by=by)


def predicts_numbers(file: PredictionFile) -> bool:
    """Return whether each line predicts a number, not the name of one."""
    return all(_is_number(row["label"]) for _, row in file.rows)


def _is_number(label: Any) -> bool:
    return isinstance(label, float | int) and not isinstance(label, bool)


def _is_regression(gold: Sequence[Any], predicted: Sequence[Any]) -> bool:
    """Return whether predicted numbers are values, not names; also where gold has no numbers."""
    whole = all(float(label).is_integer() for label in predicted)
    if not whole or any(isinstance(label, float) for label in gold):
        return True
    spelled = [label for label in map(str, gold) if _spells_number(label)]
    if len(spelled) == len(gold):
        return any("." in label for label in spelled)  # tables have all labels as text
    return not spelled


def _spells_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _name(label: Any) -> str:
    """Return a label as a model names it: 1.0 is `1`."""
    if isinstance(label, bool):
        return str(label).lower()
    return f"{label:g}" if isinstance(label, float) else str(label)


def _names(label: Any) -> tuple[str, ...]:
    several = label if isinstance(label, list | tuple) else [label]
    return tuple(_name(each) for each in several if each != "")


def _align_tags(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    aligned, by = _pair_rows(file, gold, lambda example: example.tags)
    for (where, row), example in aligned:
        if example.tags is None:
            raise DataError(f"{example.where}: no tags to score against.")
        if len(row["tags"]) != len(example.words):
            raise DataError(
                f"{where}: {quantity(len(row['tags']), 'tag')} for the "
                f"{quantity(len(example.words), 'word')} of {example.where}. Every word needs "
                "exactly one."
            )
        if isinstance(words := row.get("words"), list) and all(isinstance(w, str) for w in words):
            _check_words(where, words, example)
    examples = [example for _, example in aligned]
    rows = [row for (_, row), _ in aligned]
    gold_tags = respelled([example.tags for example in examples])
    predicted = respelled([row["tags"] for row in rows])
    scheme = detect_scheme(gold_tags)
    predicted_scheme = scheme and (_predicted_scheme(predicted, scheme) or scheme)
    if scheme not in (None, "BIO", predicted_scheme):  # as training reads gold: scores agree
        gold_tags, scheme = [convert_tags(tags, scheme, "BIO") for tags in gold_tags], "BIO"
    schemes = scheme, predicted_scheme
    spans = [tags_to_spans(tags, predicted_scheme) for tags in predicted if predicted_scheme]
    characters = spans_in_characters(examples, spans) if spans else ()
    return AlignedPredictions("tags", gold_tags, predicted, schemes, examples, rows, characters, by)


def _pair_rows(
    file: PredictionFile, gold: Gold, gold_of: Callable[[Any], Any]
) -> tuple[list[tuple[tuple[str, dict[str, Any]], Any]], str]:
    """Return the rows of predictions with their ``file:line``, each with its gold example.

    Rows are aligned by id if both sides have ids, or the ids of predictions are the row numbers of
    a gold file without ids; else by position. Systems may leave out examples without words or gold.
    """
    words = [not isinstance(each, TokenExample) or bool(each.words) for each in gold.examples]
    golds = [gold_of(each) is not None for each in gold.examples]
    needed = list(map(operator.and_, words, golds))
    keys = ids_of([(example.key, example.where) for example in gold.examples])
    if keys is not None and file.ids is not None:
        order = align_ids(file, keys, [each.where for each in gold.examples], gold.name, needed)
        pairs = zip(order, gold.examples, strict=True)
        return [(file.rows[i], each) for i, each in pairs if i is not None], "id"
    filters = ([True] * len(golds), words, needed, golds)
    kept = next((some for some in filters if sum(some) == len(file.rows)), None)
    if kept is None:
        raise DataError(
            f"{gold.name}: {quantity(len(gold.examples), 'example')}, but "
            f"{quantity(len(file.rows), 'prediction')} in {file}: "
            f"{_mismatch(gold.examples, len(file.rows))}."
        )
    examples = list(compress(gold.examples, kept))
    numbers = [str(number) for number in range(len(examples))]
    if file.ids is None or {*file.ids} != {*numbers}:
        return list(zip(file.rows, examples, strict=True)), "position"
    order = align_ids(file, numbers, [each.where for each in examples], gold.name)
    return [(file.rows[i or 0], each) for i, each in zip(order, examples, strict=True)], "id"


def _mismatch(gold: Sequence[Example | SenseTarget], number: int) -> str:
    """Return why gold has another number of examples than the predictions."""
    examples = [each for each in gold if not isinstance(each, SenseTarget)]
    repeated = len(examples) - len({normalized_texts(example) for example in examples})
    if repeated and number == len(gold) - repeated:
        texts = quantity(repeated, "row has the text of another", "rows have the text of another")
        return f"in gold, {texts}: if by several annotators, keep one annotation of each text"
    return "the files do not belong together, or one was cut"


def align_ids(
    file: PredictionFile,
    ids: Sequence[str],
    places: Sequence[str],
    name: str,
    needed: Sequence[object] = (),
) -> list[int | None]:
    """Return the index of the row of each id; None for missing rows that are not needed.

    ``places`` are the ``file:line`` of the ids in the file ``name``.

    Raises:
        DataError: An id is unknown, missing or occurs twice; not if both sides repeat the same.
    """
    own = file.ids or []
    if own == [*ids]:
        return list(range(len(own)))
    rows, known = dict[str, int](), dict[str, str]()
    for index, (id, (where, _)) in enumerate(zip(own, file.rows, strict=True)):
        if id in rows:
            first = file.rows[rows[id]][0]
            raise DataError(
                f"{where}: id {id!r:.40} is also in {first}: write one prediction for each id."
            )
        rows[id] = index
    for id, place in zip(ids, places, strict=True):
        if id in known:
            raise DataError(f"{place}: id {id!r:.40} is also in {known[id]}: ids must differ.")
        known[id] = place
    for id, index in rows.items():
        if id not in known:
            raise DataError(
                f"{file.rows[index][0]}: id {id!r:.40} is not in {name}: the files do not belong "
                "together; or remove the ids of one of them, to align by position."
            )
    missing = [
        id
        for id, need in zip(ids, needed or [True] * len(ids), strict=True)
        if need and id not in rows
    ]
    if missing:
        raise DataError(
            f"{known[missing[0]]}: id {missing[0]!r:.40} has no prediction in {file} (it lacks "
            f"{len(missing):,} of {quantity(len(ids), 'id')}): it was cut, or is of other data."
        )
    return [rows.get(id) for id in ids]


def _align_choices(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    """Align the indices of choices."""
    pairs, by = _pair_rows(file, gold, lambda example: example.label)
    known = [pair for pair in pairs if pair[1].label is not None]
    if not known:
        raise DataError(f"{gold.name}: no row has a label.")
    for (where, row), example in known:
        if not 0 <= row["choice"] < (len(example.choices) or row["choice"] + 1):
            raise DataError(
                f"{where}: choice {row['choice']} is outside of the {len(example.choices)} choices "
                f"of {example.where}, which are counted from 0."
            )
    examples, rows = [example for _, example in known], [row for (_, row), _ in known]
    labels, predicted = [example.label for example in examples], [row["choice"] for row in rows]
    return AlignedPredictions("choice", labels, predicted, examples=examples, rows=rows, by=by)


def _predicted_scheme(predicted: Sequence[Sequence[str]], scheme: str | None) -> str | None:
    found = detect_scheme(predicted)
    if found in ("IO", "IOB1") and scheme not in ("IO", "IOB1"):
        found = "BIO"  # a few ill-formed tags do not make another scheme
    return found


def _align_spans(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    if all(each.spans is None for each in gold.examples if isinstance(each, TokenExample)):
        raise DataError(
            f"{gold.name}: no spans to score against: give spans, or tags that spell spans "
            "(B-TYPE, I-TYPE, O)."
        )
    pairs, by = _pair_rows(_with_spans(file), gold, lambda example: example.spans)
    aligned = [
        (_predicted_spans(where, row, example), example, row)
        for (where, row), example in pairs
        if example.spans is not None
    ]
    found, examples, rows = map(list, zip(*aligned, strict=True)) if aligned else ([], [], [])
    predicted, unreachable = [each.spans for each in found], [each.unreachable for each in found]
    return AlignedPredictions(
        "spans",
        [example.spans for example in examples],
        predicted,
        examples=examples,
        rows=rows,
        by=by,
        characters=spans_in_characters(examples, predicted, unreachable),
    )


def _align_relations(file: PredictionFile, gold: Gold) -> AlignedPredictions:
    """Align relations; their spans may differ from the gold spans."""
    if all(each.relations is None for each in gold.examples if isinstance(each, TokenExample)):
        raise DataError(f"{gold.name}: no `relations` to score against.")
    pairs, by = _pair_rows(file, gold, lambda example: example.relations)
    found, examples, rows = [], [], []
    for (where, row), example in pairs:
        if example.relations is None:
            continue
        found.append(_predicted_relations(where, row, example))
        examples.append(example)
        rows.append(row)
    relations = [example.relations for example in examples]
    return AlignedPredictions("relations", relations, found, examples=examples, rows=rows, by=by)


def _predicted_relations(
    where: str, row: Mapping[str, Any], example: TokenExample
) -> tuple[Relation, ...]:
    """Return the predicted relations in words of the gold example.

    Gold may have more words, because words of a text are split where gold spans begin or end.
    """
    words = row.get("words", row.get("tokens"))
    texts = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not texts or "".join(words) != "".join(example.words):
        _check_words(where, words, example)
    spans = row.get("spans") or ()
    found = read_relations(row["relations"], where, spans, TokenRecord(tuple(words), where))
    if words == [*example.words]:
        return found
    own, gold = (
        list(pairwise(accumulate(map(len, side), initial=0))) for side in (words, example.words)
    )
    converted = []
    for relation in found:
        reached, unreachable = chars_to_words(gold, words_to_chars(own, relation[:2]))
        if unreachable:
            _check_words(where, words, example)
        converted.append(Relation(reached[0], reached[1], relation.label))
    return tuple(converted)


def _with_spans(file: PredictionFile) -> PredictionFile:
    """Return the file, rows that have only tags with the spans that these spell."""
    only_tags = [row["tags"] for _, row in file.rows if "spans" not in row]
    if not only_tags:
        return file
    scheme = _predicted_scheme(only_tags, None)
    if scheme is None:
        raise DataError(
            f"{file}: its tags do not spell spans (B-TYPE, I-TYPE, O), so they cannot be compared "
            "with spans."
        )
    rows = [
        (where, row if "spans" in row else row | {"spans": tags_to_spans(row["tags"], scheme)})
        for where, row in file.rows
    ]
    return replace(file, rows=rows)


def _predicted_spans(where: str, row: Mapping[str, Any], example: TokenExample) -> ParsedSpans:
    """Return the predicted spans in words of the gold example."""
    words, text = row.get("words", row.get("tokens")), row.get("text")
    if isinstance(words, list) and words and all(isinstance(word, dict) for word in words):
        words = None  # tokens as objects, with the characters of the text
    if words is not None:
        _check_words(where, words, example)
    spans = row["spans"]
    in_characters = (words is None and text is not None) or any(
        isinstance(span, dict) and "start" not in span and {"start_char", "start_offset"} & {*span}
        for span in (spans if isinstance(spans, list) else ())
    )
    if not in_characters:
        return read_spans(spans, where, len(example.words))
    if example.text is None:
        raise DataError(
            f"{where}: the spans are in characters, but {example.where} has words and no text: "
            'give spans in words, {"start": 0, "end": 2, "label": "PER"}, end exclusive.'
        )
    if text not in (None, example.text):
        raise DataError(
            f"{where}: the text differs from {example.where}: the files do not belong together."
        )
    return read_spans(spans, where, len(example.words), example.text, example.offsets)


def _check_words(where: str, words: Any, example: TokenExample) -> None:
    """Raise DataError if a prediction has other words than the gold example."""
    if not isinstance(words, list) or len(words) != len(example.words):
        found = quantity(len(words), "word") if isinstance(words, list) else f"{words!r:.60}"
        raise DataError(
            f"{where}: {found} for the {quantity(len(example.words), 'word')} of {example.where}: "
            "the files do not belong together."
        )
    for index, (word, gold) in enumerate(zip(words, example.words, strict=True)):
        if word != gold:
            raise DataError(
                f"{where}: word {index} is {word!r:.40}, but {gold!r:.40} in {example.where}: "
                "the files do not belong together."
            )


def with_probabilities(run: AlignedPredictions) -> list[list[tuple[float, bool]]] | None:
    """Return the probability of each prediction and whether it is correct, for each example.

    Sets of labels have a probability for every label. None if a probability is unknown.
    """
    found: list[list[tuple[float, bool]]] = []
    if run.kind in ("label", "choice") and (values := predicted_label_probabilities(run)):
        sides = zip(values, run.gold, run.predicted, strict=True)
        found = [[(probability, gold == label)] for probability, gold, label in sides]
    elif run.kind == "labels" and (tables := label_probabilities(run)):
        for table, gold in zip(tables, run.gold, strict=True):
            found.append([(probability, name in gold) for name, probability in table.items()])
    elif run.kind == "tags" and (words := word_probabilities(run)):
        predicted, (scheme, other) = run.predicted, run.schemes
        if scheme is not None and other not in (None, scheme):
            predicted = [convert_tags(tags, str(other), scheme) for tags in predicted]
        for row in zip(words, run.gold, predicted, strict=True):
            found.append([(p, gold == tag) for p, gold, tag in zip(*row, strict=True)])
    elif run.kind == "answers" and (values := predicted_label_probabilities(run)):
        right = [bool(exact_match(*sides)) for sides in zip(run.gold, run.predicted, strict=True)]
        found = [[each] for each in zip(values, right, strict=True)]
    elif run.kind in ("spans", "relations"):
        for probabilities, gold, items in zip(
            _item_probabilities(run), run.gold, run.predicted, strict=True
        ):
            if any(item not in probabilities for item in items):
                return None
            found.append([(probabilities[i], i in set(gold)) for i in dict.fromkeys(items)])
    return found if any(found) else None


def _item_probabilities(run: AlignedPredictions) -> Sequence[Mapping[Any, float]]:
    if run.kind == "relations":
        return relation_probabilities(run)
    return span_probabilities(run, run.gold, run.predicted)


def predicted_label_probabilities(run: AlignedPredictions) -> list[float]:
    """Return the probability of each predicted label: ``score``, or its entry in ``scores``.

    The label of multiple choice is the index of a choice.

    Empty where not all are known, as in the functions below.
    """
    found: list[Any] = []
    for row in run.rows:
        value = row.get("score")
        if value is None and isinstance(scores := row.get("scores"), dict):
            value = scores.get(str(row.get("label")))
        found.append(value)
    return [float(value) for value in found] if _are_probabilities(found) else []


def label_probabilities(run: AlignedPredictions) -> list[dict[str, float]]:
    """Return the probability of every label for each text, from ``scores``."""
    found: list[Any] = [row.get("scores") for row in run.rows]
    if not all(isinstance(each, dict) and _are_probabilities(each.values()) for each in found):
        return []
    return [{name: float(value) for name, value in each.items()} for each in found]


def word_probabilities(run: AlignedPredictions) -> list[list[float]]:
    """Return the probability of each word's tag, from ``scores``."""
    found: list[Any] = [row.get("scores") for row in run.rows]
    for scores, tags in zip(found, run.predicted, strict=True):
        known = isinstance(scores, list) and len(scores) == len(tags)
        if not known or not _are_probabilities(scores):
            return []
    return [list(map(float, scores)) for scores in found]


def span_probabilities(
    run: AlignedPredictions, gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]
) -> list[dict[Span, float]]:
    """Return the known probabilities of the spans of each sentence.

    A span spelled by tags, also a missed gold span, has the mean probability of its words.
    """
    if run.kind == "tags" and (words := word_probabilities(run)):
        return [
            {s: sum(known[s.start : s.end]) / (s.end - s.start) for s in {*gold_spans, *spans}}
            for known, gold_spans, spans in zip(words, gold, predicted, strict=True)
        ]
    return [_row_probabilities(row) for row in run.rows] or [{} for _ in gold]


def relation_probabilities(run: AlignedPredictions) -> list[dict[Relation, float]]:
    """Return the known probabilities of the predicted relations of each sentence."""
    found = []
    for row, example in zip(run.rows, run.examples, strict=True):
        found.append(
            {
                relation: float(each["score"])
                for each in row["relations"]
                for relation in _predicted_relations("", {**row, "relations": [each]}, example)
                if _are_probabilities([each.get("score")])
            }
        )
    return found


def _row_probabilities(row: Mapping[str, Any]) -> dict[Span, float]:
    if row.get("words", row.get("tokens")) is None and "text" in row:
        return {}  # its spans are in characters
    found = {}
    spans = row.get("spans")
    for span in spans if isinstance(spans, list | tuple) else ():
        if isinstance(span, dict) and _are_probabilities([span.get("score")]):
            start, end = span.get("start"), span.get("end")
            if isinstance(start, int) and isinstance(end, int):
                found[Span(start, end, str(span.get("label")))] = float(span["score"])
    return found


def _are_probabilities(values: Iterable[Any]) -> bool:
    return all(_is_number(value) and 0 <= value <= 1 + 1e-6 for value in values)


_ALIGN: Mapping[str, Callable[[PredictionFile, Gold], AlignedPredictions]] = {
    "label": partial(_align_labels, numbers=False),
    "number": partial(_align_labels, numbers=True),
    "tags": _align_tags,
    "spans": _align_spans,
    "relations": _align_relations,
    "subwords": _align_subwords,
    "answer": _align_answers,
    "choice": _align_choices,
}
