"""The values that flow through the toolkit, and the legend of every shape.

Legend: ``T`` tokens, ``N`` sequences, ``W`` words, ``S`` spans, ``H`` width, ``C`` classes,
``L`` layers. Positions are 0-based and half-open, in words where people see them. Everything here
is plain data: standard library only, frozen, no behaviour beyond looking things up.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Target of a position that carries no loss (the convention of torch's cross entropy)."""


class UserError(ValueError):
    """An error of use: its text says what is wrong, the value, what is legal and what to do.

    The command line prints it as one line. Every other exception is a bug and shows its traceback.
    """


class Span(NamedTuple):
    """A labelled stretch of words ``start .. end-1``."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text, or a pair of texts, with its label.

    ``label`` is a name, a tuple of names (multi-label; empty = none applies), a number
    (regression), or None where the data has no label. ``where`` is ``file:line`` for messages.
    """

    id: int
    text: str
    pair: str | None = None
    label: str | tuple[str, ...] | float | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class TokenExample:
    """One sentence or text as words.

    ``tags`` has one tag for each word, in BIO where the data's tags spell out spans; ``spans`` are
    labelled word spans, possibly nested. At least one of the two is set where there is gold.
    ``text`` and ``offsets`` (characters of each word in ``text``) are set for raw text.
    ``document`` names the document that the sentence belongs to; ``before`` and ``after`` are the
    words of the sentences around it there that may be read with it, the nearest last and first.
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


Example = TextExample | TokenExample


class LabelSet:
    """The label names of a model, in the order of its classes.

    >>> LabelSet(["neg", "pos"]).id("pos")
    1
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._ids = {name: index for index, name in enumerate(self.names)}
        if len(self._ids) != len(self.names):
            repeated = next(n for n in self.names if self.names.count(n) > 1)
            raise UserError(f"label {repeated!r} occurs twice in the label set")

    def id(self, name: str, where: str = "") -> int:
        """Index of a label; raises ValueError that names the legal labels and the nearest one."""
        if name in self._ids:
            return self._ids[name]
        raise UserError(
            f"{where + ': ' if where else ''}label {name!r} is not among the training labels "
            f"({abbreviated(self.names)}).{did_you_mean(name, self.names)}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index: int) -> str:
        return self.names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSet) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"LabelSet({list(self.names)!r})"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One sequence for the model: a whole example, or one window of a long one.

    ``word_starts`` has one entry more than the words this sequence answers for: the index of each
    word's first subword, then the end of the last word. These words are ``first_word``,
    ``first_word + 1``, … of the example, and every word of an example is answered for by exactly
    one of its windows; words around them are context. Text examples have no words. ``target`` is
    the task's own: numbers by name, the same names in all sequences; None without gold.
    """

    example: int
    input_ids: list[int]
    segment_ids: list[int] | None = None
    word_starts: list[int] = field(default_factory=list)
    first_word: int = 0
    target: Mapping[str, Sequence[float]] | None = None

    @property
    def num_words(self) -> int:
        """How many words this sequence answers for."""
        return max(0, len(self.word_starts) - 1)


TENSORS = ("input_ids", "position_ids", "segment_ids", "cu_seqlens", "words", "word_lengths",
           "words_cu")  # fmt: skip
"""The tensors of a ``Batch``, but for its targets."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: N sequences laid end to end in one row of T tokens, without padding.

    Tensors: ``input_ids``, ``position_ids`` (from 0 in each sequence) and ``segment_ids`` [T];
    ``cu_seqlens`` [N+1] int32, the boundaries of the sequences; ``words`` [W], the row of each
    word's first subword; ``word_lengths`` [W], its number of subwords; ``words_cu`` [N+1], the
    boundaries of the sequences' words. Python values, so that nothing waits for a device:
    ``lengths`` [N], ``example`` [N], ``first_word`` [N], ``num_words`` [N]. ``targets`` is the
    task's own. ``num_subwords`` is the sum of ``word_lengths``, where it was taken before they went
    to a device.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    segment_ids: torch.Tensor | None
    cu_seqlens: torch.Tensor
    words: torch.Tensor
    word_lengths: torch.Tensor
    words_cu: torch.Tensor
    lengths: tuple[int, ...]
    example: tuple[int, ...]
    first_word: tuple[int, ...]
    num_words: tuple[int, ...]
    targets: Mapping[str, torch.Tensor] = field(default_factory=dict)
    num_subwords: int | None = None

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence, in tokens."""
        return max(self.lengths)

    def to(self, device: Any) -> Batch:
        """The same batch with its tensors on a device (``runtime.transfer`` waits for no copy)."""
        return self.each(lambda value: value.to(device))

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """The same batch with a function applied to each of its tensors."""
        changed: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else change(value)
            for name in TENSORS
        }
        changed["targets"] = {name: change(value) for name, value in self.targets.items()}
        return dataclasses.replace(self, **changed)


class Partial(NamedTuple):
    """What one sequence says about its example: ``values`` is the task's own (a numpy array)."""

    example: int
    first_word: int
    values: Any


