"""The values that flow through the toolkit, and the legend of every shape.

Legend: ``T`` tokens, ``N`` sequences, ``W`` words, ``S`` spans, ``H`` width, ``C`` classes,
``L`` layers. Positions are 0-based and half-open; positions in files and messages count words.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Target of a position that carries no loss (the convention of torch's cross entropy)."""


ANSWERABLE, UNANSWERABLE = "answer", "no answer"
"""The labels of questions with and without an answer in their context."""


_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a data class with slots for values that are made for each row.

    Type checkers refuse changes of its fields. The class does not, since a frozen one takes five
    times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


class UserError(ValueError):
    """An error of use, such as a wrong setting or data that cannot be read.

    Its message says what is wrong, what is legal and what to do; the command line prints it without
    a traceback. Every other exception is a bug.
    """


class DataError(UserError):
    """An error in the user's data; the message names file, line, and the correction."""


class CustomFunctionError(Exception):
    """A metric or loss that the user wrote raised an error, which is the cause of this one."""


class Span(NamedTuple):
    """A labeled span of the words ``start`` to ``end - 1``.

    Examples:
        >>> Span(0, 2, "PER")
        Span(start=0, end=2, label='PER')
    """

    start: int
    end: int
    label: str


class Relation(NamedTuple):
    """A labeled relation from one span of a sentence to another."""

    subject: Span
    object: Span
    label: str


class LabelSpan(NamedTuple):
    """A label that a model predicts: the number of its class, and its words (None: all)."""

    label: str
    number: int
    words: tuple[int, int] | None = None


class Answer(NamedTuple):
    """An answer to a question: its text, and the character of the context where it starts.

    ``start`` is None if the context has no such text, or several and the data do not say which.
    """

    start: int | None
    text: str


@record
class SenseTarget:
    """The words ``start`` to ``end - 1`` of a sentence, whose sense is to be found.

    ``lemma`` is in lower case with ``_`` for blanks, ``pos`` is NOUN, VERB, ADJ or ADV. Any of the
    gold ``senses`` is correct; there are none without gold. ``key`` is the id of the target.
    """

    start: int
    end: int
    lemma: str
    pos: str
    senses: tuple[str, ...] = ()
    key: str = ""
    document: str | None = None
    where: str = ""

    @property
    def inputs(self) -> str:
        """What tells the target from others: its id."""
        return self.key


