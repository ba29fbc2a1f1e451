"""Analyze the predictions of one system: scores of classes and subgroups, calibration, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from finetune.evaluation import alignment, errors, subgroups
from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.answers import answer_counts
from finetune.evaluation.calibration import Bin, error_of_bins, reliability
from finetune.evaluation.confident_learning import credibility_warning
from finetune.evaluation.errors import ErrorCase
from finetune.evaluation.metrics import METRICS, class_scores, scores_by_criterion, sense_counts
from finetune.evaluation.pairs import pair, sets_of
from finetune.evaluation.runs import align_runs, find_system, score_aligned
from finetune.evaluation.span_matching import match_sentences
from finetune.evaluation.subgroups import Table, TrainingVocabulary
from finetune.types import TokenExample, UserError

RATES = ("precision", "recall", "f1")
NOTHING = "(nothing)"
"""In a confusion matrix of spans: no span corresponds."""
TITLES = {
    "counted": "By criterion (strict: boundaries and type; exact: boundaries; partial: overlap, "
    "counts half; type: overlap and type)",
    "type": "By type",
    "relation": "By relation",
    "label": "By label",
    "tag": "By tag",
    "confusion": "Confusion: gold in rows, predicted in columns",
    "confused": "Most often confused",
    "length": "By length of the span in words",
    "depth": "By depth: number of wider spans around a span",
    "sentence length": "By length of the sentence in words",
    "first word": "By position of the first word in the sentence",
    "position": "By position of the word in the sentence",
    "in training": "By occurrence in the training data",
    "text length": "By length of the text in words",
    "number of choices": "By number of choices",
    "right choice": "By index of the right choice",
    "read as": "By input in place of the subword",
    "in training text": "By occurrences of the subword in the training text",
    "pos": "By part of speech",
    "question word": "By question word",
    "answer length": "By length of the first gold answer in words",
}
"""Captions of tables by name."""


@dataclass
class Analysis:
    """The analysis of one system's predictions, of the kinds of ``AlignedPredictions``.

    ``tables`` has the names of ``TITLES``. ``confidences`` are the known probabilities of
    predictions, and whether each is correct. ``contradictions`` are confident predictions whose
    gold label may be wrong; ``not_credible`` is the reason why they were not searched for.
    """

    predictions: str
    gold: str
    aligned_by: str
    kind: str
    num_examples: int
    scores: dict[str, float]
    tables: dict[str, Table] = field(default_factory=dict)
    confidences: tuple[list[float], list[bool]] = field(default_factory=lambda: ([], []))
    errors: list[ErrorCase] = field(default_factory=list)
    contradictions: list[ErrorCase] = field(default_factory=list)
    not_credible: str = ""
    positive: str | None = None
    positive_note: str = ""

    @property
    def bins(self) -> list[Bin]:
        """The reliability diagram; empty where probabilities are not known."""
        return reliability(*self.confidences) if self.confidences[0] else []


def analyze(
    predictions: str,
    gold: str | None = None,
    *,
    split: str = "test",
    train: str | None = None,
    columns: Mapping[str, str] | None = None,
    positive: str | None = None,
    encoding: str = "utf-8",
) -> Analysis:
    """Analyze the predictions of a file or run folder (``align_runs`` explains the arguments)."""
    system = find_system(predictions, split)
    if len(system.files) != 1:
        raise UserError(
            f"{predictions}: holds the predictions of {len(system.files)} runs: name one of them, "
            f"such as {system.files[0].parent}."
        )
    found = align_runs(
        system.files, gold, columns=columns, train=train, positive=positive, encoding=encoding
    )
    analysis = analyze_predictions(
        found.runs[0], found.vocabulary, str(system.files[0]), found.gold, found.aligned_by
    )
    return replace(analysis, positive=found.runs[0].positive, positive_note=found.positive_note)


def analyze_predictions(
    run: AlignedPredictions,
    vocabulary: TrainingVocabulary | None = None,
    predictions: str = "",
    gold: str = "",
    aligned_by: str = "",
) -> Analysis:
    """Analyze aligned predictions; ``vocabulary`` has the words of the system's training data."""
    found = Analysis(predictions, gold, aligned_by, run.kind, len(run.gold), score_aligned(run))
    pairs = [pair for each in alignment.with_probabilities(run) or () for pair in each]
    found.confidences = [probability for probability, _ in pairs], [right for _, right in pairs]
    if (analyze := _ANALYSES.get(run.kind)) is not None:
        analyze(found, run)
    elif run.kind == "tags" and run.schemes[0] is None:
        _analyze_words(found, run, vocabulary)
    else:
        _analyze_spans(found, run, vocabulary)
    return found


