"""Everything there is to say about one system's answers: scores of parts, honesty, mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.data.tag_schemes import tags_to_spans
from finetune.evaluation.alignment import (
    AlignedPredictions,
    label_probabilities,
    predicted_label_probabilities,
    span_probabilities,
    with_probabilities,
    word_probabilities,
)
from finetune.evaluation.analysis_tables import (
    Table,
    confusion_tables,
    length_table,
    pairs_table,
    parts_table,
    scored_table,
    span_confusion_table,
    span_parts_table,
)
from finetune.evaluation.calibration import Bin, error_of_bins, reliability
from finetune.evaluation.confident_learning import why_not_credible
from finetune.evaluation.errors import (
    ErrorCase,
    contradictions,
    count_categories,
    label_errors,
    label_set_errors,
    most_confident,
    number_errors,
    span_errors,
    word_errors,
)
from finetune.evaluation.metrics import class_scores, scores_by_criterion
from finetune.evaluation.runs import align_runs, find_system
from finetune.evaluation.scoring import score_aligned
from finetune.evaluation.span_matching import match_sentences
from finetune.evaluation.subgroups import (
    KNOWN,
    TrainingVocabulary,
    span_breakdowns,
    word_breakdowns,
)
from finetune.types import UserError


@dataclass
class Analysis:
    """What was analysed, and what was found.

    ``confidences`` holds, for each answer whose probability is known, that and whether it is
    right; ``mistakes`` are all there are, and ``contradictions`` those in which the answer is surer
    than usual for its class, so that gold may be looked at; ``not_credible`` says why there are
    none where the system is not good enough for that.
    """

    predictions: str
    gold: str
    kind: str
    num_examples: int
    scores: dict[str, float]
    tables: dict[str, Table] = field(default_factory=dict)
    confidences: tuple[list[float], list[bool]] = field(default_factory=lambda: ([], []))
    errors: list[ErrorCase] = field(default_factory=list)
    contradictions: list[ErrorCase] = field(default_factory=list)
    not_credible: str = ""

    @property
    def bins(self) -> list[Bin]:
        """The reliability diagram; empty where predictions have no probabilities."""
        return reliability(*self.confidences) if self.confidences[0] else []


def analyze(
    predictions: str,
    gold: str | None = None,
    *,
    split: str = "test",
    train: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Analysis:
    """Analyse a file of predictions or those of a run folder.

    Gold is a file, or else the last column but one of the predictions, or else the data that the
    run folder names. ``train`` is a file of what the system was trained on; a run folder without
    ``gold`` knows it. Raises ValueError where anything of this does not fit together.
    """
    system = find_system(predictions, split)
    if len(system.files) != 1:
        raise UserError(
            f"{predictions}: holds the predictions of {len(system.files)} runs: name one of them, "
            f"such as {system.files[0].parent}."
        )
    found = align_runs(system.files, gold, columns=columns, train=train)
    return analyze_predictions(found.runs[0], found.vocabulary, str(system.files[0]), found.gold)


def analyze_predictions(
    run: AlignedPredictions,
    vocabulary: TrainingVocabulary | None = None,
    predictions: str = "",
    gold: str = "",
) -> Analysis:
    """Analyse answers that lie beside their gold; ``train`` is what the system learned from."""
    found = Analysis(predictions, gold, run.kind, len(run.gold), score_aligned(run))
    pairs = [pair for each in with_probabilities(run) or () for pair in each]
    found.confidences = [sure for sure, _ in pairs], [right for _, right in pairs]
    if run.kind == "label":
        _labels(found, run)
    elif run.kind == "labels":
        _sets(found, run)
    elif run.kind == "number":
        found.errors = number_errors(run.examples, run.gold, run.predicted)  # type: ignore[arg-type]
    elif run.kind == "tags" and run.schemes[0] is None:
        _words(found, run, vocabulary)
    else:
        _spans(found, run, vocabulary)
    return found


def _labels(found: Analysis, run: AlignedPredictions) -> None:
    found.scores["micro_f1"] = found.scores["accuracy"]  # one answer each: the same number
    found.tables["label"] = scored_table(class_scores("label", run.gold, run.predicted), "label")
    found.tables |= confusion_tables(run.gold, run.predicted)
    found.tables["text length"] = length_table(run)
    known = predicted_label_probabilities(run)
    found.errors = label_errors(run.examples, run.gold, run.predicted, known or ())  # type: ignore[arg-type]
    if chances := label_probabilities(run):
        error = error_of_bins(found.bins) if found.bins else 1.0
        found.not_credible = why_not_credible(found.scores["accuracy"], error)
        if not found.not_credible:
            found.contradictions = contradictions(run.examples, run.gold, chances)  # type: ignore[arg-type]


def _sets(found: Analysis, run: AlignedPredictions) -> None:
    """Every label of every text is an answer of its own, with the probability that it applies."""
    found.tables["label"] = scored_table(class_scores("labels", run.gold, run.predicted), "label")
    chances = label_probabilities(run)
    found.errors = label_set_errors(run.examples, run.gold, run.predicted, chances or ())  # type: ignore[arg-type]


def _words(found: Analysis, run: AlignedPredictions, vocabulary: TrainingVocabulary | None) -> None:
    """Tags that spell no spans, such as parts of speech."""
    words = _words_of(run.examples)
    flat = [[tag for tags in side for tag in tags] for side in (run.gold, run.predicted)]
    found.tables["tag"] = scored_table(class_scores("label", *flat), "tag")
    found.tables |= confusion_tables(*flat)
    seen = vocabulary and vocabulary.word_tags
    for name, groups in word_breakdowns(words, run.gold, run.predicted, seen).items():
        found.tables[name] = parts_table(groups, name, "words")
        if name == "in training":
            unseen = [part for part in groups if part.name == KNOWN[2]]
            found.scores["unseen_words"] = float(sum(part.number for part in unseen))
            found.scores["unseen_word_accuracy"] = sum(part.accuracy for part in unseen)
    known = word_probabilities(run)
    found.errors = word_errors(run.examples, run.gold, run.predicted, known or ())  # type: ignore[arg-type]


def _spans(found: Analysis, run: AlignedPredictions, vocabulary: TrainingVocabulary | None) -> None:
    """Spans, or tags that spell them, read as conlleval does."""
    words, gold, answers = _words_of(run.examples), run.gold, run.predicted
    known = None
    if run.kind == "tags":
        source, answered = map(str, run.schemes)
        gold = [tags_to_spans(tags, source) for tags in gold]
        answers = [tags_to_spans(tags, answered) for tags in answers]
        known = word_probabilities(run)
    matches = match_sentences(gold, answers)
    found.tables["counted"] = scored_table(scores_by_criterion(matches), "counted")
    by_type = class_scores("spans", gold, answers)
    found.tables["type"] = scored_table(by_type, "type")
    # over types in gold or predicted, as seqeval's macro average
    found.scores["span_f1_macro"] = sum(s["f1"] for s in by_type.values()) / max(1, len(by_type))
    found.tables["confusion"] = span_confusion_table(matches)
    taken = Counter(
        (match.gold.label, match.predicted.label)
        for sentence in matches
        for match in sentence
        if match.gold and match.predicted and match.gold.label != match.predicted.label
    )
    found.tables["confused"] = pairs_table(taken)
    seen = vocabulary and vocabulary.entity_types
    for name, groups in span_breakdowns(words, gold, answers, seen).items():
        found.tables[name] = span_parts_table(groups, name)
    confidences = span_probabilities(run, gold, answers, known)
    found.errors = span_errors(run.examples, gold, answers, confidences)  # type: ignore[arg-type]


def _words_of(examples: Sequence[Any]) -> list[Sequence[str]]:
    return [example.words for example in examples]


def record(found: Analysis, num_examples: int) -> dict[str, Any]:
    """The analysis as JSON values, with the first mistakes of each category."""
    return {
        "predictions": found.predictions,
        "gold": found.gold,
        "form": found.kind,
        "num_examples": found.num_examples,
        "scores": found.scores,
        "tables": found.tables,
        "calibration": {
            "expected_calibration_error": error_of_bins(found.bins) if found.bins else None,
            "bins": [each._asdict() for each in found.bins],
        },
        "mistakes": count_categories(found.errors),
        "num_contradictions": len(found.contradictions),
        "contradictions": [m.record() for m in found.contradictions[:num_examples]],
        "contradictions_left_out": found.not_credible or None,
        "most_confident": [m.record() for m in most_confident(found.errors, num_examples)],
        "examples": {
            name: [mistake.record() for mistake in some]
            for name, some in first_by_category(found.errors, num_examples).items()
        },
    }


def first_by_category(mistakes: Sequence[ErrorCase], number: int) -> dict[str, list[ErrorCase]]:
    """Some mistakes of each category: the surest first where that is known, else as they come."""
    by_category: dict[str, list[ErrorCase]] = {name: [] for name in count_categories(mistakes)}
    for mistake in mistakes:
        by_category[mistake.category].append(mistake)
    return {
        name: sorted(some, key=lambda m: -(m.confidence or 0.0))[:number]
        for name, some in by_category.items()
    }