@record
class TextExample:
    """One text, or a pair of texts, with its label.

    ``label`` is a name, a tuple of names (multi-label; empty if none applies), a number
    (regression), or None without gold. ``where`` is ``file:line`` for messages. ``id`` is the index
    of the example, ``key`` the id in the data, if it has one. ``negative`` is a text that ``pair``
    is contrasted with (``finetune sentence``). ``targets`` are the characters (start, end) of the
    word in each text of a pair, if words are compared. ``votes`` are the votes of several
    annotators for labels, by name, if they are known: ``label`` is then the label of the majority.
    """

    id: int
    text: str
    pair: str | None = None
    label: str | tuple[str, ...] | float | None = None
    where: str = ""
    key: str | int | None = None
    negative: str | None = None
    targets: tuple[tuple[int, int], tuple[int, int]] | None = None
    votes: tuple[tuple[str, float], ...] | None = None

    GOLD: ClassVar[tuple[str, ...]] = ("label",)
    """The fields that ``labels_of`` takes."""

    def line(self) -> str:
        """The text, or both texts of a pair, to show."""
        return self.text if self.pair is None else f"{self.text} ||| {self.pair}"

    def texts(self) -> list[str]:
        """The text, or both texts of a pair."""
        return [self.text] if self.pair is None else [self.text, self.pair]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The content without gold: all texts."""
        return tuple(self.texts())

    @staticmethod
    def labels_of(label: Any) -> list[str] | None:
        """The labels of an example with this label, or None without gold."""
        if label is None:
            return None
        return list(label) if isinstance(label, tuple) else [str(label)]

    def label_distribution(self) -> dict[str, float]:
        """Compute the share of each label in the votes: 1 for the label of a text without votes."""
        if self.votes is None:
            return {str(self.label): 1.0}
        total = math.fsum(number for _, number in self.votes)
        return {name: number / total for name, number in self.votes}

    CONTENT: ClassVar[tuple[str, ...]] = ("text", "pair", "label", "votes", "targets", "negative")
    """The fields that ``content_of`` takes."""

    @staticmethod
    def content_of(*values: Any) -> list[Any]:
        """List the content of an example for a fingerprint, from these values of ``CONTENT``."""
        text, pair, label, votes, targets, negative = values
        content = ["text", text, pair, label]
        if votes is not None:
            content.append(votes)
        if targets is not None:
            return [*content, negative, None, targets]
        return content if negative is None else [*content, negative]

    def to_dict(self) -> dict[str, Any]:
        """Convert the example with its gold to JSON values."""
        label = list(self.label) if isinstance(self.label, tuple) else self.label
        votes = None if self.votes is None else dict(self.votes)
        return _example_dict(self, label, text_pair=self.pair, votes=votes)


@record
class Question(TextExample):
    """The question ``text`` in the context ``pair``.

    ``answers`` are the gold answers: none if it cannot be answered there, None without gold.
    """

    answers: tuple[Answer, ...] | None = None

    GOLD: ClassVar[tuple[str, ...]] = ("answers",)

    @staticmethod
    def labels_of(answers: Any) -> list[str] | None:
        """``ANSWERABLE`` or ``UNANSWERABLE``, or None without gold."""
        return None if answers is None else [ANSWERABLE if answers else UNANSWERABLE]

    CONTENT: ClassVar[tuple[str, ...]] = ("text", "pair", "answers")

    @staticmethod
    def content_of(*values: Any) -> list[Any]:
        *texts, answers = values
        return ["text", *texts, None, *([] if answers is None else [answers])]

    def to_dict(self) -> dict[str, Any]:
        gold = None if self.answers is None else [answer._asdict() for answer in self.answers]
        return _example_dict(self, gold, text_pair=self.pair)


@record
class ChoiceQuestion(TextExample):
    """The question ``pair`` with its choices, after the context ``text``, which may be empty.

    ``label`` is the index of the right choice, since choices may have equal texts.
    """

    choices: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """The context, the question and the choices."""
        return [*TextExample.texts(self), *self.choices]

    CONTENT: ClassVar[tuple[str, ...]] = ("text", "pair", "label", "choices")

    @staticmethod
    def content_of(*values: Any) -> list[Any]:
        return ["text", *values]

    def to_dict(self) -> dict[str, Any]:
        choices = list(self.choices) or None
        return _example_dict(self, self.label, text_pair=self.pair, choices=choices)


@record
class TextBlock(TextExample):
    """A block of lines for ``finetune pretrain``.

    ``document`` is the number of their document. ``subwords`` are their subword ids, the first
    subword of each word, and the first word of each line, as the bytes of arrays of int32.
    """

    document: int = 0
    subwords: tuple[bytes, ...] = field(default=(b"",) * 3, compare=False, repr=False)

    CONTENT: ClassVar[tuple[str, ...]] = ("text", "document")

    @staticmethod
    def content_of(*values: Any) -> list[Any]:
        text, document = values
        return ["text", text, None, None, None, document]


@record
class TokenExample:
    """One sentence or text as words.

    ``tags`` has one tag for each word, in BIO if the tags of the data encode spans; ``spans`` may
    nest. With gold, at least one of the two is set. ``text`` and ``offsets`` (characters of each
    word in ``text``) are set for raw text. ``before`` and ``after`` are the words of the preceding
    and following sentences of the same ``document`` that may be read as context. ``misaligned``
    are gold spans, in characters, that begin or end inside a word. ``targets`` are the words whose
    sense is to be found. ``relations`` connect ``spans``, None without gold. ``id`` and ``key`` are
    as in ``TextExample``.
    """

    id: int
    words: tuple[str, ...]
    spans: tuple[Span, ...] | None = None
    tags: tuple[str, ...] | None = None
    document: str | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    where: str = ""
    before: tuple[tuple[str, ...], ...] = ()
    after: tuple[tuple[str, ...], ...] = ()
    misaligned: tuple[Span, ...] = ()
    key: str | int | None = None
    targets: tuple[SenseTarget, ...] = ()
    relations: tuple[Relation, ...] | None = None

    GOLD: ClassVar[tuple[str, ...]] = ("relations", "spans", "misaligned", "tags")
    """The fields that ``labels_of`` takes."""

    def line(self) -> str:
        """The text, or the words joined by blanks, to show."""
        return " ".join(self.words) if self.text is None else self.text

    def texts(self) -> list[str]:
        """The words joined by blanks."""
        return [" ".join(self.words)]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The content without gold: the words."""
        return self.words

    @staticmethod
    def labels_of(relations: Any, spans: Any, misaligned: Any, tags: Any) -> list[str] | None:
        """The labels of the relations, spans or words with these values of ``GOLD``."""
        if relations is not None:
            return [relation.label for relation in relations]
        if spans is not None:
            return [span.label for span in (*spans, *misaligned)]
        return None if tags is None else list(tags)

    CONTENT: ClassVar[tuple[str, ...]] = (
        *("words", "spans", "tags", "document", "text", "offsets"),
        *("relations", "misaligned", "targets"),
    )
    """The fields that ``content_of`` takes."""

    @staticmethod
    def content_of(*values: Any) -> list[Any]:
        """List the content of an example for a fingerprint, from these values of ``CONTENT``."""
        *content, relations, misaligned, targets = "token", *values
        if relations is not None:
            content.append(relations)
        if targets:
            targets = [(t.start, t.end, t.lemma, t.pos, t.senses) for t in targets]
            return [*content, misaligned, targets]
        return [*content, misaligned] if misaligned else content

    def to_dict(self) -> dict[str, Any]:
        """Convert the sentence with its gold to JSON values.

        ``gold`` is an object with ``tags`` or ``spans`` or both, and perhaps ``relations``.
        """
        spans = None if self.spans is None else [span._asdict() for span in self.spans]
        misaligned = self.misaligned or None  # in characters
        columns: dict[str, Any] = {"tags": self.tags, "spans": spans, "unreachable": misaligned}
        if self.relations is not None:
            columns["relations"] = relation_values(self.spans or (), self.relations)
        gold = {name: value for name, value in columns.items() if value is not None} or None
        return {"words": list(self.words)} | _example_dict(self, gold, document=self.document)