def _analyze_labels(found: Analysis, run: AlignedPredictions) -> None:
    found.scores["micro_f1"] = found.scores["accuracy"]  # equal where each text has one label
    groupings = subgroups.text_groupings(run.examples)
    _add_label_tables(found, "label", "texts", run.gold, run.predicted, groupings)
    found.errors = errors.label_errors(run)
    if alignment.label_probabilities(run):
        error = error_of_bins(found.bins) if found.bins else 1.0
        found.not_credible = credibility_warning(found.scores["accuracy"], error)
        if not found.not_credible:
            found.contradictions = errors.contradictions(run)


def _analyze_senses(found: Analysis, run: AlignedPredictions) -> None:
    """Tabulate the scores of targets by part of speech."""
    counts = sense_counts(run.pairs())
    for name, (groups, order) in subgroups.target_groupings(run.examples).items():
        rows = []
        for group in order:
            inside = counts[[each == group for each in groups]].sum(axis=0)
            rates = {rate: float(METRICS["senses"][rate].value(inside)) for rate in RATES}
            rows.append({name: group, "targets": int(inside[2]), **rates})
        found.tables[name] = rows


def _analyze_answers(found: Analysis, run: AlignedPredictions) -> None:
    """Tabulate the scores of questions by subgroup."""
    exact, f1 = (answer_counts(run.gold, run.predicted, each)[:, 0] for each in (True, False))
    for name, (groups, order) in subgroups.question_groupings(run.examples).items():
        rows = []
        for group in [group for group in order if group in groups]:
            inside = np.array([each == group for each in groups])
            scores = {"exact_match": float(exact[inside].mean()), "f1": float(f1[inside].mean())}
            rows.append({name: group, "questions": int(inside.sum()), **scores})
        found.tables[name] = rows
    found.errors = errors.answer_errors(run)


def _analyze_words(
    found: Analysis, run: AlignedPredictions, vocabulary: TrainingVocabulary | None
) -> None:
    """Analyze tags that do not spell spans, such as parts of speech."""
    gold, predicted = ([*chain.from_iterable(side)] for side in (run.gold, run.predicted))
    word_tags = vocabulary.word_tags if vocabulary else None
    groupings = subgroups.word_groupings(_words(run), word_tags)
    _add_label_tables(found, "tag", "words", gold, predicted, groupings)
    if "in training" in found.tables:
        unseen = [
            row
            for row in found.tables["in training"]
            if row["in training"] == subgroups.SEEN_WORDS[2]
        ]
        found.scores["unseen_words"] = float(sum(row["words"] for row in unseen))
        found.scores["unseen_word_accuracy"] = sum(row["accuracy"] for row in unseen)
    found.errors = errors.word_errors(run)


def _analyze_subwords(found: Analysis, run: AlignedPredictions) -> None:
    right = [
        gold == predicted
        for sides in zip(run.gold, run.predicted, strict=True)
        for gold, predicted in zip(*sides, strict=True)
    ]
    groupings = subgroups.subword_groupings(run.rows)
    found.tables |= subgroups.count_subgroups(groupings, right, "subwords")


def _analyze_spans(
    found: Analysis, run: AlignedPredictions, vocabulary: TrainingVocabulary | None
) -> None:
    """Analyze spans, or the spans that tags spell, read as conlleval does."""
    sides = sets_of(pair(run.kind, run.gold, run.predicted, schemes=run.schemes))
    gold, predicted = ([both[side] for both in sides] for side in (0, 1))
    matches = match_sentences(gold, predicted)
    by_type = class_scores("spans", gold, predicted)
    found.scores["span_f1_macro"] = fmean([row["f1"] for row in by_type.values()] or [0.0])
    types = Counter(
        tuple(NOTHING if span is None else span.label for span in match)
        for sentence in matches
        for match in sentence
    )
    _add_scores(found, "counted", scores_by_criterion(matches))
    _add_scores(found, "type", by_type)
    found.tables |= confusion_tables(types)
    seen = vocabulary.entity_types if vocabulary else None
    found.tables |= subgroups.span_subgroups(_words(run), gold, predicted, seen)
    probabilities = alignment.span_probabilities(run, gold, predicted)
    examples: Any = run.examples
    found.errors = errors.span_errors(examples, gold, predicted, probabilities)


