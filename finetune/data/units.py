"""What one row, sentence or document holds before tag schemes are looked at."""

from __future__ import annotations

from typing import NamedTuple

from finetune.types import Span


class Unit(NamedTuple):
    """The words of one row, sentence or document with what gold there is.

    ``layers`` holds tag sequences as the data have them: none, one, or several for nested
    annotation. The rest is what notes tell: ``num_widened`` counts character spans that grew to
    whole words, ``enveloped`` has the place of each discontinuous span, ``num_unread`` counts
    standoff lines that annotate no text, ``left_out`` is the answer of a row that an annotator
    rejected or ignored, ``unannotated`` marks a document without an .ann file.
    """

    words: tuple[str, ...]
    where: str
    layers: tuple[tuple[str, ...], ...] = ()
    spans: tuple[Span, ...] | None = None
    document: str | None = None
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    num_widened: int = 0
    enveloped: tuple[str, ...] = ()
    num_unread: int = 0
    left_out: str = ""
    unannotated: bool = False

    @property
    def has_gold(self) -> bool:
        """Whether there are tags or spans, be it none."""
        return bool(self.layers) or self.spans is not None