Example = TextExample | TokenExample
EXAMPLES = (TextExample, Question, ChoiceQuestion, TextBlock, TokenExample)
"""The shapes of examples."""


def _example_dict(example: Example, gold: Any, **shown: Any) -> dict[str, Any]:
    values = {"text": example.text, "where": example.where or None, **shown}
    return {name: value for name, value in values.items() if value is not None} | {"gold": gold}


class LabelSet(tuple[str, ...]):
    """The label names of a model, in the order of its classes.

    Examples:
        >>> LabelSet(["neg", "pos"]).id("pos")
        1
    """

    _ids: Mapping[str, int]

    def __new__(cls, names: Iterable[str]) -> Self:
        """The names must be different texts."""
        is_list = isinstance(names, Iterable) and not isinstance(names, str)
        self = super().__new__(cls, names if is_list else ())
        if not is_list or not all(isinstance(name, str) for name in self):
            raise UserError(
                f"labels must be a list of texts, such as ['a', 'b'], not {names!r:.60}"
            )
        self._ids = {name: i for i, name in enumerate(self)}
        if len(self._ids) != len(self):
            repeated = next(name for name in self if self.count(name) > 1)
            raise UserError(f"label {repeated!r} occurs twice in the label set")
        return self

    def id(self, name: str, where: str = "") -> int:
        """Look up the index of a label; ``where`` is its ``file:line`` for the error message."""
        if name in self._ids:
            return self._ids[name]
        raise UserError(
            f"{where}{': ' if where else ''}label {name!r} is not among the training labels "
            f"({abbreviated(self)}).{did_you_mean(name, self)}"
        )

    def ids(self, names: Iterable[str], other: int) -> list[int]:
        """Look up the index of each label, ``other`` for those that are not in the set."""
        find = self._ids.get
        return [find(name, other) for name in names]

    def __repr__(self) -> str:
        return f"LabelSet({super().__repr__()})"

    def __contains__(self, name: object) -> bool:
        return name in self._ids