def _analyze_label_sets(found: Analysis, run: AlignedPredictions) -> None:
    _add_scores(found, "label", class_scores("labels", run.gold, run.predicted))
    found.errors = errors.label_set_errors(run)


def _analyze_choices(found: Analysis, run: AlignedPredictions) -> None:
    right = [gold == choice for gold, choice in zip(run.gold, run.predicted, strict=True)]
    groupings = subgroups.choice_groupings(run.examples)
    found.tables |= subgroups.count_subgroups(groupings, right, "questions")
    found.errors = errors.choice_errors(run)


def _analyze_numbers(found: Analysis, run: AlignedPredictions) -> None:
    found.errors = errors.number_errors(run)


def _analyze_relations(found: Analysis, run: AlignedPredictions) -> None:
    _add_scores(found, "relation", class_scores("relations", run.gold, run.predicted))
    found.errors = errors.relation_errors(run)


_ANALYSES: Mapping[str, Callable[[Analysis, AlignedPredictions], None]] = {
    "label": _analyze_labels,
    "labels": _analyze_label_sets,
    "choice": _analyze_choices,
    "number": _analyze_numbers,
    "subwords": _analyze_subwords,
    "senses": _analyze_senses,
    "relations": _analyze_relations,
    "answers": _analyze_answers,
}
"""The analysis of each kind of predictions; tags and spans also need the training vocabulary."""


def _words(run: AlignedPredictions) -> list[Sequence[str]]:
    return [example.words for example in run.examples if isinstance(example, TokenExample)]


def _add_scores(found: Analysis, name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    found.tables[name] = [{name: label} | dict(values) for label, values in scores.items()]


def _add_label_tables(
    found: Analysis,
    name: str,
    unit: str,
    gold: Sequence[str],
    predicted: Sequence[str],
    groupings: Mapping[str, tuple[subgroups.Words, Sequence[str]]],
) -> None:
    """Add the tables of labels of texts or tags of words."""
    _add_scores(found, name, class_scores("label", gold, predicted))
    found.tables |= confusion_tables(Counter(zip(gold, predicted, strict=True)))
    right = [label == other for label, other in zip(gold, predicted, strict=True)]
    found.tables |= subgroups.count_subgroups(groupings, right, unit)


def confusion_tables(pairs: Counter[Any]) -> dict[str, Table]:
    """Tabulate the confusion matrix of (gold, predicted) pairs, and the most frequent errors."""
    found = {name for pair in pairs for name in pair}
    names = sorted(found, key=lambda name: (name == NOTHING, name))
    matrix = [
        {"gold": gold, "predicted": {name: pairs[gold, name] for name in names}} for gold in names
    ]
    confused = [
        {"gold": gold, "predicted": predicted, "number": number}
        for (gold, predicted), number in pairs.most_common()
        if gold != predicted and NOTHING not in (gold, predicted)
    ]
    return {"confusion": matrix, "confused": confused}


def analysis_record(found: Analysis, num_examples: int) -> dict[str, Any]:
    """Return the analysis as JSON values, with the first errors of each category."""

    def records(cases: Sequence[ErrorCase]) -> list[dict[str, Any]]:
        return [case.record() for case in cases]

    return {
        "predictions": found.predictions,
        "gold": found.gold,
        "aligned_by": found.aligned_by or None,
        "kind": found.kind,
        "num_examples": found.num_examples,
        "scores": found.scores,
        "tables": found.tables,
        "calibration": {
            "expected_calibration_error": error_of_bins(found.bins) if found.bins else None,
            "bins": [each._asdict() for each in found.bins],
        },
        "errors": errors.count_categories(found.errors),
        "num_contradictions": len(found.contradictions),
        "contradictions": records(found.contradictions[:num_examples]),
        "contradictions_left_out": found.not_credible or None,
        "most_confident": records(errors.most_confident(found.errors, num_examples)),
        "examples": {
            name: records(cases)
            for name, cases in errors.first_by_category(found.errors, num_examples).items()
        },
    }
