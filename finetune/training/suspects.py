"""Labels of the training data that are probably wrong, from what unseeing models say of them.

Confident learning (``evaluation.confident_learning``) on texts, on words, and on each label of
several; on spans its thresholds: an answer counts against gold where it is as sure as gold spans
of its type are on the average.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.tasks import TrainConfig
from finetune.data.tag_schemes import convert_tags
from finetune.evaluation.confident_learning import confident_joint, probable_label_errors
from finetune.evaluation.errors import excerpt, span_errors, text_excerpt
from finetune.training.cross_fitting import CrossFit, cross_fit
from finetune.types import Span, TextExample, TokenExample

_KINDS = {"false positive": "missing span", "miss": "no span"}
"""What the mistakes of a model are as errors of gold; those of extent and type stay what they are.
"""
NONE = "nothing"
"""What is given, or suggested, where there is no span."""


@dataclass(frozen=True)
class Suspect:
    """One label that is probably wrong.

    ``confidence`` is the probability of the suggestion and ``given_confidence`` that of the label
    that stands there, by a model that did not see the example; ``margin`` is the first less the
    second. ``first_word`` and ``end_word`` say which words it is about (end exclusive), ``worst``
    whether it is the most doubtful of its sentence.
    """

    file: str
    line: int | None
    given: str
    suggested: str
    confidence: float
    given_confidence: float
    margin: float
    text: str
    excerpt: str = field(repr=False)
    kind: str = "label"
    first_word: int | None = None
    end_word: int | None = None
    worst: bool = True

    def record(self) -> dict[str, Any]:
        """The JSON form, without the excerpt; words only where it is about words."""
        record = {name: value for name, value in asdict(self).items() if name != "excerpt"}
        for name in ("confidence", "given_confidence", "margin"):
            record[name] = round(record[name], 6)
        if self.first_word is None:
            del record["first_word"], record["end_word"], record["worst"]
        return record


@dataclass(frozen=True)
class Suspects:
    """All of them, the most doubtful first, of ``number`` labels; the estimated share of wrong
    labels, and by given and true label the estimated number, where those can be estimated."""

    found: list[Suspect]
    number: int
    share: float | None = None
    taken: list[tuple[str, str, float]] = field(default_factory=list)


def search_label_errors(
    task: str, config: TrainConfig, num_folds: int, out: Path | None, work: Path
) -> Suspects:
    """Train a model on all folds of the training data but one, for each fold, and rank the labels.

    Args:
        task: Name of the task.
        config: Configuration of the training of each fold.
        num_folds: Number of folds.
        out: File for all suspects, as JSON Lines; then ``work`` is removed.
        work: Folder of the folds, from which an interrupted search continues.

    Raises:
        UserError: For labels that are numbers, and a ``work`` of other data or settings.
        Interrupted: After Ctrl-C.
    """
    suspects = find_suspects(cross_fit(task, config, num_folds, work))
    if out is not None:
        rows = (json.dumps(each.record(), ensure_ascii=False) + "\n" for each in suspects.found)
        fresh = out.with_name(out.name + ".new")
        fresh.write_text("".join(rows), encoding="utf-8")
        fresh.replace(out)
        shutil.rmtree(work)
    return suspects


def find_suspects(fitted: CrossFit) -> Suspects:
    """The probable label errors of cross-fitted data."""
    labels = list(fitted.task.record.labels)
    if fitted.task.name == "ner":
        return _of_spans(fitted.examples, fitted.evidence)
    if fitted.task.reads_words:
        return _of_words(fitted.task.record, fitted.examples, fitted.evidence, labels)
    return _of_texts(fitted.examples, fitted.evidence, labels)


def _of_texts(
    examples: Sequence[TextExample], evidence: Sequence[Any], labels: list[str]
) -> Suspects:
    chances = np.array(evidence, dtype=float)  # [N, C]
    if isinstance(examples[0].label, tuple):
        return _of_sets(examples, chances, labels)
    given = np.array([labels.index(str(example.label)) for example in examples])
    found = [
        _of_text(examples[i], labels[given[i]], labels[j], chances[i, j], chances[i, given[i]])
        for i, j in probable_label_errors(chances, given)
    ]
    return Suspects(found, len(given), *_noise(chances, given, labels))


def _of_sets(examples: Sequence[TextExample], chances: np.ndarray, labels: list[str]) -> Suspects:
    """Each label of each text is a decision of its own."""
    found = []
    for number, name in enumerate(labels):
        yes = chances[:, number]
        both = np.stack([1 - yes, yes], 1)
        given = np.array([int(name in (example.label or ())) for example in examples])  # type: ignore[operator]
        words = (f"not {name}", name)
        for i, j in probable_label_errors(both, given):
            found.append(
                _of_text(examples[i], words[given[i]], words[j], both[i, j], both[i, given[i]])
            )
    return Suspects(sorted(found, key=lambda s: -s.margin), chances.size)


def _of_words(
    record: Any, examples: Sequence[TokenExample], evidence: Sequence[Any], labels: list[str]
) -> Suspects:
    chances = np.concatenate([np.array(rows, dtype=float) for rows in evidence])  # [W, C]
    tags = [
        list(example.tags or ())
        if record.scheme is None
        else convert_tags(example.tags or (), record.source, record.scheme)
        for example in examples
    ]
    given = np.array([labels.index(tag) for each in tags for tag in each])
    places = [(index, place) for index, each in enumerate(tags) for place in range(len(each))]
    worst: dict[int, float] = {}
    rows = []
    for i, j in probable_label_errors(chances, given):  # the first of a sentence is its worst
        index, place = places[i]
        margin = chances[i, j] - chances[i, given[i]]
        first = index not in worst
        worst.setdefault(index, margin)
        sides = labels[given[i]], labels[j], chances[i, j], chances[i, given[i]]
        rows.append((index, _of_extent(examples[index], "word", (place, place + 1), sides, first)))
    rows.sort(key=lambda row: (-worst[row[0]], row[0], -row[1].margin))
    found = [suspect for _, suspect in rows]
    return Suspects(found, len(given), *_noise(chances, given, labels))


def _of_spans(examples: Sequence[TokenExample], evidence: Sequence[Any]) -> Suspects:
    """Ordered by margins over what is usual for each type: models that find few spans would else
    doubt all they missed before anything they found."""
    gold = [tuple(example.spans or ()) for example in examples]
    answers = [
        {Span(start, end, label): score for start, end, label, score in each["spans"]}
        for each in evidence
    ]
    chance = [
        dict(zip(spans, each["gold"], strict=True))
        for spans, each in zip(gold, evidence, strict=True)
    ]
    sure = _mean_by_type(chance)
    missed = [
        {span: 1 - score for span, score in known.items() if span not in answered}
        for known, answered in zip(chance, answers, strict=True)
    ]
    confidences = [known | answered for known, answered in zip(missed, answers, strict=True)]
    places = {example.id: index for index, example in enumerate(examples)}
    rows = []
    for mistake in span_errors(examples, gold, list(map(list, answers)), confidences):
        index = places[mistake.id]
        right, said = mistake.gold, mistake.predicted
        score = float(mistake.confidence or 0.0)
        if score < sure.get((said or right)["label"], 1.0):
            continue
        span = None if right is None else Span(right["start"], right["end"], right["label"])
        known = 1 - score if span is None else chance[index][span]
        extent = (said or right)["start"], (said or right)["end"]
        sides = _named(right), _named(said), score, known
        kind = _KINDS.get(mistake.category, mistake.category)
        # how far each side is over what is usual for it: nothing is nearly always said of nothing
        usual = [1.0 if side is None else sure.get(side["label"], 1.0) for side in (said, right)]
        excess = (score - usual[0]) - (known - usual[1])
        rows.append((excess, index, _of_extent(examples[index], kind, extent, sides, True)))
    rows.sort(key=lambda row: -row[0])
    return Suspects(list(_first_of_sentence(rows)), sum(map(len, gold)))


def _mean_by_type(chance: Sequence[Mapping[Span, float]]) -> dict[str, float]:
    """How sure unseeing models are of gold spans of each type."""
    sums: dict[str, list[float]] = {}
    for known in chance:
        for span, score in known.items():
            sums.setdefault(span.label, []).append(score)
    return {label: float(np.mean(values)) for label, values in sums.items()}


def _first_of_sentence(rows: Sequence[tuple[float, int, Suspect]]) -> Iterator[Suspect]:
    seen = set()
    for _, index, suspect in rows:
        yield Suspect(**{**asdict(suspect), "worst": index not in seen})
        seen.add(index)


def _named(span: Mapping[str, Any] | None) -> str:
    return NONE if span is None else f"{span['label']} {span['text']!r}"


def _noise(
    chances: np.ndarray, given: np.ndarray, labels: Sequence[str]
) -> tuple[float, list[tuple[str, str, float]]]:
    """The estimated share of wrong labels; what was taken for what, the commonest first."""
    joint = confident_joint(chances, given)
    taken = [
        (labels[i], labels[j], float(joint[i, j]) * len(given))
        for i, j in zip(*np.nonzero(joint), strict=True)
        if i != j
    ]
    return 1 - float(np.trace(joint)), sorted(taken, key=lambda row: -row[2])


def _of_text(
    example: TextExample, given: str, suggested: str, confidence: float, known: float
) -> Suspect:
    text = example.text if example.pair is None else f"{example.text} ||| {example.pair}"
    return Suspect(
        *place_of(example.where), given, suggested, float(confidence), float(known),
        float(confidence - known), text, text_excerpt(text),
    )  # fmt: skip


def _of_extent(
    example: TokenExample,
    kind: str,
    extent: tuple[int, int],
    sides: tuple[str, str, float, float],
    worst: bool,
) -> Suspect:
    given, suggested, confidence, known = sides
    text = " ".join(example.words) if example.text is None else example.text
    return Suspect(
        *place_of(example.where), given, suggested, float(confidence), float(known),
        float(confidence - known), text, excerpt(example.words, *extent), kind, *extent, worst,
    )  # fmt: skip


def place_of(where: str) -> tuple[str, int | None]:
    """File and line of a ``file:line``.

    >>> place_of("a.jsonl:3")
    ('a.jsonl', 3)
    """
    match = re.fullmatch(r"(.*):(?:row |item )?(\d+)", where)
    return (match[1], int(match[2])) if match else (where, None)