@record
class TokenSequence:
    """One sequence for the model: a whole example, or one window of a long one.

    ``window`` distinguishes the sequences of an example: the number of a window of a text, a view
    or of a pair of spans, and for a window of words its ``first_word``. The core words of a
    sequence are those that it predicts, from ``first_word`` of the example on. Every word is a core
    word of exactly one window; the others are context. ``word_starts`` has the
    index of the first subword of each core word, then the end of the last one; it is empty for
    texts. ``target`` has the numbers of the task by name, or is None without gold.
    """

    example: int
    input_ids: list[int]
    token_type_ids: list[int] | None = None
    word_starts: list[int] = field(default_factory=list)
    window: int = 0
    target: Mapping[str, Sequence[float]] | None = None

    @property
    def first_word(self) -> int:
        """The position of the first core word in the example, for tasks of words."""
        return self.window

    @property
    def num_words(self) -> int:
        """The number of core words."""
        return max(0, len(self.word_starts) - 1)


TENSORS = (
    "input_ids",
    "position_ids",
    "token_type_ids",
    "cu_seqlens",
    "words",
    "word_lengths",
    "words_cu",
)
"""The tensors of a ``Batch``, except its targets."""


@record
class Batch:
    """A micro-batch: N sequences in one row of T tokens, without padding.

    Tensors: ``input_ids``, ``position_ids`` (from 0 in each sequence) and ``token_type_ids`` [T];
    ``cu_seqlens`` [N+1] int32, the boundaries of the sequences; ``words`` [W], the row of each
    word's first subword; ``word_lengths`` [W], its number of subwords; ``words_cu`` [N+1], the
    boundaries of the sequences' words. Python values, so that nothing waits for a device:
    ``lengths``, ``example``, ``window`` and ``num_words`` [N]; ``num_subwords``, the sum of
    ``word_lengths``, if known; ``seed``, which training gives torch's generators before the
    forward pass (None: they go on); ``task``, the name of its task among several on one encoder.
    ``targets`` is the task's own. A batch on a device has the batch on the CPU, where values can be
    read without waiting, as its ``host``.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    token_type_ids: torch.Tensor | None
    cu_seqlens: torch.Tensor
    words: torch.Tensor
    word_lengths: torch.Tensor
    words_cu: torch.Tensor
    lengths: tuple[int, ...]
    example: tuple[int, ...]
    window: tuple[int, ...]
    num_words: tuple[int, ...]
    targets: Mapping[str, torch.Tensor] = field(default_factory=dict)
    num_subwords: int | None = None
    seed: int | None = None
    task: str = ""
    host: Batch | None = field(default=None, repr=False)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens."""
        return max(self.lengths)

    def to(self, device: Any) -> Batch:
        """Move the tensors of the batch to a device."""
        return self.each(lambda value: value.to(device))

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Apply a function to each tensor of the batch."""
        changed: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else change(value)
            for name in TENSORS
        }
        changed["targets"] = {name: change(value) for name, value in self.targets.items()}
        return dataclasses.replace(self, **changed)


class WindowOutput(NamedTuple):
    """The value of one sequence of an example, as the task decodes it from logits."""

    window: int
    values: Any

    @property
    def first_word(self) -> int:
        """The position of the first core word in the example, for tasks of words."""
        return self.window


@record
class Prediction:
    """Base class of the predictions for an example.

    ``decided`` is what saved decisions add, such as the answers ``withheld`` by abstaining.
    """

    id: int
    decided: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Convert the prediction to JSON values, with probabilities of six digits."""
        return {"id": self.id, **self._values(), **self.decided}

    @property
    def value(self) -> Any:
        """The answer, as metrics compare it with gold: "" or -1 for none."""
        raise NotImplementedError

    @property
    def uncertainty(self) -> float | None:
        """How unsure the model is; None without a measure."""
        return None

    def _values(self) -> dict[str, Any]:
        raise NotImplementedError

    def _without(self, answers: Any, **changes: Any) -> Self:
        decided = {**self.decided, "withheld": answers}
        return dataclasses.replace(self, decided=decided, **changes)


