"""What the data doctor says of spans: how wide they are, and how they nest and cross."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from finetune.data.dataset import Dataset
from finetune.data.findings import Finding, first_places
from finetune.data.spans import crossing_pairs, inner_spans, shared_extents
from finetune.data.widths import PER_MILLE, proposed_width, width_recall
from finetune.types import Span, TokenExample

Rows = Sequence[tuple[str, Sequence[Span]]]
"""The place and the spans of each example that has gold."""


def check_spans(dataset: Dataset) -> Iterator[Finding]:
    """Widths, and what of nesting needs a setting of its own; nothing where there are no spans."""
    rows = {
        split: [(row.where, row.spans) for row in examples
                if isinstance(row, TokenExample) and row.spans is not None]
        for split, examples in dataset.splits.items()
    }  # fmt: skip
    yield from _width_checks(rows)
    for split, examples in rows.items():
        yield from _nesting(split, examples, rows.get("train", ()))
        yield from _several_labels(split, examples)
        yield from _crossing(split, examples)


def _widths(rows: Rows) -> list[int]:
    return [span.end - span.start for _, spans in rows for span in spans]


def _width_checks(rows: dict[str, Rows]) -> Iterator[Finding]:
    train = _widths(rows.get("train", ()))
    if not train:
        return
    limit, widest = proposed_width(train), max(train)
    held = sum(width <= limit for width in train) / len(train)
    message = f"train: spans are up to {_words(widest)} wide; --max-width {limit} holds "
    message += "all of them" if limit == widest else f"{_percent(held)} of them"
    yield Finding("info", "widths", message, lines=_table(train) if widest > 1 else ())
    for split, examples in rows.items():
        widths = _widths(examples)
        wider = sum(width > limit for width in widths)
        if split != "train" and wider:
            message = f"{split}: {_share(wider, len(widths))} are wider than {_words(limit)}"
            yield Finding("info", "widths", f"{message} and out of reach of that limit")


def _table(widths: Sequence[int]) -> tuple[str, ...]:
    """Limits on the width, what they hold and what not, in columns."""
    rows = [f"{limit:>9}  {_percent(share):>7}  {wider:>9,}"
            for limit, share, wider in width_recall(widths)]  # fmt: skip
    return ("max width    holds      wider", *rows)


def _nesting(split: str, rows: Rows, train: Rows) -> Iterator[Finding]:
    inner = sum(len(inner_spans(spans)) for _, spans in rows)
    if not inner:
        return
    message = f"{split}: {_share(inner, len(_widths(rows)))} lie within a wider one"
    unseen = train and not any(inner_spans(spans) for _, spans in train)
    if unseen:
        message += ", and none in train does: no model learns it there"
    elif same := sum(map(_num_within_their_type, (spans for _, spans in rows))):
        message += f", {same:,} of them within one of the same type"
        unseen = train and not any(_num_within_their_type(spans) for _, spans in train)
        message += ", as none in train does: no model learns it there" if unseen else ""
    yield Finding("warning" if unseen else "info", "nesting", message)


def _num_within_their_type(spans: Sequence[Span]) -> int:
    repeated = [name for name, number in Counter(s.label for s in spans).items() if number > 1]
    return sum(len(inner_spans(s for s in spans if s.label == name)) for name in repeated)


def _several_labels(split: str, rows: Rows) -> Iterator[Finding]:
    """Extents with more than one label, of which a model without --multi-label knows one."""
    places, lost = [], 0
    for where, spans in rows:
        for same in shared_extents(spans):
            names = ", ".join(span.label for span in same)
            places.append(f"{where}, words {same[0].start} to {same[0].end} ({names})")
            lost += len(same) - 1
    if places:
        message = (
            f"{split}: {len(places):,} spans have several labels: --multi-label keeps them all"
        )
        level = _level(split, lost, len(_widths(rows)))
        yield Finding(level, "labels", message, first_places(places))


def _crossing(split: str, rows: Rows) -> Iterator[Finding]:
    """Pairs of spans that share words though none is within the other."""
    places = [
        f"{where}, words {a.start} to {a.end} ({a.label}) and {b.start} to {b.end} ({b.label})"
        for where, spans in rows
        for a, b in crossing_pairs(spans)
    ]
    if places:
        message = (
            f"{split}: {len(places):,} pairs of spans cross: --decoding overlapping keeps both"
        )
        level = _level(split, len(places), len(_widths(rows)))
        yield Finding(level, "nesting", message, first_places(places))


def _level(split: str, lost: int, total: int) -> Literal["warning", "info"]:
    """A loss in train that a limit on the width would not be allowed is worth a warning."""
    return "warning" if split == "train" and lost * 1000 > total * (1000 - PER_MILLE) else "info"


def _share(part: int, total: int) -> str:
    return f"{part:,} of {total:,} spans ({100 * part / total:.1f}%)"


def _percent(share: float) -> str:
    """With two digits, rounded down: 100 % is all."""
    return f"{math.floor(share * 10_000) / 100:.2f}%"


def _words(number: int) -> str:
    return f"{number:,} word" + ("s" if number != 1 else "")