@dataclass(frozen=True, slots=True)
class TextPrediction:
    """The prediction for one text: a label, several, or a number, with probabilities.

    ``score`` is the probability of the label, ``scores`` those of all labels.
    """

    id: int
    label: str | tuple[str, ...] | float
    score: float | None = None
    scores: Mapping[str, float] | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON form: ``id``, ``label``, and ``score`` and ``scores`` where known."""
        record: dict[str, Any] = {"id": self.id, "label": self.label}
        if isinstance(self.label, tuple):
            record["label"] = list(self.label)
        if self.score is not None:
            record["score"] = round(self.score, 6)
        if self.scores is not None:
            record["scores"] = {name: round(value, 6) for name, value in self.scores.items()}
        return record


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """The prediction for one text in words: a tag and its probability for every word.

    ``spans`` are the labelled stretches the tags spell out (None where tags are no spans, as in
    POS); ``offsets`` and ``text`` are set where the input was raw text. ``log_probabilities``
    of all tags [W, C] (a numpy array) are kept on request only; they are not part of the record.
    """

    id: int
    words: tuple[str, ...]
    tags: tuple[str, ...]
    scores: tuple[float, ...]
    spans: tuple[Span, ...] | None = None
    span_scores: tuple[float, ...] = ()
    offsets: tuple[tuple[int, int], ...] | None = None
    text: str | None = None
    log_probabilities: Any = field(default=None, compare=False, repr=False)

    def record(self) -> dict[str, Any]:
        """Return the JSON form: ``id``, ``words``, ``tags``, ``scores``, and spans and offsets."""
        record: dict[str, Any] = {
            "id": self.id,
            "words": list(self.words),
            "tags": list(self.tags),
            "scores": [round(score, 6) for score in self.scores],
        }
        if self.offsets is not None:
            record["offsets"] = [list(offset) for offset in self.offsets]
        if self.spans is not None:
            record["spans"] = span_records(self.spans, self.span_scores, self.text, self.offsets)
        return record


@dataclass(frozen=True, slots=True)
class SpanPrediction:
    """The prediction for one text in words: labeled spans, which may nest, with probabilities.

    ``candidates`` are all scored spans before thresholds and decoding; they are not part of the
    record.
    """

    id: int
    words: tuple[str, ...]
    spans: tuple[Span, ...]
    scores: tuple[float, ...]
    offsets: tuple[tuple[int, int], ...] | None = None
    text: str | None = None
    candidates: tuple[tuple[Span, float], ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the JSON form: ``id``, ``words``, ``spans``, and ``offsets`` if known."""
        record: dict[str, Any] = {"id": self.id, "words": list(self.words)}
        if self.offsets is not None:
            record["offsets"] = [list(offset) for offset in self.offsets]
        record["spans"] = span_records(self.spans, self.scores, self.text, self.offsets)
        return record


Prediction = TextPrediction | TokenPrediction | SpanPrediction


def span_records(
    spans: Sequence[Span],
    scores: Sequence[float],
    text: str | None,
    offsets: Sequence[tuple[int, int]] | None,
) -> list[dict[str, Any]]:
    """Return spans as JSON values: words, label and score; with a text also characters."""
    records = []
    for span, score in zip(spans, scores, strict=True):
        record: dict[str, Any] = {
            "start": span.start,
            "end": span.end,
            "label": span.label,
            "score": round(score, 6),
        }
        if offsets is not None and text is not None:
            start, end = offsets[span.start][0], offsets[span.end - 1][1]
            record |= {"start_char": start, "end_char": end, "text": text[start:end]}
        records.append(record)
    return records


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """`` Perhaps you meant 'x'?`` for the legal name nearest to a wrong one, or nothing."""
    legal = list(legal)
    lowered = {item.lower(): item for item in legal}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" Perhaps you meant {lowered[near[0]]!r}?" if near else ""


def abbreviated(names: Iterable[str], most: int = 12) -> str:
    """Names joined by commas, cut after ``most`` with a count of the rest."""
    names = list(names)
    rest = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