@record
class TextPrediction(Prediction):
    """A label, several labels or a number, with the probabilities of it and of all labels.

    ``label`` is None for a blank text, which has no prediction, and all its probabilities are NaN.
    ``positive`` is the positive class of models with two labels, whose F1 is ``f1``. The
    probabilities of all labels without the fitted temperature, ``uncalibrated``, are not saved.
    ``separator`` divides the levels of labels such as ``sport/football``. ``similarity`` names the
    measure of a number that compares two texts, such as ``cosine``, on a scale of its own.
    """

    label: str | tuple[str, ...] | float | None
    score: float | None = None
    scores: Mapping[str, float] | None = field(default=None, hash=False)
    positive: str | None = None
    uncalibrated: Mapping[str, float] | None = field(default=None, compare=False, repr=False)
    separator: str | None = None
    similarity: str | None = None

    @property
    def value(self) -> Any:
        """The label; "" for a blank text, with which no gold label agrees."""
        return "" if self.label is None else self.label

    @property
    def uncertainty(self) -> float | None:
        """1 less the margin between the two best labels (Scheffer et al., 2001); of several labels
        the mean of 1 - |2p - 1|."""
        if not self.scores or self.label is None:
            return None
        if isinstance(self.label, tuple):
            values = [1 - abs(2 * p - 1) for p in self.scores.values()]
            return math.fsum(values) / len(values)
        return _one_less_margin(self.scores)

    def without_temperature(self) -> Self:
        """Give the prediction its ``uncalibrated`` probabilities."""
        scores: Any = self.uncalibrated
        score = None if self.score is None else scores[self.label]
        return dataclasses.replace(self, scores=scores, score=score)

    @property
    def class_probabilities(self) -> Mapping[Any, float]:
        """The probability of each class if one is right; empty if they are not known."""
        return {} if self.score is None or self.scores is None else self.scores

    def abstain(self, least: float) -> Self:
        """Leave out the labels whose probability is below ``least``: one label is then None."""
        label, known = self.label, self.scores or {}
        if isinstance(label, tuple):
            unsure = [name for name in label if known[name] < least]
            return self._without(unsure, label=tuple(name for name in label if name not in unsure))
        if isinstance(label, str) and (self.score or 0.0) < least:
            return self._without(label, label=None)
        return self._without(None)

    def _values(self) -> dict[str, Any]:
        label = list(self.label) if isinstance(self.label, tuple) else self.label
        values = {"label": label, **_known(score=self.score, scores=self.scores)}
        if self.scores is not None and any(map(math.isnan, self.scores.values())):
            values = {"label": label, "score": None, "scores": dict.fromkeys(self.scores)}
        return values | _known(
            positive_label=self.positive, label_separator=self.separator, similarity=self.similarity
        )


@record
class ChoicePrediction(Prediction):
    """The index of the most probable choice of a question, its text, and all probabilities.

    The probabilities without the fitted temperature, ``uncalibrated``, are not saved.
    ``only_score`` is the probability of the choice in files that have no others. Where the model
    abstains, the choice is None, and its text empty.
    """

    choice: int | None
    text: str
    scores: tuple[float, ...]
    uncalibrated: tuple[float, ...] | None = field(default=None, compare=False, repr=False)
    only_score: float | None = None

    @property
    def value(self) -> int:
        return -1 if self.choice is None else self.choice

    @property
    def score(self) -> float:
        """The probability of the choice, also if the model abstains; NaN where a file has none."""
        choice = self.decided.get("withheld") if self.choice is None else self.choice
        if self.scores and choice is not None:
            return self.scores[choice]
        return math.nan if self.only_score is None else self.only_score

    def without_temperature(self) -> Self:
        return dataclasses.replace(self, scores=self.uncalibrated or ())

    @property
    def class_probabilities(self) -> Mapping[Any, float]:
        """The probability of each choice by its index; empty if they are not known."""
        return dict(enumerate(self.scores))

    def abstain(self, least: float) -> Self:
        """Leave out the choice if its probability is below ``least``."""
        if self.choice is not None and self.score < least:
            return self._without(self.choice, choice=None, text="")
        return self._without(None)

    def _values(self) -> dict[str, Any]:
        scores = {"score": _json(self.score), "scores": _json(self.scores)}
        return {"choice": self.choice, "choice_text": self.text, **scores}


