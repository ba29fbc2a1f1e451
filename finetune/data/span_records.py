"""Spans as JSON writes them, in words or characters, whole or in fragments -> spans of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from finetune.data.dataset import DataError
from finetune.data.word_splitting import char_spans_to_words
from finetune.types import Span

_LABELS = ("label", "type", "entity", "tag", "labels")
_FRAGMENTS = ("fragments", "offsets")
_CHARACTERS = (("start_char", "end_char"), ("start", "end"), ("start_offset", "end_offset"))
_TOKENS = ("token_start", "token_end")
_FORM = '{"start": 0, "end": 2, "label": "PER"} or [0, 2, "PER"], end exclusive'

Fragments = Sequence[tuple[int, int]]


class SpanRow(NamedTuple):
    """The spans of a row in words, and how many of them were widened or discontinuous."""

    spans: tuple[Span, ...]
    num_widened: int
    num_enveloped: int


def read_spans(
    value: Any,
    where: str,
    num_words: int,
    text: str | None = None,
    offsets: Sequence[tuple[int, int]] | None = None,
) -> SpanRow:
    """The spans in a list of JSON values, sorted, each once.

    Positions count characters where the row has a ``text`` (``offsets`` are those of its words),
    else words. A span is ``[start, end, label]`` or an object with ``label`` or ``type`` (a list
    gives several spans) and ``start`` and ``end``, or ``start_char``/``end_char``,
    ``start_offset``/``end_offset``, ``token_start``/``token_end`` (words, the last included), or
    ``offsets``/``fragments``, a list of pairs that is enveloped. Raises DataError for others, and
    for a span in characters whose own ``text`` is not what stands there.
    """
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{where}: {value!r:.60} must be a list of spans: write "
            '[{"start": 0, "end": 2, "label": "PER"}, …].'
        )
    spans, num_enveloped = [], 0
    for item in value:
        fragments = _fragments(item, where, text is not None, offsets or ())
        labels = _labels(item, where)
        for start, end in fragments:
            _check_range(start, end, labels[0], where, num_words if text is None else len(text),
                         "words" if text is None else "characters")  # fmt: skip
        if text is not None and len(fragments) == 1:
            _check_said(item, text, *fragments[0], where)
        start, end, gaps = envelope(fragments, text)
        num_enveloped += gaps
        spans += [Span(start, end, label) for label in labels]
    num_widened = 0
    if text is not None:
        try:
            spans, num_widened = char_spans_to_words(offsets or (), spans)
        except ValueError as error:
            raise DataError(f"{where}: {error}: correct or remove this span.") from error
    return SpanRow(tuple(dict.fromkeys(sorted(spans))), num_widened, num_enveloped)


def envelope(fragments: Fragments, text: str | None = None) -> tuple[int, int, bool]:
    """First start and last end of a span in fragments, and whether more than blanks is between.

    In words (no ``text``) any gap counts.
    """
    ordered = sorted(fragments)
    gaps = any(
        left[1] < right[0] and (text is None or bool(text[left[1] : right[0]].strip()))
        for left, right in pairwise(ordered)
    )
    return ordered[0][0], max(end for _, end in ordered), gaps


def _fragments(
    item: Any, where: str, in_characters: bool, offsets: Sequence[tuple[int, int]]
) -> Fragments:
    """Start and end of each fragment of a span (one, mostly), in the row's own unit."""
    if isinstance(item, list | tuple):
        pairs = [tuple(item[:2])] if len(item) == 3 else []
    elif isinstance(item, Mapping):
        pairs = list(_pairs_of(item, where, in_characters, offsets))
    else:
        pairs = []
    if not pairs or not all(len(pair) == 2 and all(map(_is_whole, pair)) for pair in pairs):
        raise DataError(f"{where}: {item!r:.80} is no span: write {_FORM}.")
    return pairs


def _pairs_of(
    item: Mapping[str, Any], where: str, in_characters: bool, offsets: Sequence[tuple[int, int]]
) -> Iterator[tuple[Any, ...]]:
    listed = next((item[key] for key in _FRAGMENTS if isinstance(item.get(key), list)), None)
    if listed is not None:
        pairs = [listed] if len(listed) == 2 and all(map(_is_whole, listed)) else listed
        yield from (tuple(pair) if isinstance(pair, list | tuple) else () for pair in pairs)
        return
    keys = _CHARACTERS if in_characters else (("start", "end"),)
    found = next((pair for pair in keys if item.get(pair[0]) is not None), None)
    if found is None and all(_is_whole(item.get(key)) for key in _TOKENS):
        yield _of_tokens(item, where, in_characters, offsets)
        return
    start, end = found or ("start", "end")
    yield _whole(item, start, where), _whole(item, end, where)


def _of_tokens(
    item: Mapping[str, Any], where: str, in_characters: bool, offsets: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The place of a span given by its first and last token."""
    first, last = (item[key] for key in _TOKENS)
    if not in_characters:
        return first, last + 1
    _check_range(first, last + 1, str(item.get("label")), where, len(offsets), "tokens")
    return offsets[first][0], offsets[last][1]


def _labels(item: Any, where: str) -> list[str]:
    label = item[2] if isinstance(item, list | tuple) else None
    if isinstance(item, Mapping):
        label = next((item[key] for key in _LABELS if item.get(key) is not None), None)
    labels = label if isinstance(label, list) else [label]
    if not labels or not all(isinstance(name, str) and name for name in labels):
        raise DataError(f"{where}: {item!r:.80} is no span: write {_FORM}.")
    return labels


def _check_range(start: int, end: int, label: str, where: str, limit: int, unit: str) -> None:
    if not 0 <= start < end <= limit:
        raise DataError(
            f"{where}: span {start} to {end} ({label}) is empty or outside the {limit} {unit} of "
            f"the row: 0 <= start < end <= {limit}, end exclusive."
        )


def _check_said(item: Any, text: str, start: int, end: int, where: str) -> None:
    """Refuse a span whose own ``text`` is not that at its place; blanks and case may differ."""
    said = item.get("text") if isinstance(item, Mapping) else None
    if isinstance(said, str) and _bare(said) not in ("", _bare(text[start:end])):
        raise DataError(
            f"{where}: a span says {said!r:.60}, but characters {start} to {end} of the text are "
            f"{text[start:end]!r:.60}: count characters, not bytes, from 0 and end exclusive."
        )


def _bare(text: str) -> str:
    return "".join(text.split()).casefold()


def _whole(item: Mapping[str, Any], key: str, where: str) -> int:
    value = item.get(key)
    if _is_whole(value):
        return value  # type: ignore[return-value]
    raise DataError(f"{where}: {key!r} must be a whole number in {dict(item)!r:.80}.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