@record
class WordPrediction(Prediction):
    """Base class of predictions for words; ``offsets`` and ``text`` are set for raw text.

    ``misaligned`` are the spans of a file in characters that begin or end inside a word; they are
    not saved.
    """

    words: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...] | None = field(default=None, kw_only=True)
    text: str | None = field(default=None, kw_only=True)
    misaligned: tuple[Span, ...] = field(default=(), kw_only=True)

    def _spans(self, spans: Sequence[Span], scores: Sequence[float] = ()) -> list[dict[str, Any]]:
        values = [span._asdict() for span in spans]
        for span_values, score in zip(values, scores, strict=bool(scores)):
            span_values["score"] = round(score, 6)
        if self.offsets is not None and self.text is not None:
            for span, span_values in zip(spans, values, strict=True):
                start, end = self.offsets[span.start][0], self.offsets[span.end - 1][1]
                span_values |= {"start_char": start, "end_char": end, "text": self.text[start:end]}
        return values


@record
class TokenPrediction(WordPrediction):
    """A tag and its probability for every word.

    The tags encode ``spans`` (None without spans, as in POS). ``log_probabilities`` of all tags, a
    numpy array [W, C], are kept on request only. They and the probabilities without the fitted
    temperature, ``uncalibrated``, are not saved. Where the model abstains, a tag is None; the words
    of its spans have the tag O.
    """

    tags: tuple[str, ...]
    scores: tuple[float, ...]
    spans: tuple[Span, ...] | None = None
    span_scores: tuple[float, ...] = ()
    log_probabilities: Any = field(default=None, compare=False, repr=False)
    uncalibrated: tuple[float, ...] | None = field(default=None, compare=False, repr=False)

    @property
    def value(self) -> tuple[str, ...]:
        return self.tags

    @property
    def uncertainty(self) -> float | None:
        """1 less the mean probability of the tags, which does not prefer long sentences (MNLP; Shen
        et al. 2018)."""
        logs = [math.log(max(score, sys.float_info.min)) for score in self.scores]
        return 1 - math.exp(math.fsum(logs) / len(logs)) if logs else 0.0

    def without_temperature(self) -> Self:
        return dataclasses.replace(self, scores=self.uncalibrated or ())

    def abstain(self, least: float) -> Self:
        """Leave out the spans, or plain tags, whose probability is below ``least``."""
        nothing: Any = None
        spans, scores, changes = self.spans, self.span_scores, dict[str, Any]()
        if spans is None:
            spans = tuple(Span(n, n + 1, tag) for n, tag in enumerate(self.tags))
            sure, unsure = _divided(spans, self.scores, least)
        else:
            nothing = "O"
            sure, unsure = _divided(spans, scores, least)
            changes = {"spans": sure[0], "span_scores": sure[1]}
        words = {word for span in unsure[0] for word in range(span.start, span.end)}
        tags = tuple(nothing if word in words else tag for word, tag in enumerate(self.tags))
        return self._without(self._spans(*unsure), tags=tags, **changes)

    def _values(self) -> dict[str, Any]:
        spans = None if self.spans is None else self._spans(self.spans, self.span_scores)
        tags = {"tags": list(self.tags), "scores": _json(self.scores)}
        return {"words": list(self.words), **tags, **_known(offsets=self.offsets, spans=spans)}


@record
class SpanPrediction(WordPrediction):
    """Labeled spans of words, which may nest, with probabilities.

    ``candidates`` are all scored spans before thresholds and decoding, which are not saved. A score
    that a file does not have is NaN.
    """

    spans: tuple[Span, ...]
    scores: tuple[float, ...]
    candidates: tuple[tuple[Span, float], ...] = ()

    @property
    def value(self) -> tuple[Span, ...]:
        return self.spans

    @property
    def uncertainty(self) -> float | None:
        """The entropy in bits of each candidate, span or not, summed, for each word."""
        p = [min(max(score, 1e-12), 1 - 1e-12) for _, score in self.candidates]
        entropy = math.fsum(-x * math.log2(x) - (1 - x) * math.log2(1 - x) for x in p)
        return entropy / max(len(self.words), 1)

    def abstain(self, least: float) -> Self:
        """Leave out the spans whose probability is below ``least``."""
        (spans, scores), unsure = _divided(self.spans, self.scores, least)
        return self._without(self._spans(*unsure), spans=spans, scores=scores)

    def _values(self) -> dict[str, Any]:
        spans = self._spans(self.spans, self.scores)
        return {"words": list(self.words), **_known(offsets=self.offsets, spans=spans)}


@record
class RelationPrediction(WordPrediction):
    """Labeled relations between given spans of words, with probabilities.

    A score that a file does not have is NaN. In JSON, relations name their spans by index.
    """

    spans: tuple[Span, ...]
    relations: tuple[Relation, ...]
    scores: tuple[float, ...]

    @property
    def value(self) -> tuple[Relation, ...]:
        return self.relations

    def abstain(self, least: float) -> Self:
        """Leave out the relations whose probability is below ``least``."""
        (relations, scores), unsure = _divided(self.relations, self.scores, least)
        abstained = relation_values(self.spans, *unsure)
        return self._without(abstained, relations=relations, scores=scores)

    def _values(self) -> dict[str, Any]:
        relations = relation_values(self.spans, self.relations, self.scores)
        known = _known(offsets=self.offsets, spans=self._spans(self.spans), relations=relations)
        return {"words": list(self.words), **known}


class FoundAnswer(NamedTuple):
    """The characters ``start`` to ``end - 1`` of a context as an answer, with its probability."""

    start: int
    end: int
    text: str
    score: float


@record
class AnswerPrediction(Prediction):
    """The answer to a question: characters of its context, or none.

    ``best`` are the most probable answers, the best first, whether or not one is predicted.
    ``score`` is the probability of the prediction, and ``no_answer_score`` of no answer; None for
    models that always answer. An answer that is None was not found: the context has no words. In
    predictions of a file, positions and ``best`` may be None, and scores NaN.
    """

    answer: FoundAnswer | None
    score: float
    no_answer_score: float | None = None
    best: tuple[FoundAnswer, ...] = ()

    @property
    def value(self) -> str:
        return "" if self.answer is None else self.answer.text

    def abstain(self, least: float) -> Self:
        """Leave out the prediction, an answer or none, if its probability is below ``least``."""
        if self.score < least:
            return self._without("" if self.answer is None else self.answer.text, answer=None)
        return self._without(None)

    def _values(self) -> dict[str, Any]:
        start, end, text, _ = self.answer or (None, None, "", None)
        has_abstained = self.decided.get("withheld") is not None
        values = {"answer": None if has_abstained else text, "start": start, "end": end}
        scores = _known(score=self.score, no_answer_score=self.no_answer_score)
        return values | scores | {"best": [_json(answer._asdict()) for answer in self.best]}


@record
class SentencePrediction(Prediction):
    """The vectors of a text, or of both texts of a pair, and the result of comparing the pair.

    ``vectors`` is a numpy array float32 [1, H] or [2, H]. ``label`` of a pair is its cosine or,
    with a classifier, its most probable label, with the probabilities of it and of all labels. In
    JSON, a text has its vector and a pair its label.
    """

    vectors: Any = field(compare=False, repr=False)
    label: str | float | None = None
    score: float | None = None
    scores: Mapping[str, float] | None = field(default=None, hash=False)

    @property
    def value(self) -> Any:
        return self.label

    @property
    def uncertainty(self) -> float | None:
        """1 less the margin between the two best labels."""
        return _one_less_margin(self.scores) if self.scores else None

    @property
    def similarity(self) -> str | None:
        """The measure of a number that compares the texts of a pair."""
        return "cosine" if isinstance(self.label, float) else None

    def _values(self) -> dict[str, Any]:
        if self.label is None:
            return {"vector": self.vectors[0].astype(float).round(6).tolist()}
        values = {"label": self.label, "score": self.score, "scores": self.scores}
        return _known(**values, similarity=self.similarity)


@record
class MaskedPrediction(Prediction):
    """The most probable subwords at the chosen positions of a sequence.

    ``subwords`` has the best subword of each position, or with ``scores`` several with their
    probabilities, the best first. In evaluation, ``gold`` are the subwords of the text, ``losses``
    their -log P, and ``boundary_losses`` those of the span boundary objective, if used. ``follows``
    is true if the second text of a pair follows the first, ``follows_score`` its predicted
    probability.
    """

    subwords: tuple[Any, ...]
    scores: tuple[tuple[float, ...], ...] | None = None
    text: str | None = None
    gold: tuple[str, ...] | None = None
    losses: tuple[float, ...] = ()
    boundary_losses: tuple[float, ...] | None = None
    follows: bool | None = None
    follows_score: float | None = None

    @property
    def value(self) -> tuple[Any, ...]:
        return self.subwords

    def to_dict(self) -> dict[str, Any]:
        """Convert the prediction to JSON values: all masks of a text, or what evaluation needs."""
        if self.scores is not None:
            masks = [
                [
                    {"subword": name, "score": round(score, 6)}
                    for name, score in zip(*best, strict=True)
                ]
                for best in zip(self.subwords, self.scores, strict=True)
            ]
            return {"id": self.id, "text": self.text, "masks": masks}
        names = ("subwords", "losses", "boundary_losses")
        values = _known(**{name: getattr(self, name) for name in names})
        if self.follows_score is not None:
            values |= {"follows": self.follows, "follows_score": round(self.follows_score, 6)}
        return {"id": self.id, **values}


def _one_less_margin(scores: Mapping[str, float]) -> float:
    best, *others = sorted(scores.values(), reverse=True)
    return 1 - (best - others[0]) if others else 0.0


def _divided(
    answers: Sequence[Any], scores: Sequence[float], least: float
) -> list[tuple[tuple[Any, ...], tuple[float, ...]]]:
    scored = list(zip(answers, scores, strict=True))
    parts = ([pair for pair in scored if (pair[1] < least) == unsure] for unsure in (False, True))
    return [(tuple(a for a, _ in part), tuple(s for _, s in part)) for part in parts]


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {name: _json(item) for name, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def _known(**values: Any) -> dict[str, Any]:
    return {name: _json(value) for name, value in values.items() if value is not None}


def relation_values(
    spans: Sequence[Span], relations: Sequence[Relation], scores: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Convert relations to JSON values: the indices of their spans, label and perhaps score."""
    index = {span: number for number, span in enumerate(spans)}
    return [
        {"subject": index[subject], "object": index[object], "label": label}
        | ({"score": round(scores[number], 6)} if scores else {})
        for number, (subject, object, label) in enumerate(relations)
    ]


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Suggest `` Perhaps you meant 'x'?`` for the nearest legal name, or nothing."""
    lowered = {item.lower(): item for item in legal}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    nearest = lowered[near[0]] if near else name
    return "" if nearest == name else f" Perhaps you meant {nearest!r}?"


def quantity(number: int, one: str, many: str = "") -> str:
    """Format a number and words that agree with it; ``many`` is ``one`` with an s if left out.

    >>> quantity(1, "row"), quantity(2000, "row has", "rows have")
    ('1 row', '2,000 rows have')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def noun_of(example: Any) -> str:
    """Name what is cut of an example that is too long: a ``word``, a ``pair`` or a ``text``."""
    if isinstance(example, TokenExample):
        return "word"
    return "pair" if type(example) is TextExample and example.pair is not None else "text"


def abbreviated(names: Iterable[str], most: int = 12) -> str:
    """Join names by commas; after ``most`` of them, their number."""
    names = list(names)
    rest = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
